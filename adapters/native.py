"""Native kinds as an engine's own request fields, and their conflicts with a request's values."""

import dataclasses
import json
import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from ..spec import GrammarSpec, LogitsProcessorSpec, NativeSpec, SamplingSpec, SpecError
from ..spec.conflicts import BEGINS_ANEW, check_beside_grammar
from ..spec.errors import Path

Native = Callable[[Any, Any], Mapping[str, Any]]
"""A function from a native spec and a request to the values, by name, of the request's fields.

It raises ``SpecError``, with a path in the spec, if the engine does not do what the spec means.
"""

UNSET = (None, "")
"""The values of a field that count as absent."""


def check_grammar(
    specs: Sequence[LogitsProcessorSpec],
    request: Any = None,
    grammars: Sequence[str] = (),
    comes_last: bool = False,
    is_continued: bool = False,
) -> None:
    """Refuse specs beside a grammar that may not accept what the specs leave.

    The grammar is a ``GrammarSpec`` among ``specs``, or one of the fields ``grammars`` of the
    request. For ``comes_last``, see ``Attachment``. No grammar continues an earlier output.

    Raises:
        SpecError: at the first such spec.
    """
    for name in grammars:
        if specs and (value := value_of(request, name)) not in UNSET:
            named = f"the request's {name}"
            if is_continued:
                raise SpecError(f"{BEGINS_ANEW}: {named}", "continued")
            check_beside_grammar(specs, read_grammar(name, value), named, comes_last=comes_last)
    for i, spec in enumerate(specs):
        if isinstance(spec, GrammarSpec):
            check_beside_grammar(specs, spec, ("specs", i), ", a grammar", comes_last=comes_last)


def read_grammar(name: str, value: Any) -> GrammarSpec | None:
    """Return what is easily seen of a request's own grammar; ``None`` if that is nothing.

    Engines turn choices into rules before they ask us, and SGLang has no other form of them.
    """
    get = {name: value}.get if isinstance(value, str) else partial(value_of, value)
    schema, choices = get("json_schema") or get("json"), get("choice")
    rules, pattern = get("ebnf") or get("grammar"), get("regex")
    try:
        if isinstance(schema, str):
            schema = msgspec.json.decode(schema, type=_Schema)
        elif isinstance(schema, Mapping):
            schema = msgspec.convert(schema, _Schema)
        if isinstance(schema, _Schema) and isinstance(schema.enum, list):
            choices = [json.dumps(text, ensure_ascii=False) for text in schema.enum]
        elif get("json_object") or isinstance(schema, _Schema):
            kind = "object" if schema is None else schema.type
            return GrammarSpec(json_schema={"type": kind})
        elif isinstance(rules, str) and _ALTERNATIVES.fullmatch(rules):
            choices = [json.loads(text) for text in _TEXT.findall(rules)]
        elif isinstance(pattern, str) and _LITERALS.fullmatch(pattern):
            choices = pattern.strip("()").split("|")
        elif isinstance(pattern, str) and _INTEGERS.fullmatch(pattern):
            return GrammarSpec(json_schema={"type": "integer"})
        if choices and sum(map(len, choices)) <= _COMPARED:
            return GrammarSpec(choices=tuple(dict.fromkeys(choices)))
    except (SpecError, TypeError, ValueError, RecursionError):  # the engine refuses it
        return None
    return None


def leaves_text(name: str, value: Any) -> bool:
    """Whether a request's own grammar may leave any text: it is neither for JSON nor for choices.

    A body's field whose value has another form is left to the engine's own parameters.
    """
    get = {name: value}.get if isinstance(value, str) else partial(value_of, value)
    forms = "choice", "ebnf", "grammar", "regex", "structural_tag"
    return any(get(each) is not None for each in forms) and read_grammar(name, value) is None


class _Schema(msgspec.Struct):
    """What is read of a JSON schema, of megabytes perhaps: the rest is skipped."""

    type: Any = None
    enum: Any = None


_COMPARED = 1024
"""Characters in the choices that are compared with specs, for each request anew."""

