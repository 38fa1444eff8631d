"""A guard edits last: what it forbids does not come, whatever specs force or list."""

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from logitport import spec as s
from logitport.adapters import REALIZABLE, Backend, Policy, guard_of
from logitport.adapters.core import Program, Realizer, Vocabulary, compile_specs, failing
from logitport.adapters.core.contradictions import check_guard, may_stop

from tests.support.triton_process import INTERPRETED
from tests.tools import guards
from tests.tools.guards import END, VOCAB, compiled

Specs = tuple[s.LogitsProcessorSpec, ...]
ZEBRA = (guards.TEXT,)
ZE, BRA = 3, 4
BIAS = (s.LogitBiasSpec({ZE: -5.0}),)


def best(guard: Specs, own: Specs, output: list[int], logits: torch.Tensor, **more: Any) -> int:
    guarding = replace(compiled(guard), end_token=more.get("end_token", END))
    realizer = Realizer(VOCAB)
    realizer.add(0, replace(compiled(own), guard=guarding), [], output)
    realizer.apply(row := logits.clone()[None])
    assert realizer.failed_requests == 0
    return int(row.argmax())


# guard | a client's specs | the output so far | what comes
CASES: list[tuple[Specs, Specs, list[int], int]] = [
    (ZEBRA, (s.ForcedEndSpec(1, (BRA,)),), [ZE], END),
    (ZEBRA, (s.ForcedEndSpec(1, (BRA,)),), [0], BRA),
    (ZEBRA, (s.TriggerSpec((ZE,), (BRA,)),), [ZE], END),
    (ZEBRA, (s.AllowedTokensSpec((BRA,)),), [ZE], END),
    (ZEBRA, (s.ThinkingBudgetSpec(1, (0,), (BRA,)),), [0, ZE], END),
    (
        ZEBRA,
        (
            s.PhasesSpec(
                (s.Phase((), (s.PhaseEnd(n=1),)), s.Phase((s.ForcedTokenSequenceSpec((BRA,)),)))
            ),
        ),
        [ZE],
        END,
    ),
    ((s.AllowedTokensSpec((0, 1)),), (s.AllowedTokensSpec((1, 2)),), [], 1),
    (BIAS, (s.ForcedTokenSequenceSpec((ZE, BRA)),), [], ZE),
    ((s.LogitBiasSpec({ZE: 100.0}),), (s.ForcedTokenSequenceSpec((ZE, BRA)),), [], ZE),
    ((s.AllowedTokensSpec((0, 1)),), (s.TriggerSpec((0,), (2,)),), [0], END),
    ((s.NoRepeatNgramSpec(2),), (s.TriggerSpec((0,), (2,), None),), [0, 2, 0], END),
    ((s.NoLoopSpec(2),), (s.TriggerSpec((0,), (0,)),), [0], END),
    (
        (s.BannedSequencesSpec(((0, 2),)),),
        (s.BannedTokensSpec((2,)), s.TriggerSpec((1,), (2,))),
        [1],
        2,
    ),
]


