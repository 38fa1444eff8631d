"""Profiles, marked and unmarked texts, and golden detections, for the tests of ``detection``."""

import hashlib
import json
import math
import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest
from logitport.adapters.detection import Detection, Finding, KeySource, Profile, detect
from logitport.adapters.detection.schemes import read_profiles

from tests.support.paths import GOLDEN

FILE = GOLDEN / "marks.json"
DEPTHS = " ".join(str(each) for each in range(101, 131))
"""Keys of SynthID, one for each depth."""

# scheme and fields | key
FIELDS: dict[str, tuple[dict[str, Any], str]] = {
    "vllm": ({"scheme": "vllm-gumbel"}, "42"),
    "vllm-all": ({"scheme": "vllm-gumbel", "deduplicate": "all"}, "42"),
    "vllm-dual": ({"scheme": "vllm-dual-gumbel"}, "42"),
    "sglang": ({"scheme": "sglang-gumbel"}, "42"),
    "sglang-dual": ({"scheme": "sglang-dual"}, "77 abc"),
    "lefthash": ({"scheme": "kgw", "vocab_size": 1000}, "15485863"),
    "wide-lefthash": ({"scheme": "kgw", "vocab_size": 1000, "width": 4}, "15485863"),
    "selfhash": (
        {"scheme": "kgw", "vocab_size": 1000, "seeding": "selfhash", "width": 4},
        "15485863",
    ),
    "synthid": ({"scheme": "synthid"}, DEPTHS),
}


def source(key: str) -> KeySource:
    """Put a key where a profile finds it."""
    name = "MARK_" + hashlib.sha256(key.encode()).hexdigest()
    os.environ[name] = key
    return KeySource(env=name)


def profile(key: str, **fields: Any) -> Profile:
    """Make a profile as a file does."""
    return read_profiles({"it": {**fields, "key": {"env": source(key).env}}})["it"]


PROFILES = {name: profile(key, **fields) for name, (fields, key) in FIELDS.items()}


def find(profile: Profile, tokens: Iterable[int], prompt: Sequence[int] = ()) -> Finding:
    """Return what one profile finds."""
    return detection(profile, tokens, prompt).findings[0]


def detection(
    profile: Profile, tokens: Iterable[int], prompt: Sequence[int] = (), threshold: float = 0.01
) -> Detection:
    """Try one profile."""
    found = [*tokens]
    return detect(found, {"it": profile}, prompt_token_ids=prompt, threshold=threshold)


def natural(rng: np.random.Generator, count: int, length: int, size: int = 1000) -> np.ndarray:
    """Write texts that repeat themselves as language does, int64 ``[count, length]``.

    After each word, one of 12 comes, the first of them most of the time. Each text has words of
    its own, so that no two have the same n-grams.
    """
    ranks = 1 / np.arange(1, 13) ** 2.5
    after = rng.integers(0, 60, (60, 12))
    words, texts = np.zeros(count, np.int64), np.empty((count, length), np.int64)
    for i in range(length):
        words = after[words, rng.choice(12, count, p=ranks / ranks.sum())]
        texts[:, i] = words
    return np.stack([rng.choice(size, 60, replace=False)[text] for text in texts])


def marked(
    profile: Profile, rng: np.random.Generator, before: Sequence[int], length: int, of: int = 4
) -> list[int]:
    """Continue a text: each token is the one of several that scores the highest."""
    keys, text = profile.keys(), [*before[-8:]]
    for _ in range(length):
        drawn = rng.integers(0, 1000, of)
        scores = [
            profile.scores(keys, np.array([*text[-8:], each]), np.array([], int)).values[-1:]
            for each in drawn
        ]
        text.append(int(drawn[int(np.argmax([math.fsum(score) for score in scores]))]))
    return text[len(before[-8:]) :]


def kolmogorov_smirnov(p_values: Sequence[float]) -> tuple[float, float]:
    """Return how far p-values lie above and below uniform ones, times the root of their number.

    Chance exceeds 1.95 in one of 1,000 tests on either side together; 1.86 on one side.
    """
    values, n = np.sort(p_values), len(p_values)
    too_small = (np.arange(1, n + 1) / n - values).max()
    too_large = (values - np.arange(n) / n).max()
    return math.sqrt(n) * float(too_small), math.sqrt(n) * float(too_large)


def golden(engine: str, vectors: Any, request: pytest.FixtureRequest) -> None:
    """Compare what an engine's own code makes with the golden file, or write that."""
    content = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    if request.config.getoption("--write-golden"):
        content = {**content, engine: vectors}
        parts = [f"{json.dumps(name)}: {_lines(content[name])}" for name in sorted(content)]
        FILE.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")
    assert_close(vectors, content[engine])


def assert_close(found: Any, expected: Any) -> None:
    """Compare JSON: numbers to nine digits, all else exactly."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name in expected:
            assert_close(found[name], expected[name])
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_close(one, other)
    else:
        is_float = isinstance(expected, float)
        assert found == (pytest.approx(expected, rel=1e-9, abs=0) if is_float else expected)


def _lines(vectors: list[Any]) -> str:
    return "[\n" + ",\n".join(json.dumps(each) for each in vectors) + "\n]"
