"""The base of all specs, which are immutable, checked when made, and tagged by their kind."""

import re
import reprlib
import threading
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from functools import lru_cache
from itertools import chain
from typing import Annotated, Any, ClassVar, NamedTuple, cast

import msgspec

from .errors import Key, Path, SpecError
from .limits import MAX_BIAS, MAX_INT, MAX_PATTERN, MAX_PHASES, MAX_TEXT_BYTES, MAX_TOKEN_IDS
from .suggestions import SpecMeta

TokenId = Annotated[int, msgspec.Meta(ge=0, le=MAX_INT)]
"""An index into the vocabulary."""

TokenFields = Iterator[tuple[Path, Sequence[int]]]
"""Paths with token ids; see ``LogitsProcessorSpec.token_fields``."""

TokenIds = Annotated[tuple[TokenId, ...], msgspec.Meta(min_length=1, max_length=MAX_TOKEN_IDS)]
"""A non-empty sequence of token ids."""

MaybeTokenIds = Annotated[tuple[TokenId, ...], msgspec.Meta(max_length=MAX_TOKEN_IDS)]
"""A sequence of token ids that may be empty."""


def schema_default(value: Any) -> msgspec.Meta:
    """Annotate a field with its default, if that comes from a factory.

    ``omit_defaults`` compares no factory's result, so such a field is always encoded: payloads have
    had it since before their kind left out defaults.
    """
    return msgspec.Meta(extra_json_schema={"default": value})


TokenSequences = Annotated[
    tuple[TokenIds, ...], msgspec.Meta(min_length=1, max_length=MAX_TOKEN_IDS)
]
"""Non-empty sequences, at least one; ``Sizes`` counts all their token ids together."""

Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_INT)]
"""A number of tokens."""

PositiveCount = Annotated[int, msgspec.Meta(ge=1, le=MAX_INT)]
"""A number of tokens, at least one."""

Bias = Annotated[float, msgspec.Meta(ge=-MAX_BIAS, le=MAX_BIAS)]
"""A value that is added to a logit. NaN is out of bounds, like any value beyond the limits."""


class Sizes(NamedTuple):
    """The numbers of items that a spec, or all specs of a request, list.

    Attributes:
        token_ids: the token ids. With a bias or in a choice, each counts twice; in a sequence that
            is looked for, three times.
        text_bytes: the bytes of the texts that are looked for.
        phases: the specs of all phases, where an empty phase counts as one.
    """

    token_ids: int = 0
    text_bytes: int = 0
    phases: int = 0


class LogitsProcessorSpec(
    msgspec.Struct, metaclass=SpecMeta, frozen=True, tag_field="kind", forbid_unknown_fields=True
):
    """The base of all kinds, which describe edits of one request's next-token logits as data.

    A spec holds token ids, and text only where a kind is about text (``banned_text``, ``grammar``).
    It depends on no engine. Its fields have constraints (``msgspec.Meta``), which hold for decoded
    and for constructed specs. A list or tuple of integers may be passed for a declared tuple of
    token ids. Specs of the same kind and content are equal and have the same hash.

    Raises:
        SpecError: from the constructor, with the path of the offending value.
    """

    TEXTS: ClassVar[Mapping[str, str]] = {}
    """The wire's text fields; see ``text_fields``."""

    TAGS: ClassVar[tuple[str, ...]] = ()
    """The fields for which the wire's ``tags`` stands that a client would have to give."""

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def kind(self) -> str:
        """The tag that stands for this class on the wire."""
        return kind_of(type(self))

    def token_fields(self) -> TokenFields:
        """Yield ``(path, token ids)`` for each field that indexes the vocabulary.

        The path is relative to the spec, with ``*`` for the index of a token id:
        ``("token_ids", "*")``, ``("sequences", 3, "*")``, ``("eos_token_id",)``.

        By default, the names decide: ``..._token_ids`` is a list or a list of lists, and
        ``..._token_id`` is one.
        """
        for name in self.__struct_fields__:
            value: Any = getattr(self, name)
            if name.endswith("token_ids") and value and isinstance(value[0], tuple):
                yield from (((name, i, "*"), each) for i, each in enumerate(value))
            elif name.endswith("token_ids"):
                yield (name, "*"), value
            elif name.endswith("token_id") and value is not None:
                yield (name,), (value,)

    @property
    def breaks_grammar(self) -> bool:
        """Whether the spec forces tokens of the reply, which a grammar may not accept.

        An engine ends a request whose next token its grammar does not accept. Thinking does not
        count, because engines apply a grammar after it.
        """
        return False

    @property
    def narrows(self) -> bool:
        """Whether the spec may leave no token that a grammar accepts after it."""
        return self.breaks_grammar

    def bans_text(self, text: str) -> bool:
        """Whether the output cannot be this text, in whatever tokens."""
        return False

    @property
    def can_complete(self) -> bool:
        """Whether there may be nothing left to do for the spec; see ``PhasesSpec``."""
        return False

    @property
    def text_rules(self) -> Sequence[Path]:
        """The paths of what is a pass over a vocabulary each, see ``MAX_TEXT_RULES``."""
        return ()

    @property
    def needs_vocabulary(self) -> bool:
        """Whether the spec is about text: it is compiled for the bytes of a vocabulary's tokens."""
        return bool(self.text_rules)

    def sizes(self) -> Sizes:
        """Count the items in the spec's lists. A token id outside of a list does not count."""
        lists = (token_ids for path, token_ids in self.token_fields() if path[-1] == "*")
        return Sizes(token_ids=sum(map(len, lists)))

    def check_vocabulary(self, vocab_size: int) -> None:
        """Check every token id against the size of an engine's vocabulary.

        Args:
            vocab_size: the number of columns of the engine's logits.

        Raises:
            SpecError: for the first token id that is ``vocab_size`` or more.
        """
        every = chain.from_iterable(token_ids for _, token_ids in self.token_fields())
        if max(every, default=-1) < vocab_size:
            return
        for path, token_ids in self.token_fields():
            if not token_ids or max(token_ids) < vocab_size:
                continue
            index = next(i for i, token_id in enumerate(token_ids) if token_id >= vocab_size)
            raise SpecError(
                f"Token id {token_ids[index]} is beyond the vocabulary of {vocab_size} tokens",
                *(index if each == "*" else each for each in path),
            )


