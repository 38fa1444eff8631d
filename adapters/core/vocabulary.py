"""Vocabularies: the bytes of each token, for rules about text."""

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .automaton.arrays import Ints, differ, token_array

LAST = 0xFF
"""The byte that no text has."""

FILES = ("tokenizer.json", "tekken.json", "tokenizer.model")
"""The files of a model's folder that define its tokenizer, the preferred one first."""


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
    """

    data: npt.NDArray[np.uint8]
    ends: Ints
    is_special: npt.NDArray[np.bool_]

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
        return cls.of_tokens(_tokens(tokenizer))

    def first(self, size: int) -> "Vocabulary":
        """Return the vocabulary of the first ``size`` tokens: a model may have no others."""
        if self.size <= size:
            return self
        return replace(self, ends=self.ends[:size], is_special=self.is_special[:size])

    @property
    def size(self) -> int:
        """The number of token ids. The engine's logits may have more columns."""
        return len(self.ends)

    def tokens(self) -> list[bytes]:
        """List the bytes of all tokens."""
        text, ends = self.data.tobytes(), [0, *self.ends.tolist()]
        return [text[start:end] for start, end in pairwise(ends)]

    @cached_property
    def is_last(self) -> npt.NDArray[np.bool_]:
        """``[bytes]``, whether a byte of ``data`` is the last of its token."""
        is_last = np.zeros(self.ends[-1] if self.size else 0, np.bool_)
        is_last[self.ends[~self.is_special] - 1] = True
        return is_last

    @cached_property
    def _by_pair(self) -> tuple[Ints, npt.NDArray[np.int32]]:
        """``[65537]`` and ``[bytes]``: all places in ``data``, sorted by two bytes, and bounds."""
        data = self.data[: len(self.is_last)].astype(np.uint16)
        pairs = data << 8 | np.append(data[1:], 0)
        pairs[self.is_last] |= LAST
        bounds = np.append(0, np.bincount(pairs, minlength=1 << 16).cumsum())
        return bounds, np.argsort(pairs, kind="stable").astype(np.int32)

    def places_of(self, byte: int, following: int | None = None) -> npt.NDArray[np.int32]:
        """Find the places in ``data`` of a byte, before another one of the same token.

        All places are sorted at first use. ``LAST`` also stands for the end of a token.
        """
        bounds, places = self._by_pair
        low, high = (following, following) if following is not None else (0, 0xFF)
        return places[bounds[byte << 8 | low] : bounds[(byte << 8 | high) + 1]]

    def prepare(self) -> None:
        """Make the trie and the sorted places."""
        _ = self.trie, self._by_pair

    @cached_property
    def trie(self) -> "VocabularyTrie":
        """The trie of all tokens, made at first use: 0.2 s for 150,000 tokens."""
        return VocabularyTrie.of(self.tokens())


@dataclass(frozen=True, eq=False)
class VocabularyTrie:
    """A trie over the bytes of all tokens. Node 0 is the root; nodes are numbered level by level.

    The tokens below a node, itself included, are neighbours in the order of their bytes.

    Attributes:
        keys: ``[nodes - 1]``, ascending, ``parent << 8 | byte`` of nodes 1, 2, ...
        level_ends: the end of each level among the nodes.
        order: ``[tokens]``, the token ids in the order of their bytes; special tokens are left out.
        first: ``[nodes]``, the place in ``order`` of the first token below each node.
        own_end: ``[nodes]``, the end of the tokens whose bytes lead to the node.
        end: ``[nodes]``, the end of the tokens below the node.
        node: ``[tokens]``, the node that the bytes of each token in ``order`` lead to.
    """

    keys: Ints
    level_ends: list[int]
    order: Ints
    first: Ints
    own_end: Ints
    end: Ints
    node: Ints

    @cached_property
    def parent(self) -> Ints:
        """``[nodes - 1]``, the parents of nodes 1, 2, ..."""
        return self.keys >> 8

    @cached_property
    def byte(self) -> npt.NDArray[np.uint8]:
        """``[nodes - 1]``, the last bytes of nodes 1, 2, ..."""
        return self.keys.astype(np.uint8)

    @classmethod
    def of(cls, tokens: Sequence[bytes]) -> "VocabularyTrie":
        """Make the trie of the tokens that have bytes."""
        by_text = sorted(filter(tokens.__getitem__, range(len(tokens))), key=tokens.__getitem__)
        lengths = token_array(len(tokens[i]) for i in by_text).astype(np.int64)
        data = np.frombuffer(b"".join(tokens[i] for i in by_text), np.uint8)
        starts = np.cumsum(lengths) - lengths
        n = len(lengths)
        reached = np.zeros(n, np.int64)  # by the bytes whose levels are made
        keys, firsts, ends = [np.empty(0, np.int64)], [np.zeros(1, np.int64)], [np.array([n])]
        level_ends, depth, left = [1], 0, np.arange(n)
        while len(left):
            level = reached[left] << 8 | data[starts[left] + depth]
            is_first = differ(level)
            reached[left] = level_ends[-1] - 1 + np.cumsum(is_first)
            at = np.flatnonzero(is_first)
            keys.append(level[at])
            firsts.append(left[at])
            ends.append(left[np.append(at[1:], len(left)) - 1] + 1)
            level_ends.append(level_ends[-1] + len(at))
            depth += 1
            left = left[lengths[left] > depth]
        first = np.concatenate(firsts)
        own_end = first + np.bincount(reached, minlength=len(first))
        order = np.array(by_text, np.int64)
        return cls(
            np.concatenate(keys), level_ends, order, first, own_end, np.concatenate(ends), reached
        )


