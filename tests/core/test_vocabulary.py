"""The bytes of all tokens, of real tokenizers and of some that are made here."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from logitport.adapters.core import Vocabulary
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from tests.support.families import SMOLLM2

TEXT = "Ünï — the quick\n\tbrown 狐 jumps over the lazy dog 🙂, 42 times"
BYTES = [bytes([i]) for i in range(256)]
TAG, ACCENT, LOOKS_SPECIAL = "<think>", AddedToken("héy", special=False), "<|x|>"


def with_added(tokenizer: Any) -> Any:
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.add_tokens([TAG, ACCENT, LOOKS_SPECIAL])
    return tokenizer


def byte_level() -> Any:
    tokenizer: Any = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([TEXT] * 3, trainer)
    return with_added(tokenizer)


def byte_fallback() -> Any:
    pieces = ["<unk>", *(f"<0x{i:02X}>" for i in range(256)), *"▁aïnthequickbrow", "▁the", "▁▁"]
    model = models.Unigram([(piece, -1.0) for piece in pieces], unk_id=0, byte_fallback=True)
    tokenizer: Any = Tokenizer(model)
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return with_added(tokenizer)


def tiktoken_encoding() -> Any:
    tiktoken = pytest.importorskip("tiktoken")
    ranks = {each: i for i, each in enumerate(BYTES)} | {b"th": 256, b"the": 258}  # 257 is none
    return tiktoken.Encoding(
        "small", pat_str=r"\S+|\s+", mergeable_ranks=ranks, special_tokens={"<|e|>": 259}
    )


def mistral(name: str) -> Any:
    package = pytest.importorskip("mistral_common")
    return Path(package.__file__).parent / "data" / name


def tekken() -> Any:
    library = pytest.importorskip("mistral_common.tokens.tokenizers.tekken")
    return library.Tekkenizer.from_file(mistral("tekken_240911.json"))


def sentencepiece() -> Any:
    return pytest.importorskip("sentencepiece").SentencePieceProcessor(
        model_file=str(mistral("mistral_instruct_tokenizer_240323.model.v3"))
    )


def of_tokenizers(text: str, tokenizer: Any) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize(
    ("make", "encode", "before"),
    [
        (byte_level, of_tokenizers, ""),
        (byte_fallback, of_tokenizers, ""),
        (tiktoken_encoding, lambda text, each: each.encode(text), ""),
        (tekken, lambda text, each: each.encode(text, False, False), ""),
        (sentencepiece, lambda text, each: each.encode(text), " "),
    ],
)
def test_tokens_of_a_text_are_the_text(
    make: Callable[[], Any], encode: Callable[[str, Any], list[int]], before: str
):
    tokenizer = make()
    tokens = Vocabulary.of_tokenizer(tokenizer).tokens()
    for text in (TEXT, TEXT.upper(), " a  b", "\0", "ÿ"):
        expected = (before + text).encode()
        assert b"".join(tokens[i] for i in encode(text, tokenizer)) == expected


def smollm2() -> Any:
    if not SMOLLM2.exists():
        pytest.skip("SmolLM2 is not here")
    return Tokenizer.from_file(str(SMOLLM2))


def with_holes() -> Any:
    tokenizer: Any = Tokenizer(models.BPE({"a": 0, "Ġa": 2, "Ġ": 1, "b": 7, "ÿ": 9}, []))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens(["<x▁y>"])
    return tokenizer


def metaspace() -> Any:
    pieces = [("<unk>", 0.0), ("▁a", -1.0), ("a", -1.0), ("b", -1.0), ("<0x41>", -1.0)]
    tokenizer: Any = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=False))
    tokenizer.decoder = decoders.Metaspace()
    return with_added(tokenizer)


@pytest.mark.parametrize("make", [byte_level, byte_fallback, with_holes, metaspace, smollm2])
def test_each_token_is_what_the_tokenizer_decodes(make: Callable[[], Any]):
    tokenizer = make()
    vocabulary = Vocabulary.of_tokenizer(tokenizer)
    added = tokenizer.get_added_tokens_decoder()
    decode = tokenizer.decoder.decode  # which treats the start of a text differently
    for i, token in enumerate(vocabulary.tokens()):
        name = tokenizer.id_to_token(i)
        is_special = name is None or (i in added and added[i].special) or name in ("<0xFF>", "ÿ")
        assert vocabulary.is_special[i] == is_special, name
        if not is_special:
            assert decode(["a", name, "a"]) == f"a{token.decode(errors='replace')}a", name
    assert vocabulary.size > max(tokenizer.get_vocab().values())


@pytest.mark.parametrize("decoder", [None, decoders.WordPiece(), decoders.CTC()])
def test_decoder_of_no_bytes(decoder: Any):
    tokenizer = byte_level()
    tokenizer.decoder = decoder
    with pytest.raises(ValueError, match="Expected a decoder of bytes, got "):
        Vocabulary.of_tokenizer(tokenizer)


def test_tiktoken():
    vocabulary = Vocabulary.of_tokenizer(tiktoken_encoding())
    assert vocabulary.tokens() == [*BYTES[:255], b"", b"th", b"", b"the", b""]
    assert np.flatnonzero(vocabulary.is_special).tolist() == [255, 257, 259]


@pytest.mark.parametrize("name", ["tokenizer.json", "tekken.json", "tokenizer.model"])
def test_files_in_a_folder(tmp_path: Path, name: str):
    if name == "tokenizer.json":
        content, made = byte_level().to_str().encode(), byte_level()
    elif name == "tekken.json":
        content, made = mistral("tekken_240911.json").read_bytes(), tekken()
    else:
        content, made = sentencepiece().serialized_model_proto(), sentencepiece()
    with pytest.raises(ValueError, match="Expected one of tokenizer"):
        Vocabulary.of_tokenizer(tmp_path)
    (tmp_path / name).write_bytes(content)
    expected = Vocabulary.of_tokenizer(made).tokens()
    for path in (tmp_path, str(tmp_path / name)):
        assert Vocabulary.of_tokenizer(path).tokens() == expected


def test_wrapped_tokenizers():
    inner = byte_level()
    expected = Vocabulary.of_tokenizer(inner).tokens()
    for name in ("backend_tokenizer", "tokenizer", "instruct_tokenizer"):
        wrapped = SimpleNamespace(**{name: inner})
        assert Vocabulary.of_tokenizer(wrapped).tokens() == expected


def test_mistrals_sentencepiece():
    sentencepiece()
    from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

    wrapped = MistralTokenizer.from_file(str(mistral("mistral_instruct_tokenizer_240323.model.v3")))
    expected = Vocabulary.of_tokenizer(sentencepiece()).tokens()
    assert Vocabulary.of_tokenizer(wrapped).tokens() == expected


@pytest.mark.parametrize("tokenizer", [None, 5, SimpleNamespace(encode=len)])
def test_what_is_no_tokenizer(tokenizer: Any):
    with pytest.raises(ValueError, match="Expected a tokenizer whose tokens have bytes"):
        Vocabulary.of_tokenizer(tokenizer)


def test_of_tokens():
    vocabulary = Vocabulary.of_tokens([b"ab", None, b"", b"c", b"\xffd", b"\xfe"])
    assert vocabulary.tokens() == [b"ab", b"", b"", b"c", b"", b"\xfe"]
    assert vocabulary.is_special.tolist() == [False, True, True, False, True, False]
    assert vocabulary.ends.tolist() == [2, 2, 2, 3, 3, 4]
    assert vocabulary.size == 6


few_bytes = st.lists(st.sampled_from(b"abc\0"), max_size=5).map(bytes)


@given(st.lists(few_bytes | st.none(), max_size=12))
def test_trie(tokens: list[bytes | None]):
    trie = Vocabulary.of_tokens(tokens).trie
    assert sorted(trie.order) == [i for i, token in enumerate(tokens) if token]
    prefixes = sorted({t[:n] for t in tokens if t for n in range(len(t) + 1)} | {b""})
    assert len(prefixes) == len(trie.symbol) == len(trie.end) == len(trie.first) - 1
    made = [b""]
    for node in range(1, len(trie.symbol)):
        made.append(made[trie.parent[node]] + bytes([trie.symbol[node]]))
    assert made == prefixes
    for node, prefix in enumerate(prefixes):
        first, own_end, end = trie.first[[node, node + 1, trie.end[node]]]
        own = [i for i, token in enumerate(tokens) if token and token == prefix]
        below = [i for i, token in enumerate(tokens) if token and token.startswith(prefix)]
        assert sorted(trie.order[first:own_end]) == own
        assert (trie.node[first:own_end] == node).all()
        assert sorted(trie.order[first:end]) == below
