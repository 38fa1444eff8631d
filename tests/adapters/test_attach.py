"""Attaching specs to a request: which workers are sent them, and what else stays as it was."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from logitport import spec as lp
from logitport.adapters import REALIZABLE, Attachment, Backend, fields_of, grammar_text, same_as
from logitport.adapters.sglang import attach as attach_to_sglang
from logitport.adapters.vllm import KEY, attach

from tests.support.forms import forms
from tests.support.strategies import samplings

SPEC = lp.ForcedTokenSequenceSpec((1, 2), 3)
OTHER_SPEC = lp.ForcedTokenSequenceSpec((4,))
BANNED = lp.BannedTokensSpec((9,))

MakeParams = Callable[[dict[str, Any] | None], Any]


def sampling_params(**fields: Any) -> Any:
    """Make vLLM's, where it is installed."""
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    if grammar := fields.get("structured_outputs"):
        fields["structured_outputs"] = StructuredOutputsParams(**grammar)
    return SamplingParams(**fields)


@pytest.fixture(params=[SimpleNamespace, sampling_params], ids=["stand-in", "SamplingParams"])
def make_params(request: pytest.FixtureRequest) -> MakeParams:
    return lambda extra_args: request.param(extra_args=extra_args)


GENERATING = lp.Stage.AGGREGATED, lp.Stage.DECODE


@pytest.mark.parametrize("generation_only", [True, False])
@pytest.mark.parametrize("stage", lp.Stage)
def test_gate(make_params: MakeParams, stage: lp.Stage, generation_only: bool):
    payload = lp.encode(SPEC, generation_only=generation_only)
    sent = stage in GENERATING or not generation_only
    for before in (None, {}, {"a": [1]}, {KEY: "old"}, {"a": [1], KEY: "old"}):
        rest = {"a": [1]} if before and "a" in before else {}
        params = make_params(before)
        for _ in range(2):
            attach(params, SPEC, stage=stage, generation_only=generation_only)
            assert params.extra_args == ({**rest, KEY: payload} if sent else rest or None)


def test_a_stage_by_its_value(make_params: MakeParams):
    prefill: Any = "prefill"
    assert attach(make_params({"a": 1}), SPEC, stage=prefill).extra_args == {"a": 1}
    for unknown in ("PREFILL", "aggregated", None, 1):
        with pytest.raises(lp.SpecError, match="Expected a stage, one of agg, prefill, decode"):
            attach(make_params(None), SPEC, stage=unknown)


@pytest.mark.parametrize("other", [{}, None, SPEC, "text"])
def test_no_sampling_params(other: Any):
    with pytest.raises(lp.SpecError, match="Expected vLLM's SamplingParams, got "):
        attach(other, SPEC)


def test_the_callers_dict_stays(make_params: MakeParams):
    shared = {"seed": {"nested": 1}, KEY: "old"}
    first, second = make_params(shared), make_params(shared)
    attach(first, SPEC)
    attach(second, OTHER_SPEC)
    assert shared == {"seed": {"nested": 1}, KEY: "old"}
    assert first.extra_args == {"seed": {"nested": 1}, KEY: lp.encode(SPEC)}
    assert second.extra_args == {"seed": {"nested": 1}, KEY: lp.encode(OTHER_SPEC)}


def test_again_and_anew_and_off(make_params: MakeParams):
    params = make_params({"a": 1})
    for _ in range(2):
        assert attach(params, SPEC) is params
        assert params.extra_args == {"a": 1, KEY: lp.encode(SPEC)}
    attach(params, [OTHER_SPEC], generation_only=False)
    assert params.extra_args == {"a": 1, KEY: lp.encode(OTHER_SPEC, generation_only=False)}
    attach(params, ())
    assert params.extra_args == {"a": 1}
    attach(params, SPEC)
    attach(params, SPEC, stage=lp.Stage.PREFILL)
    assert params.extra_args == {"a": 1}