class TextSpec(LogitsProcessorSpec, frozen=True):
    """The base of the kinds about text, each of which is one pass over the vocabulary."""

    @property
    def text_rules(self) -> Sequence[Path]:
        return ((),)


class ForcingSpec(LogitsProcessorSpec, frozen=True):
    """The base of the kinds that force a text, which is complete if no ``eos_token_id`` follows."""

    @property
    def can_complete(self) -> bool:
        return cast("Any", self).eos_token_id is None

    @property
    def breaks_grammar(self) -> bool:
        return True


class NativeSpec(LogitsProcessorSpec, frozen=True, omit_defaults=True):
    """The base of the kinds that an engine realizes by itself, from fields of its own requests.

    Native specs are data, and payloads can carry them. But an adapter's ``attach`` puts them into
    the engine's fields, so that the payload in an engine's request has none. Native specs have no
    token ids.
    """


def kind_of(spec_type: type[LogitsProcessorSpec]) -> str:
    """Return the tag of a spec class, ``forced_sequence`` for example."""
    return str(spec_type.__struct_config__.tag)


def as_specs(
    specs: LogitsProcessorSpec | Sequence[LogitsProcessorSpec],
) -> tuple[LogitsProcessorSpec, ...]:
    """Put one spec, or several, into a tuple.

    Raises:
        SpecError: with the path of an object that is not a spec.
    """
    if isinstance(specs, LogitsProcessorSpec):
        return (specs,)
    expected, given = "Expected a LogitsProcessorSpec", cast("object", specs)
    if isinstance(given, str | bytes | Mapping | Set) or not isinstance(given, Iterable):
        raise SpecError(f"{expected}, or several in a sequence, got {reprlib.repr(specs)}")
    found = tuple(specs)
    for i, spec in enumerate(cast("tuple[object, ...]", found)):
        if not isinstance(spec, LogitsProcessorSpec):
            raise SpecError(f"{expected}, got {reprlib.repr(spec)}", "specs", i)
    return found


def processor_specs(specs: Sequence[LogitsProcessorSpec]) -> list[LogitsProcessorSpec]:
    """Leave out native specs, which the engine realizes by itself."""
    return [spec for spec in specs if not isinstance(spec, NativeSpec)]


@contextmanager
def restore_paths(specs: Sequence[LogitsProcessorSpec]) -> Generator[None]:
    """Have errors at a spec in ``processor_specs(specs)`` name its index in ``specs``."""
    try:
        yield
    except SpecError as error:
        indices = [i for i, spec in enumerate(specs) if not isinstance(spec, NativeSpec)]
        raise error.specs_at(lambda i: ("specs", indices[i])) from error.__cause__


def check_total(got: int, most: int, what: str, *path: str | int) -> None:
    """Refuse more than ``most`` items in all in the field at ``path``."""
    if got > most:
        raise SpecError(f"Expected at most {most} {what} in all, got {got}", *path)


def check_different(items: Sequence[object], *path: str | int) -> None:
    """Refuse the first item of the field at ``path`` that equals an earlier one."""
    if len(set(items)) == len(items):
        return
    first_of: dict[object, int] = {}
    for i, item in enumerate(items):
        if (first := first_of.setdefault(item, i)) != i:
            raise SpecError(("The same as ", (*path, first)), *path, i)


