"""Dynamo's half and ours: the same entries, and who attaches what to a request.

What needs Dynamo itself is skipped where only its runtime is installed (``.venv``): its engines'
contract is in a distribution that pins another vLLM. ``make demo-dynamo`` passes all of it.
"""

import asyncio
import importlib
import json
import os
import subprocess
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from logitport import spec as lp
from logitport.adapters import dynamo_worker
from logitport.adapters.dynamo import (
    LogitsProcessors,
    annotation,
    attach,
    extra_body,
    from_dynamo,
    has_specs,
    requested,
)
from logitport.adapters.environment import STAGE_VARIABLE
from logitport.adapters.vllm import KEY

SPEC = lp.ForcedTokenSequenceSpec((1, 2), 3)
OTHER_SPEC = lp.BannedTokensSpec((9,))


@pytest.fixture(scope="module")
def dynamo() -> Any:
    return importlib.import_module("dynamo.common.backend.engine")


@pytest.fixture(scope="module")
def modes(dynamo: Any) -> Any:
    return importlib.import_module("dynamo.common.constants").DisaggregationMode


def stand_in(**extra_args: Any) -> Any:
    return SimpleNamespace(extra_args=extra_args or None)


def request_with(*annotations: str, max_tokens: int | None = None) -> dict[str, Any]:
    stop = {"max_tokens": max_tokens}
    return {"token_ids": [1], "annotations": list(annotations), "stop_conditions": stop}


@pytest.mark.needs("dynamo.common.backend.engine")
class TestRoundTrip:
    token_ids = st.integers(0, lp.limits.MAX_INT)
    forced = st.lists(st.tuples(st.lists(token_ids, min_size=1), token_ids), max_size=3)

    @given(forced)
    def test_what_dynamo_serializes_decodes_here(self, dynamo: Any, forced: Any):
        theirs = [dynamo.ForcedTokenSequenceSpec(tuple(ids), eos) for ids, eos in forced]
        ours = tuple(lp.ForcedTokenSequenceSpec(tuple(ids), eos) for ids, eos in forced)
        for their, our in zip(theirs, ours, strict=True):
            entries = dynamo.serialize_logits_processor_entries([their])
            assert lp.decode(entries).specs == lp.decode(json.dumps(entries)).specs == (our,)
            assert from_dynamo(dynamo.LogitsProcessorSpec((their,))) == (our,)
        if theirs:  # several on one request: both sides carry them
            assert from_dynamo(dynamo.LogitsProcessorSpec(tuple(theirs))) == ours

    @given(forced)
    def test_what_we_serialize_decodes_there(self, dynamo: Any, forced: Any):
        theirs = [dynamo.ForcedTokenSequenceSpec(tuple(ids), eos) for ids, eos in forced]
        ours = [lp.ForcedTokenSequenceSpec(tuple(ids), eos) for ids, eos in forced]
        entries = [json.loads(lp.encode(our))["specs"][0] for our in ours]
        assert dynamo.deserialize_logits_processor_entries(entries) == theirs
        assert dynamo.serialize_logits_processor_entries(theirs) == entries

    @pytest.mark.parametrize("kind", ["nope", "python", "", None])
    def test_both_refuse_unknown_kinds(self, dynamo: Any, kind: Any):
        entries = [{"kind": kind, "token_ids": [1], "eos_token_id": 2}]
        with pytest.raises(ValueError, match="unknown logits-processor entry kind"):
            dynamo.deserialize_logits_processor_entries(entries)
        with pytest.raises(lp.SpecError) as error:
            lp.decode(entries)
        assert error.value.path == "$[0].kind"

    def test_nothing(self, dynamo: Any):
        assert from_dynamo(dynamo.LogitsProcessorSpec(())) == ()

    def test_live_factories_are_refused(self, dynamo: Any):
        live = dynamo.PythonProcessorSpec(dict)
        spec = dynamo.LogitsProcessorSpec((dynamo.ForcedTokenSequenceSpec((1,), 2), live))
        with pytest.raises(lp.SpecError, match="PythonProcessorSpec is not serializable") as error:
            from_dynamo(spec)
        assert error.value.path == "$[1]"

    def test_what_ours_may_not_say_is_refused(self, dynamo: Any):
        for token_ids, path in (((), "$[0].token_ids"), ((-1,), "$[0].token_ids[0]")):
            theirs = dynamo.ForcedTokenSequenceSpec(token_ids, 2)
            with pytest.raises(lp.SpecError) as error:
                from_dynamo(dynamo.LogitsProcessorSpec((theirs,)))
            assert error.value.path == path


