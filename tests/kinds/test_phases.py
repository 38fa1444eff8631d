from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from logitport.adapters.core import Program, Realizer, Vocabulary, compile_specs
from logitport.adapters.core.contradictions import check_contradictions
from logitport.adapters.core.kinds.base import TEXT_ROOM
from logitport.adapters.reference import edit
from logitport.adapters.reference.kinds import KINDS
from logitport.adapters.reference.kinds.base import Several
from logitport.spec import (
    AllowedTokensSpec,
    AutomatonSpec,
    AutomatonState,
    BannedScriptsSpec,
    BannedSequencesSpec,
    BannedTextSpec,
    BannedTokensSpec,
    ChoiceSpec,
    DrySpec,
    ForcedEndSpec,
    ForcedTokenSequenceSpec,
    GrammarSpec,
    InProcessPayload,
    LogitsProcessorSpec,
    MinTokensSpec,
    NativeSpec,
    NoRepeatNgramSpec,
    Phase,
    PhaseEnd,
    PhasesSpec,
    SamplingSpec,
    SpecError,
    ThinkingBudgetSpec,
    TriggerSpec,
    limits,
)
from logitport.spec.errors import path_text

from tests.support.kinds import (
    AT_LEAST_1,
    SOME,
    TOO_LONG_TO_FIND,
    F,
    RealizedKindTests,
    allow,
    ban,
    with_table,
)
from tests.support.requests import assert_row
from tests.support.strategies import Draws, any_phases
from tests.support.texts import banned_after

COMPLETE, SAID = PhaseEnd(complete=True), PhaseEnd(token_ids=(6, 7))
Forced = ForcedTokenSequenceSpec
THINK = ThinkingBudgetSpec(3, (7,), (8,))
CHOICE = ChoiceSpec(((1,), (2, 3), (6,)))
THINK_THEN = PhasesSpec.think_then(THINK, Forced((4, 5)), CHOICE, eos_token_id=0)
DOCUMENTED = PhasesSpec.think_then(THINK, Forced((4, 5)), Phase((ChoiceSpec(((1,), (2, 3)), 0),)))
PREFIX = PhasesSpec.prefix_then((4, 5), ChoiceSpec(((1,), (2,)), 0))
ANSWERED = PhasesSpec.think_then(THINK, Forced((4, 5)), Phase(), stop_token_ids=[0])
LOOP = PhasesSpec(
    (
        Phase((), (PhaseEnd(n=2), PhaseEnd(token_ids=(6,), phase=0))),
        Phase((Forced((4,)),), (COMPLETE,)),
    ),
    repeat=True,
)
TIES = PhasesSpec(
    (
        Phase((), (PhaseEnd(n=4, phase=2), SAID, PhaseEnd(token_ids=(7,), phase=0))),
        Phase((BannedTokensSpec((1,)),), (PhaseEnd(n=9),)),
        Phase((BannedTokensSpec((2,)),)),
    )
)
BESIDE = PhasesSpec(
    (
        Phase((Forced((4, 5)), BannedSequencesSpec(((1, 2), (9,)))), (COMPLETE,)),
        Phase((MinTokensSpec(2, (0,)), TriggerSpec((1,), (3,), 2)), (COMPLETE, PhaseEnd(n=5))),
    ),
    eos_token_id=0,
)
PAIRS = tuple((i, i + 1) for i in range(1000))
BANNED = BannedSequencesSpec(((1, 1, 2), (1, 3)))
SUFFIX = PhasesSpec(
    (Phase((BANNED,), (PhaseEnd(token_ids=(1, 1, 1, 4)), PhaseEnd(token_ids=(5, 1, 1, 1)))),), 0
)
BOTH_SAID = PhasesSpec(
    (
        Phase((TriggerSpec((1,), (3,), 1), TriggerSpec((2,), (4,), 1)), (COMPLETE,)),
        Phase((Forced((5,)),), (COMPLETE,)),
    ),
    0,
)
DUE = PhasesSpec(
    (
        Phase((), (PhaseEnd(n=1),)),
        Phase((AutomatonSpec((AutomatonState(timer=0, timeout=1), AutomatonState(force=6))),)),
    )
)
INFIX = PhasesSpec((Phase((), (PhaseEnd(token_ids=(5, 6, 7, 8), phase=0), SAID)),), 0)
LEAVE = PhasesSpec((Phase((), (PhaseEnd(token_ids=(3,), phase=2), SAID)), Phase()), 0)

