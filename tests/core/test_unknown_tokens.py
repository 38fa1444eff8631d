"""Histories with tokens that the engine has not told: exact, or ended with a reason."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from logitport import spec as s
from logitport.adapters.core import (
    AutomatonBuilder,
    HistoryRule,
    Program,
    Realizer,
    compile_specs,
    plugins,
)
from logitport.adapters.core.automaton import UNKNOWN, UnknownTokenError
from logitport.adapters.core.automaton.automata import place
from logitport.adapters.core.automaton.history import TokenHistory
from logitport.adapters.reference.kinds import REALIZED
from logitport.spec import LogitsProcessorSpec

from tests.support.requests import STOP, VOCABULARY, random_logits
from tests.support.strategies import payload_specs

Specs = Sequence[LogitsProcessorSpec]


class Rule(HistoryRule):
    def additions(
        self, prompt_ids: Sequence[int], output_ids: Sequence[int]
    ) -> Mapping[int, float]:
        return dict.fromkeys(output_ids, 1.0)


def turns(params: Mapping[str, Any]) -> Any:
    builder = AutomatonBuilder()
    for i in range(3):
        builder.default(builder.force(i), (i + 1) % 3)
    return builder.build()


def edits_nothing(output_ids: Sequence[int], logits: torch.Tensor) -> None:
    pass


PLUGINS = {
    "turns": lambda: turns,
    "rule": lambda: lambda params: Rule(),
    "code": lambda: lambda params: edits_nothing,
}


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "_plugins", lambda: PLUGINS)


NEEDS: list[tuple[Specs, bool]] = [
    ([s.ForcedTokenSequenceSpec((4, 5))], False),
    ([s.ForcedTokenSequenceSpec((4, 5), 0)], False),
    ([s.ForcedEndSpec(3, (4, 5), 0)], False),
    ([s.ForcedEndSpec(0, (4, 5))], False),
    ([s.AllowedTokensSpec((1, 2))], False),
    ([s.BannedTokensSpec((1, 2))], False),
    ([s.LogitBiasSpec({1: 2.0})], False),
    ([s.PromptBiasSpec(2.0)], False),
    ([s.MinTokensSpec(3, (0,))], False),
    ([s.ChoiceSpec(((4, 5, 6),), 0)], False),
    ([s.ChoiceSpec(((4, 5), (4, 6)), 0)], True),
    ([s.ChoiceSpec(((4,), (4, 5)), 0)], True),
    ([s.BannedSequencesSpec(((4,), (5,)))], False),
    ([s.BannedSequencesSpec(((4,), (5, 6)))], True),
    ([s.SequenceBiasSpec(((4,), (5,)), (1.0, 2.0))], False),
    ([s.SequenceBiasSpec(((4,), (5, 6)), (1.0, 2.0))], True),
    ([s.PhasesSpec.prefix_then((4, 5), s.ForcedTokenSequenceSpec((6,)), eos_token_id=0)], False),
    ([s.PhasesSpec((s.Phase((), (s.PhaseEnd(n=9),)),), eos_token_id=0)], False),
    ([s.PhasesSpec((s.Phase((), (s.PhaseEnd(token_ids=(1,)),)),), eos_token_id=0)], True),
    ([s.PhasesSpec((s.Phase((s.ThinkingBudgetSpec(3, (1,), (2,)),)),))], True),
    ([s.ChoiceSpec(((4, 5), (6,)))], True),
    ([s.ChoiceSpec(((4, 5, 6),))], False),
    ([s.TriggerSpec((1,), (2, 3))], True),
    ([s.AtEndSpec((1,), (2,))], True),
    ([s.TriggerSpec((1,), (2, 3), None)], True),
    ([s.AutomatonSpec((s.AutomatonState(default=1), s.AutomatonState(force=3)))], False),
    ([s.AutomatonSpec((s.AutomatonState(edges=(s.AutomatonEdge(0, 0),)),), ((3,),))], True),
    ([s.NoRepeatNgramSpec(2)], True),
    ([s.NoRepeatNgramSpec(1, 1)], True),
    ([s.DrySpec(1)], True),
    ([s.NoLoopSpec(2)], True),
    ([s.NoLoopSpec(2, then_token_ids=(1,))], True),
    ([s.ThinkingBudgetSpec(3, (1,), (2,))], True),
    ([s.PluginSpec("turns")], False),
    ([s.PluginSpec("rule")], True),
    ([s.PluginSpec("code")], True),
    ([s.PythonProcessorSpec(dict)], True),
    ([s.MinTokensSpec(3, (0,)), s.ForcedEndSpec(3, (4, 5)), s.LogitBiasSpec({1: 2.0})], False),
    ([s.MinTokensSpec(3, (0,)), s.TriggerSpec((1,), (2, 3))], True),
    ([s.LogitBiasSpec({1: 2.0}), s.NoRepeatNgramSpec(2)], True),
]
"""Specs, and whether more has to be known than how many tokens are out."""


@pytest.mark.parametrize(("specs", "needs_output_ids"), NEEDS, ids=str)
def test_what_needs_more_than_the_number_of_tokens(specs: Specs, needs_output_ids: bool) -> None:
    assert compile_specs(specs).needs_output_ids == needs_output_ids


def test_an_end_that_is_forced_is_not_what_comes() -> None:
    """Of another forced token, it is not known here whether it is an end."""
    program = compile_specs((s.ForcedTokenSequenceSpec((4,), 0), s.AtEndSpec((5, 6), (0,))))
    place(program.lanes, program.since, TokenHistory((), [4, 5, UNKNOWN]))
    for output in ([4, UNKNOWN], [UNKNOWN, 5]):
        with pytest.raises(UnknownTokenError):
            place(program.lanes, program.since, TokenHistory((), output))


def test_no_kind_is_left_out() -> None:
    kinds = {type(spec) for specs, _ in NEEDS for spec in specs}
    assert kinds == {*REALIZED, s.PluginSpec, s.PythonProcessorSpec}


class Pair:
    """One request in two realizers: one is told all tokens, the other is not.

    Attributes:
        output: what was sampled.
        untold: the same, with -1 for what the second one is not told.
    """

    def __init__(self, program: Program, prompt: Sequence[int] = ()) -> None:
        self.program = program
        self.prompt = prompt
        self.output: list[int] = []
        self.untold: list[int] = []
        self._knowing, self._unknowing = Realizer(VOCABULARY), Realizer(VOCABULARY)
        self._knowing.add(0, program, prompt, self.output, STOP)
        self.resume()

    def resume(self) -> None:
        """What an engine does after a preemption."""
        self._unknowing.add(0, self.program, self.prompt, self.untold, STOP)

    @property
    def failed(self) -> int:
        return self._unknowing.failed_requests

    def step(self, *, told: bool, seed: int = 0, looks: bool = True) -> None:
        """Choose a token; one that looks has to see the same logits, told or not."""
        before = random_logits(1, VOCABULARY, seed, torch.float32)
        logits, others = before.clone(), before.clone()
        self._knowing.apply(logits)
        if looks:
            self._unknowing.apply(others)
            if not self.failed:
                assert torch.equal(logits, others)
        token = int(logits.argmax())
        self.output.append(token)
        self.untold.append(token if told else -1)

    def take_back(self, tokens: int) -> None:
        for output in (self.output, self.untold):
            del output[len(output) - min(tokens, len(output)) :]


EXACT: list[tuple[Specs, int]] = [
    # Each sees what the other one forces, whichever of them comes first.
    ([s.ForcedTokenSequenceSpec((1, 2, 3)), s.TriggerSpec((2, 3), (4, 5, 6, 4, 5))], 8),
    ([s.TriggerSpec((2, 3), (4, 5, 6, 4, 5)), s.ForcedTokenSequenceSpec((1, 2, 3))], 8),
    ([s.ForcedEndSpec(0, (1, 2)), s.ThinkingBudgetSpec(0, (1, 2), (3, 4))], 4),
    # Several force at once, and the first one's token is chosen.
    ([s.ForcedTokenSequenceSpec((1, 2)), s.ForcedEndSpec(1, (3, 4, 5), 0)], 20),
    ([s.ForcedEndSpec(1, (3, 4, 5), 0), s.ForcedTokenSequenceSpec((1, 2))], 20),
    ([s.ForcedTokenSequenceSpec((1, 2, 1, 2, 1, 1), 0), s.TriggerSpec((1,), (3, 3, 3))], 20),
    ([s.TriggerSpec((1,), (3, 3), None), s.ForcedTokenSequenceSpec((1, 2, 1, 2, 1, 1), 0)], 20),
    ([s.ForcedTokenSequenceSpec((1, 2, 3), 0), s.ChoiceSpec(((1, 2), (4,)), 0)], 20),
    ([s.PluginSpec("turns"), s.TriggerSpec((1, 2), (7, 7))], 20),
    ([s.TriggerSpec((1, 2), (6, 6)), s.PluginSpec("turns")], 20),
    # Only the number of tokens matters.
    *((specs, 8) for specs, needs_output_ids in NEEDS if not needs_output_ids),
]
"""Specs, and how many tokens they force from the first one on, if not all."""


@pytest.mark.parametrize("resumed", [False, True], ids=["step by step", "folded at each step"])
@pytest.mark.parametrize(("specs", "forced"), EXACT, ids=str)
def test_a_token_that_is_not_told_is_the_one_forced_on_its_row(
    specs: Specs, forced: int, resumed: bool
) -> None:
    pair = Pair(compile_specs(specs), [5, 6])
    for step in range(forced):
        if resumed:
            pair.resume()
        pair.step(told=False, seed=step)
    assert pair.failed == 0


@pytest.mark.parametrize("name", ["rule", "code"])
@pytest.mark.parametrize("untold", [[-1], [3, -1], [-1, 3]])
def test_code_is_never_shown_a_placeholder(name: str, untold: list[int]) -> None:
    realizer = Realizer(VOCABULARY)
    realizer.add(0, compile_specs([s.PluginSpec(name)]), [1], untold, STOP)
    logits = random_logits(1, VOCABULARY, 0, torch.float32)
    realizer.apply(logits)
    assert realizer.failed_requests == 1
    assert logits.argmax() == STOP


STEP = st.fixed_dictionaries(
    {
        "told": st.booleans(),
        "looks": st.integers(0, 3).map(bool),
        "take_back": st.integers(-12, 3),
        "resume": st.integers(0, 5).map(lambda i: i == 0),
    }
)


@given(
    specs=payload_specs(VOCABULARY, count=5),
    prompt=st.lists(st.integers(0, VOCABULARY - 1), max_size=4),
    steps=st.lists(STEP, max_size=20),
)
@settings(max_examples=60, deadline=None)
def test_never_silently_wrong(specs: Specs, prompt: list[int], steps: list[Any]) -> None:
    """Whatever is told, taken back, skipped or folded anew."""
    pair = Pair(compile_specs(specs), prompt)
    for seed, step in enumerate(steps):
        if step["looks"] and step["take_back"] > 0:  # before others can be put in their place
            pair.take_back(step["take_back"])
        if step["resume"]:
            pair.resume()
        pair.step(told=step["told"], seed=seed, looks=step["looks"])
        if pair.failed:
            assert pair.program.needs_output_ids
            assert -1 in pair.untold
            return