@pytest.mark.parametrize(("guard", "own", "output", "comes"), CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_what_a_guard_forbids_wins(
    guard: Specs, own: Specs, output: list[int], comes: int, dtype: torch.dtype
):
    for worst in (0.0, -100.0):
        assert best(guard, own, output, torch.full((VOCAB,), worst, dtype=dtype)) == comes


# the tokens so far of a vocabulary with a special one
@pytest.mark.parametrize(
    "output",
    [[0], [0, 2], [0, 2, 2], [0, 3], [2], [3, 2, 0], [4, 2, 0], [3, 0, 2], [2, 3, 2, 2, 0]],
)
@pytest.mark.parametrize("more", [{}, {"ignore_case": True}, {"whole_words": True}])
def test_a_text_goes_on_across_special_tokens(output: list[int], more: Any):
    """Replies leave them out, and after an EOS that is ignored, a request goes on."""
    text = "".join(("ze", "bra", "", "x", ".")[token] for token in output) + "bra"
    is_forbidden = bool(re.search(r"\bzebra" if more.get("whole_words") else "zebra", text))
    vocabulary = Vocabulary.of_tokens((b"ze", b"bra", None, b"x", b"."))
    policy = Policy(guard=(s.BannedTextSpec(("zebra",), **more),))
    backend = Backend("test", REALIZABLE, load_vocabulary=lambda: vocabulary, policy=policy)
    guarding = guard_of(backend, 5)
    assert guarding is guard_of(backend, 5)
    assert guarding is not None
    realizer, logits = Realizer(5), torch.zeros(1, 5)
    own = compile_specs((s.LogitBiasSpec({3: 1.0}),))
    realizer.add(0, replace(own, guard=replace(guarding, end_token=2)), [], output)
    realizer.apply(logits)
    assert (float(logits[0, 1]) < -1e8) is is_forbidden


def test_a_guard_that_cannot_be_realized_is_named():
    texts = (s.BannedTextSpec(("a",), ignore_case=case, whole_words=whole) for case, whole in EACH)
    policy, vocabulary = Policy(guard=(*texts,)), Vocabulary.of_tokens((b"a",))
    backend = Backend("test", REALIZABLE, load_vocabulary=lambda: vocabulary, policy=policy)
    with pytest.raises(
        s.SpecError, match=r"got 3: the server's guard\[0\], .* - at `the server's guard`"
    ):
        guard_of(backend, 1)


EACH = (False, False), (False, True), (True, False)


def test_what_the_engine_forces_gives_way_too():
    logits = torch.full((VOCAB,), -50.0)
    logits[BRA] = 1e9
    assert best(ZEBRA, (s.LogitBiasSpec({0: 1.0}),), [ZE], logits) == END
    assert best(ZEBRA, (s.LogitBiasSpec({0: 1.0}),), [0], logits) == BRA


def test_a_guard_that_fails_ends_a_request_that_forces_tokens():
    realizer, logits = Realizer(VOCAB), torch.zeros(1, VOCAB)
    own = compiled((s.ForcedTokenSequenceSpec((0, 1, 2)),))
    guarding = replace(failing(ValueError(), compiled(())), guard=None, end_token=END)
    realizer.add(0, replace(own, guard=guarding), [], [])
    realizer.apply(logits)
    assert logits.isfinite().nonzero().tolist() == [[0, END]]


def test_a_guard_acts_on_a_request_whose_specs_fail():
    """Without a token that ends it, which `ignore_eos` takes away, the request goes on."""
    reports: list[tuple[int, bool]] = []
    realizer = Realizer(VOCAB, report=lambda row, error, ends: reports.append((row, ends)))
    guarding = compiled((s.BannedTokensSpec((0,)),))
    realizer.add(0, failing(ValueError(), guarding), [], [], None)
    logits = torch.zeros(1, VOCAB)
    realizer.apply(logits)
    assert reports == [(0, False)]
    assert float(logits[0, 0]) < -1e8
    realizer.remove(0)
    realizer.apply(after := torch.zeros(1, VOCAB))
    assert not after.any()


def test_a_guard_that_fails_ends_the_reply():
    """With the token of the policy, where the client has left the engine none."""
    realizer = Realizer(VOCAB)
    guarding = replace(compile_specs((s.NoRepeatNgramSpec(2),)), end_token=END)
    realizer.add(0, replace(compile_specs(()), guard=guarding), None, [])
    realizer.apply(logits := torch.zeros(1, VOCAB))
    assert int(logits.argmax()) == END


def test_a_guard_that_fails_counts():
    """Once, if the request's own specs have failed as well."""
    realizer, own = Realizer(VOCAB), compiled((s.LogitBiasSpec({0: 1.0}),))
    broken = replace(failing(ValueError(), own), guard=None)
    for row, program in enumerate((own, broken)):
        realizer.add(row, replace(program, guard=broken), [], [], END)
        assert realizer.failed_requests == row + 1
    realizer.apply(logits := torch.zeros(2, VOCAB))
    assert logits.argmax(1).tolist() == [END, END]


@pytest.mark.slow
def test_random_requests():
    assert guards.on_host(320, 1) == 2560


@pytest.mark.slow
@pytest.mark.device
@pytest.mark.skipif(not INTERPRETED, reason="its kernels are interpreted")
def test_random_requests_on_a_device():
    assert guards.on_device(16, 1, steps=2) == 96


FAILS = replace(failing(ValueError(), compiled(())), guard=None)


@pytest.mark.device
@pytest.mark.skipif(not INTERPRETED, reason="its kernels are interpreted")
@pytest.mark.parametrize(("guard", "comes"), [(FAILS, END), (compiled(BIAS), ZE)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_beside_a_forced_token_on_a_device(guard: Program, comes: int, dtype: torch.dtype):
    from logitport.adapters.core import DeviceRealizer, History, LogitsLayout

    own = compiled((s.ForcedTokenSequenceSpec((ZE, 1, 2)),))
    realizer = DeviceRealizer(VOCAB, 1, torch.device("cpu"))
    realizer.add(0, replace(own, guard=replace(guard, end_token=END)), [], [])
    row = torch.zeros(1, dtype=torch.int32)
    history = History(torch.zeros((1, 4), dtype=torch.int32), row, row)
    realizer.upload(history)
    logits = torch.zeros(1, VOCAB, dtype=dtype)
    realizer.apply(logits, history, LogitsLayout(row, row, row), row.long().numpy(), 1)
    assert int(logits.argmax()) == comes
    if comes == END:
        assert logits.isfinite().nonzero().tolist() == [[0, END]]


BANS = (s.BannedTokensSpec((5,)), s.BannedSequencesSpec(((6, 6), (8,))))
LISTS = (s.LogitBiasSpec({1: 1.0}), s.AllowedTokensSpec((1, 2, END)))
AT_END = s.ForcedEndSpec(4, (1, 5))


# guard | a request's specs | why they are refused, and where; "" where the row decides
@pytest.mark.parametrize(
    ("guard", "own", "message", "path"),
    [
        (BANS, (AT_END,), "the server's guard[0], which bans token 5", "$.specs[0].token_ids[1]"),
        (
            BANS,
            (s.TriggerSpec((1,), (8,)),),
            "guard[1], which bans token 8",
            "$.specs[0].token_ids[0]",
        ),
        (BANS, (s.AllowedTokensSpec((5, 8)),), "no token is left", "$.specs[0]"),
        (LISTS, (AT_END,), "guard[1], which does not allow token 5", "$.specs[0].token_ids[1]"),
        (LISTS, (s.ChoiceSpec(((3,), (4, 1)), END),), "no token is left", "$.specs[0]"),
        (BANS, (s.TriggerSpec((6,), (6,)),), "", ""),
        (BANS, (s.ChoiceSpec(((5,), (1,)), END),), "", ""),
        (ZEBRA, (s.TriggerSpec((ZE,), (BRA,)),), "", ""),
        (
            ZEBRA,
            (s.ChoiceSpec(((5,), (ZE, BRA)), END),),  # an answer of two tokens
            "guard[0], which bans token 4",
            "$.specs[0].choices[1][1]",
        ),
        (ZEBRA, (s.ChoiceSpec(((5,), (1,)), END),), "", ""),
        (ZEBRA, (s.ChoiceSpec(((ZE, BRA), (ZE, 1)), END),), "", ""),
        (
            ZEBRA,
            (s.AtEndSpec((1, ZE, BRA), (END,)),),
            "guard[0], which bans token 4",
            "$.specs[0].token_ids[2]",
        ),
        (
            (s.BannedTextSpec(("zebra",), whole_words=True),),
            (s.ForcedTokenSequenceSpec((ZE, BRA)),),
            "guard[0], which bans token 4",
            "$.specs[0].token_ids[1]",
        ),
        ((s.ForcedEndSpec(1, (END,)),), (s.ForcedTokenSequenceSpec((0, 1, 2)),), "", ""),
        (
            ZEBRA,
            (s.TriggerSpec((0,), (5,)),),
            "guard[0], which bans token 5",
            "$.specs[0].token_ids[0]",
        ),
    ],
)
def test_what_a_guard_never_leaves_is_refused(guard: Specs, own: Specs, message: str, path: str):
    if not message:
        check_guard(own, compiled(own), guard, compiled(guard))
        return
    with pytest.raises(s.SpecError) as error:
        check_guard(own, compiled(own), guard, compiled(guard))
    assert message in error.value.message
    assert error.value.path == path


def test_what_a_guard_may_stop():
    own = s.LogitBiasSpec({1: 1.0}), s.TriggerSpec((6,), (6,)), s.TriggerSpec((6,), (2,))
    for guard, named in ((BANS, ("trigger",)), ((s.BannedTokensSpec((0,)),), ())):
        assert may_stop(own, compiled(own), compiled(guard)) == named
    assert may_stop(own[:1], compiled(own[:1]), compile_specs(LISTS)) == ()
    assert may_stop(own[1:2], compiled(own[1:2]), compile_specs(LISTS)) == ("trigger",)
    assert may_stop(own[2:], compiled(own[2:]), compile_specs(LISTS)) == ()
    assert may_stop(own[2:], compiled(own[2:]), compile_specs((s.NoRepeatNgramSpec(2),))) == (
        "trigger",
    )