GRAMMAR = {"kind": "grammar", "regex": "a"}
ONE = {"n": 1}
WITH = {"kind": "banned_tokens", "token_ids": [2]}
FORCING = {"kind": "forced_sequence", "token_ids": [1]}


def both(*edits: Any) -> Several:
    return Several(edits)


def phases(*content: Any, **more: Any) -> dict[str, Any]:
    return {"phases": [*content], **more}


class TestRows(RealizedKindTests):
    golden = PhasesSpec(
        (
            Phase((ThinkingBudgetSpec(64, (44,), (46,)),), (COMPLETE,)),
            Phase((), (PhaseEnd(token_ids=(198, 198)), PhaseEnd(n=40, phase=0))),
            Phase((ChoiceSpec(((10576,), (2437, 805))),), (COMPLETE,)),
        ),
        eos_token_id=2,
    )
    refused = (
        (phases(), SOME, "phases"),
        (
            phases(*[{"ends": [ONE]}] * 17),
            f"Expected at most {limits.MAX_PHASES} entries",
            "phases",
        ),
        (phases({"ends": [{"n": 0}]}), AT_LEAST_1, "phases[0].ends[0].n"),
        (phases({"ends": [ONE] * 9}), "Expected at most 8 entries", "phases[0].ends"),
        (
            phases({"ends": [ONE, {}]}),
            "Expected exactly one of n, token_ids, text and complete",
            "phases[0].ends[1]",
        ),
        (
            phases({"ends": [{"n": 1, "token_ids": [1]}]}),
            "Expected exactly one of n, token_ids, text and complete",
            "phases[0].ends[0]",
        ),
        (
            phases({"ends": [{"token_ids": [1] * 65}]}),
            TOO_LONG_TO_FIND,
            "phases[0].ends[0].token_ids",
        ),
        (
            phases({"ends": [{"text": "a" * 129}]}),
            f"Expected `str` of length <= {limits.MAX_PATTERN}",
            "phases[0].ends[0].text",
        ),
        (
            phases({"ends": [{"text": "\u00e9" * 33}]}),
            "Expected at most 64 bytes in UTF-8, got 66",
            "phases[0].ends[0].text",
        ),
        (
            phases({"ends": [ONE]}, {"specs": [WITH]}, {"ends": [ONE]}),
            "Expected an end: only the last phase may have none",
            "phases[1].ends",
        ),
        (
            phases({"ends": [{"n": 1, "phase": 3}]}, {}),
            "Expected a phase from 0 to 2, which is after the last, got 3",
            "phases[0].ends[0].phase",
        ),
        (
            phases({"specs": [WITH, {**FORCING, "eos_token_id": 0}], "ends": [{"complete": True}]}),
            "No spec of the phase is ever complete",
            "phases[0].ends[0].complete",
        ),
        (
            phases({"specs": [GRAMMAR], "ends": [ONE]}, {}),
            "Expected an end with `complete`, at which the grammar's text ends",
            "phases[0].ends",
        ),
        *(
            (
                phases({"specs": [{"kind": kind, **fields}]}),
                f"`{kind}` cannot be in a phase, only beside `phases`",
                "phases[0].specs[0]",
            )
            for kind, fields in (
                ("sampling", {"temperature": 0}),
                ("plugin", {"name": "a"}),
            )
        ),
        (
            phases({"specs": [{"kind": "phases", "phases": [{}]}]}),
            "Expected no phases within a phase",
            "phases[0].specs[0]",
        ),
        (
            phases({"ends": [ONE]}, {"specs": [FORCING, WITH, FORCING]}),
            "Conflicts with `$.phases[1].specs[0]`: both force the first output token",
            "phases[1].specs[2]",
        ),
        (
            phases({}, eos_token_id=0, repeat=True),
            "Expected no EOS token after phases that repeat",
            "eos_token_id",
        ),
        (
            phases({"ends": [ONE, {"token_ids": [2, 3]}]}, {}, stop_token_ids=[3]),
            "The phases' stop_token_ids ban token 3 here",
            "phases[0].ends[1].token_ids[1]",
        ),
        (phases({}, stop_token_ids=[1] * 65), TOO_LONG_TO_FIND, "stop_token_ids"),
        (
            phases(*[{"specs": [WITH], "ends": [ONE]}] * 5, stop_token_ids=[0]),
            "Expected at most 8 specs in all phases, an empty one as one, got 10",
            "phases",
        ),
        (
            phases({"specs": [WITH] * 9, "ends": [ONE]}, *[{"ends": [ONE]}] * 3),
            "Expected at most 8 specs in all phases, an empty one as one, got 12",
            "phases",
        ),
    )
    largest = (
        PhasesSpec((Phase((THINK, THINK), (PhaseEnd(n=limits.MAX_INT),) * 8),) * 4),
        PhasesSpec((Phase((BannedTokensSpec((1,)),) * 8),)),
    )
    beyond = (
        (
            PhasesSpec((Phase((), (PhaseEnd(n=1),)), Phase((Forced((1, 9)),)))),
            "phases[1].specs[0].token_ids[1]",
        ),
        (
            PhasesSpec((Phase((), (PhaseEnd(n=1), PhaseEnd(token_ids=(1, 9)))),)),
            "phases[0].ends[1].token_ids[1]",
        ),
        (PhasesSpec((Phase(),), 9), "eos_token_id"),
        (PhasesSpec((Phase(),), stop_token_ids=(0, 9)), "stop_token_ids[1]"),
    )
    histories = (
        # Think for 3 tokens in a block that the prompt opens, say 4 5, choose, stop.
        (
            THINK_THEN,
            [9, 7],
            [
                *(None, 9, None, 9, None, 9, F(8), 8),
                *(F(4), 4, F(5), 5, allow(1, 2, 6), 2, F(3), 3, F(0), 0, F(0)),
            ],
        ),
        # It thinks less, or again; or the prompt has a closed block already.
        (THINK_THEN, [7], [None, 9, None, 8, F(4), 4, F(5), 5, allow(1, 2, 6), 1, F(0)]),
        (
            DOCUMENTED,
            [7],
            [
                *(None, 9, None, 9, None, 9, F(8), 8, F(4), 4, F(5), 5),
                *(allow(1, 2), 2, F(3), 3, F(0), 0, F(0)),
            ],
        ),
        (THINK_THEN, [], [None, 9, None, 7, None, 8, F(4)]),
        (THINK_THEN, [7, 9, 8], [F(4), 4, F(5), 5, allow(1, 2, 6), 6, F(0)]),
        (THINK_THEN, [7, 9, 8, 1, 7], [None, 8, F(4), 7, F(4), 4, F(5), 5, allow(1, 2, 6)]),
        (PREFIX, [4], [F(4), 4, F(5), 5, allow(1, 2), 2, F(0), 0, F(0)]),
        (LOOP, [], [None, 9, None, 9, F(4), 4, None, 6, None, 9, None, 6, F(4), 4, None]),
        # The fourth token ends the phase before what it completes does; 6 7 comes before 7.
        (TIES, [], [None, 1, None, 6, None, 7, ban(1), 7, ban(1)]),
        (TIES, [], [None, 1, None, 1, None, 6, None, 7, ban(2), 7, ban(2)]),
        (TIES, [6], [None, 7, None, 1, None, 1, None, 6, None, 7, ban(2)]),
        # 9 is banned beside 4 5, and EOS for two tokens; 1 and 3 twice, or five tokens.
        (
            BESIDE,
            [],
            [
                *(both(F(4), ban(9)), 4, both(F(5), ban(9)), 5),
                *(ban(0), 1, both(ban(0), F(3)), 3, None, 1, F(3), 3, F(0), 0, F(0)),
            ],
        ),
        (
            BESIDE,
            [],
            [
                *(both(F(4), ban(9)), 1, both(F(4), ban(9, 2)), 4, both(F(5), ban(9)), 5),
                *(ban(0), 2, ban(0), 2, None, 2, None, 2, None, 2, F(0)),
            ],
        ),
        # What has been begun is looked up again from the longest suffix, of both automata.
        (SUFFIX, [], [None, 1, ban(3), 1, ban(2, 3), 1, ban(2, 3), 4, F(0)]),
        (SUFFIX, [], [None, 5, None, 1, ban(3), 1, ban(2, 3), 4, None, 1, ban(3)]),
        (SUFFIX, [5], [None, 5, None, 1, ban(3), 1, ban(2, 3), 1, F(0)]),
        (INFIX, [], [None, 5, None, 6, None, 7, F(0)]),
        (INFIX, [5], [None, 6, None, 8, None, 6, None, 7, F(0)]),
        (LEAVE, [], [None, 1, None, 3, F(0), 1, F(0)]),
        (LEAVE, [], [None, 6, None, 7, None, 3, None]),
        # All that can be complete has to be.
        (BOTH_SAID, [], [None, 1, F(3), 3, None, 2, F(4), 4, F(5), 5, F(0)]),
        # What is due before the first token of a phase comes before it.
        (DUE, [], [None, 1, F(6), 6, F(6), 2, F(6)]),
        # No reply ends before the last phase.
        (
            ANSWERED,
            [],
            [
                *(ban(0), 7, ban(0), 9, ban(0), 8, both(F(4), ban(0)), 4),
                *(both(F(5), ban(0)), 5, None, 0, None),
            ],
        ),
    )


