"""Vocabularies: the bytes of each token, for rules about text."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ....spec import SpecError
from ....spec.tokenization import eos_token_id_of
from ..automaton.arrays import Ints, token_array
from .loading import tokens_of

if TYPE_CHECKING:
    from ..automaton.tries import Trie  # whose loops need numba, which takes a while to import


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The bytes of each token id, as they stand within a text.

    Special tokens have no text, and no bytes. The same holds for ids without a token, and for
    tokens that begin with the byte 0xFF, which no text contains. A word's token has the space
    before the word, even where an engine strips it at the start of a text.

    Attributes:
        data: ``[bytes]`` uint8, the bytes of all tokens, end to end.
        ends: ``[size]``, the end of each token in ``data``.
        is_special: ``[size]`` bool, the ids that have no text.
        end_tokens: the tokens with which the model ends a reply, as far as its tokenizer and its
            engine say.
    """

    data: npt.NDArray[np.uint8]
    ends: Ints
    is_special: npt.NDArray[np.bool_]
    end_tokens: tuple[int, ...] = ()

    @classmethod
    def of_tokens(cls, tokens: Sequence[bytes | None]) -> "Vocabulary":
        """Make a vocabulary of the bytes of each token id; a special token is ``None``."""
        special = (token is None or token[:1] in (b"", b"\xff") for token in tokens)
        is_special = np.fromiter(special, np.bool_, len(tokens))
        texts = [b"" if token is None else token for token in tokens]
        for token_id in np.flatnonzero(is_special):
            texts[token_id] = b""
        ends = token_array(map(len, texts)).cumsum(dtype=np.int64)
        return cls(np.frombuffer(b"".join(texts), np.uint8), ends, is_special)

    @classmethod
    def of_tokenizer(cls, tokenizer: Any) -> "Vocabulary":
        """Read the vocabulary of a tokenizer, which takes up to a second.

        Args:
            tokenizer: a fast tokenizer of transformers, a ``tokenizers.Tokenizer``, an encoding of
                tiktoken, a tokenizer of mistral_common or sentencepiece, an object that wraps one
                of these, or the path of a tokenizer's file or of the model's folder.

        Raises:
            ValueError: if it is none of these, or does not define the bytes of its tokens.
            ModuleNotFoundError: for a file of tekken or SentencePiece, whose library is missing.
        """
        made = cls.of_tokens(tokens_of(tokenizer))
        with suppress(SpecError):  # some have no EOS
            made = made.ending([eos_token_id_of(tokenizer, advice="")])
        return made

    def first(self, size: int) -> "Vocabulary":
        """Return the vocabulary of the first ``size`` tokens: a model may have no others."""
        if self.size <= size:
            return self
        return replace(self, ends=self.ends[:size], is_special=self.is_special[:size])

    def ending(self, tokens: Iterable[int]) -> "Vocabulary":
        """Return the vocabulary of a model that ends its replies with these tokens, too."""
        known = {each for each in (*self.end_tokens, *tokens) if 0 <= each < self.size}
        return replace(self, end_tokens=tuple(sorted(known)))

    @property
    def size(self) -> int:
        """The number of token ids. The engine's logits may have more columns."""
        return len(self.ends)

    def tokens(self) -> list[bytes]:
        """List the bytes of all tokens."""
        text, ends = self.data.tobytes(), [0, *self.ends.tolist()]
        return [text[start:end] for start, end in pairwise(ends)]

    @cached_property
    def trie(self) -> "Trie":
        """The trie of all tokens, made at first use: 0.2 s for 150,000 tokens."""
        from ..automaton.tries import Trie

        return Trie.of(self.tokens())
