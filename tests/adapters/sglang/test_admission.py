"""What admission looks at: the engine, default specs and guards. There is no engine in it."""

import math
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from logitport import spec as lp
from logitport.adapters import ADMIT_OTHERS_VARIABLE, KEY, Policy, one_policy
from logitport.adapters.acting import NOTED
from logitport.adapters.core import Mark, Vocabulary
from logitport.adapters.sglang import BACKEND
from logitport.adapters.sglang import admission as module
from logitport.adapters.sglang.admission import Admission
from sglang.srt.managers.io_struct import GenerateReqInput

FORCED, ONLY = lp.ForcedTokenSequenceSpec((5,), 2), lp.AllowedTokensSpec((2,))
BIAS = lp.LogitBiasSpec({8: 1.0})
GUARD = Policy(guard=(lp.BannedTokensSpec((5,)), lp.MinTokensSpec(3, (2,))))
GIVES_WAY = replace(GUARD, default=(FORCED,))
TEXTS = Policy(guard=(lp.BannedTextSpec(("zebra", "[")),))
PREFILL = lp.Stage.PREFILL

Make = Callable[[Policy], Admission]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Make:
    """Makes what admits to an engine that has started with a policy."""
    engine = SimpleNamespace(dllm=SimpleNamespace(dllm_algorithm=None), speculative_algorithm=None)
    monkeypatch.setattr(module, "stage", lambda: lp.Stage.AGGREGATED)
    monkeypatch.setattr(module, "get_spec", lambda: engine)
    monkeypatch.setattr(module, "get_exec", lambda: engine)
    monkeypatch.setattr(module, "check_tokens_in_time", lambda *_: None)
    words = Vocabulary.of_tokens([b"yes", b"no", b"cat", b"zebra", b"[", b"zoo"])

    def make(policy: Policy) -> Admission:
        made = Admission.__new__(Admission)
        made.backend = replace(BACKEND, policy=policy, load_vocabulary=lambda: words)
        made._vocab_size, made._default = 100, policy.default_payload
        made._model = "tested"
        made._eos_token_ids, made._thinks = frozenset({2}), False
        made._end_token = policy.end_token({-1, 2, 100}, 100)
        return made

    return make


def admitted(admission: Admission, own: Any = (), **custom: Any) -> dict[str, Any]:
    """What is sent of a request with fields of its own; ``others`` are names of processors."""
    asked = {**dict(own), "custom_params": custom or None}
    request = GenerateReqInput("Hello", sampling_params=asked)
    admission.admit(request)
    return request.sampling_params["custom_params"] or {}


def test_an_engine_that_calls_no_processors_does_not_start(monkeypatch: pytest.MonkeyPatch):
    features = SimpleNamespace(enable_custom_logit_processor=False)
    monkeypatch.setattr(module, "get_exec", lambda: SimpleNamespace(features=features))
    monkeypatch.setattr(module, "policy_of", lambda *_: Policy((FORCED,)))
    monkeypatch.setattr(module, "_eos_token_ids", lambda _: frozenset({2}))
    names = {"served_model_name": "a model", "model_path": "a model", "reasoning_parser": None}
    manager: Any = SimpleNamespace(
        tokenizer=None,
        model_config=SimpleNamespace(vocab_size=100, is_generation=True),
        server_args=SimpleNamespace(**names),
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
def test_the_request_comes_first(make: Make, default: Any, own: dict[str, Any], acts: bool):
    sent = admitted(make(Policy((default,))), own)
    assert sent == ({KEY: lp.encode(default)} if acts else {})


# policy | the request's own fields | what the refusal has; "" if they are admitted
@pytest.mark.parametrize(
    ("policy", "own", "message"),
    [
        *(
            (policy, own, message)
            for policy in (GUARD, GIVES_WAY)
            for own, message in (
                ({"logit_bias": {"5": 2e9}}, "specs act, got 2000000000.0 - at `logit_bias[5]`"),
                ({"logit_bias": {"5": math.nan}}, "got nan - at `logit_bias[5]`"),
                ({"temperature": 1e10}, "from 0 to 100 where specs act"),
                ({"repetition_penalty": 1e-10}, "from 0.1 to 10 where specs act"),
                ({"beam_width": 2}, "the tokens of its beams"),
                ({"logit_bias": {"5": 100.0}}, ""),
            )
        ),
        (TEXTS, {"regex": "(cat|zebra)"}, "the request's regex, which offers 'zebra' - at `the s"),
        (TEXTS, {"ebnf": 'root ::= "zebra"'}, "request's ebnf, which offers 'zebra' - at `the se"),
        (TEXTS, {"json_schema": '{"type": "array"}'}, "json_schema, which offers '[' - at `the s"),
        (TEXTS, {"regex": "cat|zoo"}, ""),
        (Policy(guard=(ONLY,)), {"regex": "(yes|no)"}, "no token is left - at `regex`"),
        (Policy(guard=(ONLY,)), {"regex": "(yes|cat)"}, ""),
        (Policy(), {"regex": "(yes|no)", KEY: ONLY}, "no token is left - at `regex`"),
        (Policy(), {"regex": "(yes|cat)", KEY: ONLY}, ""),
        (GUARD, {"logitport_guard": 7}, "Expected the key `logitport`, got 'logitport_guard'"),
        (GUARD, {"logitport_end_token": 7}, "the key `logitport`, got 'logitport_end_token'"),
    ],
)
def test_own_fields_beside_specs(make: Make, policy: Policy, own: dict[str, Any], message: str):
    custom = {name: value for name, value in own.items() if name.startswith(KEY)}
    fields = {name: value for name, value in own.items() if name not in custom}
    if KEY in custom:
        custom[KEY] = lp.encode(custom[KEY])
    if not message:
        admitted(make(policy), fields, **custom)
        return
    with pytest.raises(ValueError, match=r"^logitport: ") as raised:
        admitted(make(policy), fields, **custom)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("own", "gives_way"),
    [
        ({}, False),
        ({"logit_bias": {"5": 100.0}}, False),
        ({"regex": "a+"}, True),
        ({"min_new_tokens": 9}, True),
    ],
)
def test_a_guard_acts_beside_what_it_leaves(make: Make, own: dict[str, Any], gives_way: bool):
    sent = {"logitport_guard": GUARD.guard_payload, "logitport_end_token": 2}
    default = {} if gives_way else {KEY: lp.encode(FORCED)}
    with one_policy() as seen:
        assert admitted(make(GIVES_WAY), own) == sent | default
    assert seen[NOTED] == (GUARD.guard, () if gives_way else (FORCED,))


