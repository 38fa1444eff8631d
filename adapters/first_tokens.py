"""The first tokens that a request's own grammar accepts, as a field that lists tokens."""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ..spec import AutomatonSpec, AutomatonState, LogitsProcessorSpec
from .native import UNSET, read_grammar, value_of
from .own_fields import OwnFields, same_as

if TYPE_CHECKING:
    from .core import Vocabulary

_VALUES = {
    "object": b"{",
    "array": b"[",
    "string": b'"',
    "boolean": b"tf",
    "integer": b"-0123456789",
    "number": b"-0123456789",
    "null": b"n",
}
"""Of a type of JSON, the bytes with which a value may begin. White space may come before it."""

_SPACE = b" \t\r\n"


def first_tokens(
    request: Any, grammars: Sequence[str], vocabulary: "Callable[[], Vocabulary | None]"
) -> OwnFields:
    """List the tokens with which a request's own grammar may begin, as far as easily seen.

    An engine fails a request if specs take them all: ``check_own_fields`` refuses it before.

    Args:
        request: the request's parameters, a mapping or an object.
        grammars: the names of the fields that ask for a grammar.
        vocabulary: loads the vocabulary of the engine.
    """
    for name in grammars:
        value = value_of(request, name)
        grammar = None if value in UNSET else read_grammar(name, value)
        if grammar is not None:
            schema: Mapping[str, Any] = grammar.json_schema or {}
            begins = bytes(sorted({text.encode()[0] for text in grammar.choices or ()}))
            space = b"" if begins else _SPACE
            begins = begins or _VALUES.get(str(schema.get("type")), b"")
            return {name: _beginning_with(begins, space, vocabulary()) if begins else None}
    return {}


@lru_cache(64)
def _beginning_with(
    begins: bytes, space: bytes, vocabulary: "Vocabulary | None"
) -> LogitsProcessorSpec | None:
    """List, for one step, the tokens that begin with one of some bytes, maybe after space."""
    if vocabulary is None:
        return None
    import numpy as np

    sizes = np.diff(vocabulary.ends, prepend=0)
    starts = vocabulary.ends - sizes
    first, second = (vocabulary.data.take(starts + i, mode="clip") for i in range(2))
    after_space = (sizes == 1) | np.isin(second, [*begins, *space])
    is_found = np.isin(first, [*begins]) | (np.isin(first, [*space]) & after_space)
    found = tuple(np.flatnonzero(is_found & (sizes > 0)).tolist())
    states = AutomatonState(allow=0, default=1), AutomatonState()
    return same_as(AutomatonSpec, states=states, token_sets=(found,)) if found else None
