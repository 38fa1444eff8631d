"""Lines of output. Names from files, clients and servers cannot steer the terminal."""

import sys
from typing import Any

import typer

from ...spec.errors import shown


def say(line: object, **style: Any) -> None:
    """Print one line, with unprintable characters escaped: control characters and line breaks.

    Args:
        line: the line.
        style: arguments of ``typer.secho``.
    """
    typer.secho(shown(str(line), sys.maxsize), **style)
