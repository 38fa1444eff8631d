"""The environment variable of the wiring check."""

from typing import Any

import pytest
from logitport.adapters import core
from logitport.hooks.test_text import TEXT, VARIABLES, default_specs
from logitport.spec import ForcedTokenSequenceSpec

OURS, DYNAMO = VARIABLES


class Characters:
    """One token per character, its code point; EOS is 0."""

    eos_token_id = 0

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        assert not add_special_tokens
        return [ord(character) for character in text]


SPECS = [ForcedTokenSequenceSpec(tuple(map(ord, TEXT)), 0)]


def unwanted() -> Any:
    raise AssertionError("the tokenizer was loaded for nothing")


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_names():
    assert VARIABLES == (
        "LOGITPORT_ENABLE_TEST_LOGITS_PROCESSOR",
        "DYN_ENABLE_TEST_LOGITS_PROCESSOR",
    )
    assert TEXT == "Hello world!"


@pytest.mark.parametrize("name", VARIABLES)
@pytest.mark.parametrize("value", ["1", "true", "True", "yes", "on", " ON "])
def test_on(monkeypatch: pytest.MonkeyPatch, name: str, value: str):
    monkeypatch.setenv(name, value)
    assert list(default_specs(Characters)) == SPECS


@pytest.mark.parametrize("name", VARIABLES)
@pytest.mark.parametrize("value", ["", " ", "0", "false", "False", "no", "OFF"])
def test_off(monkeypatch: pytest.MonkeyPatch, name: str, value: str):
    monkeypatch.setenv(name, value)
    assert not default_specs(unwanted)


def test_unset():
    assert not default_specs(unwanted)
    assert core.default_specs(unwanted) == []


@pytest.mark.parametrize("name", VARIABLES)
@pytest.mark.parametrize("value", ["2", "yess", "Hello world!"])
def test_neither(monkeypatch: pytest.MonkeyPatch, name: str, value: str):
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=f"^{name}='{value}': expected 1 or 0$"):
        default_specs(unwanted)


def test_one_is_enough(monkeypatch: pytest.MonkeyPatch):
    for on, off in [(OURS, DYNAMO), (DYNAMO, OURS)]:
        monkeypatch.setenv(on, "1")
        monkeypatch.setenv(off, "0")
        assert list(default_specs(Characters)) == SPECS


def test_text_is_tokenized_once(monkeypatch: pytest.MonkeyPatch):
    for name in VARIABLES:
        monkeypatch.setenv(name, "1")
    loaded: list[Characters] = []

    def load() -> Characters:
        loaded.append(Characters())
        return loaded[-1]

    assert core.default_specs(load) == SPECS  # through the entry point of the installed package
    assert len(loaded) == 1
