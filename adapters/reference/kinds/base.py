"""The types and functions that the files of the kinds share."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Generic, TypeVar

from ....spec import LogitsProcessorSpec

BAN = -1e9
"""The value that is added to a banned token's logit."""

DECISIVE = 1000
"""A bias that decides which token is chosen."""


@dataclass(frozen=True)
class Force:
    """This token is chosen.

    Where several are forced, it is the first; one that ``is_last``, of a text that has begun where
    the reply would have ended, comes before all others.
    """

    token: int
    is_last: bool = field(default=False, compare=False, repr=False, kw_only=True)


@dataclass(frozen=True)
class Allow:
    """One of these tokens is chosen."""

    tokens: frozenset[int]


@dataclass(frozen=True)
class Add:
    """These values are added to these tokens' logits."""

    values: Mapping[int, float]

    @cached_property
    def wanted(self) -> list[int]:
        """The tokens with a bias that decides."""
        return [token for token, value in self.values.items() if value >= DECISIVE]

    @cached_property
    def banned(self) -> int:
        """The number of tokens that are banned."""
        return sum(value <= -DECISIVE for value in self.values.values())


@dataclass(frozen=True)
class Move:
    """The first token has the probability of the ends, at a temperature, and they have none.

    It has no other probability. Where an end is forced, it is this token.
    """

    first: int
    ends: tuple[int, ...]
    temperature: float


@dataclass(frozen=True)
class Several:
    """All of these edits are made."""

    edits: tuple["Force | Allow | Add | Move", ...]


Edit = Force | Allow | Add | Move | Several | None
Tokens = tuple[int, ...]


@dataclass(frozen=True)
class FreeRun:
    """A prompt, and the output that an engine generates for it without specs.

    Attributes:
        prompt_ids: the prompt's token ids.
        output_ids: the output's token ids, at least two.
        unused: three tokens that are neither in the prompt nor in the output.
        eos_token_id: the token that ends an output.
    """

    prompt_ids: Tokens
    output_ids: Tokens
    unused: Tokens
    eos_token_id: int


Spec = TypeVar("Spec", bound=LogitsProcessorSpec)


@dataclass(frozen=True)
class Kind(Generic[Spec]):
    """The reference and the examples of one kind.

    Attributes:
        minimal: a spec that holds as little as the kind permits.
        edit: the reference. It finds a spec's edit of the next token's logits in the whole
            history, which is a prompt and an output. ``None`` for kinds that an engine realizes by
            itself, and for code.
        examples: makes specs that change the output of a ``FreeRun``.
        complete: whether there is nothing left to do for a spec after a prompt and an output, for
            the kinds that can end a phase.
    """

    minimal: Spec
    edit: Callable[[Spec, Tokens, Tokens], Edit] | None = None
    examples: Callable[[FreeRun], list[Spec]] = lambda free: []
    complete: Callable[[Spec, Tokens, Tokens], bool] | None = None


def forced_by(edits: Iterable[Edit]) -> int | None:
    """Return the token that edits force, if they do."""
    forces = [each for each in flat(edits) if isinstance(each, Force)]
    return min(forces, key=lambda each: not each.is_last).token if forces else None


def flat(edits: Iterable[Edit]) -> list[Force | Allow | Add | Move]:
    """List edits one by one."""
    parts = (edit.edits if isinstance(edit, Several) else (edit,) for edit in edits)
    return [edit for part in parts for edit in part if edit is not None]


def ban(tokens: Iterable[int]) -> Edit:
    """Ban all tokens, if there are any."""
    return Add(dict.fromkeys(tokens, BAN)) if tokens else None


def find(pattern: Tokens, history: Tokens, start: int = 0) -> int | None:
    """Find the end of the first occurrence that begins at ``start`` or later."""
    for end in range(start + len(pattern), len(history) + 1):
        if history[end - len(pattern) : end] == pattern:
            return end
    return None


def text_of(vocabulary: Sequence[bytes | None], output: Tokens) -> bytes:
    """Return the bytes of an output after its last special token, which is ``None``."""
    text = b""
    for token in output:
        piece = vocabulary[token]
        text = b"" if piece is None else text + piece
    return text


def first_end(tags: Iterable[Tokens], history: Tokens, start: int = 0) -> int | None:
    """Find the first end of any of the tags that begins at ``start`` or later."""
    ends = (find(tag, history, start) for tag in tags)
    return min((end for end in ends if end is not None), default=None)


def forcing(text: Tokens, history: Tokens, start: int) -> Force | int:
    """Return the due token of ``text``, which is forced from ``start`` on, or its end.

    Tokens before the text's first token do not belong to the text. From then on, only the number
    of tokens counts.
    """
    begun = find(text[:1], history, start)
    if begun is None:
        return Force(text[0])
    done = len(history) - begun + 1
    return Force(text[done]) if done < len(text) else begun - 1 + len(text)