def check_pattern(token_ids: Sequence[int], *path: str | int) -> None:
    """Refuse a sequence that is too long to be looked for in the output."""
    if len(token_ids) > MAX_PATTERN:
        what = f"Expected at most {MAX_PATTERN} token ids to look for, got {len(token_ids)}"
        raise SpecError(what, *path)


def check_text(text: str, *path: str | int) -> None:
    """Refuse a text that is too long to be looked for in the output, or is not valid Unicode."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise SpecError("Expected valid Unicode", *path) from None
    if size > MAX_PATTERN:
        raise SpecError(f"Expected at most {MAX_PATTERN} bytes in UTF-8, got {size}", *path)


def check_sizes(specs: Sequence[LogitsProcessorSpec]) -> None:
    """Check the numbers of items that all specs of a request list together.

    Raises:
        SpecError: at the spec that goes beyond a limit.
    """
    most = Sizes(MAX_TOKEN_IDS, MAX_TEXT_BYTES, MAX_PHASES)
    counted = (
        "token ids (choices and biases twice, other sequences three times; parts of parameters)",
        "bytes of texts to look for",
        "specs in phases, an empty one as one,",
    )
    total = Sizes()
    for i, spec in enumerate(specs):
        total = Sizes(*map(sum, zip(total, spec.sizes(), strict=True)))
        for got, limit, what in zip(total, most, counted, strict=True):
            if got > limit:
                what = f"Expected at most {limit} {what} in all specs together, got {got}"
                raise SpecError(what, "specs", i)


def check_fields(struct: msgspec.Struct, *names: str) -> None:
    """Check a constructed object against its fields' types, as decoding does.

    Args:
        struct: the object. Its fields get the values that decoding would give them.
        names: the names of the fields to check; by default all.

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
            if _has_no_order(value):  # msgspec accepts sets as arrays
                raise msgspec.ValidationError("Expected `array`, got `set`")
            checked = msgspec.convert(value, field_type)
        except msgspec.ValidationError as error:
            raise spec_error(error).at(name) from None
        except UnicodeEncodeError:
            raise SpecError("Expected valid Unicode", name) from None
        msgspec.structs.force_setattr(struct, name, checked)


class _Decoding(threading.local):
    """Whether msgspec, in this thread, makes structs of values that it has already checked."""

    fields_hold = False


_decoding = _Decoding()


@contextmanager
def fields_hold() -> Generator[None]:
    """Skip checks of types in ``__post_init__``, because msgspec has already made them."""
    _decoding.fields_hold = True
    try:
        yield
    finally:
        _decoding.fields_hold = False


_SETS = frozenset({set, frozenset})


def _has_no_order(value: Any) -> bool:
    """Whether token ids come in a set. A sequence holds only numbers, or only sequences."""
    if isinstance(value, list | tuple):
        items = cast("Sequence[Any]", value)
        return bool(items) and type(items[0]) is not int and not _SETS.isdisjoint(map(type, items))
    return type(value) in _SETS


@lru_cache
def _field_types(spec_type: type[msgspec.Struct]) -> tuple[tuple[str, Any], ...]:
    return tuple((field.name, field.type) for field in msgspec.structs.fields(spec_type))


_PATH = re.compile(r" - at (`key` in )?`(\$[^`]*)`\Z")
"""The end of msgspec's messages."""

_STEP = re.compile(r"\.([^.\[]+)|\[(?:(\d+)|(\.\.\.))\]")
"""A step of msgspec's paths, which name no key of a mapping: ``$.specs[0].bias[...]``."""

_TOO_MANY = re.compile(r"Expected `(?:array|object)` of length <= (\d+)")


def spec_error(error: msgspec.DecodeError) -> SpecError:
    """Convert msgspec's error to a ``SpecError``. The path in its text becomes the location."""
    cause = error.__cause__ if isinstance(error.__cause__, SpecError) else None
    message, path = str(error).removeprefix(str(cause)), Path()
    # The path is at the end. The text before it may be as long as the payload.
    if found := _PATH.search(message, max(0, len(message) - 1000)):
        message = message[: found.start()]
        steps = _STEP.findall(found[2])
        path = tuple(name or (int(index) if index else Key(rest)) for name, index, rest in steps)
        if found[1]:
            message += " as a key"
    if many := _TOO_MANY.fullmatch(message):
        what = "specs" if path[-1:] == ("specs",) else "entries"
        message = f"Expected at most {many[1]} {what}"
    # The path of an error in __post_init__ begins at its own object. Msgspec has the path before.
    return cause.at(*path) if cause else SpecError(message, *path)
