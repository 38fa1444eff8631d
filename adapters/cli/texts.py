"""The texts of tokens, from a Hugging Face tokenizer."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..core import VocabularyOf

TextOf = Callable[[int], str]
"""The text of a token; empty if there is no tokenizer."""


def no_text(token_id: int) -> str:
    """Return no text: there is no tokenizer."""
    return ""


def texts_of(tokenizer: str | None) -> TextOf:
    """Make a function of the tokenizer that ``load_tokenizer`` loads, if one is named."""
    if tokenizer is None:
        return no_text
    loaded = load_tokenizer(tokenizer)
    return lambda token_id: loaded.decode([token_id], skip_special_tokens=False)


def vocabulary_of(tokenizer: str | None) -> "VocabularyOf":
    """Make a function that returns the tokenizer's vocabulary, for specs about text."""

    @cache
    def load() -> Any:
        from ..core import Vocabulary

        return tokenizer and Vocabulary.of_tokenizer(load_tokenizer(tokenizer))

    return load


def load_tokenizer(tokenizer: str) -> Any:
    """Load a tokenizer from a folder, a ``tokenizer.json`` or the Hugging Face hub.

    Raises:
        ModuleNotFoundError: if the package ``tokenizers`` is missing.
        ValueError: if there is no such tokenizer.
    """
    from tokenizers import Tokenizer

    path = Path(tokenizer)
    file = path / "tokenizer.json" if path.is_dir() else path
    try:
        return (
            Tokenizer.from_file(str(file))
            if path.exists()
            else Tokenizer.from_pretrained(tokenizer)
        )
    except Exception as error:  # the package raises no type of its own
        raise ValueError(f"No tokenizer at {tokenizer!r}: {error}") from error