class TestAttach:
    @pytest.mark.needs("dynamo.common.backend.engine")
    def test_stages_have_dynamos_values(self, modes: Any):
        assert [mode.value for mode in modes] == list(lp.Stage)

    @pytest.mark.needs("dynamo.common.backend.engine")
    @pytest.mark.parametrize("generation_only", [True, False])
    def test_gate(self, dynamo: Any, modes: Any, generation_only: bool):
        theirs = dynamo.LogitsProcessorSpec(
            (dynamo.ForcedTokenSequenceSpec((1, 2), 3),), generation_only
        )
        payload = lp.encode(SPEC, generation_only=generation_only)
        for mode in modes:
            active = dynamo.logits_processors_for_request(theirs, disaggregation_mode=mode)
            expected = {"a": 1, KEY: payload} if active else {"a": 1}
            by_theirs = attach(stand_in(a=1), theirs, disaggregation_mode=mode)
            by_ours = attach(
                stand_in(a=1), SPEC, disaggregation_mode=mode, generation_only=generation_only
            )
            assert by_theirs.extra_args == by_ours.extra_args == expected

    def test_gate_without_dynamo(self):
        for stage in lp.Stage:  # the same values
            params = attach(stand_in(), [SPEC, OTHER_SPEC], disaggregation_mode=stage)  # pyright: ignore
            assert (params.extra_args is not None) == stage.generates


class TestAnnotation:
    @pytest.mark.parametrize(
        ("specs", "more", "message"),
        [
            ({"kind": "forced_sequence", "text": "hi"}, {}, "needs the model's tokenizer"),
            (SPEC, {"generation_only": False}, "prefill worker cannot count"),
        ],
    )
    def test_what_no_worker_could_do(self, specs: Any, more: Any, message: str):
        with pytest.raises(lp.SpecError, match=message):
            annotation(specs, max_tokens=9, **more)

    def test_round_trip(self):
        text = annotation([SPEC, OTHER_SPEC], max_tokens=None, generation_only=False)
        assert text == f"logitport:{lp.encode([SPEC, OTHER_SPEC], generation_only=False)}"
        payload = requested(request_with("formatted_prompt", text, "token_ids"))
        assert payload is not None
        assert payload.specs == (SPEC, OTHER_SPEC)
        assert not payload.generation_only

    @pytest.mark.parametrize(
        "request_",
        [{}, {"annotations": None}, {"annotations": []}, request_with("logitport", "x:logitport:")],
        ids=repr,
    )
    def test_none(self, request_: Any):
        assert requested(request_) is None
        assert not has_specs(request_)

    @pytest.mark.parametrize(
        ("annotations", "message"),
        [
            (["logitport:"], "not valid JSON"),
            (["logitport:{}"], "required field `version`"),
            (["logitport:" + "[" * 100_000], "at most"),
            (['logitport:{"a":' + "[" * 100_000], "at most"),
            (["logitport:\udc00"], "not valid Unicode"),
            (
                [annotation(SPEC, max_tokens=None)] * 2,
                "Expected one annotation logitport:..., got 2",
            ),
        ],
    )
    def test_refused(self, annotations: list[str], message: str):
        with pytest.raises(lp.SpecError, match=message):
            requested(request_with(*annotations))


class TestContinued:
    """A worker counts what an earlier one has made."""

    TEXT = annotation(SPEC, max_tokens=9)

    def test_a_body_has_one_max_tokens(self):
        body = extra_body(SPEC, max_tokens=9, continued=2)
        (text,) = body["nvext"]["annotations"]
        assert body["max_tokens"] == json.loads(text.removeprefix("logitport:"))["max_tokens"] == 9
        assert json.loads(text.removeprefix("logitport:"))["continued"] == 2

    def test_a_worker_that_does_not_count_refuses_it(self):
        with pytest.raises(lp.SpecError, match="unknown field `max_tokens`"):
            lp.decode(self.TEXT.removeprefix("logitport:"))

    @pytest.mark.parametrize("left", range(1, 10))
    def test_the_difference(self, left: int):
        for already in (0, 3):
            text = annotation(SPEC, max_tokens=9, continued=already)
            request = request_with(text, max_tokens=left)
            assert requested(request) == lp.Payload(1, (SPEC,), continued=9 + already - left)

    def test_where_nothing_is_counted(self):
        """Without a count, of a prefill request, and of a client's body."""
        body = {"max_tokens": 9, "nvext": {"annotations": [self.TEXT]}}
        uncounted = request_with(annotation(SPEC, max_tokens=None), max_tokens=4)
        prefill = requested(request_with(self.TEXT, max_tokens=1), lp.Stage.PREFILL)
        assert requested(uncounted) == prefill == requested(body) == lp.Payload(1, (SPEC,))
        with pytest.raises(lp.SpecError, match="annotation, 9, got 10"):
            requested({**body, "max_tokens": 10})

    @pytest.mark.parametrize(("most", "message"), [(10, "9, got 10"), (None, "9, got none")])
    def test_other_max_tokens_of_the_request(self, most: int | None, message: str):
        request = request_with(self.TEXT, max_tokens=most)
        with pytest.raises(lp.SpecError, match=message) as error:
            requested(request)
        assert error.value.path == "$.max_tokens"

    @pytest.mark.parametrize("wrong", [0, -1, True, 1.5, "9", 1 << 31])
    def test_not_a_count(self, wrong: Any):
        payload = json.dumps({"version": 1, "specs": [], "max_tokens": wrong})
        for refused in (
            lambda: annotation(SPEC, max_tokens=wrong),
            lambda: requested(request_with(f"logitport:{payload}")),
        ):
            with pytest.raises(lp.SpecError) as error:
                refused()
            assert error.value.path == "$.max_tokens"


