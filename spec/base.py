"""What every spec has in common: immutable, checked when it is made, tagged by its kind."""

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Annotated, Any

import msgspec

from .errors import SpecError
from .limits import MAX_TOKEN_ID, MAX_TOKEN_IDS

TokenId = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKEN_ID)]
"""An index into the vocabulary."""

TokenIds = Annotated[tuple[TokenId, ...], msgspec.Meta(min_length=1, max_length=MAX_TOKEN_IDS)]
"""A non-empty sequence of token ids."""


class LogitsProcessorSpec(
    msgspec.Struct, frozen=True, tag_field="kind", forbid_unknown_fields=True
):
    """Base of all kinds: what may happen to one request's next-token logits, as data.

    A spec holds token ids, never text, and knows no engine. Its fields carry their constraints
    (``msgspec.Meta``), which hold whether it is decoded or constructed; a list or tuple of integers
    will do where a tuple of token ids is declared.

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

        The path is relative to the spec (``$.token_ids``); that of a single token id is the
        field's own, with a sequence of one.
        """
        raise NotImplementedError

    def check_vocabulary(self, vocab_size: int) -> None:
        """Check every token id against the size of an engine's vocabulary.

        Args:
            vocab_size: number of columns of the engine's logits.

        Raises:
            SpecError: for the first token id that is ``vocab_size`` or more.
        """
        for path, token_ids in self.token_fields():
            if max(token_ids) < vocab_size:
                continue
            index = next(i for i, token_id in enumerate(token_ids) if token_id >= vocab_size)
            is_sequence = isinstance(getattr(self, path.removeprefix("$.")), tuple)
            raise SpecError(
                f"Token id {token_ids[index]} is beyond the vocabulary of {vocab_size} tokens",
                f"{path}[{index}]" if is_sequence else path,
            )


def kind_of(spec_type: type[LogitsProcessorSpec]) -> str:
    """The tag of a spec class, ``forced_sequence`` for example."""
    return str(spec_type.__struct_config__.tag)


def check_fields(struct: msgspec.Struct) -> None:
    """Hold a constructed object to its fields' types, as decoding does.

    Raises:
        SpecError: with the path of the offending value.
    """
    for name, field_type in _field_types(type(struct)):
        value = getattr(struct, name)
        try:
            if isinstance(value, set | frozenset):  # msgspec takes these for arrays
                raise msgspec.ValidationError("Expected `array`, got `set`")
            checked = msgspec.convert(value, field_type)
        except msgspec.ValidationError as error:
            raise spec_error(error).under(f"$.{name}") from None
        msgspec.structs.force_setattr(struct, name, checked)


@lru_cache
def _field_types(spec_type: type[msgspec.Struct]) -> tuple[tuple[str, Any], ...]:
    return tuple((field.name, field.type) for field in msgspec.structs.fields(spec_type))


def spec_error(error: msgspec.DecodeError) -> SpecError:
    """Msgspec's error as a ``SpecError``: the path that it puts into the text becomes ``path``."""
    cause = error.__cause__ if isinstance(error.__cause__, SpecError) else None
    match = re.fullmatch(
        r"(.*?)(?: - at (?:`key` in )?`(\$.*)`)?", str(error).removeprefix(str(cause)), re.DOTALL
    )
    message, path = (match[1], match[2] or "$") if match else (str(error), "$")
    # A __post_init__ that fails while decoding speaks of its own object: msgspec knows where it is.
    return cause.under(path) if cause else SpecError(message, path)