def _tokens(tokenizer: Any) -> Sequence[bytes | None]:
    """Read the bytes of each token id from a tokenizer of any library."""
    if isinstance(tokenizer, str | os.PathLike):
        return _tokens_of_file(Path(tokenizer))
    for wrapped in ("backend_tokenizer", "instruct_tokenizer", "tokenizer"):
        if (inner := getattr(tokenizer, wrapped, None)) is not None:
            return _tokens(inner)
    if hasattr(tokenizer, "to_str"):
        return _tokens_of_json(tokenizer.to_str())
    if hasattr(tokenizer, "id_to_byte_piece"):  # Mistral's Tekken
        every = range(tokenizer.n_words)
        return [None if tokenizer.is_special(i) else tokenizer.id_to_byte_piece(i) for i in every]
    if hasattr(tokenizer, "decode_single_token_bytes"):
        return list(_tokens_of_encoding(tokenizer))
    if hasattr(tokenizer, "IsByte"):
        return list(_tokens_of_sentencepiece(tokenizer))
    if file := getattr(tokenizer, "file_path", None):  # Mistral's SentencePiece
        return _tokens_of_file(Path(file))
    raise ValueError(f"Expected a tokenizer whose tokens have bytes, got {type(tokenizer)}")


def _tokens_of_file(path: Path) -> Sequence[bytes | None]:
    if path.is_dir():
        found = [file for name in FILES if (file := path / name).is_file()]
        if not found:
            raise ValueError(f"Expected one of {', '.join(FILES)} in {path}")
        path = found[0]
    if ".model" in path.name:  # Mistral's have a version at the end
        from sentencepiece import SentencePieceProcessor

        return _tokens(SentencePieceProcessor(model_file=str(path)))
    if "tekken" in path.name:
        from mistral_common.tokens.tokenizers.tekken import Tekkenizer

        return _tokens(Tekkenizer.from_file(path))
    return _tokens_of_json(path.read_text("utf-8"))


def _tokens_of_json(text: str) -> Sequence[bytes | None]:
    """Read the ``tokenizer.json`` of Hugging Face's tokenizers: the bytes that its decoder makes.

    llguidance reads it too, but takes added tokens that look like tags for special ones, and does
    not take ids without a token.
    """
    content = json.loads(text)
    vocabulary = content["model"]["vocab"]
    if isinstance(vocabulary, dict):
        pieces = {i: piece for piece, i in vocabulary.items()}
    else:  # a Unigram model has pieces and scores
        pieces = {i: piece for i, (piece, _) in enumerate(vocabulary)}
    added = content["added_tokens"]
    pieces |= {each["id"]: each["content"] for each in added}
    decode = _decoder(content["decoder"])
    tokens: list[bytes | None] = [None] * (max(pieces, default=-1) + 1)
    for i in pieces.keys() - {each["id"] for each in added if each["special"]}:
        tokens[i] = decode(pieces[i])
    return tokens


def _decoder(content: dict[str, Any] | None) -> Callable[[str], bytes]:
    """Make the function that decodes a token as a decoder of Hugging Face's tokenizers does.

    What decoders do to the start and the end of a text is left out.
    """
    every = [content or {"type": None}]
    if every[0]["type"] == "Sequence":
        every = every[0]["decoders"]
    replaced: dict[str, str] = {}
    types = {each["type"] for each in every}
    for each in every:
        if each["type"] == "Replace" and "String" in each["pattern"]:
            replaced[each["pattern"]["String"]] = each["content"]
        elif each["type"] == "Metaspace":
            replaced[each["replacement"]] = " "
        elif each["type"] not in ("ByteLevel", "ByteFallback", "Fuse", "Strip"):
            raise ValueError(f"Expected a decoder of bytes, got {each['type']}")

    def decode(piece: str) -> bytes:
        if "ByteLevel" in types and _BYTE_OF.keys() >= {*piece}:
            return bytes(_BYTE_OF[c] for c in piece)
        for old, new in replaced.items():
            piece = piece.replace(old, new)
        if "ByteFallback" in types and _A_BYTE.fullmatch(piece):
            return bytes.fromhex(piece[3:5])
        return piece.encode()

    return decode


_A_BYTE = re.compile("<0x[0-9A-Fa-f]{2}>")


def _byte_alphabet() -> dict[str, int]:
    """Map the characters that stand for bytes in a byte-level BPE, as GPT-2 has defined them.

    Printable characters of Latin-1 stand for their own bytes, and those from U+0100 on for others.
    """
    own = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in own)
    return {chr(byte): byte for byte in own} | {chr(256 + i): b for i, b in enumerate(others)}


_BYTE_OF = _byte_alphabet()


def _tokens_of_encoding(encoding: Any) -> Iterator[bytes | None]:
    """Read an encoding of tiktoken, which has ids without a token."""
    special = {*map(encoding.encode_single_token, encoding.special_tokens_set)}
    for i in range(encoding.n_vocab):
        try:
            yield None if i in special else encoding.decode_single_token_bytes(i)
        except KeyError:
            yield None


def _tokens_of_sentencepiece(model: Any) -> Iterator[bytes | None]:
    for i in range(model.get_piece_size()):
        piece = model.id_to_piece(i)
        if model.IsByte(i):
            yield bytes.fromhex(piece[3:5])  # <0x0A>
        elif model.IsControl(i) or model.IsUnknown(i) or model.IsUnused(i):
            yield None
        else:
            yield piece.replace("\u2581", " ").encode()