class Params(dict[str, Any]):
    """What stands in for vLLM's."""

    extra_args: Any = None


class TestDynamosOwnWorker:
    """The plugin, with stand-ins for the modules of Dynamo's worker."""

    @pytest.fixture
    def handlers(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        def build_sampling_params(
            request: Any,
            default_sampling_params: Any,
            model_max_len: Any = None,
            enable_rl: bool = False,
        ) -> Params:
            return Params(request)

        def build_sampling_params_openai(request: Any, default_sampling_params: Any) -> Params:
            return Params(request)

        handlers: Any = ModuleType(dynamo_worker.DYNAMO_HANDLERS)
        handlers.build_sampling_params = build_sampling_params
        handlers.build_sampling_params_openai = build_sampling_params_openai
        other: Any = ModuleType("dynamo.vllm.other")
        other.build_sampling_params = build_sampling_params
        handlers.other = other
        monkeypatch.setitem(sys.modules, handlers.__name__, handlers)
        monkeypatch.setitem(sys.modules, other.__name__, other)
        return handlers

    def generate(self, build: Any, request: Any, mode: Any) -> Params:
        """Call a function of the handlers as their methods do."""

        class Handler:
            config = SimpleNamespace(disaggregation_mode=SimpleNamespace(value=mode))

            def generate(self) -> Params:
                return build(request, {})

        return Handler().generate()

    def test_elsewhere_it_does_nothing(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.delitem(sys.modules, dynamo_worker.DYNAMO_HANDLERS, raising=False)
        dynamo_worker.load()

    def test_specs_reach_vllm_wherever_the_function_is(self, handlers: Any):
        assert not hasattr(handlers, dynamo_worker.TAKES_SPECS)
        dynamo_worker.load()
        assert hasattr(handlers, dynamo_worker.TAKES_SPECS)
        wrapped = handlers.build_sampling_params
        dynamo_worker.load()  # vLLM may call it more than once
        assert handlers.other.build_sampling_params is handlers.build_sampling_params is wrapped

    @pytest.mark.needs("dynamo.llm.exceptions")
    @pytest.mark.parametrize("name", dynamo_worker.BUILDERS)
    def test_stages(self, handlers: Any, name: str):
        dynamo_worker.load()
        build, text = getattr(handlers, name), annotation(SPEC, max_tokens=9)
        for stage in lp.Stage:
            left = 9 if name.endswith("openai") else 4
            request = {"nvext": {"annotations": [text]}, "max_tokens": left}
            if not name.endswith("openai"):
                request = request_with(text, max_tokens=left)
            params = self.generate(build, request, stage)
            assert params == request
            payload = lp.encode(SPEC, continued=9 - left)
            assert params.extra_args == ({KEY: payload} if stage.generates else None)

    def test_a_request_without_specs_needs_no_configuration(self, handlers: Any):
        dynamo_worker.load()
        assert handlers.build_sampling_params(request_with("a"), {}).extra_args is None

    @pytest.mark.needs("dynamo.llm.exceptions")
    def test_bad_specs_are_the_clients_fault(self, handlers: Any):
        exceptions = importlib.import_module("dynamo.llm.exceptions")
        dynamo_worker.load()
        request = request_with("logitport:{}")
        with pytest.raises(exceptions.InvalidArgument, match=r"^logitport: Object missing"):
            self.generate(handlers.build_sampling_params, request, "agg")

    @pytest.mark.parametrize("name", dynamo_worker.BUILDERS)
    def test_another_dynamo_does_not_start(self, handlers: Any, name: str):
        build = getattr(handlers, name)
        setattr(handlers, name, lambda request, params: build(request, params))
        with pytest.raises(SystemExit, match=rf"no dynamo.vllm.handlers.{name}\(request, "):
            dynamo_worker.load()
        delattr(handlers, name)
        with pytest.raises(SystemExit, match="cannot pass specs to this version of Dynamo"):
            dynamo_worker.load()
        assert handlers.other.build_sampling_params.__name__ == "build_sampling_params"
        assert not hasattr(handlers, dynamo_worker.TAKES_SPECS)

    @pytest.mark.slow
    def test_without_the_plugin_vllm_does_not_load_the_processor(self):
        pytest.importorskip("vllm")
        code = (
            "import sys, types; sys.modules['dynamo.vllm.handlers'] = types.ModuleType('x'); "
            "import logitport.adapters.vllm.processor"
        )
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert result.returncode
        assert "name it in VLLM_PLUGINS" in result.stderr

    @pytest.mark.needs("dynamo.vllm")
    def test_dynamos_functions_are_as_expected(self):
        code = (
            "from dynamo.vllm import handlers; from logitport.adapters import dynamo_worker; "
            "dynamo_worker.load(); assert hasattr(handlers, dynamo_worker.TAKES_SPECS)"
        )
        subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.needs("dynamo.llm.exceptions")
class TestMixin:
    def activate(self, params: Any, *annotations: str, declared: Any = None, stage: Any) -> Any:
        class Engine(LogitsProcessors):
            disaggregation_mode = stage

            async def logits_processor_spec(self) -> Any:
                return declared

        request = request_with(*annotations)
        return asyncio.run(Engine().activate_logits_processors(params, request))

    def test_the_request_is_gated(self):
        for stage in lp.Stage:
            params = stand_in()
            assert self.activate(params, annotation(SPEC, max_tokens=None), stage=stage) is params
            assert params.extra_args == ({KEY: lp.encode(SPEC)} if stage.generates else None)
            self.activate(
                params, annotation(SPEC, max_tokens=None, generation_only=False), stage=stage
            )
            assert params.extra_args == {KEY: lp.encode(SPEC, generation_only=False)}

    def test_a_request_without_specs_stays_as_it_is(self):
        for stage in lp.Stage:
            assert self.activate(stand_in(a=1), "token_ids", stage=stage).extra_args == {"a": 1}

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("logitport:[]", "logitport: Expected `array` of length >= 1"),
            (
                'logitport:{"version":1,"specs":[{"kind":"nope"}]}',
                "logitport: Invalid value 'nope'; the kinds that can travel are forced_sequence,",
            ),
        ],
    )
    def test_bad_specs_are_the_clients_fault(self, text: str, message: str):
        """In any stage."""
        from dynamo.llm.exceptions import InvalidArgument

        params = stand_in(a=1)
        with pytest.raises(InvalidArgument) as error:
            self.activate(params, text, stage=lp.Stage.PREFILL)
        assert str(error.value).startswith(message)
        assert params.extra_args == {"a": 1}

    @pytest.mark.needs("dynamo.common.backend.engine")
    def test_what_the_engine_declares(self, dynamo: Any, modes: Any):
        declared = dynamo.LogitsProcessorSpec((dynamo.ForcedTokenSequenceSpec((1, 2), 3),))
        for mode in modes:
            params = self.activate(stand_in(), declared=declared, stage=mode)
            generates = dynamo.is_generation_stage(mode)
            assert params.extra_args == ({KEY: lp.encode(SPEC)} if generates else None)
            params = self.activate(
                stand_in(), annotation(OTHER_SPEC, max_tokens=None), declared=declared, stage=mode
            )
            assert params.extra_args == ({KEY: lp.encode(OTHER_SPEC)} if generates else None)
        nothing = dynamo.LogitsProcessorSpec(())
        params = self.activate(stand_in(), declared=nothing, stage=modes.DECODE)
        assert params.extra_args is None

    @pytest.mark.needs("dynamo.common.backend.engine")
    def test_what_the_engine_cannot_declare(self, dynamo: Any, modes: Any):
        declared = dynamo.LogitsProcessorSpec((dynamo.PythonProcessorSpec(dict),))
        with pytest.raises(RuntimeError, match=r"logits_processor_spec\(\): .*not serializable"):
            self.activate(stand_in(), declared=declared, stage=modes.PREFILL)

    @pytest.mark.needs("dynamo.common.backend.engine")
    def test_in_an_llm_engine(self, dynamo: Any, modes: Any):
        class Engine(LogitsProcessors, dynamo.LLMEngine):
            disaggregation_mode = modes.DECODE

        assert Engine.logits_processor_spec is dynamo.LLMEngine.logits_processor_spec

    def test_vllm_is_told_the_stage(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv(STAGE_VARIABLE, "")  # put back as it was
        for stage in lp.Stage:
            engine = LogitsProcessors()
            engine.disaggregation_mode = stage  # pyright: ignore
            engine.declare_stage()
            assert os.environ[STAGE_VARIABLE] == stage.value
