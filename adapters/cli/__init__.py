"""The command ``logitport``: one file per command, and no import of an engine."""

import sys

from .tables import TABLES, capabilities, limits, schema

__all__ = ["capabilities", "limits", "main", "schema"]


def main() -> None:
    """Run the command on the command line. Without typer, only the tables are printed."""
    try:
        from .app import app
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("typer", "rich", "click"):
            raise
        name, *options = sys.argv[1:] or [""]
        if name not in TABLES or options not in ([], ["--json"]):
            sys.exit(_without_typer())
        print(TABLES[name](as_json=bool(options)))
    else:
        app()


def _without_typer() -> int:
    names = ", ".join(TABLES)
    print(f"Only {names} work without typer: pip install 'logitport[cli]'", file=sys.stderr)
    return 2
