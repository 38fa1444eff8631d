"""A guard beside a request's own fields, with vLLM's classes and no engine."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from logitport import spec as lp
from logitport.adapters import Policy
from logitport.adapters.core import Realizer
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

pytestmark = pytest.mark.only("v1", reason="no runner is involved")

BAN, FORCE, BIAS = lp.BannedTokensSpec((5,)), lp.ForcedTokenSequenceSpec((7,)), {8: 1.0}
GUARD = Policy(guard=(BAN, lp.BannedSequencesSpec(((6, 6),))))
DEFAULT = Policy((BAN,))
TEXTS = Policy(guard=(BAN, lp.BannedTextSpec(("zebra", "["))))
NGRAMS = Policy(guard=(BAN, lp.NoRepeatNgramSpec(2)))
AGGREGATED = Role(lp.Stage.AGGREGATED, "a test")
EITHER = Role(lp.Stage.AGGREGATED, "kv_both", True)
DECODES_ELSEWHERE = {"kv_transfer_params": {"do_remote_decode": True}}
OWN = {KEY: lp.encode(lp.LogitBiasSpec(BIAS))}
ASKS_FOR_NO_TEXT = {"logprobs": 1, "detokenize": False}
READS = [{"logprob_token_ids": [5]}, ASKS_FOR_NO_TEXT]

words = Tokenizer(
    WordLevel(
        {"x": 0, "1": 1, "2": 2, "cat": 3, "{": 4, "}": 5, "zebra": 6, "[": 7, "zoo": 8},
        unk_token="x",
    )
)
words.decoder = Fuse()


def grammar(**how: Any) -> dict[str, Any]:
    return {"structured_outputs": StructuredOutputsParams(**how)}


@pytest.fixture
def refusal(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What admission says of a request, by ``policy``, and where; "" if it admits it."""

    def refusal(
        policy: Policy, asked: Any, kv_role: str | None = None, has_prompt_ids: bool = True
    ) -> str:
        admitting = Admitting(configuration(kv_role=kv_role), None, has_prompt_ids)
        monkeypatch.setattr(admission, "policy_of", lambda *_: policy)
        monkeypatch.setattr(admission, "tokenizer_of", lambda _: words)
        monkeypatch.setattr(processor, "admitting_engine", lambda: admitting)
        try:
            LogitportProcessor.validate_params(asked)
        except ValueError as error:
            return str(error)
        return ""

    return refusal


# policy | the request's own fields | where they are refused, and why; "" if they are not
@pytest.mark.parametrize(
    ("policy", "fields", "path", "message"),
    [
        (GUARD, {"allowed_token_ids": [5]}, "allowed_token_ids", "with the server's guard[0]"),
        (GUARD, {"logit_bias": {5: 2e9}}, "logit_bias[5]", "from -10000 to 10000 where specs act"),
        (GUARD, {"logit_bias": {6: float("nan")}}, "logit_bias[6]", "got nan"),
        (GUARD, {"logit_bias": {6: -2e9}}, "logit_bias[6]", "got -2"),
        (GUARD, {"repetition_penalty": 1e-10}, "repetition_penalty", "from 0.1 to 10"),
        (GUARD, {"repetition_penalty": 1e10}, "repetition_penalty", "got 10000000000.0"),
        (GUARD, {"trace_decode_token_ids": [5]}, "trace_decode_token_ids", "A replay replaces"),
        (TEXTS, grammar(choice=["cat", "zebra"]), "the server's guard[1]", "offers 'zebra'"),
        (TEXTS, grammar(json={"type": "array"}), "the server's guard[1]", "offers '['"),
        (TEXTS, grammar(json='{"enum": ["cat", "zebra"]}'), "the server's guard[1]", "'\"zebra\"'"),
        (TEXTS, grammar(json={"enum": [1, None]}), "", ""),
        (TEXTS, grammar(regex="zebra|.*"), "", ""),
        (GUARD, {"allowed_token_ids": [5, 8], "logit_bias": {5: 100.0}}, "", ""),
        (GUARD, {"min_tokens": 1, "repetition_penalty": 2.0}, "", ""),
        (GUARD, {"allowed_token_ids": [6]}, "", ""),  # the reply ends after one
        (DEFAULT, {"allowed_token_ids": [5]}, "", ""),
        (GUARD, {"max_tokens": 1, **READS[0]}, "", ""),
    ],
)
@pytest.mark.parametrize("own", [{}, OWN], ids=["no specs", "specs"])
@pytest.mark.parametrize("marked", [{}, DECODES_ELSEWHERE], ids=["here", "marked"])
def test_own_fields(
    refusal: Any, policy: Policy, fields: Any, path: str, message: str, own: Any, marked: Any
):
    """Nor does a request undo a guard that says of itself that another worker decodes it."""
    said = refusal(policy, params(extra_args={**own, **marked} or None, **fields), "kv_both")
    assert message in said
    assert said.startswith("logitport: ") is bool(message)
    assert said.endswith(f" - at `{path}`") or not said


