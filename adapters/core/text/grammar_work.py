"""What grammars take to compile, estimated from their texts, before any of them is compiled.

llguidance has no bound of its own for what is here. It compares each alternative with each that may
stand at the same place, each pattern of a text with all others, and combines each branch of a
schema with each branch of what holds beside it.
"""

from collections.abc import Collection, Iterator, Mapping
from decimal import Decimal
from math import lcm
from typing import Any, cast

import msgspec

from ....spec import GrammarSpec

MAX_WORK = 200
"""The most milliseconds that the grammars of a request may take to compile, by ``work_of``.

Of 8,844 schemas of MaskBench, 36 take more; 10 of these are its own hard cases."""

_WIDE = {"anyOf", "oneOf", "allOf", "properties", "patternProperties"}
_MANY, _DEEPEST = 1 << 20, 100


def work_of(spec: GrammarSpec) -> float:
    """Estimate how many milliseconds a grammar takes to compile, at most."""
    if spec.json_schema is not None:
        text = msgspec.json.encode(spec.json_schema)
        return 5e-4 * len(text) + _work_of_schema(msgspec.json.decode(text))
    if spec.ebnf is None:
        return 10 + 1.3e-3 * len(spec.regex or "".join(spec.choices or ()))
    rules = spec.ebnf.split("::=")
    widest, every = 1 + max(rule.count("|") for rule in rules), len(rules) + spec.ebnf.count("|")
    of_size = (4e-7 + 2e-8 * widest) * len(spec.ebnf) ** 2
    return 2 + 1.2e-3 * len(rules) ** 2 + of_size + 1e-4 * widest * every**2


def _work_of_schema(schema: Mapping[str, Any]) -> float:
    objects, widest, items, multiple, patterns, joined = 0, 0, 0.0, 1, 0, 0
    for each in _objects(schema):
        objects += 1
        for name in each:
            if name in _WIDE and isinstance(given := each[name], list | dict):
                branches = cast("Collection[Any]", given)
                widest = max(widest, len(branches))
                joined += len(branches) * (name == "allOf")
                patterns += len(branches) * (name == "patternProperties")
        # Nothing is called for an object that has none of them: there may be 10,000.
        if "minItems" in each or "maxItems" in each:
            items += max(_number(each.get(name)) for name in ("minItems", "maxItems"))
        if "multipleOf" in each:
            of_number = int("".join(map(str, _digits(each["multipleOf"])))) or 1
            multiple = min(lcm(multiple, of_number), 1 << 40)
        if "pattern" in each:
            patterns += 1
            joined += "$ref" in each
    of_objects = 0.05 * objects + 2e-7 * objects**2 * widest
    if of_objects > MAX_WORK:  # to count their branches would cost more than this
        return of_objects
    together = min(patterns, joined, 30)  # patterns that may hold for one text
    of_patterns = patterns / 2 + 2e-3 * 2**together + 0.15 * _Branches(schema).combined
    return 2 + of_objects + 7e-3 * items + 5e-3 * multiple + of_patterns


class _Branches:
    """How many combinations of branches a schema makes llguidance try.

    An object has branches of its own, and those of what is below, by which the values of fields may
    have as many. Of what holds together, each branch meets each other one.

    Attributes:
        combined: the combinations, over all objects.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schema, self.combined = schema, 0
        self._known: dict[int, tuple[int, int]] = {}
        lists = (each.get(name) for each in _objects(schema) for name in ("anyOf", "oneOf", "enum"))
        self._all = 1 + sum(len(cast("list[Any]", each)) for each in lists if type(each) is list)
        self._count(schema, 0)

    def _count(self, node: Any, depth: int) -> tuple[int, int]:
        """Count an object's branches, and those below."""
        if type(node) is not dict:
            return 1, 1
        if id(node) in self._known:
            return self._known[id(node)]
        if depth > _DEEPEST:
            self.combined += _MANY
            return 1, 1
        self._known[id(node)] = 1, 1  # for what leads back here
        together, below = list[tuple[int, int]](), 1
        for name, value in cast("dict[str, Any]", node).items():
            inner = [*value.values()] if type(value) is dict else value
            inner = cast("list[Any]", inner) if type(inner) is list else []
            if name == "$ref":
                together.append(self._count_at(value, depth + 1))
            elif name == "enum":
                together.append((max(len(inner), 1), 1))
            elif name in ("allOf", "anyOf", "oneOf") and inner:
                counts = [self._count(each, depth + 1) for each in inner]
                if name == "allOf":
                    together += counts
                else:
                    together.append((sum(own for own, _ in counts), max(b for _, b in counts)))
            else:
                for each in (value, *inner):
                    below = max(below, *self._count(each, depth + 1))
        together.append((1, below))
        found = [1, 1]
        for k in range(2):
            for counts in together:
                found[k] = min(found[k] * counts[k], _MANY)
            if sum(counts[k] > 1 for counts in together) > 1:
                self.combined += found[k]
        self._known[id(node)] = found[0], found[1]
        return found[0], found[1]

    def _count_at(self, reference: object, depth: int) -> tuple[int, int]:
        """Count the branches behind a reference; all that there are, if it leads elsewhere."""
        found: Any = self._schema
        for step in str(reference).split("/")[1:]:
            found = found.get(step) if type(found) is dict else None
        if not str(reference).startswith("#") or type(found) is not dict:
            return self._all, self._all
        return self._count(found, depth)


def _objects(schema: Any) -> Iterator[Mapping[str, Any]]:
    """Yield all objects in a schema, of JSON's own types, with few calls."""
    waiting = [schema]
    while waiting:
        each = waiting.pop()
        if each.__class__ is dict:
            yield each
            waiting += each.values()
        elif each.__class__ is list:
            waiting += each


def _number(given: object) -> float:
    return given if isinstance(given, int | float) and not isinstance(given, bool) else 0


def _digits(given: object) -> tuple[int, ...]:
    """Return the digits of a number without zeros at its ends: those of 0.0120 are 1 and 2."""
    return Decimal(str(_number(given))).normalize().as_tuple().digits