@pytest.mark.parametrize(
    "phase",
    [
        Phase((THINK, BannedSequencesSpec(((1, 2),))), (COMPLETE, PhaseEnd(n=9))),
        Phase((ForcedEndSpec(3, (1,)), MinTokensSpec(3, (0,))), (COMPLETE, PhaseEnd(n=9))),
        Phase((BannedSequencesSpec(PAIRS),), (PhaseEnd(token_ids=tuple(range(64))),)),
        Phase((TriggerSpec((1,), (2,) * 99, 1024),), (COMPLETE,)),
    ],
)
def test_what_acts_side_by_side(phase: Phase):
    """Counts, what reads the prompt and what reads the output; no tables are multiplied."""
    program = compile_specs((PhasesSpec((phase,)),))
    assert program.memory < 300_000


def test_one_dry_is_enough():
    dry = Phase((DrySpec(1.0),), (PhaseEnd(n=1),))
    compile_specs((PhasesSpec((dry, Phase())),))
    for specs in ((PhasesSpec((dry, dry)),), (DrySpec(1.0), PhasesSpec((dry,)))):
        with pytest.raises(SpecError, match="at most 1 `dry`, got 2") as error:
            compile_specs(specs)
        assert error.value.path == "$.specs"


def test_the_first_phase_alone_reads_the_prompt():
    later = PhasesSpec((Phase((), (PhaseEnd(n=1),)), Phase((THINK,), (COMPLETE,))))
    assert not compile_specs((later,)).reads_prompt
    assert compile_specs((THINK_THEN,)).reads_prompt


