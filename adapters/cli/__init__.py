"""The command ``logitport``: one file per command, and no import of an engine."""

import sys

from .tables import capabilities, limits, schema

__all__ = ["capabilities", "limits", "main", "schema"]


def main() -> None:
    """Run the command on the command line."""
    try:
        from .app import app
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("typer", "rich", "click"):
            raise
        print(f"{error.name} is missing: pip install 'logitport[cli]'", file=sys.stderr)
        sys.exit(2)
    app()