@pytest.mark.parametrize("stage", lp.Stage)
def test_refused_whatever_the_stage(make_params: MakeParams, stage: lp.Stage):
    params = make_params({"a": 1, KEY: lp.encode(OTHER_SPEC)})
    for bad in ([SPEC, lp.GrammarSpec(regex="a")], [lp.PythonProcessorSpec(dict)] * 17):
        with pytest.raises(lp.SpecError):
            attach(params, bad, stage=stage)
        assert params.extra_args == {"a": 1, KEY: lp.encode(OTHER_SPEC)}


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"min_tokens": 3, "stop_token_ids": [3]}, "$.specs[0].eos_token_id"),
        ({"allowed_token_ids": [1, 3]}, "$.specs[0].token_ids[1]"),
    ],
    ids=["min_tokens", "allowed_token_ids"],
)
def test_conflicts_with_the_requests_own_fields(fields: dict[str, Any], path: str):
    params = sampling_params(**fields)
    with pytest.raises(lp.SpecError, match="Conflicts with the request's") as error:
        attach(params, SPEC)
    assert error.value.path == path
    assert params.extra_args is None
    attach(params, SPEC, stage=lp.Stage.PREFILL)
    attach(params, BANNED)


def test_a_grammar_of_the_request_does_not_go_on():
    params = sampling_params(**structured("regex", "a+"))
    attach(params, BANNED)
    with pytest.raises(lp.SpecError, match=r"begins anew.*request.s structured_outputs") as error:
        attach(params, BANNED, continued=1)
    assert error.value.path == "$.continued"


def test_live_callables_are_attached_as_they_are(make_params: MakeParams):
    specs = (lp.PythonProcessorSpec(dict), SPEC)
    params = attach(make_params({"a": 1}), specs)
    assert params.extra_args is not None
    assert params.extra_args.pop(KEY).specs == specs
    assert params.extra_args == {"a": 1}
    assert attach(params, specs, stage=lp.Stage.PREFILL).extra_args == {"a": 1}


FAR_FROM_DEFAULT = {
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 7,
    "min_p": 0.1,
    "presence_penalty": 1.0,
    "frequency_penalty": -1.0,
    "repetition_penalty": 1.5,
}
SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, "b"]}}, "required": ["a"]}
TAG = {"type": "structural_tag", "format": {"type": "any_text"}}
TAG_TEXT = '{"type":"structural_tag","format":{"type":"any_text"}}'
BY_REGEX = lp.GrammarSpec(regex="a+")
OF_GRAMMAR = "'s structured_outputs, which may not take the tokens that `forced_sequence` forces"
GREEDY, WARM, HOT = (lp.SamplingSpec(temperature=each) for each in (0, 0.5, 1))
SETS = ", which sets"


def structured(form: str, value: Any) -> dict[str, Any]:
    return {"structured_outputs": {form: value}}