@pytest.mark.parametrize("where", [lp.Stage.AGGREGATED, PREFILL])
def test_a_guard_reads_what_a_reply_continues(
    make: Make, monkeypatch: pytest.MonkeyPatch, where: lp.Stage
):
    admission = make(GUARD)
    monkeypatch.setattr(module, "stage", lambda: where)
    sent = admitted(admission, logitport=lp.encode(BIAS, continued=3))
    assert lp.decode(sent["logitport_guard"]).continued == 3


@pytest.mark.parametrize("custom", [{}, {KEY: lp.encode(BIAS)}])
def test_a_guard_acts_where_the_first_token_is_chosen(
    make: Make, monkeypatch: pytest.MonkeyPatch, custom: Any
):
    """In a prefill worker, where specs and defaults do not act."""
    admission = make(GUARD)
    monkeypatch.setattr(module, "stage", lambda: PREFILL)
    sent = admitted(admission, **custom)
    assert KEY not in sent
    assert lp.decode(sent["logitport_guard"]).is_active(PREFILL)


@pytest.mark.parametrize("where", [lp.Stage.AGGREGATED, PREFILL])
def test_a_chain_is_checked_where_it_acts(
    make: Make, monkeypatch: pytest.MonkeyPatch, where: lp.Stage
):
    """A prefill worker chooses the first token."""
    admission = make(Policy())
    monkeypatch.setattr(module, "stage", lambda: where)
    payload = lp.encode(lp.ChainSpec((lp.ChainStep(temperature=0.8),)), generation_only=False)
    assert admitted(admission, {"temperature": 0.8}, logitport=payload) == {KEY: payload}
    with pytest.raises(ValueError, match=r"a temperature of 1, or of 0\.8 as in its steps"):
        admitted(admission, {"temperature": 0.7}, logitport=payload)


MARKED = Policy(profiles={"news": Mark("news", 1)}, required="news")
BODIES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "greedy": {"temperature": 0},
    "a regular expression": {"regex": "a+"},
    "no output": {"max_new_tokens": 0},
    "a ban": {"logit_bias": {"8": -100}},
}
PAYLOADS: dict[str, Any] = {
    "a bias": lp.encode(BIAS),
    "a bias for all stages": lp.encode(BIAS, generation_only=False),
    "what is forced": lp.encode(FORCED),
    "what does not exist": '[{"kind": "mind_reader"}]',
    "a mark": '[{"kind": "watermark", "profile": "news"}]',
    "none": None,
}


@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS)
@pytest.mark.parametrize("own", BODIES.values(), ids=BODIES)
def test_a_request_is_counted_once(
    own: dict[str, Any], payload: Any, make: Make, monkeypatch: pytest.MonkeyPatch
):
    counted = list[str]()
    monkeypatch.setattr(module, "count", lambda decision, *_, **__: counted.append(decision))
    for policy in (Policy(), GUARD, MARKED):
        counted.clear()
        try:
            admitted(make(policy), own, **({} if payload is None else {KEY: payload}))
        except ValueError:
            assert counted == ["refused"]
        else:
            assert counted == ["admitted"] * (payload is not None)


def test_a_guard_leaves_no_room_for_another_processor(make: Make, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(ADMIT_OTHERS_VARIABLE, "1")
    request = GenerateReqInput("Hello", sampling_params={}, custom_logit_processor="another")
    counted = list[str]()
    monkeypatch.setattr(module, "count", lambda decision, *_, **__: counted.append(decision))
    with pytest.raises(ValueError, match="This server has a guard, and SGLang takes one"):
        make(GUARD).admit(request)
    assert counted == ["refused"]
    marked = Policy(profiles={"news": Mark("news", 1)}, required="news")
    with pytest.raises(ValueError, match="This server marks its texts, and SGLang takes one"):
        make(marked).admit(request)
    make(Policy()).admit(request)


@pytest.mark.parametrize(
    ("fact", "value", "reason"),
    [
        ("get_spec", SimpleNamespace(speculative_algorithm="any"), "draft tokens of speculative"),
        ("get_exec", SimpleNamespace(dllm=SimpleNamespace(dllm_algorithm=1)), "diffusion models"),
        ("use_mlx", True, "MLX backend"),
    ],
)
def test_engines_that_call_no_processors(
    make: Make, monkeypatch: pytest.MonkeyPatch, fact: str, value: Any, reason: str
):
    """They let in no specs."""
    admission, own = make(Policy()), {KEY: lp.encode(FORCED)}
    admitted(admission, **own)
    monkeypatch.setattr(module, fact, lambda: value)
    with pytest.raises(ValueError, match=reason):
        admitted(admission, **own)
