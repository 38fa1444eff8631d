"""``capabilities``, ``limits`` and ``schema``: the tables that need no file."""

import json

import msgspec

from ...spec import WIRE_KINDS, PythonProcessorSpec, json_schema
from ...spec.base import kind_of
from ...spec.limits import LIMITS, VARIABLE
from ...spec.schema import strict
from ..backend import Backend, backends


def capabilities(*, as_json: bool = False) -> str:
    """Tabulate backends and kinds: yes (by our processor), native (by the engine itself), or no."""
    able = {
        kind_of(kind): {name: _support(backend, kind) for name, backend in backends().items()}
        for kind in (*WIRE_KINDS, PythonProcessorSpec)
    }
    if as_json:
        return json.dumps(able, indent=2)
    lines = [["kind", *backends()], ["---"] * (1 + len(backends()))]
    lines += [[f"`{kind}`", *row.values()] for kind, row in able.items()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _support(backend: Backend, kind: type) -> str:
    found = ["native"] * (kind in backend.lowers) + ["yes"] * (kind in backend.realizes)
    return ", ".join(found) or "no"


def limits(*, as_json: bool = False) -> str:
    """Format the limits in force, with their units: one line each, or a JSON object."""
    if as_json:
        return json.dumps({name: limit._asdict() for name, limit in LIMITS.items()}, indent=2)
    width = max(map(len, LIMITS))
    raised = "max_body_bytes may be raised"
    lines = [f"Limits on what a client can send. {VARIABLE}=name=value,... lowers them; {raised}."]
    for name, limit in LIMITS.items():
        default = "" if limit.value == limit.default else f" (default {limit.default:,})"
        what = " ".join(filter(None, [limit.unit, limit.meaning]))
        lines.append(f"{name:{width}} {limit.value:>13,} {what}{default}")
    return "\n".join(lines)


def schema(*, of_profiles: bool = False, of_configuration: bool = False) -> str:
    """Format the JSON Schema of the wire format, of a file of profiles, or of a configuration."""
    if of_configuration:
        from .configuration_schema import configuration_schema

        return json.dumps(configuration_schema(), indent=2)
    if not of_profiles:
        return json.dumps(json_schema(), indent=2)
    from ..detection.schemes import Scheme

    return json.dumps(strict(msgspec.json.schema(dict[str, Scheme])), indent=2)
