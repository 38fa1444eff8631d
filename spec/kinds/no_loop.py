"""``no_loop``: do not repeat the same tokens over and over."""

from collections.abc import Sequence
from typing import Annotated

import msgspec

from ..base import LogitsProcessorSpec, MaybeTokenIds, Sizes, check_pattern
from ..errors import SpecError
from ..limits import MAX_LOOP
from ..tags import check_tags, count_edges
from ..tokenization import text_fields
from .thinking_budget import OtherTags, ThinkingBudgetSpec

MAX_PERIOD = max(MAX_LOOP // 2, 1)
"""The longest text whose copies are looked for, in tokens."""

MAX_REPEATS = 2
"""How often the beginning of a forced text may come again at one of its tokens. Each is looked up
at each step, with the tokens before it: 3 microseconds."""

_Times = Annotated[int, msgspec.Meta(ge=2, le=max(MAX_LOOP, 2))]
_Period = Annotated[int, msgspec.Meta(ge=1, le=MAX_PERIOD)]
_Least = Annotated[int, msgspec.Meta(ge=0, le=MAX_LOOP)]


class NoLoopSpec(LogitsProcessorSpec, frozen=True, omit_defaults=True, tag="no_loop"):
    """The output does not repeat the same tokens ``times`` times in a row.

    A loop is a text of ``min_period`` to ``max_period`` tokens that stands ``times`` times, or more
    often, at the end of the output, with nothing in between. The token that would complete the last
    of these copies is banned. So the model has to go on in another way. Unlike ``no_repeat_ngram``,
    the kind leaves repetitions that are not in a row. Unlike ``dry``, no model outvotes it.

    A loop of less than ``min_tokens`` tokens is left alone, because tables and lists may have a few
    equal cells in a row: a text of p tokens has to stand ``min_tokens / p`` times then, rounded up,
    if that is more than ``times``.

    With ``then_token_ids``, nothing is banned. Once the copies stand there, these tokens are
    forced: a line break, say, or the beginning of an answer. Then the model is free, for one token
    at least. If the last tokens are their beginning, and a loop stands before, only their rest is
    forced.

    With tags, the spec acts only within a thinking block: after a start tag, and before an end tag,
    in prompt and output. A spec that forces the end tag there closes a block that loops, and the
    answer comes. ``within_thinking`` makes it from a ``thinking_budget``; so does
    ``"tags": "model"`` on the wire, with the tags of the server's model, if ``then_token_ids`` are
    left out.

    For example, with a newline 3::

        NoLoopSpec(3, then_token_ids=(3,))

    If the model says 8 9 8 9 8 9, then 3 follows.

    Examples:
        >>> from logitport.adapters.reference import edit
        >>> edit(NoLoopSpec(3), (), (8, 9, 8, 9, 8))
        Add(values={9: -1000000000.0})
        >>> edit(NoLoopSpec(3, then_token_ids=(3,)), (), (8, 9, 8, 9, 8, 9))
        Force(token=3)

    Args:
        times: 2 to ``MAX_LOOP`` copies in a row that are a loop.
        max_period: 1 to ``MAX_PERIOD`` tokens of the text; ``times`` times as many are at most
            ``MAX_LOOP``.
        min_period: 1 to ``max_period`` tokens.
        min_tokens: 0 to ``MAX_LOOP`` tokens of all copies together.
        then_token_ids: up to ``MAX_PATTERN`` token ids that are forced after a loop. No token of
            them ends more than ``MAX_REPEATS`` other beginnings of them: ``7 7 7`` is taken, and
            ``7 7 7 7`` is not.
        start_token_ids: the tag that begins a block; the spec acts only within blocks then.
        end_token_ids: the tag that ends a block; both tags are given, or neither.
        other_start_token_ids: further start tags, as for ``thinking_budget``.
        other_end_token_ids: further end tags.
        output_only: whether the copies are looked for in the output alone. Otherwise the first of
            them may be in the prompt.

    Raises:
        SpecError: if a field is out of bounds, or only one of the tags is given.
    """

    TEXTS = text_fields(
        then_text="then_token_ids",
        start_text="start_token_ids",
        end_text="end_token_ids",
        other_start_texts="other_start_token_ids",
        other_end_texts="other_end_token_ids",
    )
    TAGS = "start_token_ids", "end_token_ids"

    times: _Times
    max_period: _Period = min(128, MAX_PERIOD)
    min_period: _Period = 1
    min_tokens: _Least = 0
    then_token_ids: MaybeTokenIds = ()
    start_token_ids: MaybeTokenIds = ()
    end_token_ids: MaybeTokenIds = ()
    other_start_token_ids: OtherTags = ()
    other_end_token_ids: OtherTags = ()
    output_only: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.times * self.max_period > MAX_LOOP:
            what = f"Expected at most {MAX_LOOP} tokens in {self.times} copies, got"
            raise SpecError(f"{what} {self.times * self.max_period}", "max_period")
        if self.min_period > self.max_period:
            what = f"Expected at most the longest period, {self.max_period}, got {self.min_period}"
            raise SpecError(what, "min_period")
        check_pattern(self.then_token_ids, "then_token_ids")
        if repeats(self.then_token_ids) > MAX_REPEATS:
            what = f"Expected a text whose beginning comes again at most {MAX_REPEATS} times"
            raise SpecError(what, "then_token_ids")
        if bool(self.start_token_ids) != bool(self.end_token_ids):
            what = "Expected both of start_token_ids and end_token_ids, or neither"
            raise SpecError(what, "start_token_ids" if self.start_token_ids else "end_token_ids")
        if self.start_token_ids:
            check_tags(self)
        elif self.other_start_token_ids or self.other_end_token_ids:
            name = "other_start_token_ids" if self.other_start_token_ids else "other_end_token_ids"
            raise SpecError("Expected start_token_ids and end_token_ids, too", name)

    @classmethod
    def within_thinking(
        cls, thinking: ThinkingBudgetSpec, times: int, max_period: int = 128, min_tokens: int = 0
    ) -> "NoLoopSpec":
        """Make a spec that closes a thinking block that loops, as if its budget were out.

        The tags, the message and what follows a forced end tag are those of ``thinking``. Both
        specs can be on a request.

            >>> thinking = ThinkingBudgetSpec(512, (7,), (8,), message_token_ids=(3,))
            >>> NoLoopSpec.within_thinking(thinking, 4).then_token_ids
            (3, 8)

        Args:
            thinking: the budget, for example of ``ThinkingBudgetSpec.for_tokenizer``.
            times: see ``NoLoopSpec``.
            max_period: see ``NoLoopSpec``.
            min_tokens: see ``NoLoopSpec``.

        Raises:
            SpecError: as ``NoLoopSpec`` does, for example if the message is too long.
        """
        closing = thinking.message_token_ids + thinking.end_token_ids + thinking.then_token_ids
        return cls(
            times,
            max_period,
            min_tokens=min_tokens,
            then_token_ids=closing,
            start_token_ids=thinking.start_token_ids,
            end_token_ids=thinking.end_token_ids,
            other_start_token_ids=thinking.other_start_token_ids,
            other_end_token_ids=thinking.other_end_token_ids,
        )

    def copies(self, period: int) -> int:
        """Return how many copies of a text of so many tokens make a loop."""
        return max(self.times, -(-self.min_tokens // period))

    def sizes(self) -> Sizes:
        """Count the edges of states, too, as ``thinking_budget`` does."""
        return Sizes(super().sizes().token_ids + count_edges(self))

    @property
    def breaks_grammar(self) -> bool:
        return bool(self.then_token_ids) and not self.start_token_ids


def repeats(token_ids: Sequence[int]) -> int:
    """Count the shorter beginnings with which any beginning ends, at most."""
    counts = (
        sum(token_ids[at - n : at + 1] == token_ids[: n + 1] for n in range(at))
        for at in range(len(token_ids))
    )
    return max(counts, default=0)
