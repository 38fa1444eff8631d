"""What is given to ``detect`` and ``read_profiles``: the right, the wrong, and the hostile."""

import os
import re
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from logitport.adapters.detection import (
    KeySource,
    Kgw,
    Profile,
    SynthId,
    VllmDualGumbel,
    VllmGumbel,
    detect,
    read_profiles,
)
from logitport.adapters.detection.detection import MAX_TOKENS
from logitport.spec import SpecError

from tests.support.marks import PROFILES, find, marked, profile, source

NUMBERS = "Expected `token_ids` as a list of integers"
RANGE = "Expected `token_ids` from 0 to 4,294,967,295"
KEY = {"env": "NEWS_KEY"}


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("text", [[], [5], [5] * 100, [2**32 - 1] * 9, [0, 1, 2]], ids=len)
def test_short_and_flat_texts(name: str, text: list[int]):
    for prompt in ([], [5], [5] * 10):
        found = find(PROFILES[name], text, prompt)
        assert 0 < found.p_value <= 1
        assert 0 <= found.scored <= len(text)
        assert not found.spans


@pytest.mark.parametrize("name", PROFILES)
def test_kinds_of_sequences(name: str):
    text = list(range(50))
    expected = find(PROFILES[name], text)
    for given in (tuple(text), np.array(text), np.array(text, np.uint32), range(50)):
        assert detect(given, {"it": PROFILES[name]}).findings[0] == expected


# tokens | message
WRONG: list[tuple[Any, str]] = [
    ([-1], RANGE),
    ([2**32], RANGE),
    ([2**64], NUMBERS),
    ([2**63, -1], NUMBERS),
    ([1.0], NUMBERS),
    ([float("nan")], NUMBERS),
    ([True, False], NUMBERS),
    ([[1, 2], [3, 4]], NUMBERS),
    ([[1], [2, 3]], NUMBERS),
    ([None], NUMBERS),
    (["1"], NUMBERS),
    ("123", NUMBERS),
    (b"123", NUMBERS),
    ({1: 2}, NUMBERS),
    ([0] * (MAX_TOKENS + 1), "Expected at most 1,048,576 `token_ids`, got 1,048,577"),
]


@pytest.mark.parametrize(("tokens", "message"), WRONG, ids=[str(i) for i in range(len(WRONG))])
def test_wrong_tokens(tokens: Any, message: str):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        detect(tokens, PROFILES)
    message = message.replace("token_ids", "prompt_token_ids")
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        detect([1], PROFILES, prompt_token_ids=tokens)


def test_the_longest_text():
    text = np.random.default_rng(0).integers(0, 1000, MAX_TOKENS)
    found = detect(text, {"it": PROFILES["vllm"]})
    assert found.num_tokens == MAX_TOKENS
    assert not found.is_watermarked


