"""A guard beside a request's own fields, with vLLM's classes and no engine."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from logitport import spec as lp
from logitport.adapters import Policy
from logitport.adapters.core import Realizer
from logitport.adapters.core.automaton import Edit
from logitport.adapters.vllm import BACKEND, KEY, LogitportProcessor, admission, processor
from logitport.adapters.vllm.admission import Admitting
from logitport.adapters.vllm.engine_config import Role
from logitport.adapters.vllm.processor import _program_of
from tokenizers import Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from vllm.sampling_params import StructuredOutputsParams

from .in_process import params
from .stand_ins import configuration

pytestmark = [pytest.mark.engine, pytest.mark.only("v1", reason="no runner is involved")]

BAN, FORCE = lp.BannedTokensSpec((5,)), lp.ForcedTokenSequenceSpec((7,))
PAIRS = lp.BannedSequencesSpec(((6, 6),))
GUARD = Policy(guard=(BAN, PAIRS))
AGGREGATED = Role(lp.Stage.AGGREGATED, "a test")
READS = [{"logprob_token_ids": [5]}, {"logprobs": 1, "detokenize": False}]
DECODES_ELSEWHERE = {"kv_transfer_params": {"do_remote_decode": True}}


def admit(
    monkeypatch: pytest.MonkeyPatch,
    policy: Policy,
    asked: Any,
    kv_role: str | None = None,
    tokenizer: Any = None,
    has_prompt_ids: bool = True,
) -> None:
    config = configuration(kv_role=kv_role)
    monkeypatch.setattr(admission, "policy_of", lambda *_: policy)
    monkeypatch.setattr(admission, "tokenizer_of", lambda _: tokenizer)
    monkeypatch.setattr(
        processor, "admitting_engine", lambda: Admitting(config, None, has_prompt_ids)
    )
    LogitportProcessor.validate_params(asked)


# the request's own fields | where it is refused, and why
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"allowed_token_ids": [5]}, "allowed_token_ids", "Conflicts with the server's guard[0]"),
    ({"logit_bias": {5: 2e9}}, "logit_bias[5]", "from -10000 to 10000 where specs act, got 2"),
    ({"logit_bias": {6: float("nan")}}, "logit_bias[6]", "got nan"),
    ({"logit_bias": {6: -2e9}}, "logit_bias[6]", "got -2"),
    ({"repetition_penalty": 1e-10}, "repetition_penalty", "from 0.1 to 10 where specs act"),
    ({"repetition_penalty": 1e10}, "repetition_penalty", "got 10000000000.0"),
    ({"trace_decode_token_ids": [5]}, "trace_decode_token_ids", "A replay replaces the tokens"),
]


@pytest.mark.parametrize(("fields", "path", "message"), REFUSED)
@pytest.mark.parametrize("extra_args", [None, {KEY: lp.encode(lp.LogitBiasSpec({8: 1.0}))}])
@pytest.mark.parametrize("marked", [{}, DECODES_ELSEWHERE])
def test_own_fields_do_not_undo_it(
    monkeypatch: pytest.MonkeyPatch,
    fields: dict[str, Any],
    path: str,
    message: str,
    extra_args: Any,
    marked: dict[str, Any],
):
    """Nor those of a request that says of itself that another worker decodes it."""
    asked = params(extra_args={**(extra_args or {}), **marked}, **fields)
    with pytest.raises(ValueError, match="logitport: ") as raised:
        admit(monkeypatch, GUARD, asked, "kv_both")
    assert message in str(raised.value)
    assert str(raised.value).endswith(f" - at `{path}`")


def test_paths_are_those_of_the_request(monkeypatch: pytest.MonkeyPatch):
    """And not of the resolved specs, of which the guard is the first."""
    grammar = StructuredOutputsParams(regex="a+")
    for fields in ({"structured_outputs": grammar}, {"allowed_token_ids": [8]}):
        payload = lp.encode((lp.LogitBiasSpec({8: 1.0}), FORCE))
        with pytest.raises(ValueError, match="logitport: ") as raised:
            admit(monkeypatch, GUARD, params(extra_args={KEY: payload}, **fields))
        assert "$.specs[1]" in str(raised.value)


# the request's own grammar, as vLLM hands it on | what it offers, that the guard bans
@pytest.mark.parametrize(
    ("grammar", "offered"),
    [
        ({"choice": ["cat", "zebra"]}, "'zebra'"),
        ({"grammar": 'root ::= "cat" | "zebra"'}, "'zebra'"),  # choices, for XGrammar
        ({"regex": "zebra"}, "'zebra'"),
        ({"json": {"type": "array"}}, "'['"),  # response_format, too
        ({"json": '{"enum": ["cat", "zebra"]}'}, "'\"zebra\"'"),
        ({"json": {"enum": [1, None]}}, ""),
        ({"choice": ["cat", "zoo"]}, ""),
        ({"regex": "zebra|.*"}, ""),
    ],
)
@pytest.mark.parametrize("extra_args", [None, {KEY: lp.encode(lp.LogitBiasSpec({8: 1.0}))}])
def test_a_grammar_whose_texts_it_bans(
    monkeypatch: pytest.MonkeyPatch, grammar: dict[str, Any], offered: str, extra_args: Any
):
    words = Tokenizer(WordLevel({"zebra": 0, "[": 1, "zoo": 2}, unk_token="["))
    words.decoder = Fuse()
    policy = Policy(guard=(BAN, lp.BannedTextSpec(("zebra", "["))))
    asked = params(structured_outputs=StructuredOutputsParams(**grammar), extra_args=extra_args)
    if not offered:
        admit(monkeypatch, policy, asked, tokenizer=words)
        return
    with pytest.raises(ValueError, match="logitport: ") as raised:
        admit(monkeypatch, policy, asked, tokenizer=words)
    message = f"Conflicts with the request's structured_outputs, which offers {offered}"
    assert str(raised.value) == f"logitport: {message} - at `the server's guard[1]`"


# what the request's own grammar offers | the specs that leave none of it
ONLY_FIVE = lp.AllowedTokensSpec((5,))
NO_DIGIT = lp.BannedTokensSpec((1, 2))


@pytest.mark.parametrize(
    ("grammar", "specs", "is_refused"),
    [
        ({"choice": ["17", "cat"]}, (ONLY_FIVE,), True),
        ({"choice": ["17", "cat"]}, (lp.AllowedTokensSpec((1, 5)),), False),
        ({"json": {"type": "integer"}}, (ONLY_FIVE,), True),
        ({"json": {"type": "integer"}}, (NO_DIGIT,), True),
        ({"json": {"type": "integer"}}, (lp.BannedTokensSpec((1, 3)),), False),
        ({"json": {"type": "object"}}, (lp.BannedTokensSpec((4,)),), True),
        ({"json_object": True}, (lp.BannedTokensSpec((4,)),), True),
        ({"regex": r"\d+"}, (NO_DIGIT,), True),
        ({"regex": r"\d+|x"}, (NO_DIGIT,), False),
        ({"choice": ["1"]}, (lp.BannedSequencesSpec(((1, 2),)),), False),
        ({"choice": ["cat"]}, (lp.BannedTokensSpec((3,)),), True),
        ({"json": {"enum": [12, 2]}}, (NO_DIGIT,), True),
    ],
)
def test_a_grammar_whose_first_tokens_are_taken(
    monkeypatch: pytest.MonkeyPatch, grammar: dict[str, Any], specs: Any, is_refused: bool
):
    words = Tokenizer(WordLevel({"x": 0, "1": 1, "2": 2, "cat": 3, "{": 4, "}": 5}, unk_token="x"))
    words.decoder = Fuse()
    for policy, own in ((Policy(), specs), (Policy(guard=specs), ())):
        asked = params(structured_outputs=StructuredOutputsParams(**grammar))
        asked.extra_args = {KEY: lp.encode(own)} if own else None
        if not is_refused:
            admit(monkeypatch, policy, asked, tokenizer=words)
            continue
        with pytest.raises(ValueError, match="no token is left - at `") as raised:
            admit(monkeypatch, policy, asked, tokenizer=words)
        assert "structured_outputs`" in str(raised.value)


@pytest.mark.parametrize("extra_args", [None, {KEY: lp.encode(lp.LogitBiasSpec({8: 1.0}))}])
def test_a_prompt_of_embeddings_has_no_tokens_to_read(
    monkeypatch: pytest.MonkeyPatch, extra_args: Any
):
    asked = params(extra_args=extra_args)
    admit(monkeypatch, GUARD, asked, has_prompt_ids=False)
    policy = Policy(guard=(BAN, lp.NoRepeatNgramSpec(2)))
    with pytest.raises(ValueError, match="`no_repeat_ngram` looks at the token ids") as raised:
        admit(monkeypatch, policy, asked, has_prompt_ids=False)
    assert str(raised.value).endswith(" - at `the server's guard[1]`")


def test_a_replay_beside_default_specs(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(ValueError, match="at `trace_decode_token_ids`"):
        admit(monkeypatch, Policy((BAN,)), params(trace_decode_token_ids=[5]))
    admit(monkeypatch, Policy(), params(trace_decode_token_ids=[5]))


def test_what_it_leaves_is_admitted(monkeypatch: pytest.MonkeyPatch):
    fields: dict[str, Any] = {
        "allowed_token_ids": [5, 8],
        "logit_bias": {5: 100.0},
        "min_tokens": 1,
        "repetition_penalty": 2.0,
    }
    for own in (fields, {"allowed_token_ids": [6]}):  # the reply ends after one
        admit(monkeypatch, GUARD, params(**own))
    for policy, kv_role in ((Policy((BAN,)), None), (GUARD, "kv_producer")):
        admit(monkeypatch, policy, params(allowed_token_ids=[5]), kv_role)


def test_steps_of_a_beam_search_are_refused(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(ValueError, match="This server admits no beam search"):
        admit(monkeypatch, GUARD, params(max_tokens=1, **READS[1]))
    admit(monkeypatch, GUARD, params(max_tokens=1, **READS[0]))
    marked = params(max_tokens=1, extra_args=DECODES_ELSEWHERE, **READS[1])
    admit(monkeypatch, GUARD, marked)  # to a server of tokens, from a proxy
    admit(monkeypatch, Policy((BAN,)), params(max_tokens=1, **READS[1]))


LATER = lp.PhasesSpec(
    (lp.Phase((), (lp.PhaseEnd(token_ids=(9,)),)), lp.Phase((lp.AllowedTokensSpec((5,)),)))
)
"""A list of what the guard bans, if the model says 9."""


# the request's specs | its output | the tokens that the engine leaves, if it masks | what comes
@pytest.mark.parametrize(
    ("own", "output", "left", "chosen"),
    [
        (None, [], [5], 2),
        (None, [6], [5, 6], 2),
        (None, [], [5, 6], 6),
        (lp.LogitBiasSpec({8: 1.0}), [], [5], 2),
        (lp.AllowedTokensSpec((5, 8)), [], [3], 2),
        (LATER, [9], [], 2),
        (LATER, [8], [3], 3),
    ],
)
def test_a_reply_ends_where_only_banned_tokens_are_left(
    own: lp.LogitsProcessorSpec | None, output: list[int], left: list[int], chosen: int
):
    """Whatever has masked the others: a field of the request, a grammar, or its specs."""
    backend = replace(BACKEND, policy=GUARD)
    asked = params(extra_args={} if own is None else {KEY: lp.encode(own)})
    program = _program_of(AGGREGATED, backend, 100, 2, asked)
    assert program is not None
    realizer, logits = Realizer(100), torch.zeros(1, 100)
    realizer.add(0, program, [], output)
    logits[0, [token for token in range(100) if left and token not in left]] = -torch.inf
    realizer.apply(logits)
    assert int(logits.argmax()) == chosen


@pytest.mark.parametrize("fields", READS)
def test_it_acts_on_what_only_reads_probabilities(fields: dict[str, Any]):
    """A client may ask for one such token after another. Default specs leave it alone."""
    asked = params(max_tokens=1, **fields)
    assert _edits(Policy((FORCE,), guard=(BAN,)), asked) == {Edit.ADD}
    assert _edits(Policy((FORCE,)), asked) == set()


@pytest.mark.parametrize("own", [{}, {KEY: lp.encode(FORCE)}])
def test_a_mark_for_prefill_does_not_turn_it_off(own: dict[str, Any]):
    asked = params(extra_args=own | DECODES_ELSEWHERE)
    policy, either = Policy((FORCE,), guard=(BAN,)), Role(lp.Stage.AGGREGATED, "kv_both", True)
    assert _edits(policy, asked, either) == {Edit.ADD}
    assert _edits(policy, asked, Role(lp.Stage.PREFILL, "a test")) == set()
    assert _edits(Policy((FORCE,)), asked, either) == set()


@pytest.mark.parametrize("more", [{}, DECODES_ELSEWHERE])
def test_it_reads_what_a_reply_continues(more: dict[str, Any]):
    """Also where the request's own specs do not act."""
    asked = params(extra_args={KEY: lp.encode(lp.LogitBiasSpec({8: 1.0}), continued=1), **more})
    program = _program_of(
        Role(lp.Stage.AGGREGATED, "kv_both", True),
        replace(BACKEND, policy=Policy(guard=(lp.BannedSequencesSpec(((5, 6),)),))),
        *(100, 2, asked),
    )
    assert program is not None
    realizer, logits = Realizer(100), torch.zeros(1, 100)
    realizer.add(0, program, [1, 5], [])
    logits[0, [6, 7]] = torch.tensor([9.0, 5.0])
    realizer.apply(logits)
    assert int(logits.argmax()) == 7


def _edits(policy: Policy, asked: Any, role: Role = AGGREGATED) -> set[int]:
    """Return what a request's program does in a worker."""
    program = _program_of(role, replace(BACKEND, policy=policy), 100, None, asked)
    automata = () if program is None else program.automata
    return {int(edit) for automaton in automata for edit in automaton.edit} - {Edit.FREE}
