"""The command ``logitport``."""

import argparse
import json

from ..spec import WIRE_KINDS, PythonProcessorSpec
from ..spec.base import kind_of
from ..spec.limits import LIMITS, VARIABLE
from .backend import backends


def main() -> None:
    """Run the command on the command line."""
    parser = argparse.ArgumentParser(prog="logitport", description=__doc__)
    commands = parser.add_subparsers(required=True)
    commands.add_parser(
        "capabilities", help="print what each installed backend can do, as a Markdown table"
    ).set_defaults(run=lambda _: capabilities())
    of_limits = commands.add_parser(
        "limits", help=f"print the limits on what clients send; {VARIABLE} lowers them"
    )
    of_limits.add_argument("--json", action="store_true", help="print an object instead of lines")
    of_limits.set_defaults(run=lambda arguments: limits(as_json=arguments.json))
    arguments = parser.parse_args()
    print(arguments.run(arguments))


def capabilities() -> str:
    """Tabulate backends and kinds: yes (by our processor), native (by the engine itself), or no."""
    lines = [["kind", *backends()], ["---"] * (1 + len(backends()))]
    for kind in (*WIRE_KINDS, PythonProcessorSpec):
        lines.append([f"`{kind_of(kind)}`"])
        for backend in backends().values():
            lowered = "native" if kind in backend.lowers else "no"
            lines[-1].append("yes" if kind in backend.realizes else lowered)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def limits(*, as_json: bool = False) -> str:
    """Format the limits in force, with their units: one line each, or a JSON object."""
    if as_json:
        return json.dumps({name: limit._asdict() for name, limit in LIMITS.items()}, indent=2)
    width = max(map(len, LIMITS))
    lines = [f"Limits on what a client can send. {VARIABLE}=name=value,... lowers them."]
    for name, limit in LIMITS.items():
        default = "" if limit.value == limit.default else f" (default {limit.default:,})"
        what = " ".join(filter(None, [limit.unit, limit.meaning]))
        lines.append(f"{name:{width}} {limit.value:>13,} {what}{default}")
    return "\n".join(lines)