def test_a_list_for_each_token_takes_long(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LIST_KEY", "1")
    profile = Kgw(key=KeySource(env="LIST_KEY"), vocab_size=100)
    with pytest.raises(ValueError, match="Expected at most 65,536 tokens for it"):
        detect(np.zeros(Kgw.MOST + 1, np.int64), {"it": profile})


@pytest.mark.parametrize("threshold", [0, 1, -1, float("nan"), float("inf")])
def test_wrong_thresholds(threshold: float):
    with pytest.raises(ValueError, match="Expected a threshold between 0 and 1"):
        detect([1], PROFILES, threshold=threshold)


def test_no_profile():
    with pytest.raises(ValueError, match="Expected at least one profile"):
        detect([1], {})


def test_all_profiles_are_tried():
    """The right one comes first; its p-value is multiplied by the number of all."""
    rng = np.random.default_rng(1)
    text = marked(PROFILES["sglang"], rng, [], 100)
    found = detect(text, PROFILES)
    assert found.is_watermarked
    assert {each.profile for each in found.findings} == PROFILES.keys()
    assert [each.is_watermarked for each in found.findings] == [True] + [False] * 8
    first = found.findings[0]
    alone = find(PROFILES["sglang"], text)
    assert (first.profile, first.scheme) == ("sglang", "sglang-gumbel")
    assert first.p_value == pytest.approx(9 * alone.p_value)
    assert first.p_value == pytest.approx(10**first.log10_p)
    logs = [each.log10_p for each in found.findings]
    assert logs == sorted(logs)


def test_the_threshold_is_the_highest_p_value_of_a_mark():
    text = list(range(30))
    p = find(PROFILES["vllm"], text).p_value
    marks = [detect(text, {"it": PROFILES["vllm"]}, threshold=p * f) for f in (1.001, 0.999)]
    assert [each.is_watermarked for each in marks] == [True, False]


SECRET = "7766554433221100998877665544"
"""Too large for a key. No message may have a part of it."""


# scheme | text of the key | message
KEYS: list[tuple[dict[str, Any], str, str]] = [
    ({"scheme": "vllm-gumbel"}, SECRET, "Expected a key of at most 64 bits as a number"),
    ({"scheme": "vllm-gumbel"}, "7766 5544", "Expected a key of at most 64 bits"),
    ({"scheme": "vllm-gumbel"}, "7766.5544", "Expected a key of at most 64 bits"),
    ({"scheme": "vllm-gumbel"}, "-7766", "Expected a key of at most 64 bits"),
    ({"scheme": "vllm-dual-gumbel"}, "0x" + SECRET, "Expected a key of at most 64 bits"),
    ({"scheme": "sglang-gumbel"}, "7766554433221100f", "Expected a key of at most 64 bits"),
    ({"scheme": "sglang-gumbel"}, "7766xyz", "Expected a key of at most 64 bits"),
    ({"scheme": "sglang-dual"}, "7766", "Expected two keys, got 1"),
    ({"scheme": "sglang-dual"}, "7766 5544 3322", "Expected two keys, got 3"),
    ({"scheme": "kgw", "vocab_size": 9}, "7766" * 2000, "Expected a key of at most 64 bits"),
    ({"scheme": "synthid"}, "7766,,5544,x", "Expected a key of at most 64 bits"),
]


@pytest.mark.parametrize(("fields", "key", "message"), KEYS)
def test_wrong_keys(fields: dict[str, Any], key: str, message: str, tmp_path: Path):
    by_env = profile(key, **fields)
    file = tmp_path / "mark"
    file.write_text(key)
    by_file = read_profiles({"news": {**fields, "key": {"file": str(file)}}})["news"]
    for ours in (by_env, by_file):
        with pytest.raises(ValueError, match=r"^The profile news: ") as raised:
            detect([1, 2], {"news": ours})
        if len(key) < 4096 or ours is by_env:
            assert message in str(raised.value)
        shown = "".join(traceback.format_exception(raised.value)) + repr(ours)
        assert "7766" not in shown.replace(str(file), "")


@pytest.mark.parametrize(("mode", "warns"), [(0o600, False), (0o640, False), (0o644, True)])
def test_a_key_that_everybody_can_read(
    mode: int, warns: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("WARNING", "logitport")
    (file := tmp_path / "key").write_text("7766")
    file.chmod(mode)
    for _ in range(2):
        assert KeySource(file=str(file)).read() == "7766"
    said = [f"logitport: everybody can read the key in {file}: chmod o-r"]
    assert [each.getMessage() for each in caplog.records] == said * warns


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No key in the file {}: No such file or directory"),
        (
            b"\xff\xfe7766",
            "No key in the file {}: expected a regular file with a text of at most 4,096 bytes",
        ),
        (
            b"7" * 4097,
            "No key in the file {}: expected a regular file with a text of at most 4,096 bytes",
        ),
        (b"", "Expected a key of at most 64 bits as a number"),
    ],
)
def test_wrong_files(content: bytes | None, message: str, tmp_path: Path):
    file = tmp_path / "mark"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ValueError) as raised:  # noqa: PT011
        detect([1], {"news": VllmGumbel(key=KeySource(file=str(file)))})
    assert str(raised.value) == "The profile news: " + message.format(file)
    assert not raised.value.__cause__


