"""What specs of several kinds compile to: how large it may be, and who shares it."""

import json

import pytest
from logitport import spec as s
from logitport.adapters import admission, admit
from logitport.adapters.core import Program, Vocabulary, compile_specs
from logitport.adapters.vllm import BACKEND
from logitport.spec import LogitsProcessorSpec, SpecError, encode, limits

FULL = tuple(range(limits.MAX_TOKEN_IDS))
TAG = tuple(range(limits.MAX_PATTERN))


@pytest.mark.parametrize(
    "together",
    [
        (s.ThinkingBudgetSpec(1, TAG, TAG[::-1], FULL),),
        (s.BannedTokensSpec(FULL[::2]), s.LogitBiasSpec(dict.fromkeys(FULL[::4], 1.0))),
        # Each of 250 tokens is banned after each of 63 beginnings.
        (s.BannedSequencesSpec((*((1, i) for i in range(250)), (1,) * 64)),),
    ],
    ids=lambda together: together[0].kind,
)
def test_tables_of_what_is_meant_to_be_sent(together: tuple[LogitsProcessorSpec, ...]):
    assert compile_specs(together).cells > limits.MAX_CELLS / 4


def test_tables_that_are_too_large():
    # Each of 800 tokens is banned after each of 63 beginnings.
    sequences = s.BannedSequencesSpec((*((1, i) for i in range(800)), (1,) * 64))
    with pytest.raises(SpecError, match=f"at most {limits.MAX_CELLS} states") as error:
        compile_specs((sequences,))
    assert error.value.path == "$.specs[0]"


NGRAMS, DRY = tuple(s.NoRepeatNgramSpec(n) for n in (1, 2)), s.DrySpec(1.0)
LOOPS = s.NoLoopSpec(2), s.NoLoopSpec(3), s.NoLoopSpec(2)
BUDGET, BIAS = s.ThinkingBudgetSpec(9, (1,), (2,)), s.PromptBiasSpec(1.0)


# Specs at a limit | one more | what is said | where
@pytest.mark.parametrize(
    ("most", "more", "message", "path"),
    [
        ((*NGRAMS, NGRAMS[0]), DRY, "at most 2 rules about the history, got 3", "$.specs"),
        ((NGRAMS[0], DRY), DRY, "at most 1 `dry` on a request", "$.specs[2]"),
        (LOOPS, s.NoLoopSpec(4), "at most 2 rules about loops, got 3", "$.specs"),
        (
            (BUDGET, BUDGET, BIAS, BIAS),
            BUDGET,
            "at most 4 rules that read the prompt, got 5",
            "$.specs",
        ),
        (
            (s.BannedTextSpec(("a",)), s.BannedTextSpec(("b",)), s.BannedTextSpec(("b",), True)),
            s.BannedTextSpec(("b",), True, True),
            "at most 2 rules about text on a request, got 3",
            "$.specs",
        ),
    ],
    ids=["history", "dry", "loops", "prompt", "texts"],
)
def test_caps(
    most: tuple[LogitsProcessorSpec, ...], more: LogitsProcessorSpec, message: str, path: str
):
    def compiled(*specs: LogitsProcessorSpec) -> Program:
        return compile_specs(specs, lambda: Vocabulary.of_tokens([b"a", b"b"]))

    compiled(*most)
    with pytest.raises(SpecError, match=message) as error:
        compiled(*most, more)
    assert error.value.path == path


def test_kinds_are_not_refused_for_their_company():
    compile_specs((*NGRAMS, BUDGET, BUDGET, BIAS, BIAS, s.AllowedTokensSpec(FULL)))


def test_tables_of_a_request_are_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("logitport.adapters.core.program.MAX_PROGRAM_BYTES", 2)
    with pytest.raises(SpecError, match=r"at most 2 bytes of tables, got \d+"):
        compile_specs((s.BannedTokensSpec((1,)),))


def test_what_a_parser_has_made_of_a_text_shares_its_program():
    banned, bias = s.BannedTokensSpec((7,)), s.LogitBiasSpec({9: -1.5})
    for carried in ([banned], [banned, bias]):
        text = encode(carried, generation_only=False)
        payload, program = admit(BACKEND, text, 100)
        assert admit(BACKEND, json.loads(text), 100) == (payload, program)
        assert admit(BACKEND, json.loads(text), 100)[1] is program
        with pytest.raises(SpecError, match="beyond the vocabulary"):
            admit(BACKEND, json.loads(text), 5)


def test_what_an_engine_remembers_of_admitted_payloads(monkeypatch: pytest.MonkeyPatch):
    # A thinking budget with a long message: 2 MB of tables.
    large = compile_specs((s.ThinkingBudgetSpec(1, (1,), (2,), (2,) * 16_000),))
    monkeypatch.setattr(admission, "compile_specs", lambda *_: Program(large.parts))
    admission.forget()

    def cells_of(token_id: int) -> int:
        text = encode(s.BannedTokensSpec((token_id,)))
        _, program = admission.admit(BACKEND, text, None)
        assert admission.admit(BACKEND, text, None)[1] is program
        return program.cells

    sent = sum(cells_of(token_id) for token_id in range(180))
    remembered = sum(entry.program.cells for entry in admission._programs.values())
    admission.forget()
    assert sent / 2 < remembered < sent
