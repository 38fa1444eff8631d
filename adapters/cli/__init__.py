"""The command ``logitport``: one file per command, and no import of an engine."""

import os
import sys
from importlib.metadata import version

from .tables import TABLES, capabilities, limits, schema

__all__ = ["capabilities", "limits", "main", "schema"]


def main() -> None:
    """Run the command on the command line. Without typer, only the tables are printed."""
    try:
        from .app import app
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("typer", "rich", "click"):
            raise
        try:
            status = _without_typer(*sys.argv[1:])
            sys.stdout.flush()
        except BrokenPipeError:  # as with `| head -1`; the flush at exit would fail again
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            status = 1
        sys.exit(status)
    else:
        app()


def _without_typer(name: str = "", *options: str) -> int:
    if name in TABLES and options in ((), ("--json",)):
        print(TABLES[name](as_json=bool(options)))
        return 0
    if name == "--version":
        print(f"logitport {version('logitport')}")
        return 0
    is_help = name in ("-h", "--help")
    what = f"Only {', '.join(TABLES)} work without typer: pip install 'logitport[cli]'"
    print(
        f"Usage: logitport {'|'.join(TABLES)} [--json]\n{what}",
        file=None if is_help else sys.stderr,
    )
    return 0 if is_help else 2
