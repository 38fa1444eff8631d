"""Contradictions with the specs that an engine realizes by itself, which are never compiled.

What the other specs of a request force, allow and ban is compared when they are admitted, as
automata: see ``logitport.adapters.core.contradictions``.
"""

import json
import re
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, cast

from .base import LogitsProcessorSpec
from .errors import Path, SpecError
from .kinds import GrammarSpec, MaxRunSpec, PhasesSpec, SamplingSpec, ThinkingBudgetSpec
from .limits import MAX_TEXT_RULES

Specs = Sequence[LogitsProcessorSpec]

BEGINS_ANEW = "The engine's own grammar begins anew"


def check_native(specs: Specs) -> None:
    """Check grammars and sampling parameters beside each other and beside all other specs.

    Raises:
        SpecError: for a spec that contradicts another. The path (``$.specs[i]...``) leads to it,
            and the message names the other.
    """
    check_grammars(specs)
    _check_sampling(specs)


def check_grammars(specs: Specs) -> None:
    """Check that there is one grammar at most, and that the others leave what it generates."""
    grammars = [(i, spec) for i, spec in enumerate(specs) if isinstance(spec, GrammarSpec)]
    for i, _ in grammars[1:]:
        what = "Conflicts with ", ("specs", grammars[0][0]), ": both are a grammar"
        raise SpecError(what, "specs", i)
    for i, grammar in grammars:
        check_beside_grammar(specs, grammar, ("specs", i), ", a grammar")
    for i, phases in enumerate(specs):
        if isinstance(phases, PhasesSpec):
            _check_grammars_within(phases, [each for each in specs if each is not phases], i)


def _check_grammars_within(phases: PhasesSpec, others: Specs, index: int) -> None:
    """Check the grammars of phases beside the specs of their phase, and of the whole request."""
    for path, grammar in phases.inner_specs():
        if isinstance(grammar, GrammarSpec):
            check_beside_grammar(others, grammar, ("specs", index, *path), ", a grammar")
            check_thinking(others)
    for k, phase in enumerate(phases.phases):
        try:
            check_grammars(phase.specs)
            if any(isinstance(each, GrammarSpec) for each in phase.specs):
                check_thinking(phase.specs)
        except SpecError as error:
            raise error.specs_at(lambda i, k=k: ("specs", index, "phases", k, "specs", i)) from None


def check_thinking(specs: Specs) -> None:
    """Refuse a thinking budget beside a grammar of logitport's, whose text has no thoughts."""
    for i, spec in enumerate(specs):
        if isinstance(spec, ThinkingBudgetSpec):
            what = "Expected it in a phase before the grammar's, as of PhasesSpec.think_then"
            raise SpecError(what, "specs", i)


def check_beside_grammar(
    specs: Specs, grammar: GrammarSpec | None, *named: str | Path, comes_last: bool = False
) -> None:
    """Check that specs leave what a grammar generates.

    Args:
        specs: the specs of a request, or of a guard.
        grammar: ``None`` if all that is known is that there is one.
        named: the parts of a message that name it.
        comes_last: whether it sees only what the specs leave.

    Raises:
        SpecError: at the first spec that does not.
    """
    bans = any(type(spec).bans_text is not LogitsProcessorSpec.bans_text for spec in specs)
    texts, runs = _offered_texts(grammar) if grammar and bans else (), 0
    joined = "\0".join(chain(*texts))  # most specs ban none, and are asked once
    for i, spec in enumerate(specs):
        forces = spec.breaks_grammar
        if forces or (comes_last and spec.narrows):
            what = f"take the tokens that `{spec.kind}` {'forces' if forces else 'leaves'}"
            raise SpecError(("Conflicts with ", *named, f", which may not {what}"), "specs", i)
        runs += isinstance(spec, MaxRunSpec)
        if runs > MAX_TEXT_RULES or not spec.bans_text(joined):  # admission refuses more runs
            continue
        for either in texts:
            if all(map(spec.bans_text, either)):
                what = f", which offers {' or '.join(map(repr, either))}"
                raise SpecError(("Conflicts with ", *named, what), "specs", i)


def _offered_texts(grammar: GrammarSpec) -> list[Sequence[str]]:
    """List texts that the grammar may begin, or begins one of, as far as easily seen."""
    texts = [*(grammar.choices or ()), *_literals(grammar.regex or "")]
    texts += (each[1] for each in _QUOTED.finditer(grammar.ebnf or "") if each[1])
    found: list[Sequence[str]] = [(text,) for text in texts]
    left: list[Any] = [grammar.json_schema]
    for schema in left:  # a copy of JSON: ``frozen_json``
        if isinstance(schema, tuple):
            left.extend(cast("tuple[Any, ...]", schema))
        if not isinstance(schema, dict):
            continue
        for name, value in cast("dict[str, Any]", schema).items():
            if name == "type":
                found += _NEEDED.get(str(value), ())
            elif name in _SCHEMAS:
                left.append(value)
            elif name in _NAMED and isinstance(value, dict):
                named = cast("dict[str, Any]", value)
                left.extend(named.values())
                found += ((text,) for text in _strings([*named]) if name == "properties")
            elif name in _VALUES:
                found += ((text,) for text in _strings(value))
            elif name == "pattern" and isinstance(value, str):
                found += ((text,) for text in _literals(value))
    return found


def _strings(value: object) -> Iterator[str]:
    """The strings of a value, and the keys, as in JSON."""
    if isinstance(value, str):
        yield json.dumps(value, ensure_ascii=False)
    elif isinstance(value, dict | list | tuple):
        within = cast("dict[str, Any]", value)
        each = chain(within, within.values()) if isinstance(value, dict) else within
        yield from chain.from_iterable(map(_strings, each))


def _literals(regex: str) -> Iterator[str]:
    """The texts between what else a regular expression has."""
    yield from (each.replace("\\", "") for each in _NO_LITERAL.split(regex) if each)


_NO_LITERAL = re.compile(r"\\[A-Za-z0-9]|\[[^]]*\]|\{[^}]*\}|(?<!\\)[.^$|()?*+]")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)+)"|\[(?:[^]\\]|\\.)*\]')
"""A text of ``ebnf``; without a group, a class of characters, which may have quotes."""
_VALUES = "const", "enum", "required"
_NAMED = "properties", "$defs", "definitions"
_SCHEMAS = "items", "prefixItems", "anyOf", "oneOf", "allOf", "additionalProperties"
_DIGITS = (tuple("0123456789"),)
_NEEDED = {"object": ("{", "}"), "array": ("[", "]"), "integer": _DIGITS, "number": _DIGITS}
"""Of a type of JSON, the texts that every value has, or has one of."""


def _check_sampling(specs: Specs) -> None:
    """Check that no two specs set a parameter to different values. The later one is refused."""
    first_of: dict[str, tuple[int, float]] = {}
    for i, spec in enumerate(specs):
        for name in spec.__struct_fields__ if isinstance(spec, SamplingSpec) else ():
            if (value := getattr(spec, name)) is None:
                continue
            first, other = first_of.setdefault(name, (i, value))
            if other != value:
                what = f", which sets {name} to {other}"
                raise SpecError(("Conflicts with ", ("specs", first), what), "specs", i, name)
