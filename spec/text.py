"""From text to token ids, once, before a request is sent."""

from typing import Any, Protocol

from .errors import SpecError


class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that the text helpers use.

    Any ``transformers`` tokenizer has it, and so have vLLM's own. A bare ``tokenizers.Tokenizer``
    has it too, but for the EOS token: pass that yourself.
    """

    def encode(self, text: str, /, *, add_special_tokens: bool) -> Any:
        """Token ids, or an object that has them as ``ids``."""
        ...


def token_ids_of(text: str, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Tokenize ``text`` as it stands, without special tokens.

    Raises:
        SpecError: if nothing comes out.
    """
    encoded = tokenizer.encode(text, add_special_tokens=False)
    token_ids = tuple(getattr(encoded, "ids", encoded))
    if not token_ids:
        raise SpecError(f"The tokenizer makes no tokens of {text!r}")
    return token_ids


def eos_token_id_of(tokenizer: Tokenizer) -> int:
    """The tokenizer's end-of-sequence token.

    Raises:
        SpecError: if it has none.
    """
    eos_token_id = getattr(tokenizer, "eos_token_id", None)
    if eos_token_id is None:
        raise SpecError(
            f"{type(tokenizer).__name__} has no EOS token: pass eos_token_id, "
            "or None to let the model go on by itself"
        )
    return eos_token_id
