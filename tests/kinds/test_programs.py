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
        # Each of 500 tokens is banned after each of 63 beginnings.
        (s.BannedSequencesSpec((*((1, i) for i in range(500)), (1,) * 64)),),
    ],
    ids=lambda together: together[0].kind,
)
def test_tables_of_what_is_meant_to_be_sent(together: tuple[LogitsProcessorSpec, ...]):
    assert compile_specs(together).cells > limits.MAX_CELLS / 4


def test_tables_that_are_too_large():
    # Each of 1600 tokens is banned after each of 63 beginnings.
    sequences = s.BannedSequencesSpec((*((1, i) for i in range(1600)), (1,) * 64))
    with pytest.raises(SpecError, match=f"at most {limits.MAX_CELLS} states") as error:
        compile_specs((sequences,))
    assert error.value.path == "$.specs[0]"


TEXTS = ("x" * limits.MAX_PATTERN,) * 12
PHASES = s.PhasesSpec((s.Phase((), (s.PhaseEnd(n=1),)),) * 7 + (s.Phase(),))


# Specs that are each admitted by themselves | what they take together.
@pytest.mark.parametrize(
    ("together", "work"),
    [
        ((s.BannedTokensSpec(FULL[1:]),) * 2, "66046: 65534 for token ids, 512 for the rest"),
        (
            (s.BannedTextSpec(TEXTS), s.BannedSequencesSpec(((1, 2, 3),) * 500)),
            "35732: 4500 for token ids, 12288 for rules about text, 18432 for bytes of texts, "
            "512 for the rest",
        ),
        (
            (s.BannedTextSpec(("a",)), s.BannedTextSpec(("b",), True), PHASES),
            "42032: 24576 for rules about text, 48 for bytes of texts, 17408 for the rest",
        ),
        (
            (s.PluginSpec("any", {"a": [0] * 10_000}), s.ForcedTokenSequenceSpec(FULL[:25_000])),
            "35518: 25000 for token ids, 10518 for the rest",
        ),
    ],
    ids=["token ids", "texts", "rules", "parameters"],
)
def test_work_of_all_specs_together(together: tuple[LogitsProcessorSpec, ...], work: str):
    message = f"Expected specs that take at most {limits.MAX_WORK} units of work, got {work}"
    with pytest.raises(SpecError) as error:
        compile_specs(together)
    assert (error.value.message, error.value.path) == (message, "$.specs")


def test_bans_of_texts_that_are_compiled_as_one_are_one_rule():
    vocabulary = Vocabulary.of_tokens([b"a", b"b", b"c"])
    texts = [s.BannedTextSpec((text,)) for text in "abc"]
    assert len(compile_specs(texts, lambda: vocabulary).automata) == 1


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
    # A thinking budget with a long message: 4 MB of tables.
    large = compile_specs((s.ThinkingBudgetSpec(1, (1,), (2,), (2,) * 32_000),))
    monkeypatch.setattr(admission, "compile_specs", lambda *_: Program(large.automata))
    admission.forget()

    def cells_of(token_id: int) -> int:
        text = encode(s.BannedTokensSpec((token_id,)))
        _, program = admission.admit(BACKEND, text, None)
        assert admission.admit(BACKEND, text, None)[1] is program
        return program.cells

    sent = sum(cells_of(token_id) for token_id in range(90))
    remembered = sum(entry.program.cells for entry in admission._programs.values())
    admission.forget()
    assert sent / 2 < remembered < sent
