"""``logitport serve``: an engine's own server, with the options that logitport needs."""

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from ..backend import backend
from ..policy import policy_of
from .failures import failing_plainly
from .printing import say


@failing_plainly
def serve(
    engine: Annotated[str, typer.Argument(help="An engine with a server, such as vllm.")],
    model: Annotated[str, typer.Argument(help="The model, as the engine's server takes it.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Further arguments of the engine's server.")
    ] = None,
    only_print: Annotated[
        bool, typer.Option("--print", help="Print the command line, and do not run it.")
    ] = False,
) -> None:
    """Become an engine's own server, with the options that logitport needs."""
    if (make := backend(engine).serve) is None:
        raise ValueError(
            f"{engine} has no server that takes specs. Use `logitport.adapters.{engine}` in your "
            "own process, as docs/engines.md describes"
        )
    if model.startswith("-"):
        raise ValueError(f"Expected the model before the engine's arguments, got {model!r}")
    _check_arguments(arguments or (), make(model, ()))
    command = make(model, arguments or ())
    if only_print:
        typer.echo(shlex.join(command))
        return
    _check_configuration()
    # The engine beside logitport comes first, even if its environment is not activated.
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
    if (program := shutil.which(command[0], path=path)) is None:
        raise ValueError(f"There is no command {command[0]!r}: is {engine} installed?")
    # Python finds its environment by the name with which it is called.
    os.execv(program, [program, *command[1:]])


def _check_configuration() -> None:
    """Refuse a configuration that would end the server, which takes a minute to find it."""
    try:
        policy_of(None)
    except ValueError as error:
        for line in str(error).splitlines():
            say(line, err=True)
        raise typer.Exit(2) from None


def _check_arguments(arguments: Sequence[str], command: Sequence[str]) -> None:
    """Refuse options that the command sets. Engines take an abbreviation, and ``_`` for ``-``."""
    for argument in arguments:
        name = argument.partition("=")[0].replace("_", "-")
        for option in command:
            if len(name) > 2 and name.startswith("--") and option.startswith(name):
                raise ValueError(
                    f"`serve` sets {option} itself. To set it otherwise, change and run what "
                    "`serve --print` prints"
                )
