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
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from logitport import spec as lp
from logitport.adapters.dynamo import LogitsProcessors, annotation, attach, from_dynamo, requested
from logitport.adapters.environment import STAGE_VARIABLE
from logitport.adapters.vllm import KEY

SPEC = lp.ForcedTokenSequenceSpec((1, 2), 3)
OTHER_SPEC = lp.BannedTokensSpec((9,))


@pytest.fixture(scope="module")
def dynamo() -> Any:
    return pytest.importorskip(
        "dynamo.common.backend.engine", reason="ai-dynamo is in .venv-dynamo alone"
    )


@pytest.fixture(scope="module")
def modes(dynamo: Any) -> Any:
    return importlib.import_module("dynamo.common.constants").DisaggregationMode


def stand_in(**extra_args: Any) -> Any:
    return SimpleNamespace(extra_args=extra_args or None)


def request_with(*annotations: str) -> dict[str, Any]:
    return {"token_ids": [1], "annotations": list(annotations)}


def test_importing_it_imports_no_engine():
    code = (
        "import sys, logitport.adapters.dynamo; "
        "print({'dynamo', 'vllm', 'torch'}.intersection(sys.modules))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"


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
        for theirs, path in [
            (dynamo.ForcedTokenSequenceSpec((), 2), "$[0].token_ids"),
            (dynamo.ForcedTokenSequenceSpec((-1,), 2), "$[0].token_ids[0]"),
        ]:
            with pytest.raises(lp.SpecError) as error:
                from_dynamo(dynamo.LogitsProcessorSpec((theirs,)))
            assert error.value.path == path


class TestAttach:
    def test_stages_have_dynamos_values(self, modes: Any):
        assert [mode.value for mode in modes] == list(lp.Stage)

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
    def test_round_trip(self):
        text = annotation([SPEC, OTHER_SPEC], generation_only=False)
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

    @pytest.mark.parametrize(
        ("annotations", "message"),
        [
            (["logitport:"], "not valid JSON"),
            (["logitport:{}"], "required field `version`"),
            ([annotation(SPEC)] * 2, "Expected one annotation logitport:..., got 2"),
        ],
    )
    def test_refused(self, annotations: list[str], message: str):
        with pytest.raises(lp.SpecError, match=message):
            requested(request_with(*annotations))


class TestMixin:
    @pytest.fixture(autouse=True)
    def runtime(self) -> None:
        pytest.importorskip("dynamo.llm.exceptions")

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
            assert self.activate(params, annotation(SPEC), stage=stage) is params
            assert params.extra_args == ({KEY: lp.encode(SPEC)} if stage.generates else None)
            self.activate(params, annotation(SPEC, generation_only=False), stage=stage)
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

    def test_what_the_engine_declares(self, dynamo: Any, modes: Any):
        declared = dynamo.LogitsProcessorSpec((dynamo.ForcedTokenSequenceSpec((1, 2), 3),))
        for mode in modes:
            params = self.activate(stand_in(), declared=declared, stage=mode)
            generates = dynamo.is_generation_stage(mode)
            assert params.extra_args == ({KEY: lp.encode(SPEC)} if generates else None)
            params = self.activate(
                stand_in(), annotation(OTHER_SPEC), declared=declared, stage=mode
            )
            assert params.extra_args == ({KEY: lp.encode(OTHER_SPEC)} if generates else None)
        nothing = dynamo.LogitsProcessorSpec(())
        params = self.activate(stand_in(), declared=nothing, stage=modes.DECODE)
        assert params.extra_args is None

    def test_what_the_engine_cannot_declare(self, dynamo: Any, modes: Any):
        declared = dynamo.LogitsProcessorSpec((dynamo.PythonProcessorSpec(dict),))
        with pytest.raises(RuntimeError, match=r"logits_processor_spec\(\): .*not serializable"):
            self.activate(stand_in(), declared=declared, stage=modes.PREFILL)

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
