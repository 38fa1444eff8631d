"""How every demo ends: with a status, and with one line if something could not be had."""

import signal
import sys
from collections.abc import Callable
from typing import NoReturn


class CannotRunError(RuntimeError):
    """What an example needs cannot be had. The message is one line: what, and what to do."""


def run(main: Callable[[], int | None]) -> NoReturn:
    """Run a demo and exit with its status: 1 if it could not be run.

    SIGTERM ends it as an exception does, so that servers are stopped.
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
