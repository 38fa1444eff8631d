"""The end of every demo: an exit status, and one line of text if the demo cannot run."""

import signal
import sys
from collections.abc import Callable
from typing import NoReturn


class CannotRunError(RuntimeError):
    """A missing requirement of an example. The message is one line: the cause and the remedy."""


def run(main: Callable[[], int | None]) -> NoReturn:
    """Run a demo and exit with its status, or with 1 if the demo cannot run.

    SIGTERM raises an exception in the demo, so that its servers are stopped.
    """
    signal.signal(signal.SIGTERM, _terminate)
    try:
        sys.exit(main())
    except CannotRunError as error:
        print(f"\n{error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("\nInterrupted; nothing is left running.", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)


def _terminate(*_: object) -> None:
    sys.exit(128 + signal.SIGTERM)
