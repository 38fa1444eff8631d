"""Failures of a command as one line on standard error, with exit status 2."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

import typer

from .printing import say
from .source import missing

P = ParamSpec("P")


def failing_plainly(command: Callable[P, None]) -> Callable[P, None]:
    """End a command with exit status 2 for a file, a package or an option that is not there."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except ModuleNotFoundError as error:
            say(missing(error), err=True)
        except BrokenPipeError:  # nobody reads on: typer ends without a word
            raise
        except OSError as error:
            at = f"{error.filename}: " if error.filename else ""
            say(f"{at}{error.strerror or error}", err=True)
        except ValueError as error:
            say(error, err=True)
        except RecursionError:
            say("What was read is nested too deeply", err=True)
        else:
            return
        raise typer.Exit(2)

    return run
