"""``thinking_budget``: limit the tokens of a thinking block."""

from collections.abc import Sequence
from typing import Annotated

import msgspec

from ..base import (
    Count,
    LogitsProcessorSpec,
    MaybeTokenIds,
    Sizes,
    TokenIds,
    check_pattern,
    schema_default,
)
from ..errors import SpecError
from ..limits import MAX_TAGS
from ..tags import check_tags, count_edges, tags_of
from ..thinking_families import (
    VocabularyTokenizer,
    newline_token_ids,
    thinking_family,
    thinking_tags,
)
from ..tokenization import Tokenizer, text_fields, token_ids_of

OtherTags = Annotated[tuple[TokenIds, ...], msgspec.Meta(max_length=MAX_TAGS - 1)]
"""Further spellings of a tag, or further tags."""


class ThinkingBudgetSpec(
    LogitsProcessorSpec, frozen=True, omit_defaults=True, tag="thinking_budget"
):
    """A thinking block holds at most ``budget`` tokens; then the message and the end tag follow.

    A block begins when a start tag is complete, in the prompt or in the output, and ends with an
    end tag. The tokens between the tags count, including tokens in the prompt if it leaves the
    block open. After ``budget`` tokens, the message, if any, and ``end_token_ids`` are forced, and
    then ``then_token_ids``. If the last tokens are already the beginning of an end tag, only its
    rest is forced, without a message. Each block has a budget of its own. A budget of 0 closes a
    block as soon as it is open.

    A model may write a tag in several ways, or begin and end a block with several tags. All of them
    are recognized; ``end_token_ids`` is forced. Nothing is forced after an end tag that the model
    has written by itself, and nothing after one of ``other_end_token_ids``: it may be a tool call.
    What is forced opens no block.

    With a ``grace``, the model may end its line first: when the budget is spent, up to ``grace``
    more tokens are free. What is forced follows the first of them that has a newline, and the last
    of them at the latest. NVIDIA NIM's BudgetControlLogitsProcessor grants 10% of the budget.

    For example, with ``<think>`` 7, ``</think>`` 8 and a newline 3::

        ThinkingBudgetSpec(2, (7,), (8,), grace=2, newline_token_ids=(3,))

    If the model says 7 9 9 9 3, then 8 follows.

    For ``min_tokens`` tokens of a block, no token that completes an end tag is chosen. If the
    prompt leaves a block open, its tokens count, too; but of more than ``min_tokens`` of them, only
    so many count towards the budget.

    On the wire, ``"tags": "model"`` stands for the start tags, the end tags and ``then_token_ids``
    of the server's model.

    The kind is like vLLM's ``thinking_token_budget`` and SGLang's ``ThinkingBudgetLogitProcessor``.
    SGLang's message is a newline, and its count restarts at a start tag inside a block.

    Examples:
        >>> from logitport.adapters.reference import edit
        >>> spec = ThinkingBudgetSpec(2, (7,), (8,), grace=2, newline_token_ids=(3,))
        >>> [edit(spec, (7,), output) for output in ((9, 9), (9, 9, 3))]
        [None, Force(token=8)]

    Args:
        budget: 0 to ``MAX_INT`` tokens.
        start_token_ids: the start tag, 1 to ``MAX_PATTERN`` token ids.
        end_token_ids: the end tag, 1 to ``MAX_PATTERN`` token ids, not the start tag.
        message_token_ids: the message before a forced end tag, up to ``MAX_TOKEN_IDS`` token ids.
        other_start_token_ids: further start tags. There are at most ``MAX_TAGS`` start tags, and
            ``MAX_PATTERN`` token ids in all of them. In the limit of all token ids, each of them
            counts four times more for each other tag.
        other_end_token_ids: further end tags, as many.
        then_token_ids: what follows a forced end tag, up to ``MAX_TOKEN_IDS`` token ids: the
            beginning of the answer, for models that do not write it by themselves after a tag that
            they have not chosen.
        min_tokens: the least number of tokens in a block, 0 to ``budget``.
        grace: the most tokens beyond ``budget`` that wait for a newline.
        newline_token_ids: the tokens that end a line, if there is a ``grace``. In the limit of all
            token ids, each counts twice more for each token of the end tags.
        stop_token_ids: up to ``MAX_PATTERN`` tokens that end a reply, the model's EOS for example.
            They are banned within a block, so that no reply ends without its answer. None of them
            is an end tag.

    Raises:
        SpecError: if a field is out of bounds, two tags are the same, or only one of ``grace`` and
            ``newline_token_ids`` is given.
    """

    TEXTS = text_fields(
        start_text="start_token_ids",
        end_text="end_token_ids",
        message_text="message_token_ids",
        other_start_texts="other_start_token_ids",
        other_end_texts="other_end_token_ids",
        then_text="then_token_ids",
        stop_tokens="stop_token_ids",
    )
    TAGS = "start_token_ids", "end_token_ids"

    budget: Count
    start_token_ids: TokenIds
    end_token_ids: TokenIds
    message_token_ids: Annotated[MaybeTokenIds, schema_default(())] = msgspec.field(
        default_factory=lambda: ()
    )
    other_start_token_ids: OtherTags = ()
    other_end_token_ids: OtherTags = ()
    then_token_ids: MaybeTokenIds = ()
    min_tokens: Count = 0
    grace: Count = 0
    newline_token_ids: MaybeTokenIds = ()
    stop_token_ids: MaybeTokenIds = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_tags(self)
        if self.min_tokens > self.budget:
            what = f"Expected at most the budget, {self.budget}, got {self.min_tokens}"
            raise SpecError(what, "min_tokens")
        if bool(self.grace) != bool(self.newline_token_ids):
            what = "Expected both of grace and newline_token_ids, or neither"
            raise SpecError(what, "grace" if self.grace else "newline_token_ids")
        check_pattern(self.stop_token_ids, "stop_token_ids")
        tags = {tag: path for path, tag in tags_of(self)}
        for i, token in enumerate(self.stop_token_ids):
            if path := tags.get((token,)):
                raise SpecError(("The same as ", path), "stop_token_ids", i)

    @classmethod
    def from_text(
        cls,
        budget: int,
        tokenizer: Tokenizer,
        *,
        start: str = "<think>",
        end: str = "</think>",
        message: str = "",
    ) -> "ThinkingBudgetSpec":
        r"""Make a spec from tags and a message as text.

        Args:
            budget: 0 to ``MAX_INT`` tokens.
            tokenizer: the model's tokenizer, any Hugging Face tokenizer.
            start: the start tag.
            end: the end tag.
            message: the message before a forced end tag, ``"\n"`` for example.

        Raises:
            SpecError: if a tag makes no tokens.
        """
        return cls(
            budget,
            token_ids_of(start, tokenizer),
            token_ids_of(end, tokenizer),
            token_ids_of(message, tokenizer) if message else (),
        )

    @classmethod
    def for_tokenizer(
        cls,
        budget: int,
        tokenizer: VocabularyTokenizer,
        *,
        family: str | None = None,
        message: str = "",
        min_tokens: int = 0,
        grace: int = 0,
        stop_token_ids: Sequence[int] = (),
    ) -> "ThinkingBudgetSpec":
        """Make a spec with the thinking tags of a tokenizer's model.

        ``thinking_family(tokenizer).name`` is the family whose tags are taken.

        Args:
            budget: 0 to ``MAX_INT`` tokens.
            tokenizer: the model's tokenizer, any Hugging Face tokenizer.
            family: the name of a family in ``THINKING_FAMILIES``. By default, the special tokens
                of the tokenizer decide. It is needed for models whose tags are plain text.
            message: the message before a forced end tag.
            min_tokens: the least number of tokens in a block.
            grace: the most tokens beyond ``budget`` that wait for a newline.
            stop_token_ids: the tokens that end a reply, and are banned within a block; by default
                none. Those that are an end tag are left out.

        Raises:
            SpecError: if the tokenizer belongs to no known family, or not to the one that is named.
        """
        found = thinking_family(tokenizer, family)
        starts, ends = thinking_tags(found, tokenizer)
        return cls(
            budget,
            starts[0],
            ends[0],
            token_ids_of(message, tokenizer) if message else (),
            tuple(starts[1:]),
            tuple(ends[1:]),
            token_ids_of(found.then, tokenizer) if found.then else (),
            min_tokens,
            grace,
            newline_token_ids(tokenizer) if grace else (),
            tuple(token for token in stop_token_ids if (token,) not in ends),
        )

    def sizes(self) -> Sizes:
        """Count the edges of states, too: each state of a tag may have one for each other tag."""
        edges = count_edges(self, len(self.newline_token_ids))
        return Sizes(super().sizes().token_ids + edges)

    @property
    def can_complete(self) -> bool:
        return True

    @property
    def narrows(self) -> bool:
        return True