def test_more_that_is_refused(refusal: Any):
    replay, step = params(trace_decode_token_ids=[5]), params(max_tokens=1, **ASKS_FOR_NO_TEXT)
    assert "at `trace_decode_token_ids`" in refusal(DEFAULT, replay)
    assert refusal(Policy(), replay) == ""
    assert "This server admits no beam search" in refusal(GUARD, step)
    assert refusal(DEFAULT, step) == ""
    step.extra_args = DECODES_ELSEWHERE  # to a server of tokens, from a proxy
    assert refusal(GUARD, step) == ""
    assert refusal(GUARD, params(allowed_token_ids=[5]), "kv_producer") == ""
    # A path is that of the request, and not of the resolved specs, of which the guard is the first.
    payload = lp.encode((lp.LogitBiasSpec(BIAS), FORCE))
    for fields in (grammar(regex="a+"), {"allowed_token_ids": [8]}):
        assert "$.specs[1]" in refusal(GUARD, params(extra_args={KEY: payload}, **fields))
    for own in (None, OWN):  # a prompt of embeddings has no tokens to read
        assert refusal(GUARD, params(extra_args=own), has_prompt_ids=False) == ""
        said = refusal(NGRAMS, params(extra_args=own), has_prompt_ids=False)
        assert "`no_repeat_ngram` looks at the token ids" in said
        assert said.endswith(" - at `the server's guard[1]`")


ONLY_FIVE, NO_DIGIT = lp.AllowedTokensSpec((5,)), lp.BannedTokensSpec((1, 2))


# what the request's own grammar offers | the specs beside it | whether they leave none of it
@pytest.mark.parametrize(
    ("how", "spec", "is_refused"),
    [
        ({"choice": ["17", "cat"]}, ONLY_FIVE, True),
        ({"choice": ["17", "cat"]}, lp.AllowedTokensSpec((1, 5)), False),
        ({"json": {"type": "integer"}}, ONLY_FIVE, True),
        ({"json": {"type": "integer"}}, NO_DIGIT, True),
        ({"json": {"type": "integer"}}, lp.BannedTokensSpec((1, 3)), False),
        ({"json": {"type": "object"}}, lp.BannedTokensSpec((4,)), True),
        ({"json_object": True}, lp.BannedTokensSpec((4,)), True),
        ({"regex": r"\d+"}, NO_DIGIT, True),
        ({"regex": r"\d+|x"}, NO_DIGIT, False),
        ({"choice": ["1"]}, lp.BannedSequencesSpec(((1, 2),)), False),
        ({"choice": ["cat"]}, lp.BannedTokensSpec((3,)), True),
        ({"json": {"enum": [12, 2]}}, NO_DIGIT, True),
    ],
)
@pytest.mark.parametrize("guards", [False, True])
def test_a_grammar_whose_first_tokens_are_taken(
    refusal: Any, how: Any, spec: Any, is_refused: bool, guards: bool
):
    own = {} if guards else {KEY: lp.encode(spec)}
    said = refusal(
        Policy(guard=(spec,) if guards else ()), params(extra_args=own, **grammar(**how))
    )
    assert ("no token is left - at `" in said) is bool(said) is is_refused


