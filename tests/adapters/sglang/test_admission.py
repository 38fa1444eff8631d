"""What admission looks at: the engine, default specs and guards. There is no engine in it."""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from logitport import spec as lp
from logitport.adapters import ADMIT_OTHERS_VARIABLE, KEY, Policy
from logitport.adapters.core import Vocabulary
from logitport.adapters.sglang import BACKEND, attach
from logitport.adapters.sglang import admission as module
from logitport.adapters.sglang.admission import Admission
from sglang.srt.managers.io_struct import GenerateReqInput

FORCED = lp.ForcedTokenSequenceSpec((5,), 2)


def test_an_engine_that_calls_no_processors_does_not_start(monkeypatch: pytest.MonkeyPatch):
    features = SimpleNamespace(enable_custom_logit_processor=False)
    monkeypatch.setattr(module, "get_exec", lambda: SimpleNamespace(features=features))
    monkeypatch.setattr(module, "policy_of", lambda *_: Policy((FORCED,)))
    monkeypatch.setattr(module, "_eos_token_ids", lambda _: frozenset({2}))
    manager: Any = SimpleNamespace(
        tokenizer=None,
        model_config=SimpleNamespace(vocab_size=100, is_generation=True),
        server_args=SimpleNamespace(
            served_model_name="a model", model_path="a model", reasoning_parser=None
        ),
    )
    with pytest.raises(lp.SpecError, match="start the engine with --enable-custom-logit-processor"):
        Admission(manager)


# default spec | the request's own fields | whether it acts beside them
@pytest.mark.parametrize(
    ("default", "own", "acts"),
    [
        (lp.BannedTokensSpec((5,)), {}, True),
        (lp.BannedTokensSpec((5,)), {"regex": "a+"}, True),
        (FORCED, {}, True),
        (FORCED, {"regex": "a+"}, False),
        (FORCED, {"min_new_tokens": 2}, False),
        (FORCED, {"min_new_tokens": 1}, True),
        (FORCED, {"min_new_tokens": 1, "stop_token_ids": [5]}, False),
        (FORCED, {"logit_bias": {"5": -math.inf}}, False),
        (FORCED, {"logit_bias": {"5": -100.0}}, True),
        (FORCED, {"beam_width": 2}, False),
        (FORCED, {"max_new_tokens": 0}, False),
    ],
)
def test_the_request_comes_first(default: lp.LogitsProcessorSpec, own: dict[str, Any], acts: bool):
    admission = Admission.__new__(Admission)
    admission.backend = replace(BACKEND, policy=Policy((default,)))
    admission._default = lp.encode(default)
    admission._eos_token_ids = frozenset({2})
    assert admission._takes_default(own) is acts


GUARD = Policy(guard=(lp.BannedTokensSpec((5,)), lp.MinTokensSpec(3, (2,))))


# the request's own fields | where it is refused, and why
@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"logit_bias": {"5": 2e9}}, "where specs act, got 2000000000.0 - at `logit_bias[5]`"),
        ({"logit_bias": {"5": math.nan}}, "got nan - at `logit_bias[5]`"),
        ({"temperature": 1e10}, "from 0 to 100 where specs act"),
        ({"repetition_penalty": 1e-10}, "from 0.1 to 10 where specs act"),
        ({"beam_width": 2}, "the tokens of its beams"),
    ],
)
@pytest.mark.parametrize("forces", [False, True], ids=["a guard", "a default that gives way, too"])
def test_own_fields_do_not_undo_a_guard(
    monkeypatch: pytest.MonkeyPatch, own: dict[str, Any], message: str, forces: bool
):
    admission = guarded(monkeypatch, replace(GUARD, default=(FORCED,) if forces else ()))
    with pytest.raises(ValueError, match="logitport: ") as raised:
        admission.admit(GenerateReqInput("Hello", sampling_params=own))
    assert message in str(raised.value)


# the request's own grammar | what it offers, that the guard bans
@pytest.mark.parametrize(
    ("own", "offered"),
    [
        ({"regex": "(cat|zebra)"}, "the request's regex, which offers 'zebra'"),
        ({"ebnf": 'root ::= "zebra"'}, "the request's ebnf, which offers 'zebra'"),
        ({"json_schema": '{"type": "array"}'}, "the request's json_schema, which offers '['"),
        ({"regex": "cat|zoo"}, ""),
    ],
)
def test_a_grammar_whose_texts_a_guard_bans(
    monkeypatch: pytest.MonkeyPatch, own: dict[str, Any], offered: str
):
    admission = guarded(monkeypatch, Policy(guard=(lp.BannedTextSpec(("zebra", "[")),)))
    words = Vocabulary.of_tokens([b"zebra", b"[", b"zoo"])
    admission.backend = replace(admission.backend, load_vocabulary=lambda: words)
    request = GenerateReqInput("Hello", sampling_params=own)
    if not offered:
        admission.admit(request)
        return
    with pytest.raises(ValueError, match="logitport: ") as raised:
        admission.admit(request)
    message = f"logitport: Conflicts with {offered} - at `the server's guard[0]`"
    assert str(raised.value) == message