# What the caller has set | what is attached | what the caller could have set instead.
LOWERED: dict[str, tuple[dict[str, Any], list[lp.LogitsProcessorSpec], dict[str, Any]]] = {
    "everything": ({}, [lp.SamplingSpec(**FAR_FROM_DEFAULT)], FAR_FROM_DEFAULT),
    "one thing": ({"seed": 3, "n": 2}, [lp.SamplingSpec(min_p=0.5)], {"min_p": 0.5}),
    "the defaults": ({}, [lp.SamplingSpec(temperature=1, top_k=0)], {}),
    "greedy": ({}, [GREEDY], {"temperature": 0}),
    "greedy, top_p without effect": (
        *({"top_p": 0.5, "min_p": 0.5}, [lp.SamplingSpec(temperature=0, top_k=9)]),
        {"temperature": 0, "top_k": 9},
    ),
    "too cold for vLLM": ({}, [lp.SamplingSpec(temperature=0.005)], {"temperature": 0.005}),
    "set already, to the same": ({"temperature": 0.5, "top_p": 0.5}, [WARM], {}),
    "from two specs": (
        {},
        [lp.SamplingSpec(temperature=0.5, top_k=3), lp.SamplingSpec(temperature=0.5, min_p=0.5)],
        {"temperature": 0.5, "top_k": 3, "min_p": 0.5},
    ),
    "a schema": ({}, [lp.GrammarSpec(json_schema=SCHEMA)], structured("json", SCHEMA)),
    "a regex": ({}, [BY_REGEX], structured("regex", "a+")),
    "a grammar": ({}, [lp.GrammarSpec(ebnf="root ::= a")], structured("grammar", "root ::= a")),
    "choices": ({}, [lp.GrammarSpec(choices=("a", "b"))], structured("choice", ["a", "b"])),
    "a tag": ({}, [lp.GrammarSpec(structural_tag=TAG)], structured("structural_tag", TAG_TEXT)),
    "both kinds": ({}, [GREEDY, BY_REGEX], {"temperature": 0, **structured("regex", "a+")}),
    "a grammar set already, with options": (
        {"structured_outputs": {"regex": "a+", "whitespace_pattern": " "}},
        *([BY_REGEX], {}),
    ),
}


class TestNativeKinds:
    @pytest.mark.parametrize("name", LOWERED)
    def test_are_the_requests_own_fields(self, name: str):
        fields, specs, instead = LOWERED[name]
        expected = sampling_params(**fields, **instead)
        params = sampling_params(**fields)
        assert params.sampling_type is not None  # vLLM remembers what it says here
        for _ in range(3):
            attach(params, specs)
            assert params == expected
            assert params.sampling_type is expected.sampling_type
        if expected.structured_outputs:
            schema = params.structured_outputs.json
            assert repr(schema) == repr(expected.structured_outputs.json)  # lists and dicts

    @given(samplings, samplings)
    def test_any_sampling(self, spec: lp.SamplingSpec, other: lp.SamplingSpec):
        given_fields = msgspec.structs.asdict(spec).items()
        expected = sampling_params(**{k: v for k, v in given_fields if v is not None})
        params = attach(attach(sampling_params(), spec), spec)
        assert params == expected
        try:
            attach(params, other)
        except lp.SpecError:
            assert params == expected

    def test_only_the_others_are_the_payload(self):
        params = sampling_params()
        attach(params, [OTHER_SPEC, WARM, BANNED], generation_only=False)
        expected = lp.encode([OTHER_SPEC, BANNED], generation_only=False)
        assert (params.temperature, params.extra_args) == (0.5, {KEY: expected})
        attach(params, WARM)
        assert params.extra_args is None

    def test_beside_live_callables(self):
        live = lp.PythonProcessorSpec(dict)
        params = attach(sampling_params(), [BY_REGEX, live])
        assert params.structured_outputs.regex == "a+"
        assert params.extra_args[KEY].specs == (live,)

    @pytest.mark.parametrize("generation_only", [True, False])
    @pytest.mark.parametrize("stage", lp.Stage)
    def test_gate(self, stage: lp.Stage, generation_only: bool):
        specs = [WARM, BY_REGEX]
        params = attach(sampling_params(), specs, stage=stage, generation_only=generation_only)
        sent = stage in GENERATING or not generation_only
        assert params.temperature == (0.5 if sent else 1.0)
        assert (params.structured_outputs is not None) == sent

    @pytest.mark.parametrize(
        ("fields", "specs", "message", "path"),
        [
            ({"temperature": 0.7}, [BANNED, WARM], f"{SETS} temperature to 0.7", "[1].temperature"),
            ({"temperature": 0}, [HOT], f"{SETS} temperature to 0", "[0].temperature"),
            (structured("regex", "a"), [BY_REGEX], f"{SETS} structured_outputs to Struct", "[0]"),
            (structured("json", {}), [WARM, SPEC], OF_GRAMMAR, "[1]"),
        ],
    )
    def test_conflicts_with_the_request(
        self, fields: dict[str, Any], specs: Any, message: str, path: str
    ):
        params = sampling_params(extra_args={KEY: "old"}, **fields)
        with pytest.raises(lp.SpecError) as error:
            attach(params, specs)
        assert error.value.message.startswith(f"Conflicts with the request{message}")
        assert error.value.path == f"$.specs{path}"
        assert params == sampling_params(extra_args={KEY: "old"}, **fields)

    def test_what_vllm_refuses_together(self):
        from vllm.exceptions import VLLMValidationError

        params = sampling_params(n=2)
        with pytest.raises(VLLMValidationError, match="n must be 1 when using greedy sampling"):
            attach(params, [lp.SamplingSpec(temperature=0, top_p=0.5), SPEC])
        assert params == sampling_params(n=2)

    def test_other_objects_need_the_fields(self):
        params = SimpleNamespace(extra_args=None, temperature=None, top_p=None)
        attach(params, lp.SamplingSpec(temperature=0, top_p=0.5))
        assert vars(params) == {"extra_args": None, "temperature": 0.0, "top_p": 0.5}
        for spec, name in [(lp.SamplingSpec(top_p=0.5, min_p=0.5), "min_p"), (BY_REGEX, "struct")]:
            with pytest.raises(lp.SpecError, match=f"SimpleNamespace to have a field {name}"):
                attach(params, [spec, BANNED])
        assert vars(params) == {"extra_args": None, "temperature": 0.0, "top_p": 0.5}

    def test_a_schema_may_be_as_deep_as_vllm_takes_it(self):
        from vllm.sampling_params import check_json_nesting

        schema: dict[str, Any] = {}
        for _ in range(lp.limits.MAX_DEPTH - 1):
            schema = {"not": schema}
        lp.GrammarSpec(json_schema=schema)
        check_json_nesting(schema)
        with pytest.raises(lp.SpecError):
            lp.GrammarSpec(json_schema={"not": schema})
        with pytest.raises(Exception, match="nested too deeply"):
            check_json_nesting({"not": schema})

    def test_in_a_payload_they_are_refused(self):
        from logitport.adapters.vllm import LogitportProcessor

        params = sampling_params(extra_args={KEY: lp.encode([BANNED, WARM])})
        with pytest.raises(ValueError, match=r"`sampling` by itself.*attach.*temperature") as error:
            LogitportProcessor.validate_params(params)
        assert "`$.specs[1]`" in str(error.value)


