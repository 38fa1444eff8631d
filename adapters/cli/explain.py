"""``logitport explain``: what a spec file does, in words."""

import json
from collections.abc import Iterator, Mapping
from enum import StrEnum
from inspect import getdoc
from typing import Annotated, Any, cast

import msgspec
import typer

from ...spec import LogitsProcessorSpec
from .failures import failing_plainly
from .printing import say
from .source import read_specs
from .texts import TextOf, texts_of, token, vocabulary_of

MOST_TOKENS = 16
"""Tokens of a field that are shown without ``--json``."""


class GraphFormat(StrEnum):
    """The languages in which automata are drawn."""

    MERMAID = "mermaid"
    DOT = "dot"


@failing_plainly
def explain(
    file: Annotated[
        str,
        typer.Argument(
            help="A payload, a list of entries, one spec, or a server's configuration in YAML or "
            "TOML; - reads stdin."
        ),
    ],
    tokenizer: Annotated[
        str | None, typer.Option(help="A tokenizer's folder, or its name on the Hugging Face hub.")
    ] = None,
    graph: Annotated[
        GraphFormat | None, typer.Option(help="Draw the compiled automata instead.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print an object.")] = False,
) -> None:
    """Say what the specs in a file do, and what is wrong with them."""
    source, text_of = read_specs(file, tokenizer), texts_of(tokenizer)
    if graph:
        from .graph import draw

        vocabulary, is_dot = vocabulary_of(tokenizer), graph is GraphFormat.DOT
        for i, spec in source.specs.items():
            for line in draw(spec, source.paths[i], text_of, vocabulary, is_dot=is_dot):
                say(line)
    elif as_json:
        specs = [
            {"path": source.paths[i], "meaning": meaning(spec), **msgspec.to_builtins(spec)}
            for i, spec in source.specs.items()
        ]
        found = {"specs": specs, "problems": [each._asdict() for each in source.problems]}
        typer.echo(json.dumps(found, indent=2))
    else:
        for i, spec in source.specs.items():
            for line in lines(spec, source.paths[i], text_of):
                say(line)
    if not as_json:
        for problem in source.problems:
            say(problem, err=True)
    raise typer.Exit(bool(source.problems))


def meaning(spec: LogitsProcessorSpec) -> str:
    """Return the first sentence of the kind's documentation."""
    return (getdoc(type(spec)) or spec.kind).partition("\n")[0].replace("``", "`")


def lines(spec: LogitsProcessorSpec, path: str, text_of: TextOf) -> Iterator[str]:
    """Yield the meaning of a spec, its fields below it, and the specs in its fields."""
    yield f"{path} {spec.kind}: {meaning(spec)}"
    yield from _fields(spec, path, text_of)


def _fields(struct: msgspec.Struct, path: str, text_of: TextOf) -> Iterator[str]:
    for field in msgspec.structs.fields(type(struct)):
        value = getattr(struct, field.name)
        if value is None or value == () or _is_default(value, field):
            continue
        below = f"{path}.{field.name}"
        if isinstance(value, tuple) and isinstance(value[0], msgspec.Struct):
            for i, each in enumerate(cast("tuple[msgspec.Struct, ...]", value)):
                is_spec = isinstance(each, LogitsProcessorSpec)
                found = (lines if is_spec else _fields)(cast("Any", each), f"{below}[{i}]", text_of)
                yield from (f"  {line}" for line in found)
        else:
            name = field.name if isinstance(struct, LogitsProcessorSpec) else below
            yield f"    {name}: {_shown(field.name, value, text_of)}"


def _is_default(value: Any, field: msgspec.structs.FieldInfo) -> bool:
    has_factory = field.default_factory is not msgspec.NODEFAULT
    default = field.default_factory() if has_factory else field.default
    return type(value) is type(default) and value == default


def _shown(name: str, value: Any, text_of: TextOf) -> str:
    """Format a value: token ids with their texts, anything else as JSON."""
    match value:
        case int() if name.endswith("token_id"):
            return token(value, text_of)
        case tuple() if isinstance(value[0], int):
            return _joined([token(each, text_of) for each in cast("tuple[int, ...]", value)])
        case tuple() if isinstance(value[0], tuple):
            rows = cast("tuple[Any, ...]", value)
            return _joined([f"[{_shown(name, row, text_of)}]" for row in rows])
        case Mapping() if all(isinstance(key, int) for key in cast("Mapping[Any, Any]", value)):
            items = cast("Mapping[int, float]", value).items()
            return _joined([f"{token(key, text_of)} {bias:+g}" for key, bias in items])
        case _:
            return msgspec.json.encode(value).decode()


def _joined(parts: list[str]) -> str:
    more = f", and {len(parts) - MOST_TOKENS:,} more" if len(parts) > MOST_TOKENS else ""
    return ", ".join(parts[:MOST_TOKENS]) + more