@pytest.mark.parametrize("guards", [False, True])
def test_a_grammar_whose_first_tokens_are_taken(monkeypatch: pytest.MonkeyPatch, guards: bool):
    only = lp.AllowedTokensSpec((2,))
    admission = guarded(monkeypatch, Policy(guard=(only,) if guards else ()))
    words = Vocabulary.of_tokens([b"yes", b"no", b"cat"])
    admission.backend = replace(admission.backend, load_vocabulary=lambda: words)
    for regex, is_refused in (("yes|no", True), ("yes|cat", False)):
        request: dict[str, Any] = {"sampling_params": {"regex": f"({regex})"}}
        request["sampling_params"] |= {} if guards else {"custom_params": {KEY: lp.encode(only)}}
        if not is_refused:
            admission.admit(GenerateReqInput("Hello", **request))
            continue
        with pytest.raises(ValueError, match=r"no token is left - at `.*regex`"):
            admission.admit(GenerateReqInput("Hello", **request))


def test_a_guard_acts_beside_what_it_leaves(monkeypatch: pytest.MonkeyPatch):
    admission = guarded(monkeypatch, replace(GUARD, default=(FORCED,)))
    for own in ({}, {"logit_bias": {"5": 100.0}}, {"regex": "a+"}, {"min_new_tokens": 9}):
        request = GenerateReqInput("Hello", sampling_params=own)
        admission.admit(request)
        sent = request.sampling_params["custom_params"]
        assert sent["logitport_guard"] == GUARD.guard_payload
        assert sent["logitport_end_token"] == 2
        gives_way = "regex" in own or "min_new_tokens" in own
        assert sent.get("logitport") == (None if gives_way else lp.encode(FORCED))


@pytest.mark.parametrize("where", [lp.Stage.AGGREGATED, lp.Stage.PREFILL])
def test_a_guard_reads_what_a_reply_continues(monkeypatch: pytest.MonkeyPatch, where: lp.Stage):
    monkeypatch.setattr("logitport.adapters.sglang.admission.stage", lambda: where)
    own = {"custom_params": {KEY: lp.encode(lp.LogitBiasSpec({8: 1.0}), continued=3)}}
    request = GenerateReqInput("Hello", sampling_params=own)
    guarded(monkeypatch, GUARD).admit(request)
    sent = request.sampling_params["custom_params"]
    assert lp.decode(sent["logitport_guard"]).continued == 3


@pytest.mark.parametrize("own", [(), lp.LogitBiasSpec({8: 1.0})])
def test_a_guard_acts_where_the_first_token_is_chosen(monkeypatch: pytest.MonkeyPatch, own: Any):
    """In a prefill worker, where specs and defaults do not act."""
    admission = guarded(monkeypatch, replace(GUARD, default=(FORCED,)))
    monkeypatch.setattr(module, "stage", lambda: lp.Stage.PREFILL)
    admission._default = None
    asked = attach({"sampling_params": {}}, own)
    request = GenerateReqInput("Hello", **asked)
    admission.admit(request)
    sent = request.sampling_params["custom_params"]
    assert "logitport" not in sent
    assert lp.decode(sent["logitport_guard"]).is_active(lp.Stage.PREFILL)


@pytest.mark.parametrize("key", ["logitport_guard", "logitport_end_token"])
def test_a_client_sets_no_guard(monkeypatch: pytest.MonkeyPatch, key: str):
    request = GenerateReqInput("Hello", sampling_params={"custom_params": {key: 7}})
    with pytest.raises(ValueError, match=f"Expected the key `logitport`, got '{key}'"):
        guarded(monkeypatch, GUARD).admit(request)


def test_a_guard_leaves_no_room_for_another_processor(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(ADMIT_OTHERS_VARIABLE, "1")
    request = GenerateReqInput("Hello", sampling_params={}, custom_logit_processor="another")
    with pytest.raises(ValueError, match="This server has a guard, and SGLang takes one"):
        guarded(monkeypatch, GUARD).admit(request)
    guarded(monkeypatch, Policy()).admit(request)


@pytest.mark.parametrize(
    ("fact", "value", "reason"),
    [
        ("get_spec", SimpleNamespace(speculative_algorithm="any"), "draft tokens of speculative"),
        (
            "get_exec",
            SimpleNamespace(dllm=SimpleNamespace(dllm_algorithm="any")),
            "diffusion models",
        ),
        ("use_mlx", True, "MLX backend"),
    ],
)
def test_engines_that_call_no_processors(
    monkeypatch: pytest.MonkeyPatch, fact: str, value: Any, reason: str
):
    """They let in no specs."""
    admission = guarded(monkeypatch, Policy())
    request = GenerateReqInput("Hello", **attach({"sampling_params": {}}, FORCED))
    admission.admit(request)
    monkeypatch.setattr(module, fact, lambda: value)
    with pytest.raises(ValueError, match=reason):
        admission.admit(request)


def guarded(monkeypatch: pytest.MonkeyPatch, policy: Policy) -> Admission:
    """What admits to an engine that has started with a policy."""
    monkeypatch.setattr(module, "stage", lambda: lp.Stage.AGGREGATED)
    monkeypatch.setattr(module, "get_spec", lambda: SimpleNamespace(speculative_algorithm=None))
    features = SimpleNamespace(dllm=SimpleNamespace(dllm_algorithm=None))
    monkeypatch.setattr(module, "get_exec", lambda: features)
    monkeypatch.setattr(module, "check_tokens_in_time", lambda *_: None)
    admission = Admission.__new__(Admission)
    admission.backend, admission._vocab_size = replace(BACKEND, policy=policy), 100
    admission._default = policy.default_payload
    admission._eos_token_ids, admission._thinks = frozenset({2}), False
    admission._end_token = policy.end_token({-1, 2, 100}, 100)
    return admission