class TestAnEngineOfOnesOwn:
    """With what ``logitport.adapters`` exports alone; its requests are dictionaries."""

    attachment = Attachment(
        Backend("own", realizes=REALIZABLE, lowers=frozenset({lp.GrammarSpec, lp.SamplingSpec})),
        native=lambda spec, request: (
            dict([grammar_text(spec)]) if isinstance(spec, lp.GrammarSpec) else fields_of(spec)
        ),
        grammars=("regex", "ebnf"),
        grammar_comes_last=True,
        own_fields=lambda request: {
            "banned": same_as(lp.BannedTokensSpec, token_ids=request.get("banned"))
        },
    )

    def attach(self, request: dict[str, Any], *specs: lp.LogitsProcessorSpec) -> dict[str, Any]:
        with self.attachment.attaching(request, specs, lp.Stage.AGGREGATED, True) as attached:
            return attached.put_into(request | attached.fields)

    def test_without_grammars_of_its_own(self):
        ours = Attachment(Backend("own", realizes=REALIZABLE))
        for grammar in (BY_REGEX, {"kind": "grammar", "regex": "a+"}):
            with ours.attaching({}, [grammar, BANNED], lp.Stage.AGGREGATED, True) as attached:
                carried = lp.decode(attached.put_into({})[KEY]).specs
            assert carried == (lp.PhasesSpec((lp.Phase((BY_REGEX,)),)), BANNED)
        with (
            pytest.raises(lp.SpecError, match="does not support `sampling`"),
            ours.attaching({}, lp.SamplingSpec(top_k=3), lp.Stage.AGGREGATED, True),
        ):
            pass

    def test_the_payload_and_the_fields(self):
        specs: list[lp.NativeSpec] = [lp.SamplingSpec(top_k=0), lp.GrammarSpec(choices=("a", "b"))]
        expected = {"top_k": 0, "ebnf": 'root ::= "a" | "b"', "mine": 1, KEY: lp.encode(BANNED)}
        once = self.attach({"mine": 1, KEY: "old"}, *specs, BANNED)
        assert once == expected
        assert self.attach(once, *specs, BANNED) == expected
        assert self.attach({"mine": 1, KEY: "old"}) == {"mine": 1}

    @pytest.mark.parametrize(
        ("request_", "spec", "message", "path"),
        [
            ({"top_k": 3}, lp.SamplingSpec(top_k=0), "request, which sets top_k to 3", ".top_k"),
            ({"ebnf": "x"}, BY_REGEX, "request, which sets ebnf to 'x'", ".regex"),
            ({"regex": "b"}, SPEC, "request's regex, which may .* `forced_sequence` forces", ""),
            ({"regex": "b"}, lp.AllowedTokensSpec((1,)), "regex, .* `allowed_tokens` leaves", ""),
            ({"banned": [2]}, SPEC, "the request's `banned`, which bans token 2", ".token_ids[1]"),
        ],
    )
    def test_conflicts(self, request_: dict[str, Any], spec: Any, message: str, path: str):
        with pytest.raises(lp.SpecError, match=f"Conflicts with .*{message}") as error:
            self.attach(request_, BANNED, spec)
        assert error.value.path == f"$.specs[1]{path}"

    @pytest.mark.parametrize(
        "spec",
        [
            lp.AllowedTokensSpec((1,)),
            lp.PythonProcessorSpec(dict),
            lp.PluginSpec("any"),
            lp.ThinkingBudgetSpec(3, (1,), (2,)),
        ],
        ids=lambda spec: spec.kind,
    )
    def test_a_grammar_that_comes_last(self, spec: Any):
        with pytest.raises(lp.SpecError, match=r"`\$\.specs\[0\]`, a grammar, which .* leaves"):
            self.attach({}, BY_REGEX, spec)


