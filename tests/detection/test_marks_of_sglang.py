"""SGLang's own detector, which needs no more than msgspec, against ours."""

import importlib
import importlib.util
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.marks import assert_close, find, golden, natural, profile

KEYS = "0123456789abcdef", "f00d"
VOCABULARY = 32


def load() -> Any:
    """Import the detector alone: the package around it imports torch."""
    package = importlib.util.find_spec("sglang")
    folder = Path((package and package.origin) or ".").parent / "srt/sampling/watermarking"
    if not folder.is_dir():
        pytest.skip("no SGLang with watermarks", allow_module_level=True)
    name = "sglang_watermarking"
    spec = importlib.util.spec_from_file_location(name, folder / "__init__.py")
    assert spec
    assert spec.loader
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return importlib.import_module(f"{name}.detector")


detector = load()


def reply(
    rng: np.random.Generator, prompt: list[int], count: int, keys: tuple[str, ...] | None
) -> list[int]:
    """Draw a reply from a random model, by SGLang's rule if there are keys."""
    model = rng.normal(0, 1.5, (VOCABULARY, VOCABULARY))
    a, *others = [int(key, 16) for key in keys or ("0",)]
    text, seen = [*prompt], set[int]()
    for _ in range(count):
        p = np.exp(model[text[-1] if text else 0])
        context = detector.hash_context(text[-4:])
        if keys and context not in seen:
            seen.add(context)
            is_b = others and detector.position_coin(a, *others, context) >= 1 << 30
            key = others[0] if is_b else a
            hashes = [detector.watermark_hash(key, context, t) for t in range(VOCABULARY)]
            noise = [math.log((each + 0.5) / 2**32) for each in hashes]
        else:
            noise = np.log(rng.random(VOCABULARY))
        text.append(int(np.argmax(noise / (p / p.sum()))))
    return text[len(prompt) :]


def compare(tokens: list[int], prompt: list[int], keys: tuple[str, ...], **fields: Any) -> Any:
    """Detect with both, and return SGLang's statistics as a vector."""
    dual = {"key_b": keys[1], "mixing_probability": 0.25} if keys[1:] else {}
    ours = {"scheme": "sglang-dual", "mix": 0.25} if dual else {"scheme": "sglang-gumbel"}
    theirs = detector.WatermarkDetector(
        keys[0],
        context_window=fields.get("width", 4),
        max_contexts=fields.get("max_contexts", 4096),
        **dual,
    )
    expected = theirs.detect_tokens(tokens, prompt_token_ids=prompt).combined
    found = find(profile(" ".join(keys), **ours, **fields), tokens, prompt)
    assert_close(
        [found.scored, found.score, found.log10_p],
        [expected.num_contexts, expected.score, expected.log_p_value / math.log(10)],
    )
    return {
        "profile": {**ours, **fields},
        "key": " ".join(keys),
        "token_ids": tokens,
        "prompt_token_ids": prompt,
        "scored": expected.num_contexts,
        "score": expected.score,
        "p_value": expected.p_value,
    }


@pytest.mark.parametrize("keys", [KEYS[:1], KEYS], ids=["single", "dual"])
@pytest.mark.parametrize("prompt", [[], [5, 6], [7, 8, 9, 10, 11]], ids=len)
def test_marked_and_unmarked(keys: tuple[str, ...], prompt: list[int]):
    rng = np.random.default_rng(len(prompt))
    found = [compare(reply(rng, prompt, 60, keys), prompt, keys) for _ in range(34)]
    assert sum(each["p_value"] < 1e-6 for each in found) >= 30
    found = [compare(reply(rng, prompt, 60, None), prompt, keys) for _ in range(34)]
    assert sum(each["p_value"] < 0.01 for each in found) <= 2


@pytest.mark.parametrize("width", [1, 2, 4, 64])
@pytest.mark.parametrize("count", [1, 4, 5, 300])
def test_widths(width: int, count: int):
    text = natural(np.random.default_rng(width), 1, 1 + count)[0].tolist()
    for prompt in ([], [1], [*range(100)]):
        compare(text[:count], prompt, KEYS[:1], width=width)
        compare(text[:count], prompt, KEYS, width=width)
        compare(text[:count], prompt, KEYS, width=width, max_contexts=10)


# text | the same key in SGLang: hexadecimal digits, with or without 0x
@pytest.mark.parametrize("key", ["0", "f", "0xF", "ffffffffffffffff", "8000000000000000", "10"])
def test_keys(key: str):
    compare([*range(50)], [], (key,))


@pytest.mark.parametrize("token", [0, 2**31, 2**32 - 1])
def test_tokens_of_32_bits(token: int):
    compare([token, 1, 2, token, token, 3, token], [token], KEYS)


def test_golden(request: pytest.FixtureRequest):
    rng = np.random.default_rng(50)
    vectors = [
        compare(reply(rng, prompt, 64, keys), prompt, keys)
        for prompt in ([], [5, 6], [7, 8, 9, 10, 11])
        for keys in (KEYS[:1], KEYS)
    ]
    golden("sglang", vectors, request)