@pytest.mark.parametrize(
    ("then", "eos_token_id", "ends"),
    [
        ((GrammarSpec(regex="a"),), None, ()),  # the reply ends where the text may
        ((GrammarSpec(regex="a"),), 0, (COMPLETE,)),
        ((GrammarSpec(regex="a"), Forced((4,))), None, (COMPLETE,)),
        ((CHOICE,), None, (COMPLETE,)),
        ((Phase((GrammarSpec(regex="a"),), (COMPLETE,)),), None, (COMPLETE,)),
    ],
)
def test_a_grammar_that_comes_last(then: Any, eos_token_id: int | None, ends: Any):
    for made in (
        PhasesSpec.think_then(THINK, *then, eos_token_id=eos_token_id),
        PhasesSpec.prefix_then((4, 5), *then, eos_token_id=eos_token_id),
    ):
        assert made.phases[1].ends == ends


def test_kinds_that_can_complete_have_a_reference_for_it():
    has_reference = {kind for kind, each in KINDS.items() if each.complete}
    completing = {kind for kind in KINDS if KINDS[kind].minimal.can_complete}
    assert has_reference == completing - {GrammarSpec}  # whose reference is llguidance


@pytest.mark.parametrize(
    ("beside", "path"),
    [
        (BannedTokensSpec((5,)), "$.specs[1].phases[1].specs[0].token_ids[1]"),
        (BannedSequencesSpec(((5,),)), "$.specs[1].phases[1].specs[0].token_ids[1]"),
        (BannedSequencesSpec(((4, 5),)), "$.specs[1].phases[1].specs[0].token_ids[1]"),
        (BannedSequencesSpec(((5, 4),)), None),
        (AllowedTokensSpec((1, 2, 3, 4, 5, 6, 7, 8)), "$.specs[1].eos_token_id"),
        (AllowedTokensSpec(tuple(range(10))), None),
        (Forced((3,)), None),
        (MinTokensSpec(9, (0,)), None),
        (NoRepeatNgramSpec(2), None),
        (DrySpec(1), None),
        (SamplingSpec(temperature=0), None),
        (GrammarSpec(regex="a"), "$.specs[1]"),
    ],
    ids=lambda each: getattr(each, "kind", ""),
)
def test_specs_beside_phases(beside: LogitsProcessorSpec, path: str | None):
    """What the phases force is compared with specs beside them, wherever in the output it comes."""
    specs = beside, THINK_THEN
    with nullcontext() if path is None else pytest.raises(SpecError) as error:
        InProcessPayload(1, specs)
        if not isinstance(beside, NativeSpec):
            check_contradictions(specs, compile_specs(specs))
    assert path is None or (error and error.value.path == path)


