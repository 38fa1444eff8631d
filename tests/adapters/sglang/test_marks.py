"""Marked texts of SGLang, where its own mark is refused beside processors."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from logitport import spec as lp
from logitport.adapters.sglang import attach

from tests.adapters.marked import (
    CONFIGURATION,
    KEY,
    MARK,
    REQUIRED,
    UNMARKED,
    p_values,
    prompts,
)

from .in_process import engine

pytestmark = pytest.mark.slow

BAN = lp.BannedTokensSpec((5,))


@pytest.fixture(scope="module")
def running(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    file = tmp_path_factory.mktemp("marks") / "marks.json"
    file.write_text(json.dumps(CONFIGURATION | REQUIRED))
    with engine(model, {"LOGITPORT_CONFIG": str(file)} | KEY) as running:
        yield running


def say(running: Any, asked: list[str], specs: Any, **fields: Any) -> list[Any]:
    """All at once: requests with and without specs have the same processor."""
    sampling = {"max_new_tokens": 64, "ignore_eos": True, "temperature": 1.0, **fields}
    return running.generate(asked, **attach({"sampling_params": sampling}, specs))


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, key in KEY.items():
        monkeypatch.setenv(name, key)


@pytest.mark.parametrize(
    ("specs", "fields"),
    [((), {}), ((MARK, BAN), {"top_k": 400, "top_p": 0.99, "frequency_penalty": 0.2})],
    ids=["without specs", "with specs"],
)
def test_replies_are_found(running: Any, specs: Any, fields: dict[str, Any]):
    tokens = [each["output_ids"] for each in say(running, prompts(4), specs, **fields)]
    assert max(p_values(tokens)) < 1e-6 < 1e-3 < min(p_values(tokens, "other"))


@pytest.mark.parametrize(("fields", "path"), UNMARKED)
@pytest.mark.parametrize("specs", [(), (BAN,), (MARK,)], ids=["none", "others", "a mark"])
def test_refused(running: Any, specs: Any, fields: dict[str, Any], path: str):
    with pytest.raises(ValueError, match=f"because the text is marked; got .* - at `{path}`"):
        say(running, ["x"], specs, **fields)


@pytest.mark.parametrize(
    ("profile", "message"),
    [
        ("mine", "no profile 'mine' of marks; profiles: news, other"),
        ("other", "marks its texts with the profile 'news'"),
    ],
)
def test_profiles(running: Any, profile: str, message: str):
    with pytest.raises(ValueError, match=message):
        say(running, ["x"], [lp.WatermarkSpec(profile)])


def test_a_grammar_needs_no_mark(running: Any):
    grammar = {"regex": "yes|no", "ignore_eos": False, "temperature": 0}
    answer = say(running, ["Yes or no?"], [], **grammar)
    assert answer[0]["text"] in ("yes", "no")
