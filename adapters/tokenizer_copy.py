"""The tokenizer that makes token ids of the texts in payloads."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import cached_property
from typing import Any

from ..spec import SpecError, ThinkingFamily
from ..spec.thinking_families import ThinkingTags, find_tags


class TokenizerCopy:
    """A copy of an engine's tokenizer, made when the first text comes.

    Engines set truncation and padding on their own tokenizer, from several threads. A text must
    have the same tokens in each process of an engine, whatever other requests ask for.

    Args:
        load: returns the engine's tokenizer.
    """

    def __init__(self, load: Callable[[], Any]) -> None:
        self._load = load
        self._tags: dict[ThinkingFamily | None, ThinkingTags | SpecError] = {}

    @cached_property
    def _tokenizers(self) -> tuple[Any, Any, Any]:
        """The engine's EOS token, what encodes, and the chat template."""
        tokenizer = self._load()
        fast = getattr(tokenizer, "backend_tokenizer", tokenizer)  # of the package `tokenizers`
        if hasattr(type(fast), "no_truncation"):
            fast = deepcopy(fast)
            fast.no_truncation()
            fast.no_padding()
        template = getattr(tokenizer, "chat_template", None)
        return getattr(tokenizer, "eos_token_id", None), fast, template

    @property
    def eos_token_id(self) -> int | None:
        """The token that ends a reply, if the tokenizer has one."""
        return self._tokenizers[0]

    def encode(self, text: str, /, *, add_special_tokens: bool) -> Any:
        """Encode a text; special tokens that it names are recognized."""
        return self._tokenizers[1].encode(text, add_special_tokens=add_special_tokens)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Decode token ids, special tokens included."""
        return self._tokenizers[1].decode(token_ids, skip_special_tokens=False)

    def thinking_tags(self, family: ThinkingFamily | None) -> ThinkingTags:
        """Find the model's thinking tags as ``find_tags`` does, once: it reads the vocabulary."""
        if family not in self._tags:
            _, fast, template = self._tokenizers
            try:
                self._tags[family] = find_tags(fast, family, template)
            except SpecError as error:
                self._tags[family] = error
        found = self._tags[family]
        if isinstance(found, SpecError):
            raise found
        return found