def check_against_reference(
    spec: PhasesSpec,
    prompt: list[int],
    liked: list[int],
    obeys: bool,
    tokens: Sequence[bytes | None] = (),
    size: int = 5,
):
    """The host realizer does what the reference finds in the history, for any spec it takes."""
    if (program := compiled(spec, tokens)) is None:
        return

    def step(realizer: Realizer, output: list[int], token: int) -> int:
        before = torch.zeros(1, size)
        before[0, token] = 1
        after = before.clone()
        realizer.apply(after)
        found: Any = KINDS[PhasesSpec].edit(spec, tuple(prompt), tuple(output), tokens)  # pyright: ignore
        assert_row(before[0], after[0], [found])
        return int(after[0].argmax())

    realizer, output = Realizer(size), list[int]()
    realizer.add(0, program, prompt, output)
    for token in liked:
        chosen = step(realizer, output, token)
        output.append(chosen if obeys else token)
    # A request that comes with its output, or with some of it, goes on from there.
    for n in range(len(output) + 1):
        resumed = Realizer(size)
        resumed.add(0, program, prompt, output[:n])
        step(resumed, output[:n], 0)


@pytest.mark.parametrize(("spec", "prompt", "steps"), TestRows.histories)
def test_written_histories(spec: PhasesSpec, prompt: list[int], steps: list[Any]):
    check_against_reference(spec, prompt, steps[1::2], obeys=False, size=10)


