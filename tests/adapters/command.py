"""The command ``logitport``, in this process."""

from pathlib import Path
from typing import Any

from logitport.adapters.cli.app import app
from typer.testing import CliRunner


def run(*arguments: str | Path, text: str | bytes | None = None, **variables: str) -> Any:
    """Run the command, with a text on standard input, and return its status and output."""
    return CliRunner().invoke(app, [*map(str, arguments)], input=text, env=variables)
