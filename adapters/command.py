"""The command ``logitport``."""

import argparse
import json

from ..spec import WIRE_KINDS, PythonProcessorSpec
from ..spec.base import kind_of
from ..spec.limits import LIMITS, VARIABLE
from .back_end import back_ends


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="logitport", description=__doc__)
    commands = parser.add_subparsers(required=True)
    commands.add_parser(
        "capabilities", help="print what each installed back end can do, as a Markdown table"
    ).set_defaults(run=lambda _: capabilities())
    of_limits = commands.add_parser(
        "limits", help=f"print the limits on what clients send; {VARIABLE} lowers them"
    )
    of_limits.add_argument("--json", action="store_true", help="print an object instead of lines")
    of_limits.set_defaults(run=lambda arguments: limits(as_json=arguments.json))
    arguments = parser.parse_args()
    print(arguments.run(arguments))


def capabilities() -> str:
    """Which back end does which kind: by our processor, or by itself (native), or not at all."""
    lines = [["kind", *back_ends()], ["---"] * (1 + len(back_ends()))]
    for kind in (*WIRE_KINDS, PythonProcessorSpec):
        lines.append([f"`{kind_of(kind)}`"])
        for back_end in back_ends().values():
            lowered = "native" if kind in back_end.lowers else "no"
            lines[-1].append("yes" if kind in back_end.realizes else lowered)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def limits(*, as_json: bool = False) -> str:
    """The limits that hold here, with their units: one line each, or a JSON object."""
    if as_json:
        return json.dumps({name: limit._asdict() for name, limit in LIMITS.items()}, indent=2)
    width = max(map(len, LIMITS))
    lines = [f"Limits on what a client can send. {VARIABLE}=name=value,... lowers them."]
    for name, limit in LIMITS.items():
        default = "" if limit.value == limit.default else f" (default {limit.default:,})"
        what = " ".join(filter(None, [limit.unit, limit.meaning]))
        lines.append(f"{name:{width}} {limit.value:>13,} {what}{default}")
    return "\n".join(lines)