LATER = lp.PhasesSpec(
    (lp.Phase((), (lp.PhaseEnd(token_ids=(9,)),)), lp.Phase((lp.AllowedTokensSpec((5,)),)))
)
"""A list of what the guard bans, if the model says 9."""


def chosen(
    policy: Policy,
    asked: Any,
    logits: dict[int, float],
    output: list[int] | None = None,
    role: Role = AGGREGATED,
) -> int:
    """The token that comes in a worker, after 5 and an output; 2 ends a reply."""
    program = _program_of(role, replace(BACKEND, policy=policy), 100, 2, asked)
    realizer = Realizer(100)
    if program is not None:
        realizer.add(0, program, [1, 5], output or [])
    row = torch.full((1, 100), -torch.inf)
    row[0, [*logits]] = torch.tensor([*logits.values()])
    realizer.apply(row)
    return int(row.argmax())


# the request's specs | its output | the tokens that the engine leaves | what comes
@pytest.mark.parametrize(
    ("own", "output", "left", "expected"),
    [
        (None, [], [5], 2),
        (None, [6], [5, 6], 2),
        (None, [], [5, 6], 6),
        (lp.LogitBiasSpec(BIAS), [], [5], 2),
        (lp.AllowedTokensSpec((5, 8)), [], [3], 2),
        (LATER, [9], range(100), 2),
        (LATER, [8], [3], 3),
    ],
)
def test_a_reply_ends_where_only_banned_tokens_are_left(
    own: Any, output: list[int], left: Any, expected: int
):
    """Whatever has masked the others: a field of the request, a grammar, or its specs."""
    asked = params(extra_args={} if own is None else {KEY: lp.encode(own)})
    assert chosen(GUARD, asked, dict.fromkeys(left, 0.0), output) == expected


BOTH, DEFAULTS = Policy((FORCE,), guard=(BAN,)), Policy((FORCE,))
CONTINUES = lp.encode(lp.LogitBiasSpec(BIAS), continued=1)


# policy | the request's fields | the worker's role | what comes: 5 if nothing acts, 7 if forced
@pytest.mark.parametrize(
    ("policy", "fields", "role", "expected"),
    [
        (DEFAULT, {}, AGGREGATED, 6),
        (DEFAULTS, {}, AGGREGATED, 7),
        # Of default specs, only what forces gives way to a grammar.
        (DEFAULT, grammar(regex="a+"), AGGREGATED, 6),
        (DEFAULTS, grammar(regex="a+"), AGGREGATED, 5),
        # A client may ask for one probability after another. Default specs leave that alone.
        *((BOTH, {"max_tokens": 1, **read}, AGGREGATED, 6) for read in READS),
        *((DEFAULTS, {"max_tokens": 1, **read}, AGGREGATED, 5) for read in READS),
        # A mark for prefill does not turn the guard off.
        (BOTH, {"extra_args": DECODES_ELSEWHERE}, EITHER, 6),
        (BOTH, {"extra_args": {KEY: lp.encode(FORCE), **DECODES_ELSEWHERE}}, EITHER, 6),
        (BOTH, {"extra_args": DECODES_ELSEWHERE}, Role(lp.Stage.PREFILL, "a test"), 5),
        (DEFAULTS, {"extra_args": DECODES_ELSEWHERE}, EITHER, 5),
    ],
)
def test_where_it_acts(policy: Policy, fields: dict[str, Any], role: Role, expected: int):
    assert chosen(policy, params(**fields), {5: 1.0, 6: 0.0}, role=role) == expected


@pytest.mark.parametrize("more", [{}, DECODES_ELSEWHERE])
def test_it_reads_what_a_reply_continues(more: dict[str, Any]):
    """Also where the request's own specs do not act."""
    policy = Policy(guard=(lp.BannedSequencesSpec(((5, 6),)),))
    asked = params(extra_args={KEY: CONTINUES, **more})
    assert chosen(policy, asked, {6: 9.0, 7: 5.0}, role=EITHER) == 7
