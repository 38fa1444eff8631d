"""The command ``logitport``, in this process."""

import shlex
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

from logitport.adapters.cli.app import app
from typer.testing import CliRunner


def run(*arguments: str | Path, text: str | bytes | None = None, **variables: str) -> Any:
    """Run the command, with a text on standard input, and return its status and output."""
    return CliRunner().invoke(app, [*map(str, arguments)], input=text, env=variables)


def printed(command: str, text: str) -> Iterator[str]:
    """Run a line of a transcript: ``NAME=VALUE logitport ...``, or ``cat >FILE``.

    ``!`` marks standard error, and brackets a status that is not 0.
    """
    words = shlex.split(command)
    if words[0] == "cat":
        Path(words[1].removeprefix(">")).write_text(text, encoding="utf-8")
        return
    variables = dict(word.split("=", 1) for word in takewhile("logitport".__ne__, words))
    done = run(*words[len(variables) + 1 :], text=text, **variables)
    yield from done.stdout.splitlines()
    yield from (f"! {line}" for line in done.stderr.splitlines())
    if done.exit_code:
        yield f"[{int(done.exit_code)}]"