histories = (
    any_phases(Draws(4, most=3, longest=3, count=5)),
    st.lists(st.integers(0, 3), max_size=5),
    st.lists(st.integers(0, 3), min_size=12, max_size=12),
    st.booleans(),
)


@settings(deadline=None, max_examples=60)
@given(*histories)
def test_phases_are_what_their_specs_are(
    spec: PhasesSpec, prompt: list[int], liked: list[int], obeys: bool
):
    check_against_reference(spec, prompt, liked, obeys)


TOKENS = (b"a", b"b", b"ba", b"aba", None)


def with_texts(spec: PhasesSpec) -> PhasesSpec:
    """The same with the texts of sequences that end a phase, as many as there may be."""
    left = iter(range(limits.MAX_TEXT_RULES))

    def end(each: PhaseEnd) -> PhaseEnd:
        if not each.token_ids or next(left, None) is None:
            return each
        text = b"".join(TOKENS[token] or b"" for token in each.token_ids)
        return PhaseEnd(text=text.decode(), phase=each.phase)

    phases = [Phase(phase.specs, tuple(map(end, phase.ends))) for phase in spec.phases]
    return PhasesSpec(tuple(phases), spec.eos_token_id, spec.repeat)


@settings(deadline=None, max_examples=60)
@given(*histories)
def test_texts_end_phases(spec: PhasesSpec, prompt: list[int], liked: list[int], obeys: bool):
    if sum(bool(end.token_ids) for phase in spec.phases for end in phase.ends) > 4:
        return
    # Special tokens come, too.
    liked = [4 if token == 3 and i % 3 == 0 else token for i, token in enumerate(liked)]
    check_against_reference(with_texts(spec), prompt, liked, obeys, TOKENS)


@settings(deadline=None, max_examples=60)
@given(*histories, st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=2))
def test_texts_are_banned_in_a_phase(
    spec: PhasesSpec, prompt: list[int], liked: list[int], obeys: bool, texts: list[str]
):
    """In the last phase, beside what it has."""
    *before, last = spec.phases
    last = Phase((*last.specs, BannedTextSpec(tuple(texts))), last.ends)
    assume(sum(max(1, len(phase.specs)) for phase in (*before, last)) <= limits.MAX_PHASES)
    spec = PhasesSpec((*before, last), spec.eos_token_id, spec.repeat)
    liked = [4 if token == 3 and i % 3 == 0 else token for i, token in enumerate(liked)]
    check_against_reference(spec, prompt, liked, obeys, TOKENS)


def until(text: str, *specs: LogitsProcessorSpec) -> PhasesSpec:
    """Specs until a text is out, and then a word."""
    return PhasesSpec((Phase(specs, (PhaseEnd(text=text),)), Phase((Forced((9,)),))))


any_ends = st.lists(
    st.builds(
        lambda end, phase: PhaseEnd(**end, phase=phase),
        st.builds(lambda text: {"text": text}, st.text("ab", min_size=1, max_size=4))
        | st.builds(lambda n: {"n": n}, st.integers(1, 5)),
        st.sampled_from((None, 1, 2)),
    ),
    min_size=1,
    max_size=6,
)


@settings(deadline=None, max_examples=100)
@example([PhaseEnd(text="abab"), PhaseEnd(text="ba")], [0, 1, 0, 1])
@given(any_ends, st.lists(st.integers(0, 4), min_size=12, max_size=12))
def test_several_texts_end_a_phase(ends: list[PhaseEnd], liked: list[int]):
    """Texts hold others, or go on like others; other ends come between them."""
    phases = Phase((), tuple(ends)), Phase((Forced((0,)),), (COMPLETE,)), Phase((Forced((1,)),))
    check_against_reference(PhasesSpec(phases), [], liked, False, TOKENS)