CHOICE = {"kind": "choice", "texts": ["yes", "no"]}


@pytest.mark.parametrize("form", forms(CHOICE))
def test_json_of_the_wire(make_params: MakeParams, form: str):
    """Texts reach the engine, which has the tokenizer."""
    params = attach(make_params({"a": 1}), forms(CHOICE)[form])
    assert params.extra_args == {"a": 1, KEY: lp.encode(CHOICE)}
    request = attach_to_sglang({"text": "?"}, forms(CHOICE)[form])
    assert request["sampling_params"]["custom_params"] == {KEY: lp.encode(CHOICE)}


def test_texts_are_compared_by_the_engine():
    params = sampling_params(allowed_token_ids=[5])
    assert attach(params, CHOICE).extra_args == {KEY: lp.encode(CHOICE)}
    with pytest.raises(lp.SpecError, match="allowed_token_ids"):
        attach(params, {"kind": "choice", "choices": [[6]]})
    with pytest.raises(lp.SpecError, match="structured_outputs"):
        attach(sampling_params(**structured("regex", "a")), CHOICE)


def test_json_beside_native_and_live_specs():
    params = attach(sampling_params(), [CHOICE, lp.SamplingSpec(top_p=0.5)])
    assert params.extra_args == {KEY: lp.encode(CHOICE)}
    assert params.top_p == 0.5
    with pytest.raises(lp.SpecError, match="PythonProcessorSpec cannot be serialized"):
        attach(params, [CHOICE, lp.PythonProcessorSpec(dict)])
