"""The command ``logitport``."""

import argparse

from ..spec import WIRE_KINDS, PythonProcessorSpec
from ..spec.base import kind_of
from .back_end import back_ends


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="logitport", description=__doc__)
    commands = parser.add_subparsers(required=True)
    commands.add_parser(
        "capabilities", help="print what each installed back end can do, as a Markdown table"
    ).set_defaults(run=capabilities)
    print(parser.parse_args().run())


def capabilities() -> str:
    """Which back end does which kind: by our processor, or by itself (native), or not at all."""
    lines = [["kind", *back_ends()], ["---"] * (1 + len(back_ends()))]
    for kind in (*WIRE_KINDS, PythonProcessorSpec):
        lines.append([f"`{kind_of(kind)}`"])
        for back_end in back_ends().values():
            lowered = "native" if kind in back_end.lowers else "no"
            lines[-1].append("yes" if kind in back_end.realizes else lowered)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
