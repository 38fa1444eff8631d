"""Contradictions, compared with a search through all outputs of a few tokens by the reference."""

import os
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import combinations_with_replacement
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from logitport import spec as s
from logitport.adapters.core import Vocabulary, compile_specs
from logitport.adapters.core.contradictions import budget, check_contradictions, may_lose
from logitport.adapters.reference import edit
from logitport.adapters.reference.kinds import REALIZED
from logitport.adapters.reference.kinds.base import BAN, Add, Allow, Force, flat
from logitport.spec import LogitsProcessorSpec, SpecError

from tests.support.strategies import STRATEGIES, Draws

VOCAB = 5
LONGEST = 6
"""Tokens of the outputs that are searched: enough for two texts of three tokens."""
MOST = 20_000
"""Outputs that are searched for a loss."""

Specs = Sequence[LogitsProcessorSpec]
Tokens = tuple[int, ...]

DRAW = Draws(VOCAB, most=3, longest=3, count=3)


def ends_of(specs: Specs) -> set[int]:
    found: set[int] = set()
    for spec in specs:
        for path, token_ids in spec.token_fields():
            if {"eos_token_id", "stop_token_ids"}.intersection(path):
                found.update(token_ids)
    return found


class Outputs:
    """All outputs of a few tokens for some specs."""

    def __init__(self, specs: Specs) -> None:
        self.specs, self.ends, self.left = specs, ends_of(specs), MOST
        self.known: dict[tuple[LogitsProcessorSpec, Tokens, Tokens], Any] = {}

    def options(self, specs: Specs, prompt: Tokens, output: Tokens) -> list[int]:
        """Return the tokens that obey all specs."""
        acting: list[Any] = []
        for spec in specs:
            key = spec, prompt, output
            if key not in self.known:
                self.known[key] = flat([edit(spec, prompt, output)])
            acting += self.known[key]
        left = set(range(VOCAB))
        for each in acting:
            match each:
                case Force():
                    left &= {each.token}
                case Allow():
                    left &= each.tokens
                case Add():
                    left -= {token for token, value in each.values.items() if value == BAN}
        return sorted(left)

    def are_lost(self, prompt: Tokens = (), output: Tokens = ()) -> bool:
        """Whether every way leads to a step that leaves no token."""
        options = self.options(self.specs, prompt, output)
        if not options:
            return True
        going_on = [token for token in options if token not in self.ends]
        if not going_on or len(output) == LONGEST:
            return False
        return all(self.are_lost(prompt, (*output, token)) for token in going_on)

    def may_be_lost(self, prompt: Tokens, obeyed: Specs) -> bool | None:
        """Whether an output that obeys some of the specs leads to such a step.

        ``None`` if there are too many outputs.
        """
        waiting: list[Tokens] = [()]
        for output in waiting:
            self.left -= 1
            if self.left < 0:
                return None
            if not self.options(self.specs, prompt, output):
                return True
            if len(output) < 2 * LONGEST:
                options = self.options(obeyed, prompt, output)
                waiting += [(*output, token) for token in options if token not in self.ends]
        return False

    def losers(self, prompt: Tokens) -> set[str]:
        """Return the kinds of the specs that refuse a token which comes by the order of edits."""
        found, waiting = set[str](), [()]
        for output in waiting:
            self.left -= 1
            options = self.options(self.specs, prompt, output)
            acting = [each for spec in self.specs for each in self.known[spec, prompt, output]]
            allows = [each.tokens for each in acting if isinstance(each, Allow)]
            if forces := [each.token for each in acting if isinstance(each, Force)]:
                options = forces[:1]
            elif allows and not options:
                options = sorted(allows[0])
            for spec in self.specs:
                own = self.options([spec], prompt, output)
                if own and not set(options).issubset(own):
                    found.add(spec.kind)
            if self.left > 0 and len(output) < LONGEST:
                waiting += [(*output, token) for token in options if token not in self.ends]
        return found