def test_no_variable(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NEWS_KEY", " ")
    for name in ("NEWS_KEY", "OTHER_KEY"):
        with pytest.raises(ValueError, match=f"^The profile news: No key in the variable {name}$"):
            detect([1], {"news": VllmGumbel(key=KeySource(env=name))})


def test_keys_are_never_shown():
    ours = profile("776655", scheme="vllm-gumbel")
    found = detect([1, 2, 3], {"news": ours})
    assert "776655" not in repr(ours) + repr(ours.key) + repr(found) + str(found)


def test_a_key_is_read_anew(monkeypatch: pytest.MonkeyPatch):
    """As it is given: digits, or 0x and hexadecimal digits, with a line break behind it."""
    monkeypatch.setenv("NEWS_KEY", "42")
    ours = VllmGumbel(key=KeySource(env="NEWS_KEY"))
    first = find(ours, range(50))
    monkeypatch.setenv("NEWS_KEY", " 0x2A\n")
    assert find(ours, range(50)) == first
    monkeypatch.setenv("NEWS_KEY", "43")
    assert find(ours, range(50)) != first


# content | message, path
PROFILE_FILES: list[tuple[Any, str, str]] = [
    (None, "Expected profiles by name", ""),
    ([], "Expected profiles by name", ""),
    ({}, "Expected profiles by name", ""),
    ({"profiles": []}, "Expected profiles by name", "$.profiles"),
    ({"profiles": {}}, "Expected profiles by name", "$.profiles"),
    ({"a": 5}, "Expected `object`, got `int`", "$.a"),
    ({"a": {}}, "Object missing required field `scheme`", "$.a"),
    ({"a": {"scheme": "other"}}, "Invalid value 'other'", "$.a.scheme"),
    ({"a": {"scheme": "kgw"}}, "Object missing required field `key`", "$.a"),
    ({"a": {"scheme": "vllm-gumbel", "key": 5}}, "Expected `object`, got `int`", "$.a.key"),
    (
        {"profiles": {7: {"scheme": "vllm-gumbel", "key": KEY, "with": 5}}},
        "Object contains unknown field `with`",
        "$.profiles.7",
    ),
    ({"a": {"scheme": "vllm-gumbel", "key": KEY, 5: 5}}, "Expected `str`", "$.a"),
    ({"a": {"scheme": "vllm-gumbel", "key": KEY, "width": 0}}, "Expected `int` >= 1", "$.a.width"),
    ({"a": {"scheme": "vllm-gumbel", "key": KEY, "hash": "md5"}}, "Invalid", "$.a.hash"),
    ({"a": {"scheme": "vllm-gumbel", "key": KEY, "device": "cpu"}}, "Object contains", "$.a"),
    ({"a": {"scheme": "vllm-gumbel", "key": {}}}, "Expected `env` or `file`", "$.a.key"),
    (
        {"a": {"scheme": "vllm-gumbel", "key": {**KEY, "file": "b"}}},
        "Expected `env` or `file`",
        "$.a.key",
    ),
    ({"a": {"scheme": "vllm-gumbel", "key": {"env": "776655"}}}, "Expected `str`", "$.a.key.env"),
    ({"a": {"scheme": "vllm-gumbel", "key": {"value": 1}}}, "Object contains", "$.a.key"),
    ({"a": {"scheme": "synthid", "key": KEY, "device": "cuda"}}, "Expected `cpu`", "$.a.device"),
    (
        {"profiles": {"a": {"scheme": "kgw", "key": KEY, "vocab_size": 9, "device": "cuda"}}},
        "Expected `cpu`",
        "$.profiles.a.device",
    ),
    ({"a": {"scheme": "synthid", "key": KEY, "device": "tpu"}}, "Invalid", "$.a.device"),
    ({"a": {"scheme": "synthid", "key": KEY, "tokenizer": "sha256:0"}}, "", "$.a.tokenizer"),
    ({"a": {"scheme": "kgw", "key": KEY, "vocab_size": 9, "ratio": 1}}, "", "$.a.ratio"),
    ({"a": {"scheme": "vllm-dual-gumbel", "key": KEY, "alpha": float("nan")}}, "", "$.a.alpha"),
]


@pytest.mark.parametrize(
    ("content", "message", "path"), PROFILE_FILES, ids=[str(i) for i in range(len(PROFILE_FILES))]
)
def test_wrong_profiles(content: Any, message: str, path: str):
    with pytest.raises(SpecError) as raised:
        read_profiles(content)
    assert raised.value.message.startswith(message)
    assert raised.value.path == (path or "$")
    assert "776655" not in str(raised.value)


@pytest.mark.parametrize("within", [True, False])
def test_profiles_of_a_file(within: bool):
    named = {
        "news": {"scheme": "vllm-dual-gumbel", "key": KEY, "width": 5, "alpha": 0.2},
        3: {"scheme": "kgw", "key": {"file": "mark"}, "vocab_size": 50_257, "device": "cpu"},
    }
    assert read_profiles({"profiles": named} if within else named) == {
        "news": VllmDualGumbel(key=KeySource(env="NEWS_KEY"), width=5, alpha=0.2),
        "3": Kgw(key=KeySource(file="mark"), vocab_size=50_257),
    }


@pytest.mark.parametrize(
    "make",
    [
        lambda key: Kgw(key=key, vocab_size=9, device="cuda"),
        lambda key: SynthId(key=key, device="cuda"),
    ],
)
def test_marks_made_on_a_gpu_are_refused(make: Any):
    """Not without a word scored by a CPU's numbers, which they do not have."""
    with pytest.raises(SpecError, match="Expected `cpu`: marks that transformers made"):
        make(source("42"))


def test_a_green_list_of_no_token():
    found = find(profile("42", scheme="kgw", vocab_size=3), [0, 1, 2, 1, 0])
    assert (found.scored, found.score, found.p_value) == (4, 0.0, 1.0)


def test_the_environment_is_where_keys_are():
    assert issubclass(VllmGumbel, Profile)
    assert source("42").read() == "42"
    assert source("42").env in os.environ
