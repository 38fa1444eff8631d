"""``logitport tags``: the tags of all families, and models that are not a folder."""

import json
from pathlib import Path

import pytest
from huggingface_hub import constants
from logitport.adapters.cli import texts
from logitport.spec import ThinkingBudgetSpec

from tests.support.families import FAMILIES, filled, spec_of, tokenizer_of

from .command import run


def model(folder: Path, family: str = "think") -> Path:
    """Write the file of a model that ``tags`` reads."""
    tokenizer_of(family).save(str(folder / "tokenizer.json"))
    return folder


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family(name: str, tmp_path: Path):
    by_name = [] if FAMILIES[name].tokens else ["--family", name]
    result = run("tags", model(tmp_path, name), *by_name, "--json")
    assert result.exit_code == 0, result.output
    found, family = json.loads(result.stdout), filled(FAMILIES[name])
    ids = {part: [tuple(tag["token_ids"]) for tag in found[part]] for part in ("start", "end")}
    then = tuple(token for tag in found["then"] for token in tag["token_ids"])
    assert (found["family"], found["models"]) == (family.name, family.models)
    assert spec_of(name, 7) == ThinkingBudgetSpec(
        7,
        ids["start"][0],
        ids["end"][0],
        other_start_token_ids=tuple(ids["start"][1:]),
        other_end_token_ids=tuple(ids["end"][1:]),
        then_token_ids=then,
    )
    texts = {part: [tag["text"] for tag in found[part]] for part in ("start", "end")}
    assert all(any(text in each for each in texts["start"]) for text in family.start)
    assert all(any(text in each for each in texts["end"]) for text in family.end)


def test_no_tokenizer(tmp_path: Path):
    result = run("tags", tmp_path)
    assert result.exit_code == 2
    assert "No tokenizer at" in result.stderr


def test_without_a_network_no_host_is_asked_again(monkeypatch: pytest.MonkeyPatch):
    """The hub's client would try for 25 s, and print each attempt."""

    def unknown(*_: object) -> None:
        raise OSError("Name or service not known")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(texts, "getaddrinfo", unknown)
    monkeypatch.setattr(texts, "getproxies", dict)
    result = run("tags", "no-one/no-such-model")
    assert constants.HF_HUB_OFFLINE
    assert result.exit_code == 2
    assert "No tokenizer at 'no-one/no-such-model'" in result.stderr
