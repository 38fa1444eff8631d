"""What every spec has in common: immutable, checked when it is made, tagged by its kind."""

import re
import reprlib
import threading
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from functools import lru_cache
from typing import Annotated, Any, NamedTuple, cast

import msgspec

from .errors import SpecError
from .limits import (
    MAX_BIAS,
    MAX_COUNT,
    MAX_PATTERN,
    MAX_SEQUENCES,
    MAX_TOKEN_ID,
    MAX_TOKEN_IDS,
)

TokenId = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKEN_ID)]
"""An index into the vocabulary."""

TokenIds = Annotated[tuple[TokenId, ...], msgspec.Meta(min_length=1, max_length=MAX_TOKEN_IDS)]
"""A non-empty sequence of token ids."""

MaybeTokenIds = Annotated[tuple[TokenId, ...], msgspec.Meta(max_length=MAX_TOKEN_IDS)]
"""A sequence of token ids that may be empty."""

TokenSequences = Annotated[
    tuple[TokenIds, ...], msgspec.Meta(min_length=1, max_length=MAX_SEQUENCES)
]
"""Non-empty sequences, at least one; ``Sizes`` counts all of them together."""

Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)]
"""A number of tokens."""

PositiveCount = Annotated[int, msgspec.Meta(ge=1, le=MAX_COUNT)]
"""A number of tokens, at least one."""

Bias = Annotated[float, msgspec.Meta(ge=-MAX_BIAS, le=MAX_BIAS)]
"""What is added to a logit; NaN is out of bounds like any value beyond them."""


class Sizes(NamedTuple):
    """How much a spec, or all specs of a request, list.

    Attributes:
        token_ids: those in lists and, twice, those in sequences and with biases.
        sequences: of token ids or, as choices of a grammar, of texts; a ``ChoiceSpec``'s twice.
    """

    token_ids: int = 0
    sequences: int = 0


class LogitsProcessorSpec(
    msgspec.Struct, frozen=True, tag_field="kind", forbid_unknown_fields=True
):
    """Base of all kinds: what may happen to one request's next-token logits, as data.

    A spec holds token ids, never text (a grammar aside), and knows no engine. Its fields carry
    their constraints (``msgspec.Meta``), which hold whether it is decoded or constructed; a list or
    tuple of integers will do where a tuple of token ids is declared. Specs are equal, and hash
    alike, if their kinds and contents are.

    Raises:
        SpecError: from the constructor, with the path of the offending value.
    """

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def kind(self) -> str:
        """The tag that stands for this class on the wire."""
        return kind_of(type(self))

    def token_fields(self) -> Iterator[tuple[str, Sequence[int]]]:
        """Yield ``(path, token ids)`` for each field that indexes the vocabulary.

        The path is relative to the spec and leads to each of the token ids, with ``*`` for the
        index of one: ``$.token_ids[*]``, ``$.sequences[3][*]``, ``$.eos_token_id``.
        """
        raise NotImplementedError

    def sizes(self) -> "Sizes":
        """Count what the spec lists. A token id that stands alone does not count."""
        lists = (token_ids for path, token_ids in self.token_fields() if path[-1] == "]")
        return Sizes(token_ids=sum(map(len, lists)))

    def check_vocabulary(self, vocab_size: int) -> None:
        """Check every token id against the size of an engine's vocabulary.

        Args:
            vocab_size: number of columns of the engine's logits.

        Raises:
            SpecError: for the first token id that is ``vocab_size`` or more.
        """
        for path, token_ids in self.token_fields():
            if not token_ids or max(token_ids) < vocab_size:
                continue
            index = next(i for i, token_id in enumerate(token_ids) if token_id >= vocab_size)
            raise SpecError(
                f"Token id {token_ids[index]} is beyond the vocabulary of {vocab_size} tokens",
                path.replace("*", str(index)),
            )


class NativeSpec(LogitsProcessorSpec, frozen=True, omit_defaults=True):
    """Base of the kinds that an engine realizes by itself, from fields of its own requests.

    They are data like all others, and travel in payloads; but what reaches an engine has them in
    the engine's fields, where its adapter's ``attach`` puts them, and no longer in the payload.
    Token ids are nothing to them.
    """

    def token_fields(self) -> Iterator[tuple[str, Sequence[int]]]:
        return iter(())


def kind_of(spec_type: type[LogitsProcessorSpec]) -> str:
    """The tag of a spec class, ``forced_sequence`` for example."""
    return str(spec_type.__struct_config__.tag)


def several(
    specs: LogitsProcessorSpec | Sequence[LogitsProcessorSpec],
) -> tuple[LogitsProcessorSpec, ...]:
    """One spec, or several, as callers may give them.

    Raises:
        SpecError: for what is neither, with the path of what is no spec.
    """
    if isinstance(specs, LogitsProcessorSpec):
        return (specs,)
    expected, given = "Expected a LogitsProcessorSpec", cast("object", specs)
    if isinstance(given, str | bytes | Mapping | Set) or not isinstance(given, Iterable):
        raise SpecError(f"{expected}, or several in a sequence, got {reprlib.repr(specs)}")
    found = tuple(specs)
    for i, spec in enumerate(cast("tuple[object, ...]", found)):
        if not isinstance(spec, LogitsProcessorSpec):
            raise SpecError(f"{expected}, got {reprlib.repr(spec)}", f"$.specs[{i}]")
    return found


