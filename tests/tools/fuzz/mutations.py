"""Changes of payloads: one thing somewhere, replaced, added, taken away, or grown."""

import copy
import json
from collections.abc import Sequence
from random import Random
from typing import Any

from logitport.spec import WIRE_KINDS
from logitport.spec.base import kind_of

from . import target

PLANTED: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 64, 65, 1024, 151_935, 151_936),
    *(2**31 - 1, 2**31, 2**63, 2**64),
    *(0.0, -0.0, 1.5, 1e308, -1e9, 10_000.0, 10_001, 5e-324, "", "0", "-1", "1", "01", "x", "é"),
    *("\n", "\x1b[31m", "\u202e", "\0", "\U0001f600", "$", "$.specs[0]", "` - at `$.x`", "plugin"),
    *([], {}, [[]], [0], [1, 2], [[1], [1, 2]], {"0": 1}, {"kind": "plugin"}, {"a": [{"b": 1}]}),
)
KEYS = (
    *("version", "specs", "kind", "token_ids", "eos_token_id", "sequences", "bias", "n", "after"),
    *("times", "budget", "params", "name", "json_schema", "choices", "x", "\x1b[0m", "0"),
    "a" * 999,
)
KINDS = (*map(kind_of, WIRE_KINDS), "python", "nope")
PLUGIN_NAMES = (*target.PLUGINS, "absent")
BYTES = b'[]{}",:0123456789eE+-.\\/ \n\x00\x7f\x80\xc3\xff\xed\xa0\x80truefalsenul'


def mutated(random: Random, payload: Any, other: Any) -> Any:
    """A copy of a payload with one to three changes; ``other`` gives parts to some of them."""
    result = copy.deepcopy(payload)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        result = _changed(random, result, other)
    return result


def _changed(random: Random, payload: Any, other: Any) -> Any:
    parents = [node for node in _nodes(payload) if node]
    if not parents:
        return copy.deepcopy(random.choice(PLANTED))
    node, key = _any_part(random, parents)
    change = random.randrange(8)
    if change == 0:
        del node[key]
    elif change == 1:
        node[key] = copy.deepcopy(random.choice(PLANTED))
    elif change == 2:
        part = copy.deepcopy(random.choice(_nodes(other) or [0]))
        if isinstance(node, list) and random.random() < 0.5:
            node.insert(key, part)
        else:
            node[key] = part
    elif change == 3 and isinstance(node, dict):
        node[random.choice(KEYS)] = copy.deepcopy(random.choice(PLANTED))
    elif change == 3 or (change == 4 and isinstance(node, list)):
        node.insert(key, copy.deepcopy(node[key]))
    elif change == 4:
        name = random.choice(("kind", "name"))
        node[name] = random.choice(KINDS if name == "kind" else PLUGIN_NAMES)
    elif change == 5 and isinstance(node[key], int | float):
        node[key] = random.choice((node[key] * 2, node[key] - 1, node[key] + 1, node[key] // 2))
    elif change == 6 and isinstance(node, list):
        node[key : key + 1] = [node[key]] * random.randrange(20)
    else:
        node[key] = [node[key]] if random.random() < 0.5 else {random.choice(KEYS): node[key]}
    return payload


def _nodes(value: Any) -> list[Any]:
    """All arrays and objects in a payload, the outermost first."""
    nodes = [value] if isinstance(value, dict | list) else []
    for node in nodes:  # grows meanwhile
        items = node.values() if isinstance(node, dict) else node
        nodes.extend(item for item in items if isinstance(item, dict | list))
    return nodes


def _any_part(random: Random, nodes: list[Any]) -> tuple[Any, Any]:
    """An array or object, and where in it a part is."""
    node = random.choice(nodes)
    return node, random.choice(_keys(node))


def _keys(node: Any) -> Sequence[Any]:
    return list(node) if isinstance(node, dict) else range(len(node))


def sent(random: Random, payload: Any) -> Any:
    """A payload in one of the forms in which it may come: object, text, bytes, damaged bytes."""
    form = random.randrange(8)
    if form == 0:
        return payload
    text = json.dumps(payload, ensure_ascii=form < 4, separators=(",", ":"))
    if form < 6:
        return text
    data = bytearray(text.encode(errors="surrogatepass"))
    for _ in range(random.randrange(4)):
        at = random.randrange(len(data) + 1)
        change = random.randrange(4)
        if change == 0:
            data[at : at + random.randrange(9)] = b""
        elif change == 1:
            data[at:at] = bytes(random.choices(BYTES, k=random.randrange(1, 5)))
        elif change == 2:
            data[at:at] = data[at : at + 16]
        else:
            data[at : at + 1] = bytes([random.choice(BYTES)])
    return bytes(data)


def grown(random: Random, payload: Any, other: Any) -> Any:
    """A copy of a payload in short form, with one or two changes that may make it cost more."""
    result = copy.deepcopy(payload)
    for _ in range(random.choice((1, 1, 2))):
        nodes = [node for node in _nodes(result) if node]
        parts = [(node, key) for node in nodes for key in _keys(node)]
        numbers = [(node, key) for node, key in parts if type(node[key]) is int]
        if numbers and random.random() < 0.6:
            node, key = random.choice(numbers)
            n = node[key]
            node[key] = random.choice((n * 2, n // 2, n + 1, n - 1, n * 5 // 4, n * 4 // 5, 1, 64))
        elif nodes and random.random() < 0.5:
            node, key = _any_part(random, nodes)
            many = random.choice((4, 16, 64, 1024))
            made = {"$repeat": [many, node[key]]}, {"$each": [many, node[key]]}
            node[key] = random.choice((*made, {"$mixed": [many, 150_000]}, "$i"))
        else:
            result = _changed(random, result, other)
    return result
