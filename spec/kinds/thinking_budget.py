"""``thinking_budget``: limit the tokens of a thinking block."""

from ..base import Count, LogitsProcessorSpec, MaybeTokenIds, TokenIds, check_pattern
from ..claims import Claims, Forces, TokenFields
from ..errors import SpecError
from ..tokenization import Tokenizer, token_ids_of


class ThinkingBudgetSpec(LogitsProcessorSpec, frozen=True, tag="thinking_budget"):
    """A thinking block holds at most ``budget`` tokens; then the message and the end tag follow.

    A block begins when the start tag is complete, in the prompt or in the output, and ends with
    the end tag. The tokens between the tags count, including tokens in the prompt if it leaves the
    block open. After ``budget`` tokens, the message, if any, and the end tag are forced. If the
    last tokens are already the beginning of the end tag, only its rest is forced. Each block has a
    budget of its own. A budget of 0 closes a block as soon as it is open.

    The kind is like vLLM's ``thinking_token_budget`` and SGLang's ``ThinkingBudgetLogitProcessor``.
    SGLang's message is a newline, and its count restarts at a start tag inside a block.

    Args:
        budget: 0 to ``MAX_COUNT`` tokens.
        start_token_ids: the start tag, 1 to ``MAX_PATTERN`` token ids.
        end_token_ids: the end tag, 1 to ``MAX_PATTERN`` token ids, not the start tag.
        message_token_ids: the message before a forced end tag, up to ``MAX_TOKEN_IDS`` token ids.

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
        r"""Make a spec from tags and a message as text.

        Args:
            budget: 0 to ``MAX_COUNT`` tokens.
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
    def from_setting(
        cls,
        budget: int | None,
        tokenizer: Tokenizer,
        *,
        start: str = "<think>",
        end: str = "</think>",
        message: str = "",
    ) -> "tuple[ThinkingBudgetSpec, ...]":
        """Call ``from_text`` with another engine's setting; no spec if it is -1 or ``None``.

        The budget is vLLM's ``thinking_token_budget`` or SGLang's ``thinking_budget``. A budget of
        0 does not mean no limit: it closes a block as soon as it is open.
        """
        if budget in (None, -1):
            return ()
        return (cls.from_text(budget, tokenizer, start=start, end=end, message=message),)

    def token_fields(self) -> TokenFields:
        yield "$.start_token_ids[*]", self.start_token_ids
        yield "$.end_token_ids[*]", self.end_token_ids
        yield "$.message_token_ids[*]", self.message_token_ids

    @property
    def can_complete(self) -> bool:
        return True

    def claims(self) -> Claims:
        for name in ("end_token_ids", "message_token_ids"):
            yield Forces(f"$.{name}[{{token}}]", (getattr(self, name),), in_reply=False)