def without_native(specs: Sequence[LogitsProcessorSpec]) -> list[LogitsProcessorSpec]:
    """Those that a logits processor realizes; the engine does the others by itself."""
    return [spec for spec in specs if not isinstance(spec, NativeSpec)]


@contextmanager
def places_among(specs: Sequence[LogitsProcessorSpec]) -> Generator[None]:
    """Errors that say a place in ``without_native(specs)`` say the one in ``specs`` instead."""
    try:
        yield
    except SpecError as error:
        place = re.match(r"\$\.specs\[(\d+)\]", error.path)
        if place is None:
            raise
        others = [i for i, spec in enumerate(specs) if not isinstance(spec, NativeSpec)]
        path = f"$.specs[{others[int(place[1])]}]{error.path[place.end() :]}"
        raise SpecError(error.message, path) from error.__cause__


def check_total(got: int, most: int, what: str, path: str) -> None:
    """Check how much a field holds in all.

    Raises:
        SpecError: at ``path``.
    """
    if got > most:
        raise SpecError(f"Expected at most {most} {what} in all, got {got}", path)


def check_different(choices: Sequence[object]) -> None:
    """Check that no two choices are equal.

    Raises:
        SpecError: at the first that is.
    """
    if len(set(choices)) == len(choices):
        return
    first_of: dict[object, int] = {}
    for i, choice in enumerate(choices):
        if (first := first_of.setdefault(choice, i)) != i:
            raise SpecError(f"The same as `$.choices[{first}]`", f"$.choices[{i}]")


def check_pattern(token_ids: Sequence[int], path: str) -> None:
    """Check that a sequence which is looked for in the output is not too long for that.

    Raises:
        SpecError: at ``path``.
    """
    if len(token_ids) > MAX_PATTERN:
        what = f"Expected at most {MAX_PATTERN} token ids to look for, got {len(token_ids)}"
        raise SpecError(what, path)


def check_sizes(specs: Sequence[LogitsProcessorSpec]) -> None:
    """Check what all specs of a request list together.

    Raises:
        SpecError: at the spec that goes beyond a limit.
    """
    most = Sizes(MAX_TOKEN_IDS, MAX_SEQUENCES)
    counted = "token ids (twice in sequences and with biases)", "sequences (choices twice)"
    total = Sizes()
    for i, spec in enumerate(specs):
        total = Sizes(*map(sum, zip(total, spec.sizes(), strict=True)))
        for got, limit, what in zip(total, most, counted, strict=True):
            if got > limit:
                what = f"Expected at most {limit} {what} in all specs together, got {got}"
                raise SpecError(what, f"$.specs[{i}]")


def check_fields(struct: msgspec.Struct, *names: str) -> None:
    """Hold a constructed object to its fields' types, as decoding does.

    Args:
        struct: the object. Its fields get the values that decoding would give them.
        names: of the fields, if not all.

    Raises:
        SpecError: with the path of the offending value.
    """
    if _decoding.fields_hold:
        return
    for name, field_type in _field_types(type(struct)):
        if names and name not in names:
            continue
        value = getattr(struct, name)
        try:
            if _has_no_order(value):  # msgspec takes sets for arrays
                raise msgspec.ValidationError("Expected `array`, got `set`")
            checked = msgspec.convert(value, field_type)
        except msgspec.ValidationError as error:
            raise spec_error(error).under(f"$.{name}") from None
        except UnicodeEncodeError:
            raise SpecError("Expected valid Unicode", f"$.{name}") from None
        msgspec.structs.force_setattr(struct, name, checked)


class _Decoding(threading.local):
    """What this thread is doing.

    Attributes:
        fields_hold: msgspec is making structs of what it has checked against their types.
    """

    fields_hold = False


_decoding = _Decoding()


@contextmanager
def fields_hold() -> Generator[None]:
    """Msgspec makes structs of what it has checked: ``__post_init__`` need not check it again."""
    _decoding.fields_hold = True
    try:
        yield
    finally:
        _decoding.fields_hold = False


_SETS = frozenset({set, frozenset})


def _has_no_order(value: Any) -> bool:
    """Whether token ids come in a set. Sequences hold numbers alone, or sequences alone."""
    if isinstance(value, list | tuple):
        items = cast("Sequence[Any]", value)
        return bool(items) and type(items[0]) is not int and not _SETS.isdisjoint(map(type, items))
    return type(value) in _SETS


@lru_cache
def _field_types(spec_type: type[msgspec.Struct]) -> tuple[tuple[str, Any], ...]:
    return tuple((field.name, field.type) for field in msgspec.structs.fields(spec_type))


_PATH = re.compile(r" - at (`key` in )?`(\$[^`]*)`\Z")
"""How msgspec's messages end."""


def spec_error(error: msgspec.DecodeError) -> SpecError:
    """Msgspec's error as a ``SpecError``: the path that it puts into the text becomes ``path``."""
    cause = error.__cause__ if isinstance(error.__cause__, SpecError) else None
    message, path = str(error).removeprefix(str(cause)), "$"
    # The path is at the end. What comes before it may be as long as the payload.
    if found := _PATH.search(message, max(0, len(message) - 1000)):
        message, path = message[: found.start()], found[2]
        if found[1]:
            message += " as a key"
    # A __post_init__ that fails while decoding speaks of its own object: msgspec knows where it is.
    return cause.under(path) if cause else SpecError(message, path)