def prompts(specs: Specs) -> Iterator[Tokens]:
    yield ()
    for spec in specs:
        if isinstance(spec, s.PhasesSpec):
            yield from list(prompts([each for _, each in spec.inner_specs()]))[1:]
        if isinstance(spec, s.ThinkingBudgetSpec):
            ends = spec.end_token_ids, *spec.other_end_token_ids
            for start in (spec.start_token_ids, *spec.other_start_token_ids):
                for end in ends:
                    yield from (start + end[:k] for k in range(len(end)))


def check(specs: Specs) -> None:
    """Compare what is refused with the reference."""
    try:
        program = compile_specs(specs)
    except SpecError:  # too large
        return
    try:
        check_contradictions(specs, program, VOCAB)
        return
    except SpecError:
        pass
    if not Outputs(specs).are_lost():  # others are followed only while determined
        found = [
            Outputs(specs).may_be_lost(prompt, obeyed)
            for prompt in dict.fromkeys(prompts(specs))
            for obeyed in (specs, specs[:1], specs[1:])
        ]
        # Whether a timer runs out is not known of a text that is forced later.
        timed = any(
            state.timeout is not None for each in specs for state in getattr(each, "states", ())
        )
        assert True in found or None in found or timed, specs


PAIRS = int(os.environ.get("LOGITPORT_PAIRS", "30"))
"""Pairs of specs; 10,000 take about ten minutes."""


