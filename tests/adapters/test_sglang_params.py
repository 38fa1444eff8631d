"""Specs in SGLang's requests. Whoever sends them needs no SGLang."""

import json
import math
import pickletools
import subprocess
import sys
from typing import Any

import pytest
from logitport import spec as lp
from logitport.adapters import extra_body
from logitport.adapters.sglang import KEY, PROCESSOR, attach

TAG = {"type": "structural_tag", "format": {"type": "any_text"}}
SCHEMA = {"required": ["b", "a"]}
TAG_TEXT = '{"type":"structural_tag","format":{"type":"any_text"}}'
BANNED = lp.BannedTokensSpec((1, 2))
FORCED = lp.ForcedTokenSequenceSpec((1, 2), 3)


def request(**sampling_params: Any) -> dict[str, Any]:
    return {"text": "a prompt", "sampling_params": sampling_params}


def test_the_processor_is_a_name_and_no_code():
    (name,) = json.loads(PROCESSOR).values()
    opcodes = [(code.name, arg) for code, arg, _ in pickletools.genops(bytes.fromhex(name))]
    assert opcodes == [("GLOBAL", "logitport.adapters.sglang.processor processor"), ("STOP", None)]


def test_no_engine_is_imported():
    code = (
        "import logitport.adapters.sglang, sys; assert not {'sglang', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


EARLY = request(min_new_tokens=3, stop_token_ids=[3])


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

    @pytest.mark.parametrize(
        ("spec", "fields"),
        [
            (lp.SamplingSpec(temperature=0, top_k=0), {"temperature": 0, "top_k": -1}),
            (lp.SamplingSpec(top_k=5, min_p=0.1), {"top_k": 5, "min_p": 0.1}),
            (lp.SamplingSpec(top_p=0.5, repetition_penalty=1), {"top_p": 0.5}),
            (lp.GrammarSpec(regex="a+"), {"regex": "a+"}),
            (lp.GrammarSpec(ebnf='root ::= "a"'), {"ebnf": 'root ::= "a"'}),
            (lp.GrammarSpec(choices=('"a"', "ß\n")), {"ebnf": r'root ::= "\"a\"" | "ß\n"'}),
            (lp.GrammarSpec(json_schema=SCHEMA), {"json_schema": '{"required":["b","a"]}'}),
            (lp.GrammarSpec(structural_tag=TAG), {"structural_tag": TAG_TEXT}),
        ],
    )
    def test_native_kinds(self, spec: Any, fields: dict[str, Any]):
        asked = attach(request(), spec)
        assert asked["sampling_params"] == fields
        assert asked["custom_logit_processor"] is None

    @pytest.mark.parametrize(
        ("asked", "specs", "message"),
        [
            (request(temperature=1), lp.SamplingSpec(temperature=0), "which sets temperature"),
            (request(ebnf="x"), lp.GrammarSpec(regex="a"), "which sets ebnf"),
            (request(regex="b"), lp.GrammarSpec(regex="a"), "which sets regex"),
            (request(structural_tag="x"), FORCED, "Conflicts with the request's structural_tag"),
            (EARLY, FORCED, "the request's `min_new_tokens`, which bans token 3"),
            (request(logit_bias={"2": -math.inf}), FORCED, "`logit_bias`, which bans token 2"),
            (request(), lp.SamplingSpec(repetition_penalty=1.5), "sglang does not support it"),
            (request(), lp.PythonProcessorSpec(lambda: None), "sglang does not support `python`"),
            (request() | {"custom_logit_processor": "other"}, BANNED, "SGLang takes one"),
            (request(), (FORCED, lp.GrammarSpec(regex="a")), "grammar"),
            (request(custom_params=[1]), BANNED, "Expected custom_params of one request"),
            ({"sampling_params": [{}]}, BANNED, "Expected sampling_params of one request"),
            ({"messages": []}, BANNED, r"A chat takes no sampling_params: send extra_body\("),
            ([{"text": "a"}], BANNED, "Expected the arguments of a request, got list"),
        ],
    )
    def test_refusal_changes_nothing(self, asked: dict[str, Any], specs: Any, message: str):
        before = json.dumps(asked)
        with pytest.raises(lp.SpecError, match=message):
            attach(asked, specs)
        assert json.dumps(asked) == before

    @pytest.mark.parametrize(
        "fields",
        [
            {"min_new_tokens": 2, "stop_token_ids": [3]},
            {"min_new_tokens": 3},  # the engine knows its EOS, and checks again
            {"stop_token_ids": [1]},  # ends the reply, as max_new_tokens may
            {"logit_bias": {"2": -100.0}},
            # What SGLang refuses by itself is left to it.
            {"min_new_tokens": "many", "stop_token_ids": "all", "logit_bias": [1]},
            {"min_new_tokens": 1, "stop_token_ids": [None, "3", [4]]},
        ],
    )
    def test_fields_that_rule_out_nothing(self, fields: dict[str, Any]):
        asked = attach(request(**fields), FORCED)
        assert asked["custom_logit_processor"] == PROCESSOR

    def test_what_is_so_already_is_no_conflict(self):
        spec = (lp.GrammarSpec(regex="a+"), lp.SamplingSpec(temperature=0))
        asked = attach(request(), spec)
        assert attach(asked, spec) == asked


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
