"""Readers of tokenizers: the bytes of each token id, whatever library the tokenizer is of."""

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

FILES = ("tokenizer.json", "tekken.json", "tokenizer.model")
"""The files of a model's folder that define its tokenizer, the preferred one first."""


def tokens_of(tokenizer: Any) -> Sequence[bytes | None]:
    """Read the bytes of each token id from a tokenizer; see ``Vocabulary.of_tokenizer``."""
    if isinstance(tokenizer, str | os.PathLike):
        return _tokens_of_file(Path(tokenizer))
    for wrapped in ("backend_tokenizer", "instruct_tokenizer", "tokenizer"):
        if (inner := getattr(tokenizer, wrapped, None)) is not None:
            return tokens_of(inner)
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

        return tokens_of(SentencePieceProcessor(model_file=str(path)))
    if "tekken" in path.name:
        from mistral_common.tokens.tokenizers.tekken import Tekkenizer

        return tokens_of(Tekkenizer.from_file(path))
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
