"""Payloads in short: JSON in which some objects stand for large values.

| object | stands for |
| --- | --- |
| ``{"$repeat": [n, value]}`` | an array of n times the value |
| ``{"$each": [n, value]}`` | an array of n values, in which ``"$i"`` is the index |
| ``{"$mixed": [n, below]}`` | an array of n integers below a bound, which look random |
| ``{"$concat": [array, ...]}`` | the arrays as one |
| ``{"$nest": [n, value]}`` | the value in n arrays |
| ``{"$object": [n, value]}`` | an object with n keys, ``"0"`` and so on |
| ``{"$text": [n, text]}`` | the text n times |

A file of the corpus has ``what`` it is, and a ``payload``, or a ``text`` that is sent as it stands.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "corpus"
MOST = 1 << 21
"""How much a payload may come to, in characters or so."""


def expanded(value: Any, index: int = 0) -> Any:
    """A payload in full. What does not look like a macro stays as it is."""
    if value == "$i":
        return index
    if isinstance(value, list):
        return [expanded(item, index) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((name, arguments),) = value.items()
        if name in MACROS and isinstance(arguments, list):
            with suppress(TypeError, ValueError, ArithmeticError):
                return MACROS[name](index, *arguments)
            return value
    return {key: expanded(item, index) for key, item in value.items()}


def size_of(value: Any) -> int:
    """About how many characters a payload in short form comes to: macros within macros multiply."""
    if isinstance(value, list):
        return 2 + sum(1 + size_of(item) for item in value)
    if isinstance(value, dict):
        if len(value) == 1:
            ((name, arguments),) = value.items()
            if name in MACROS and isinstance(arguments, list) and len(arguments) == 2:
                n, content = arguments
                n = n if isinstance(n, int) and n > 0 else 1
                if name == "$nest":
                    return 2 * n + size_of(content)
                if name != "$concat":
                    return n * (1 + size_of(content))
        return 2 + sum(len(str(key)) + 4 + size_of(item) for key, item in value.items())
    return len(value) + 2 if isinstance(value, str) else 8


def _count(n: Any, size: int = 1) -> int:
    if not isinstance(n, int) or not 0 <= n * max(1, size) <= MOST:
        raise ValueError(n)
    return n


def _nest(index: int, n: Any, value: Any) -> Any:
    made = expanded(value, index)
    for _ in range(_count(n, 4096)):
        made = [made]
    return made


MACROS: dict[str, Callable[..., Any]] = {
    "$repeat": lambda index, n, value: [expanded(value, index)] * _count(n),
    "$each": lambda _, n, value: [expanded(value, i) for i in range(_count(n, 8))],
    "$mixed": lambda index, n, below: [
        (i * 2654435761 + index * 40503) % below for i in range(_count(n))
    ],
    "$concat": lambda index, *arrays: [item for array in arrays for item in expanded(array, index)],
    "$nest": _nest,
    "$object": lambda _, n, value: {str(i): expanded(value, i) for i in range(_count(n, 8))},
    "$text": lambda _, n, text: str(text) * _count(n, len(str(text))),
}


def load() -> Iterator[tuple[str, Any]]:
    """The name and the short form of each payload of the corpus."""
    for path in sorted(FOLDER.glob("*.json")):
        content = json.loads(path.read_text())
        yield path.stem, content.get("payload", content.get("text"))


def text_of(payload: Any) -> str:
    """What a client would send.

    Raises:
        ValueError: for what would be far too long.
    """
    if size_of(payload) > 8 * MOST:
        raise ValueError("far too long")
    made = expanded(payload)
    return made if isinstance(made, str) else json.dumps(made, separators=(",", ":"))


def keep(name: str, what: str, payload: Any) -> None:
    """Put a payload into the corpus."""
    field = "text" if isinstance(payload, str) or set(payload) <= set(MACROS) else "payload"
    (FOLDER / f"{name}.json").write_text(json.dumps({"what": what, field: payload}) + "\n")