_TEXT = re.compile(r'"(?:[^"\\]|\\.)*"')
_ALTERNATIVES = re.compile(rf"\s*root\s*::=\s*{_TEXT.pattern}(?:\s*\|\s*{_TEXT.pattern})*\s*")
_LITERALS = re.compile(r"\([^][\\.(){}*+?^$]+\)|[^][\\.(){}*+?^$]+")
_INTEGERS = re.compile(r"(-\??)?(\\d|\[0-9\])(\+|\{[1-9]\d*(,\d*)?\})?")


def native_fields(
    specs: Sequence[LogitsProcessorSpec], native: Native, request: Any = None
) -> tuple[dict[str, Any], dict[str, Path]]:
    """Return the request fields of the native specs: the values, and the paths of their specs.

    Raises:
        SpecError: as ``native`` does, with the path in ``specs``.
    """
    fields: dict[str, Any] = {}
    paths: dict[str, Path] = {}
    for i, spec in enumerate(specs):
        if isinstance(spec, NativeSpec):
            path = ("specs", i)
            try:
                values = native(spec, request)
            except SpecError as error:
                raise error.at(*path) from error.__cause__
            fields |= values
            for name in values:
                is_own = getattr(spec, name, None) is not None
                paths[name] = (*path, name) if is_own else path
    return fields, paths


def lower(
    specs: Sequence[LogitsProcessorSpec], native: Native, request: Any, grammars: Sequence[str]
) -> dict[str, Any]:
    """Return the fields to set in a request, so that it asks for the native specs.

    A field that the request sets (to a value that is not ``None``, empty or the default of its
    class) must have the value that ``specs`` ask for, and one grammar excludes another. The
    constructor of the request may change values: vLLM's resets ``top_p`` at temperature 0.

    Raises:
        SpecError: at the spec, if the request sets another value or has no such field.
        Exception: the constructor's own, for values that the constructor refuses together.
    """
    fields, paths = native_fields(specs, native, request)
    for name in fields:
        if not isinstance(request, Mapping) and not hasattr(request, name):
            owner = type(request).__name__
            raise SpecError(f"Expected {owner} to have a field {name}", *paths[name])
    made, defaults = _constructed(request, fields)
    for name, value in fields.items():
        for other in grammars if name in grammars else (name,):
            current = value_of(request, other)
            fitting = (value, made[name]) if other == name else ()
            if current not in (*fitting, *UNSET, defaults.get(other)):
                what = f"which sets {other} to {reprlib.repr(current)}"
                raise SpecError(f"Conflicts with the request, {what}", *paths[name])
    return made


def value_of(request: Any, name: str) -> Any:
    """Return a field of a request, which is a mapping or an object; ``None`` if it has none."""
    return request.get(name) if isinstance(request, Mapping) else getattr(request, name, None)


def _constructed(request: Any, fields: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the values that the request's class makes of ``fields``, and the class's defaults."""
    module: Any = msgspec.structs if isinstance(request, msgspec.Struct) else dataclasses
    if not fields or (module is dataclasses and not dataclasses.is_dataclass(request)):
        return fields, {}
    made = module.replace(request, **fields)
    defaults = {each.name: each.default for each in module.fields(request)}
    names = defaults.keys() & {*fields, *SamplingSpec.__struct_fields__}
    return {name: getattr(made, name) for name in names}, defaults


def fields_of(spec: NativeSpec) -> dict[str, Any]:
    """Return the fields that a native spec sets, with JSON values: lists instead of tuples.

    ``fields_of(SamplingSpec(temperature=0.5))`` is ``{"temperature": 0.5}``.
    """
    fields: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(spec))
    del fields["kind"]
    return fields


def grammar_text(spec: GrammarSpec) -> tuple[str, str]:
    """Return the form and the text of a grammar, for engines without choices.

    ``grammar_text(GrammarSpec(choices=("a", "b")))`` is ``("ebnf", 'root ::= "a" | "b"')``.
    """
    if spec.choices is not None:
        # A JSON string is a terminal of EBNF, too.
        terminals = (json.dumps(text, ensure_ascii=False) for text in spec.choices)
        return "ebnf", f"root ::= {' | '.join(terminals)}"
    ((form, text),) = fields_of(spec).items()
    return form, text if isinstance(text, str) else msgspec.json.encode(text).decode()
