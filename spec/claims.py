"""The claims of specs. ``conflicts`` compares claims, whatever the kinds of the specs."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, repeat
from typing import NamedTuple

from .errors import Path

TokenIds = Sequence[int]
TokenFields = Iterator[tuple[Path, TokenIds]]
"""Paths with token ids; see ``LogitsProcessorSpec.token_fields``."""

NO_TOKEN = -1
"""A placeholder between sequences, where there is no token."""

CHOICE = "{choice}"
"""A placeholder in the path of ``Forces``."""


class Forces(NamedTuple):
    """The tokens of a sequence follow one another; of several sequences, the model chooses one.

    Attributes:
        path: a token's path, relative to the spec; ``CHOICE`` and ``*`` stand for indices.
        choices: the sequences, at least one.
        first: the output index at which they begin, ``None`` if it depends on the output.
        stop: a token that follows each sequence; its path is the sequence's path.
        in_reply: whether the tokens are certainly part of the reply. EOS is not, because the reply
            may be over; nor is thinking, because engines apply a grammar after it.
    """

    path: Path
    choices: Sequence[TokenIds]
    first: int | None = None
    stop: int = NO_TOKEN
    in_reply: bool = True

    def joined(self, between: int = NO_TOKEN) -> tuple[int, ...]:
        """Join all sequences to one, with ``between`` after each."""
        parts = chain.from_iterable(zip(self.choices, repeat((between,))))
        return tuple(chain.from_iterable(parts))

    def positions(self) -> Iterator[int]:
        """Yield the output indices of the tokens of ``joined``. Sequences begin at ``first``."""
        first = self.first or 0
        ends = map((first + 1).__add__, map(len, self.choices))
        return chain.from_iterable(map(range, repeat(first), ends))

    def path_of(self, k: int) -> Path:
        """Return the path of token ``k`` of ``joined``."""
        starts = [0, *accumulate(len(choice) + 1 for choice in self.choices)]
        choice = bisect_right(starts, k) - 1
        indices: dict[str | int, int] = {CHOICE: choice, "*": k - starts[choice]}
        return tuple(indices.get(each, each) for each in self.path)


class Bans(NamedTuple):
    """No output token is one of ``token_ids``, and the output contains none of ``sequences``.

    Attributes:
        token_ids: any number of token ids.
        sequences: any number of sequences of two tokens or more.
        until: the output index from which ``token_ids`` are no longer banned, ``None`` for never.
    """

    token_ids: TokenIds
    sequences: Sequence[tuple[int, ...]] = ()
    until: int | None = None


class Allows(NamedTuple):
    """Every output token is one of ``token_ids``."""

    token_ids: TokenIds


class Unknown(NamedTuple):
    """The spec may edit the logits in any way."""


class Sets(NamedTuple):
    """The engine's parameter ``name``, which is also a field of the spec, is ``value``."""

    name: str
    value: float


class FollowsGrammar(NamedTuple):
    """The reply follows a grammar. There is at most one grammar."""


Claim = Forces | Bans | Allows | Unknown | Sets | FollowsGrammar
Claims = Iterator[Claim]
"""See ``LogitsProcessorSpec.claims``."""


def forces_and_stops(first: int, token_ids: TokenIds, stop: int | None) -> Claims:
    """Yield the claims of a spec that forces ``token_ids``, then ``eos_token_id``, if any."""
    yield Forces(("token_ids", "*"), (token_ids,), first)
    if stop is not None:
        at = first + len(token_ids)
        yield Forces(("eos_token_id",), ((stop,),), at, in_reply=False)
