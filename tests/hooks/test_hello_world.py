"""The environment variable of the wiring check."""

import logging
import re
from typing import Any

import pytest
from logitport.adapters import policy_of
from logitport.hooks.hello_world import TEXT, VARIABLES, default_specs
from logitport.spec import ForcedTokenSequenceSpec

SPECS = [ForcedTokenSequenceSpec(tuple(map(ord, TEXT)), 0)]


class Characters:
    """One token per character, its code point; EOS is 0."""

    eos_token_id: int | None = 0

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        assert not add_special_tokens
        return [ord(character) for character in text]

    def get_vocab(self) -> dict[str, int]:
        return {chr(each): each for each in range(128)}

    def decode(self, token_ids: list[int]) -> str:
        return "".join(map(chr, token_ids))


def unwanted() -> Any:
    raise AssertionError("the tokenizer was loaded for nothing")


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("value", ["1", "true", "True", "yes", "on", " ON "])
@pytest.mark.parametrize("name", VARIABLES)
def test_on(monkeypatch: pytest.MonkeyPatch, name: str, value: str):
    """One variable is enough."""
    for each in VARIABLES:
        monkeypatch.setenv(each, value if each == name else "0")
    assert list(default_specs(Characters)) == SPECS


@pytest.mark.parametrize("value", [None, "", " ", "0", "false", "False", "no", "OFF"])
def test_off(monkeypatch: pytest.MonkeyPatch, value: str | None):
    for name in VARIABLES if value is not None else ():
        monkeypatch.setenv(name, value)
    assert policy_of(unwanted) is None


@pytest.mark.parametrize("value", ["2", "yess", "Hello world!"])
@pytest.mark.parametrize("name", VARIABLES)
def test_neither(monkeypatch: pytest.MonkeyPatch, name: str, value: str):
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=f"^{name}='{value}': expected 1 or 0$"):
        default_specs(unwanted)


@pytest.mark.parametrize("eos_token_id", [0, 7, None])
@pytest.mark.parametrize("name", VARIABLES)
def test_without_eos_the_model_goes_on(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
    eos_token_id: int | None,
):
    caplog.set_level(logging.INFO, "logitport")  # an engine in this process may have set another
    monkeypatch.setenv(name, "1")
    monkeypatch.setattr(Characters, "eos_token_id", eos_token_id)
    assert list(default_specs(Characters)) == [
        ForcedTokenSequenceSpec(tuple(map(ord, "Hello world!")), eos_token_id)
    ]
    (record,) = caplog.records
    assert record.getMessage().startswith(f"{name} is on")
    assert ("no EOS token" in record.getMessage()) is (eos_token_id is None)


def no_tokenizer() -> Any:
    raise OSError("Can't load the tokenizer for 'model'")


class Silent(Characters):
    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return []


@pytest.mark.parametrize(
    ("load", "why"),
    [
        (no_tokenizer, "Can't load the tokenizer for 'model'"),
        (lambda: None, "Expected a tokenizer, got None"),
        (Silent, "The tokenizer makes no tokens of 'Hello world!'"),
    ],
    ids=["cannot be loaded", "none", "makes no tokens"],
)
def test_without_a_tokenizer_the_variable_is_named(
    monkeypatch: pytest.MonkeyPatch, load: Any, why: str
):
    name = VARIABLES[-1]
    monkeypatch.setenv(name, "1")
    with pytest.raises(ValueError, match=f"^{name} is on, .*{re.escape(why)}.*without the var"):
        policy_of(load)


def test_text_is_tokenized_once(monkeypatch: pytest.MonkeyPatch):
    for name in VARIABLES:
        monkeypatch.setenv(name, "1")
    loaded: list[Characters] = []

    def load() -> Characters:
        loaded.append(Characters())
        return loaded[-1]

    found = policy_of(load)  # through the entry point of the installed package
    assert found is not None
    assert [*found.default] == SPECS
    assert policy_of(None) is None
    assert len(loaded) == 1
