"""What specs of several kinds compile to: how large it may be, and who shares it."""

import json

import pytest
from logitport import spec as s
from logitport.adapters.core import Program, admission, admit, compile_specs
from logitport.adapters.vllm import BACKEND
from logitport.spec import LogitsProcessorSpec, SpecError, encode, limits

FULL = tuple(range(limits.MAX_TOKEN_IDS))
TAG = tuple(range(limits.MAX_PATTERN))


@pytest.mark.parametrize(
    "together",
    [
        (s.ThinkingBudgetSpec(1, TAG, TAG[::-1], FULL),),
        (s.BannedTokensSpec(FULL[::2]), s.LogitBiasSpec(dict.fromkeys(FULL[::4], 1.0))),
        # Each of 500 tokens is banned after each of 63 beginnings.
        (s.BannedSequencesSpec((*((1, i) for i in range(500)), (1,) * 64)),),
    ],
    ids=lambda together: together[0].kind,
)
def test_tables_of_what_is_meant_to_be_sent(together: tuple[LogitsProcessorSpec, ...]):
    assert compile_specs(together).cells > limits.MAX_CELLS / 4


@pytest.mark.parametrize(
    ("together", "path"),
    [
        ((s.BannedTokensSpec(FULL),) * 3, "$.specs[1]"),
        # Each of 1600 tokens is banned after each of 63 beginnings.
        ((s.BannedSequencesSpec((*((1, i) for i in range(1600)), (1,) * 64)),), "$.specs[0]"),
    ],
    ids=["sets", "banned sequences"],
)
def test_tables_that_are_too_large(together: tuple[LogitsProcessorSpec, ...], path: str):
    with pytest.raises(SpecError, match=f"at most {limits.MAX_CELLS} states") as error:
        compile_specs(together)
    assert error.value.path == path


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
    # A thinking budget with a long message: 5 MB of tables.
    large = compile_specs((s.ThinkingBudgetSpec(1, (1,), (2,), (2,) * 32_000),))
    monkeypatch.setattr(admission, "compile_specs", lambda *_: Program(large.automata))
    admission.forget()

    def cells_of(token_id: int) -> int:
        text = encode(s.BannedTokensSpec((token_id,)))
        _, program = admission.admit(BACKEND, text, None)
        assert admission.admit(BACKEND, text, None)[1] is program
        return program.cells

    sent = sum(cells_of(token_id) for token_id in range(70))
    remembered = sum(entry.program.cells for entry in admission._programs.values())
    admission.forget()
    assert sent / 2 < remembered < sent
