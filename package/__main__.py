"""The command ``logitport``, and ``python -m logitport``."""

import sys


def main() -> None:
    """Run the command line. A wrong ``LOGITPORT_LIMITS``, which an import reads, is one line."""
    try:
        from logitport.adapters.cli import main
    except ValueError as error:
        if not str(error).startswith("LOGITPORT_LIMITS"):
            raise
        print(error, file=sys.stderr)
        sys.exit(2)
    main()


if __name__ == "__main__":
    main()
