"""``thinking_budget``: think, but not for longer than this."""

from collections.abc import Iterator, Sequence

from .base import Count, LogitsProcessorSpec, MaybeTokenIds, TokenIds, check_pattern
from .errors import SpecError
from .text import Tokenizer, token_ids_of


class ThinkingBudgetSpec(LogitsProcessorSpec, frozen=True, tag="thinking_budget"):
    """A thinking block holds at most ``budget`` tokens; then the message and the end tag follow.

    A block begins when the start tag is complete, in the prompt or in the output, and ends with
    the end tag. Tokens count that lie between the two, those that the prompt has of a block which
    it leaves open included. Once ``budget`` of them are out, the message, if any, and the end tag
    are forced; where the last tokens already are the beginning of the end tag, the rest of it is.
    Each block has a budget of its own. A budget of 0 closes a block as soon as it is open.

    Like vLLM's ``thinking_token_budget`` and SGLang's ``ThinkingBudgetLogitProcessor``, whose
    message is a newline, and which counts anew from a start tag inside a block.

    Args:
        budget: 0 to ``MAX_COUNT`` tokens.
        start_token_ids: the start tag, 1 to ``MAX_PATTERN`` token ids.
        end_token_ids: the end tag, another one.
        message_token_ids: what comes before a forced end tag, up to ``MAX_TOKEN_IDS`` token ids.

    Raises:
        SpecError: if a field is out of bounds, or the two tags are the same.
    """

    budget: Count
    start_token_ids: TokenIds
    end_token_ids: TokenIds
    message_token_ids: MaybeTokenIds = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_pattern(self.start_token_ids, "$.start_token_ids")
        check_pattern(self.end_token_ids, "$.end_token_ids")
        if self.start_token_ids == self.end_token_ids:
            raise SpecError("The end tag is the same as the start tag", "$.end_token_ids")

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
        r"""The tags as text.

        Args:
            budget: 0 to ``MAX_COUNT`` tokens.
            tokenizer: any Hugging Face tokenizer, that of the model.
            start: the start tag.
            end: the end tag.
            message: what comes before a forced end tag, ``"\n"`` for example.

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
    def from_setting(
        cls,
        budget: int | None,
        tokenizer: Tokenizer,
        *,
        start: str = "<think>",
        end: str = "</think>",
        message: str = "",
    ) -> "tuple[ThinkingBudgetSpec, ...]":
        """The specs that a setting of another engine stands for, in which -1 or ``None`` is off.

        A budget of 0 is none of these: it closes a block as soon as it is open.

        Args:
            budget: vLLM's ``thinking_token_budget``, SGLang's ``thinking_budget``.
            tokenizer: any Hugging Face tokenizer, that of the model.
            start: the start tag.
            end: the end tag.
            message: what comes before a forced end tag.

        Returns:
            One spec, or none.

        Raises:
            SpecError: as ``from_text`` does.
        """
        if budget in (None, -1):
            return ()
        return (cls.from_text(budget, tokenizer, start=start, end=end, message=message),)

    def token_fields(self) -> Iterator[tuple[str, Sequence[int]]]:
        yield "$.start_token_ids[*]", self.start_token_ids
        yield "$.end_token_ids[*]", self.end_token_ids
        yield "$.message_token_ids[*]", self.message_token_ids
