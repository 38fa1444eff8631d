"""Plugins that a server has installed, and what is refused of them when a request is admitted."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from logitport.adapters.core import HistoryRule, compile_specs, plugins
from logitport.adapters.core.automaton import Edit
from logitport.spec import BannedTokensSpec, PluginSpec, SpecError

from examples.plugin import at_most
from tests.support.automata import fold


class Rule(HistoryRule):
    def additions(
        self, prompt_ids: Sequence[int], output_ids: Sequence[int]
    ) -> Mapping[int, float]:
        return {}


def two(output_ids: Sequence[int], logits: Any) -> None: ...


def three(prompt_ids: Sequence[int], output_ids: Sequence[int], logits: Any) -> None: ...


def one(logits: Any) -> None: ...


imports: list[str] = []


def absent() -> Any:
    imports.append("absent")
    raise ModuleNotFoundError("No module named 'absent'")


def refuses(params: Mapping[str, Any]) -> Any:
    raise KeyError("width")


NO_PROCESSOR = "returned no logits processor"
# What an entry point loads, and what is wrong with it.
PLUGINS: dict[str, tuple[Any, str, str]] = {
    "rule": (lambda: lambda params: Rule(), "", ""),
    "two": (lambda: lambda params: two, "", ""),
    "three": (lambda: lambda params: three, "", ""),
    "absent": (absent, "cannot be imported: No module named 'absent'", "name"),
    "refuses": (lambda: refuses, "refuses its parameters: 'width'", "params"),
    "one": (lambda: lambda params: one, f"{NO_PROCESSOR}: .* takes 1 arguments", "name"),
    "class": (lambda: lambda params: Rule, f"{NO_PROCESSOR}: .* takes 0 arguments", "name"),
    "no-signature": (lambda: lambda params: max, f"{NO_PROCESSOR}: no signature found", "name"),
    "nothing": (lambda: lambda params: None, f"{NO_PROCESSOR}: expected a callable", "name"),
}


@pytest.mark.parametrize("name", [*PLUGINS, "unknown"])
def test_what_is_wrong_is_the_matter_of_who_names_it(monkeypatch: pytest.MonkeyPatch, name: str):
    loaders = {each: load for each, (load, _, _) in PLUGINS.items()}
    monkeypatch.setattr(plugins, "_plugins", lambda: loaders)
    unknown = None, "No plugin 'unknown' is installed .*; installed: absent, class", "name"
    _, message, field = PLUGINS.get(name, unknown)
    specs = [BannedTokensSpec((1,)), PluginSpec(name)]
    if message:
        for _ in range(2):
            with pytest.raises(SpecError, match=message) as error:
                compile_specs(specs)
            assert error.value.path == f"$.specs[1].{field}"
        assert len(imports) <= 1
    else:
        assert len(compile_specs(specs).per_request) == 1


@pytest.mark.parametrize(
    ("output_ids", "forced"),
    [([], None), ([5, 30], None), ([30, 5, 31], 2), ([30, 30, 2], 2), ([31, 5, 5, 30, 7], 2)],
)
def test_the_example(monkeypatch: pytest.MonkeyPatch, output_ids: list[int], forced: int | None):
    monkeypatch.setattr(plugins, "_plugins", lambda: {"at-most": lambda: at_most})
    params = {"token_ids": [30, 31], "times": 2, "eos_token_id": 2}
    (automaton,) = compile_specs((PluginSpec("at-most", params),)).automata
    state, _ = fold(automaton, (), output_ids)
    is_forced = automaton.edit[state] == Edit.FORCE
    assert (int(automaton.operand[state]) if is_forced else None) == forced