@with_table
def test_ends_by_text_that_are_one_rule():
    def rules(*ends: PhaseEnd) -> list[str]:
        spec = PhasesSpec((Phase((), ends), Phase((), (PhaseEnd(n=1),)), Phase()))
        return [path_text(path) for path in spec.text_rules]

    a, b, c = (PhaseEnd(text=text) for text in "abc")
    elsewhere, first, second = (f"$.phases[0].ends[{k}].text" for k in (1, 0, 2))
    for ends, paths in (
        ((a, b, c), [first]),
        ((a, PhaseEnd(text="b", phase=1), PhaseEnd(n=9), c), [first]),
        ((a, PhaseEnd(text="b", phase=2)), [first, elsewhere]),
        ((PhaseEnd(n=9, phase=2), a, b), [elsewhere]),
        ((a, PhaseEnd(n=9, phase=2), b), [first, second]),
    ):
        assert rules(*ends) == paths, ends


FEW = f"at most {limits.MAX_TEXT_RULES} rules about text on a request, got 3"


def test_rules_about_text_are_few():
    bans = [BannedTextSpec(("a",)), BannedTextSpec(("b",))]  # one rule
    specs = [*bans, until("a"), PhasesSpec((Phase((BannedTextSpec(("b",)),)),))]
    with pytest.raises(SpecError, match=FEW) as error:
        compile_specs(specs, lambda: Vocabulary.of_tokens(TOKENS))
    assert error.value.path == "$.specs"
    paths = "`$.specs[1]`, `$.specs[2].phases[0].ends[0].text`, `$.specs[3].phases[0].specs[0]`"
    assert f"got 3: {paths}; in one spec, texts with equal" in error.value.message
    compile_specs((*specs[:3], BESIDE), lambda: Vocabulary.of_tokens(TOKENS))
    ended = PhasesSpec((Phase((BannedTextSpec(("b",)),), until("a").phases[0].ends), Phase()))
    compile_specs((ended, BESIDE), lambda: Vocabulary.of_tokens(TOKENS))
    with pytest.raises(SpecError, match=FEW):
        compile_specs((ended, bans[0]), lambda: Vocabulary.of_tokens(TOKENS))


@with_table
def test_scripts_in_a_phase():
    """A character that the phase before has begun is not completed in this one."""
    tokens = "中".encode(), b".", b"\xe4", b"\xb8", b"\xad", None
    phases = Phase((), (PhaseEnd(text="."),)), Phase((BannedScriptsSpec(("Han",)),))
    for output, banned in (
        ([0], set()),
        ([0, 1], {0}),
        ([0, 1, 2], {0, 3, 4}),
        ([1, 3], {0}),
        ([2, 5, 1], {0}),
    ):
        assert banned_after([PhasesSpec(phases)], tokens, output) == banned, output


def test_a_text_needs_a_vocabulary():
    spec = PhasesSpec((Phase((), (PhaseEnd(n=1),)), Phase((), (PhaseEnd(n=9), PhaseEnd(text="a")))))
    with pytest.raises(SpecError, match="`phases` needs the vocabulary") as error:
        compile_specs((spec,))
    assert error.value.path == "$.specs[0].phases[1].ends[1].text"
    with pytest.raises(ValueError, match="a spec that needs no vocabulary"):
        edit(spec, [], [])


def test_texts_that_begin_like_many_tokens_end():
    tokens = [b"%da" % i for i in range(TEXT_ROOM // 48)]
    with pytest.raises(SpecError, match="bytes of memory with this vocabulary") as error:
        compile_specs((until("ab"),), lambda: Vocabulary.of_tokens(tokens))
    assert error.value.path == "$.specs[0].phases[0].ends[0].text"


def compiled(spec: PhasesSpec, tokens: Sequence[bytes | None]) -> Program | None:
    """The program of a spec; ``None`` if it has more rules than a request may have."""
    try:
        return compile_specs((spec,), lambda: Vocabulary.of_tokens(tokens))
    except SpecError as error:
        if error.path != "$.specs":
            raise
        return None
