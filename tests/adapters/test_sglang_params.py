"""Specs in SGLang's requests. Whoever sends them needs no SGLang."""

import json
import pickletools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from logitport import spec as lp
from logitport.adapters import extra_body
from logitport.adapters.sglang import KEY, PROCESSOR, attach

from tests.support.transcripts import check, transcripts

TAG = {"type": "structural_tag", "format": {"type": "any_text"}}
BANNED = lp.BannedTokensSpec((1, 2))
FORCED = lp.ForcedTokenSequenceSpec((1, 2), 3)


def request(**sampling_params: Any) -> dict[str, Any]:
    return {"text": "a prompt", "sampling_params": sampling_params}


def test_the_processor_is_a_name_and_no_code():
    (name,) = json.loads(PROCESSOR).values()
    opcodes = [(code.name, arg) for code, arg, _ in pickletools.genops(bytes.fromhex(name))]
    assert opcodes == [("GLOBAL", "logitport.adapters.sglang.processor processor"), ("STOP", None)]


def attached(_: str, text: str) -> Iterator[str]:
    """Attach the specs of the second line of a transcript's input to the request of the first.

    What is printed is the request, or the message of the refusal, which changes nothing.
    """
    before, specs = text.splitlines()
    asked = json.loads(before)
    try:
        made = attach(asked, json.loads(specs))
    except lp.SpecError as error:
        assert json.dumps(asked) == before
        yield str(error)
    else:
        assert made.get("custom_logit_processor") in (PROCESSOR, None)
        has_specs = made.pop("custom_logit_processor", None) is not None
        yield json.dumps(made) + (", with the processor" if has_specs else "")


@transcripts("attached")
def test_transcript(file: Path, request: pytest.FixtureRequest):
    check(file, attached, request)


class TestAttach:
    def test_where_it_goes(self):
        asked = request(temperature=0, custom_params={"mine": 1})
        before = asked["sampling_params"]
        assert attach(asked, BANNED) is asked
        custom_params = asked["sampling_params"]["custom_params"]
        assert lp.decode(custom_params[KEY]).specs == (BANNED,)
        assert custom_params["mine"] == 1
        assert asked["custom_logit_processor"] == PROCESSOR
        assert before == {"temperature": 0, "custom_params": {"mine": 1}}

    def test_twice_is_once_and_none_takes_off(self):
        once = attach(request(), BANNED)
        assert attach(attach(request(), FORCED), BANNED) == once
        assert attach(once, ()) == request() | {"custom_logit_processor": None}

    @pytest.mark.parametrize("generation_only", [True, False])
    @pytest.mark.parametrize("stage", ["agg", "prefill", "decode"])
    def test_stages(self, stage: str, generation_only: bool):
        specs = (BANNED, lp.SamplingSpec(temperature=0.5))
        asked = attach(request(), specs, stage=lp.Stage(stage), generation_only=generation_only)
        acts = stage != "prefill" or not generation_only
        assert (asked["custom_logit_processor"] == PROCESSOR) is acts
        assert asked["sampling_params"]["temperature"] == 0.5  # prefill chooses the first token

    def test_a_callable_is_refused(self):
        with pytest.raises(lp.SpecError, match="sglang does not support `python`"):
            attach(asked := request(), lp.PythonProcessorSpec(lambda: None))
        assert asked == request()


def test_body():
    """Of an OpenAI client: chats know ``response_format`` alone for a schema."""
    schema = {"type": "object", "properties": {"b": {}, "a": {}}}
    specs = (BANNED, lp.GrammarSpec(json_schema=schema), lp.SamplingSpec(top_k=0))
    assert extra_body("sglang", specs) == {
        "top_k": -1,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "logitport", "schema": schema},
        },
        "custom_logit_processor": PROCESSOR,
        "custom_params": {KEY: lp.encode(BANNED)},
    }
    assert extra_body("sglang", ()) == {}
    assert extra_body("sglang", lp.GrammarSpec(structural_tag=TAG)) == {"response_format": TAG}


PAYLOAD = {"custom_logit_processor", "custom_params"}


@pytest.mark.parametrize(
    ("engine", "stage", "generation_only", "fields"),
    [
        ("sglang", "agg", True, {"top_k"} | PAYLOAD),
        ("sglang", "decode", True, {"top_k"} | PAYLOAD),
        ("sglang", "prefill", True, {"top_k"}),
        ("sglang", "prefill", False, {"top_k"} | PAYLOAD),
        ("vllm", "agg", True, {"top_k", "vllm_xargs"}),
        ("vllm", "prefill", True, set()),
        ("vllm", "prefill", False, {"top_k", "vllm_xargs"}),
    ],
)
def test_body_of_a_stage(engine: str, stage: str, generation_only: bool, fields: set[str]):
    specs = (BANNED, lp.SamplingSpec(top_k=5))
    body = extra_body(engine, specs, stage=lp.Stage(stage), generation_only=generation_only)
    assert body.keys() == fields