any_two = st.sampled_from([*combinations_with_replacement(REALIZED, 2)]).flatmap(
    lambda two: st.tuples(*(STRATEGIES[kind](DRAW) for kind in two))
)
many = settings(
    max_examples=PAIRS,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@seed(0)
@many
@given(any_two)
def test_any_two_specs(specs: Specs):
    check(specs)


Forced = s.ForcedTokenSequenceSpec
EOS = 2


def phases(*phases: s.Phase, eos: int | None = None) -> s.PhasesSpec:
    return s.PhasesSpec(phases, eos)


def automaton(*states: s.AutomatonState) -> s.AutomatonSpec:
    return s.AutomatonSpec(states)


FORCES_6 = automaton(s.AutomatonState(force=6, default=1), s.AutomatonState())
THREE = s.Phase((), (s.PhaseEnd(n=3),))
OPENED = {"start_token_ids": (7,), "end_token_ids": (8,)}
BY_HAND: dict[str, Specs] = {
    "two forced tokens": (Forced((8,)), phases(s.Phase((Forced((9,)),)))),
    "two lists": (
        s.AllowedTokensSpec((5,)),
        phases(s.Phase((s.AllowedTokensSpec((6,)),))),
    ),
    "a stop token in phases": (s.MinTokensSpec(10, (EOS,)), phases(THREE, eos=EOS)),
    "an automaton's token": (FORCES_6, Forced((5,))),
    "all tokens banned": (s.BannedTokensSpec(tuple(range(16))),),
    "all tokens banned together": (
        s.BannedTokensSpec(tuple(range(9))),
        s.BannedSequencesSpec(tuple((token,) for token in range(9, 16))),
    ),
    "two ends, much later": (s.ForcedEndSpec(1 << 20, (3,)), s.ForcedEndSpec(1 << 20, (4,))),
    "one spec": (phases(s.Phase((s.BannedTokensSpec((3,)), Forced((3,))))),),
    "three specs": (
        s.AllowedTokensSpec((3, 4)),
        s.BannedTokensSpec((3,)),
        s.BannedSequencesSpec(((4,),)),
    ),
    "a sequence in an end": (s.BannedSequencesSpec(((2, 3),)), s.ForcedEndSpec(4, (1, 2, 3))),
    "a sequence in a phrase": (s.BannedSequencesSpec(((1, 2),)), s.TriggerSpec((9,), (1, 2))),
    "a sequence in a message": (
        s.BannedSequencesSpec(((1, 2),)),
        s.ThinkingBudgetSpec(3, (7,), (8,), (1, 2)),
    ),
}
NEAR: dict[str, Specs] = {
    "one token": (Forced((8,)), phases(s.Phase((Forced((8,)),)))),
    "a stop token in time": (s.MinTokensSpec(3, (EOS,)), phases(THREE, eos=EOS)),
    "the request is over": (Forced((5,), EOS), s.ForcedEndSpec(2, (6,))),
    "a floor and a budget": (
        s.ThinkingBudgetSpec(20, **OPENED, min_tokens=10),
        s.ThinkingBudgetSpec(10, **OPENED),
    ),
    "a token is left": (s.BannedTokensSpec(tuple(range(15))),),
    "an answer that ends the request": (
        s.AllowedTokensSpec((4,)),
        s.ChoiceSpec(((3,), (4, 1)), 4),
    ),
    "a message that ends the request": (
        s.ThinkingBudgetSpec(3, **OPENED, message_token_ids=(EOS, 5), stop_token_ids=(EOS,)),
        s.BannedTokensSpec((5,)),
    ),
    "a trigger that is banned": (s.TriggerSpec((5,), (6, 5)), s.BannedTokensSpec((5,))),
    "a state beside a list": (
        s.AutomatonSpec(
            (
                s.AutomatonState(allow=0, edges=(s.AutomatonEdge(0, 1),), default=2),
                s.AutomatonState(),
                s.AutomatonState(force=6, default=1),
            ),
            ((4, 5),),
        ),
        s.BannedTokensSpec((6,)),
    ),
    "the other answer": (s.ChoiceSpec(((5, 5), (6,)), EOS), s.BannedTokensSpec((5,))),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_by_hand(name: str):
    for specs in (BY_HAND[name], BY_HAND[name][::-1]):
        with pytest.raises(SpecError) as error:
            check_contradictions(specs, compile_specs(specs), 16)
        named = error.value.path + error.value.message
        for i in range(len(specs)):
            assert f"$.specs[{i}]" in named


@pytest.mark.parametrize("name", NEAR)
def test_near_miss(name: str):
    for specs in (NEAR[name], NEAR[name][::-1]):
        check_contradictions(specs, compile_specs(specs), 16)


TOKENS = (b"a", b"b", b"Par", b"is", b"Rome", b" ", "\u6c49".encode(), b"c", b"Paris", b"e")
PARIS = s.BannedTextSpec(("Paris",))
WORD = s.BannedTextSpec(("Paris",), whole_words=True)


@pytest.mark.parametrize(
    ("specs", "is_refused"),
    [
        ((PARIS, Forced((0, 2, 3))), True),
        ((PARIS, Forced((0, 3, 2))), False),
        ((PARIS, Forced((8,))), True),
        ((PARIS, s.ChoiceSpec(((2, 3), (4,)), 9)), True),
        ((PARIS, s.ChoiceSpec(((8,), (4,)), 9)), False),
        ((PARIS, s.ChoiceSpec(((8,), (2, 3)), 9)), True),
        ((PARIS, phases(s.Phase((Forced((2, 3)),)))), True),
        # Texts that come later, whatever is before them.
        ((PARIS, s.TriggerSpec((0,), (2, 3))), True),
        ((PARIS, s.TriggerSpec((2,), (3,))), False),
        ((PARIS, s.TriggerSpec((0,), (2, 3), times=2)), True),
        ((PARIS, s.ForcedEndSpec(4, (1, 2, 3, 1))), True),
        ((PARIS, s.AtEndSpec((1, 2, 3), (9,))), True),
        ((PARIS, s.AtEndSpec((2, 3), (9,))), True),
        ((PARIS, s.AtEndSpec((2, 1, 3), (9,))), False),
        ((PARIS, s.NoLoopSpec(2, then_token_ids=(2, 3))), True),
        ((PARIS, s.ThinkingBudgetSpec(2, (0,), (1,), (2, 3))), True),
        ((PARIS, phases(s.Phase((s.TriggerSpec((0,), (2, 3)),)))), True),
        (
            (
                phases(
                    s.Phase((PARIS, s.TriggerSpec((0,), (2, 3)))),
                ),
            ),
            True,
        ),
        ((WORD, s.TriggerSpec((0,), (2, 3))), False),
        ((WORD, s.TriggerSpec((0,), (5, 2, 3))), True),
        ((WORD, Forced((2, 3))), True),
        ((s.BannedScriptsSpec(("Han",)), Forced((6,))), True),
        ((s.BannedScriptsSpec(("Latin",)), Forced((6,))), False),
        ((s.AllowedScriptsSpec(("Han",)), Forced((0,))), True),
        ((s.AllowedScriptsSpec(("Han",)), Forced((6,))), False),
    ],
)
def test_texts(specs: Specs, is_refused: bool):
    program = compile_specs(specs, lambda: Vocabulary.of_tokens(TOKENS))
    refused = pytest.raises(SpecError, match=r"Conflicts with|Contradicts itself")
    with refused if is_refused else nullcontext():
        check_contradictions(specs, program, len(TOKENS))


def test_without_a_vocabulary_all_tokens_are_never_banned():
    specs = BY_HAND["all tokens banned"]
    check_contradictions(specs, compile_specs(specs))


def test_many_answers_are_all_tried():
    answers = tuple((token, token + 1) for token in range(0, 8000, 2))
    specs = s.ChoiceSpec(answers, EOS), s.BannedSequencesSpec((answers[-1],))
    with pytest.raises(SpecError) as error:
        check_contradictions(specs, compile_specs(specs), 1 << 17)
    assert error.value.path == "$.specs[0].choices[3999][1]"


# specs | the kinds that may lose
LOSING: list[tuple[Specs, set[str]]] = [
    ((s.MinTokensSpec(9, (2,)), s.TriggerSpec((5,), (2,))), {"min_tokens"}),
    ((s.MinTokensSpec(9, (2,)), s.ForcedEndSpec(20, (7,), 2)), {"min_tokens"}),
    ((s.TriggerSpec((1,), (5,)), s.TriggerSpec((3, 1), (6,))), {"trigger"}),
    ((s.BannedSequencesSpec(((7, 8),)), Forced((8, 9))), {"banned_sequences"}),
    ((s.BannedSequencesSpec(((7, 8),)), s.TriggerSpec((7,), (8,))), {"banned_sequences"}),
    ((s.BannedSequencesSpec(((1, 2, 3),)), s.ForcedEndSpec(4, (2, 3))), {"banned_sequences"}),
    ((s.AllowedTokensSpec((4,)), s.BannedSequencesSpec(((4, 5),))), set()),
    ((s.AllowedTokensSpec((4, 5)), s.BannedTokensSpec((5,))), {"banned_tokens"}),
    ((s.ThinkingBudgetSpec(9, (3,), (4,)), s.BannedSequencesSpec(((3, 6),))), set()),
    (
        (s.ThinkingBudgetSpec(9, (3,), (4,)), s.BannedSequencesSpec(((6, 4),))),
        {"banned_sequences"},
    ),
    (
        (s.ThinkingBudgetSpec(9, (3,), (4,)), Forced((7,))),
        {"thinking_budget", "forced_sequence"},
    ),
    ((s.TriggerSpec((1,), (5,)), s.NoRepeatNgramSpec(2)), {"no_repeat_ngram"}),
    ((s.BannedTokensSpec((5,)), s.NoRepeatNgramSpec(2)), set()),
    ((Forced((5, 5)), s.NoRepeatNgramSpec(1)), {"no_repeat_ngram"}),
    ((s.ChoiceSpec(((5, 5), (6,)), EOS), s.NoRepeatNgramSpec(1)), {"no_repeat_ngram"}),
    (
        (Forced((4, 4, 1)), s.NoLoopSpec(2, max_period=1, then_token_ids=(7,))),
        {"forced_sequence", "no_loop"},
    ),
    ((s.NoLoopSpec(3, then_token_ids=(7,)), s.NoLoopSpec(3, then_token_ids=(8,))), {"no_loop"}),
]


ANSWER = s.GrammarSpec(regex="a+")
IN_A_PHASE = phases(s.Phase((), (s.PhaseEnd(n=3),)), s.Phase((ANSWER,)))
LOSING_TO_GRAMMARS: list[tuple[Specs, set[str]]] = [
    ((ANSWER, s.BannedTokensSpec((3,)), s.NoRepeatNgramSpec(2)), {"no_repeat_ngram"}),
    ((ANSWER, s.MinTokensSpec(9, (9,)), s.NoLoopSpec(2)), {"min_tokens", "no_loop"}),
    ((IN_A_PHASE, s.BannedTokensSpec((9,))), {"banned_tokens"}),
]
LOSING_TO_ENDS: list[tuple[Specs, set[str]]] = [
    ((Forced((1, 3)), s.AtEndSpec((5, 6), (EOS,))), set()),
    ((s.ChoiceSpec(((1,), (3, 4)), EOS), s.AtEndSpec((5, 6), (EOS,))), set()),
    ((s.ForcedEndSpec(9, (3,)), s.AtEndSpec((5, 6), (EOS,))), {"forced_end"}),
]
LOSING_IN_TIME: list[tuple[Specs, set[str]]] = [
    ((s.ChoiceSpec(((1,), (3, 4)), EOS), s.ForcedEndSpec(3, (5,))), set()),
    ((Forced((1, 3)), s.ForcedEndSpec(2, (5,))), set()),
]


@pytest.mark.parametrize(
    ("specs", "named"), [*LOSING, *LOSING_TO_GRAMMARS, *LOSING_TO_ENDS, *LOSING_IN_TIME]
)
def test_what_may_lose(specs: Specs, named: set[str]):
    for each in (specs, specs[::-1]):
        program = compile_specs(each, lambda: Vocabulary.of_tokens(TOKENS).ending((9,)))
        check_contradictions(each, program, 16)
        assert set(may_lose(each, program, 16)) == named


@seed(0)
@many
@given(any_two)
def test_what_is_not_named_never_loses(specs: Specs):
    try:
        program = compile_specs(specs)
        check_contradictions(specs, program, VOCAB)
    except SpecError:
        return
    named = may_lose(specs, program, VOCAB)
    for prompt in dict.fromkeys(prompts(specs)):
        assert Outputs(specs).losers(prompt).issubset(named), (specs, prompt)


def test_all_searches_of_a_request_share_a_budget():
    """Lists in circles, which come to the same states after more steps than are followed."""
    lists = [
        s.AutomatonSpec(
            tuple(s.AutomatonState(allow=0, default=(i + 1) % n) for i in range(n)), ((5, 6, 7),)
        )
        for n in (89, 97, 101, 103, 107, 109, 113, 127)
    ]
    program, left = compile_specs(lists), budget()
    check_contradictions(lists, program, 1 << 17, left)
    assert -100 < int(left[0]) <= 0
    check_contradictions(lists, program, left=left)
    assert -200 < int(left[0]) <= 0


def test_the_search_is_bounded():
    """Two counters that are never in the same states twice."""
    counters = [
        s.AutomatonSpec(
            tuple(s.AutomatonState(ban=0, default=(i + 1) % n) for i in range(n)), ((1,),)
        )
        for n in (1009, 1013, 1019)
    ]
    specs = *counters, Forced((3,))
    check_contradictions(specs, compile_specs(specs), 1 << 17)
