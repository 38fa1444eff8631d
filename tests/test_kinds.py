"""Every kind: its wire form, what it refuses, and its text helpers."""

import copy
import json
import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from logitport.spec import (
    WIRE_KINDS,
    AllowedTokensSpec,
    BannedSequencesSpec,
    BannedTokensSpec,
    ChoiceSpec,
    ForcedEndSpec,
    ForcedTokenSequenceSpec,
    GrammarSpec,
    LogitBiasSpec,
    LogitsProcessorSpec,
    MinTokensSpec,
    NoRepeatNgramSpec,
    Payload,
    PluginSpec,
    PromptBiasSpec,
    SamplingSpec,
    SpecError,
    ThinkingBudgetSpec,
    TriggerSpec,
    decode,
    encode,
    json_schema,
    limits,
)

from tests.strategies import KINDS, json_values, payload_specs, specs

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

GOLDEN = Path(__file__).parent / "golden"
EXAMPLES: list[LogitsProcessorSpec] = [
    ForcedTokenSequenceSpec((0, 19556, 905, 17), eos_token_id=2),
    AllowedTokensSpec((32, 33, 2)),
    BannedTokensSpec((1, 2)),
    BannedSequencesSpec(((9,), (18, 73, 18))),
    LogitBiasSpec({50256: -100, 7: 2.5}),
    MinTokensSpec(16, (0, 2)),
    ForcedEndSpec(100, (30, 2683), eos_token_id=2),
    ThinkingBudgetSpec(512, (44, 5170, 46), (27, 5170, 46), (198,)),
    ChoiceSpec(((10576,), (2437,), (2437, 805)), 2),
    TriggerSpec((30, 198), (12, 216), times=3),
    NoRepeatNgramSpec(4, 128, (34, 35)),
    PromptBiasSpec(1.5, (1, 2)),
    GrammarSpec(json_schema={"type": "object", "required": ["a"], "maxProperties": 1}),
    SamplingSpec(temperature=0.5, top_k=40),
    PluginSpec("acme.watermark", {"key": 7, "words": ["a", None, {"b": [True, 0.5]}]}),
]
examples = pytest.mark.parametrize("spec", EXAMPLES, ids=lambda spec: spec.kind)

BIG = limits.MAX_TOKEN_ID + 1
LONG = [0] * (limits.MAX_TOKEN_IDS + 1)
AT_LEAST_1, AT_MOST = "Expected `array` of length >= 1", "Expected `array` of length <= "
TOO_LONG = f"{AT_MOST}{limits.MAX_TOKEN_IDS}"
NO_NUL = r"Expected `str` matching regex '^[^\\x00]+$'"
MAX_GRAMMAR = limits.MAX_GRAMMAR
TOO_MUCH_TEXT = f"Expected `str` of length <= {MAX_GRAMMAR}"
BIAS_RANGE = "Expected `float` <= 10000.0"


def content_of(kind: type[LogitsProcessorSpec], fields: dict[str, Any]) -> dict[str, Any]:
    return {"version": 1, "specs": [{"kind": kind.__struct_config__.tag, **fields}]}


def validator() -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(json_schema())


class TestWire:
    def test_every_kind_has_an_example(self):
        assert tuple(map(type, EXAMPLES)) == WIRE_KINDS
        assert set(KINDS) == set(WIRE_KINDS)

    @examples
    def test_golden(self, spec: LogitsProcessorSpec):
        """Change a golden file only together with VERSION."""
        golden = (GOLDEN / f"{spec.kind}.json").read_text()
        assert encode(spec) + "\n" == golden
        for form in (golden, golden.encode(), json.loads(golden)):
            assert decode(form) == Payload(1, (spec,), generation_only=True)  # pyright: ignore
        validator().validate(json.loads(golden))

    def test_schema_is_valid(self):
        jsonschema.Draft202012Validator.check_schema(json_schema())

    @examples
    def test_value(self, spec: LogitsProcessorSpec):
        (same,) = decode(encode(spec)).specs
        for twin in (same, copy.copy(spec), copy.deepcopy(spec), pickle.loads(pickle.dumps(spec))):
            assert type(twin) is type(spec)
            assert twin == spec
            assert hash(twin) == hash(spec)
        assert len({*EXAMPLES, same}) == len(EXAMPLES)
        with pytest.raises(AttributeError):
            spec.kind = "other"  # pyright: ignore

    @pytest.mark.parametrize(
        ("content", "message", "path"),
        [
            ({}, "Object missing required field `kind`", ""),
            ({"token_ids": [1]}, "Object missing required field `kind`", ""),
            ({"kind": "nope"}, "Invalid value 'nope'; the kinds that can travel are", ".kind"),
            ({"kind": "python"}, "Invalid value 'python'; the kinds that can travel are", ".kind"),
            ({"kind": 1}, "Expected `str`, got `int`", ".kind"),
            ({"kind": "choice", "token_ids": [1]}, "Object contains unknown field", ""),
        ],
    )
    def test_kind(self, content: dict[str, Any], message: str, path: str):
        with pytest.raises(SpecError) as error:
            decode({"version": 1, "specs": [content]})
        assert error.value.message.startswith(message)
        assert error.value.path == f"$.specs[0]{path}"

    def test_unknown_kind_names_all(self):
        with pytest.raises(SpecError) as error:
            decode([{"kind": "nope"}])
        named = error.value.message.split(" are ")[1].split(", ")
        assert named == [spec.kind for spec in EXAMPLES]


# kind, fields | message | path below the spec
BAD_FIELDS: list[tuple[type[LogitsProcessorSpec], dict[str, Any], str, str]] = [
    (AllowedTokensSpec, {"token_ids": []}, AT_LEAST_1, "token_ids"),
    (AllowedTokensSpec, {"token_ids": LONG}, TOO_LONG, "token_ids"),
    (BannedTokensSpec, {"token_ids": []}, AT_LEAST_1, "token_ids"),
    (BannedTokensSpec, {"token_ids": [1, BIG]}, "Expected `int` <= 2147483647", "token_ids[1]"),
    (BannedSequencesSpec, {"sequences": []}, AT_LEAST_1, "sequences"),
    (BannedSequencesSpec, {"sequences": [[1], []]}, AT_LEAST_1, "sequences[1]"),
    (BannedSequencesSpec, {"sequences": [[1], [2, -1]]}, "Expected `int` >= 0", "sequences[1][1]"),
    (BannedSequencesSpec, {"sequences": [1]}, "Expected `array`, got `int`", "sequences[0]"),
    (
        BannedSequencesSpec,
        {"sequences": [[1]] * (limits.MAX_SEQUENCES + 1)},
        f"{AT_MOST}{limits.MAX_SEQUENCES}",
        "sequences",
    ),
    (
        BannedSequencesSpec,
        {"sequences": [[1], [0] * (1 << 14)]},
        "Expected at most 16384 token ids in all, got 16385",
        "sequences",
    ),
    (LogitBiasSpec, {"bias": {}}, "Expected `object` of length >= 1", "bias"),
    (
        LogitBiasSpec,
        {"bias": dict.fromkeys(range(limits.MAX_TOKEN_IDS // 2 + 1), 1.0)},
        f"Expected `object` of length <= {limits.MAX_TOKEN_IDS // 2}",
        "bias",
    ),
    (LogitBiasSpec, {"bias": [[1, 2.0]]}, "Expected `object`, got `array`", "bias"),
    (LogitBiasSpec, {"bias": {-1: 1.0}}, "Expected `int` >= 0 as a key", "bias[-1]"),
    (LogitBiasSpec, {"bias": {BIG: 1.0}}, "Expected `int` <= 2147483647 as a key", f"bias[{BIG}]"),
    (LogitBiasSpec, {"bias": {"x": 1.0}}, "Expected `int`, got `str` as a key", "bias[x]"),
    (LogitBiasSpec, {"bias": {"01": 1.0}}, "Expected `int`, got `str` as a key", "bias[01]"),
    (LogitBiasSpec, {"bias": {9: 1, 1: 10_001}}, BIAS_RANGE, "bias[1]"),
    (LogitBiasSpec, {"bias": {1: -1e300}}, "Expected `float` >= -10000.0", "bias[1]"),
    (LogitBiasSpec, {"bias": {1: None, 9: 1}}, "Expected `float`, got `null`", "bias[1]"),
    (MinTokensSpec, {"n": 0, "stop_token_ids": [1]}, "Expected `int` >= 1", "n"),
    (MinTokensSpec, {"n": 2**31, "stop_token_ids": [1]}, "Expected `int` <= 2147483647", "n"),
    (MinTokensSpec, {"n": 1.5, "stop_token_ids": [1]}, "Expected `int`, got `float`", "n"),
    (MinTokensSpec, {"n": 1, "stop_token_ids": []}, AT_LEAST_1, "stop_token_ids"),
    (ForcedEndSpec, {"after": -1, "token_ids": [1]}, "Expected `int` >= 0", "after"),
    (ForcedEndSpec, {"after": 2**31, "token_ids": [1]}, "Expected `int` <= 2147483647", "after"),
    (ForcedEndSpec, {"after": 1, "token_ids": []}, AT_LEAST_1, "token_ids"),
    (
        ThinkingBudgetSpec,
        {"budget": -1, "start_token_ids": [1], "end_token_ids": [2]},
        "Expected `int` >= 0",
        "budget",
    ),
    (
        ThinkingBudgetSpec,
        {"budget": 1, "start_token_ids": [], "end_token_ids": [2]},
        AT_LEAST_1,
        "start_token_ids",
    ),
    (
        ThinkingBudgetSpec,
        {"budget": 1, "start_token_ids": [1, 2], "end_token_ids": [1, 2]},
        "The end tag is the same as the start tag",
        "end_token_ids",
    ),
    (
        ThinkingBudgetSpec,
        {"budget": 1, "start_token_ids": [1], "end_token_ids": [2], "message_token_ids": LONG},
        TOO_LONG,
        "message_token_ids",
    ),
    (ChoiceSpec, {"choices": [], "eos_token_id": 2}, AT_LEAST_1, "choices"),
    (ChoiceSpec, {"choices": [[1], []], "eos_token_id": 2}, AT_LEAST_1, "choices[1]"),
    (
        ChoiceSpec,
        {"choices": [[1], [1, 2], [3], [1, 2]], "eos_token_id": 2},
        "The same as `$.choices[1]`",
        "choices[3]",
    ),
    (
        ChoiceSpec,
        {"choices": [[1], [0] * (1 << 14)], "eos_token_id": 2},
        "Expected at most 16384 token ids in all, got 16385",
        "choices",
    ),
    (
        ChoiceSpec,
        {"choices": [[1]], "eos_token_id": None},
        "Expected `int`, got `null`",
        "eos_token_id",
    ),
    (
        TriggerSpec,
        {"trigger_token_ids": [], "token_ids": [1]},
        AT_LEAST_1,
        "trigger_token_ids",
    ),
    (
        TriggerSpec,
        {"trigger_token_ids": [1], "token_ids": [1], "times": 0},
        "Expected `int` >= 1",
        "times",
    ),
    (
        TriggerSpec,
        {"trigger_token_ids": [1], "token_ids": [1], "times": limits.MAX_TIMES + 1},
        f"Expected `int` <= {limits.MAX_TIMES}",
        "times",
    ),
    (
        TriggerSpec,
        {"trigger_token_ids": [1] * 65, "token_ids": [1]},
        "Expected at most 64 token ids to look for, got 65",
        "trigger_token_ids",
    ),
    (
        BannedSequencesSpec,
        {"sequences": [[1] * 64, [1] * 65]},
        "Expected at most 64 token ids to look for, got 65",
        "sequences[1]",
    ),
    (
        ThinkingBudgetSpec,
        {"budget": 1, "start_token_ids": [1] * 65, "end_token_ids": [2]},
        "Expected at most 64 token ids to look for, got 65",
        "start_token_ids",
    ),
    (
        ThinkingBudgetSpec,
        {"budget": 1, "start_token_ids": [1], "end_token_ids": [2] * 65},
        "Expected at most 64 token ids to look for, got 65",
        "end_token_ids",
    ),
    (NoRepeatNgramSpec, {"n": 0}, "Expected `int` >= 1", "n"),
    (NoRepeatNgramSpec, {"n": limits.MAX_NGRAM + 1}, f"Expected `int` <= {limits.MAX_NGRAM}", "n"),
    (
        NoRepeatNgramSpec,
        {"n": 3, "window": 2},
        "Expected a window of at least n=3 tokens, got 2",
        "window",
    ),
    (NoRepeatNgramSpec, {"n": 1, "window": 0}, "Expected `int` >= 1", "window"),
    (NoRepeatNgramSpec, {"n": 3, "allowed_token_ids": LONG}, TOO_LONG, "allowed_token_ids"),
    (PromptBiasSpec, {"bias": 10_001}, BIAS_RANGE, "bias"),
    (PromptBiasSpec, {"bias": "1"}, "Expected `float`, got `str`", "bias"),
    (PromptBiasSpec, {"bias": 1, "excluded_token_ids": LONG}, TOO_LONG, "excluded_token_ids"),
    (
        GrammarSpec,
        {"regex": "a", "choices": ["a"]},
        "Expected one of json_schema, regex, ebnf, choices, got regex and choices",
        "",
    ),
    (GrammarSpec, {}, "Expected one of json_schema, regex, ebnf, choices, got none", ""),
    (GrammarSpec, {"json_schema": "{}"}, "Expected `object | null`, got `str`", "json_schema"),
    (
        GrammarSpec,
        {"json_schema": {"enum": [1, 1 << 63]}},
        "Expected an integer of at most 64 bits",
        "json_schema.enum[1]",
    ),
    (GrammarSpec, {"regex": ""}, "Expected `str` of length >= 1", "regex"),
    (GrammarSpec, {"regex": "a\0"}, NO_NUL, "regex"),
    (GrammarSpec, {"regex": "\0a\n"}, NO_NUL, "regex"),
    (GrammarSpec, {"ebnf": "a" * (MAX_GRAMMAR + 1)}, TOO_MUCH_TEXT, "ebnf"),
    (GrammarSpec, {"ebnf": "root: 'a'"}, "Expected rules `name ::= ...`", "ebnf"),
    (GrammarSpec, {"choices": []}, AT_LEAST_1, "choices"),
    (GrammarSpec, {"choices": "ab"}, "Expected `array | null`, got `str`", "choices"),
    (GrammarSpec, {"choices": ["a", ""]}, "Expected `str` of length >= 1", "choices[1]"),
    (GrammarSpec, {"choices": ["a", "b", "a"]}, "The same as `$.choices[0]`", "choices[2]"),
    (
        GrammarSpec,
        {"choices": ["a", "b" * MAX_GRAMMAR]},
        f"Expected at most {MAX_GRAMMAR} characters in all, got {MAX_GRAMMAR + 1}",
        "choices",
    ),
    (
        GrammarSpec,
        {"choices": [str(i) for i in range(limits.MAX_SEQUENCES + 1)]},
        f"{AT_MOST}{limits.MAX_SEQUENCES}",
        "choices",
    ),
    (
        SamplingSpec,
        {},
        "Expected at least one of temperature, top_p, top_k, min_p, presence_penalty, "
        "frequency_penalty, repetition_penalty",
        "",
    ),
    (SamplingSpec, {"temperature": -0.1}, "Expected `float` >= 0.0", "temperature"),
    (SamplingSpec, {"temperature": 2.1}, "Expected `float` <= 2.0", "temperature"),
    (SamplingSpec, {"top_p": 0}, "Expected `float` > 0.0", "top_p"),
    (SamplingSpec, {"top_p": 1.1}, "Expected `float` <= 1.0", "top_p"),
    (SamplingSpec, {"top_k": -1}, "Expected `int` >= 0", "top_k"),
    (SamplingSpec, {"top_k": 2.5}, "Expected `int | null`, got `float`", "top_k"),
    (SamplingSpec, {"top_k": 2**31}, "Expected `int` <= 2147483647", "top_k"),
    (SamplingSpec, {"min_p": -0.1}, "Expected `float` >= 0.0", "min_p"),
    (SamplingSpec, {"min_p": 1.1}, "Expected `float` <= 1.0", "min_p"),
    (SamplingSpec, {"presence_penalty": -2.1}, "Expected `float` >= -2.0", "presence_penalty"),
    (SamplingSpec, {"frequency_penalty": 2.1}, "Expected `float` <= 2.0", "frequency_penalty"),
    (SamplingSpec, {"repetition_penalty": 0}, "Expected `float` > 0.0", "repetition_penalty"),
    (SamplingSpec, {"repetition_penalty": 2.1}, "Expected `float` <= 2.0", "repetition_penalty"),
    (PluginSpec, {"name": ""}, "Expected `str` of length >= 1", "name"),
    (PluginSpec, {"name": "a" * 129}, "Expected `str` of length <= 128", "name"),
    (PluginSpec, {"name": "x", "params": []}, "Expected `object`, got `array`", "params"),
    (PluginSpec, {"name": "x", "params": None}, "Expected `object`, got `null`", "params"),
    (
        PluginSpec,
        {"name": "x", "params": {"a": [{"b": 1 << 63}]}},
        "Expected an integer of at most 64 bits",
        "params.a[0].b",
    ),
]


def below(parent: str, path: str) -> str:
    return f"{parent}.{path}" if path else parent


@pytest.mark.parametrize(
    ("kind", "fields", "message", "path"),
    BAD_FIELDS,
    ids=[f"{kind.__name__} {str(fields)[:60]}" for kind, fields, _, _ in BAD_FIELDS],
)
def test_refused(kind: type[LogitsProcessorSpec], fields: dict[str, Any], message: str, path: str):
    content = content_of(kind, fields)
    for form in (content, json.dumps(content), msgspec.json.encode(content)):
        with pytest.raises(SpecError) as error:
            decode(form)
        assert (error.value.message, error.value.path) == (message, below("$.specs[0]", path))
    with pytest.raises(SpecError) as error:
        kind(**fields)
    assert (error.value.message, error.value.path) == (message, below("$", path))


@pytest.mark.parametrize("name", ["a b", "a\n", "é", "a/b", " ", "\n"])
def test_plugin_names(name: str):
    with pytest.raises(SpecError, match="matching regex") as error:
        PluginSpec(name)
    assert error.value.path == "$.name"
    assert not validator().is_valid(content_of(PluginSpec, {"name": name}))


@pytest.mark.parametrize("key", ["x", "01", "-1", "1.0", ""])
def test_schema_knows_the_keys_of_a_bias(key: str):
    assert not validator().is_valid(content_of(LogitBiasSpec, {"bias": {key: 1.0}}))


# What no JSON text says, and the constructor may yet be given.
@pytest.mark.parametrize(
    ("fields", "message", "path"),
    [
        ({"a": float("nan")}, "Expected a finite number", "params.a"),
        ({"a": [1, float("inf")]}, "Expected a finite number", "params.a[1]"),
        ({"a": {"b": {1, 2}}}, "Expected a JSON value, got set", "params.a.b"),
        ({"a": {1: 2}}, "Expected text as a key, got int", "params.a"),
        ({1: 2}, "Expected `str`, got `int` as a key", "params"),
        ({"a": "\ud800"}, "Expected valid Unicode", "params.a"),
        ({"\ud800": 1}, "Expected valid Unicode", "params"),
        ({"a": 10**5000}, "Expected an integer of at most 64 bits", "params.a"),
    ],
    ids=range(8),
)
def test_plugin_params_are_json(fields: dict[Any, Any], message: str, path: str):
    with pytest.raises(SpecError) as error:
        PluginSpec("x", fields)
    assert (error.value.message, error.value.path) == (message, f"$.{path}")


def test_plugin_params_nest_so_deep():
    params: Any = {}
    for _ in range(limits.MAX_DEPTH - 1):
        params = {"a": params}
    assert decode(encode(PluginSpec("x", params))).specs == (PluginSpec("x", params),)
    for _ in range(2000):
        params = {"a": params}
        with pytest.raises(
            SpecError, match=r"^Nested more than 64 levels deep - at `\$\.params\.a"
        ):
            PluginSpec("x", params)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_bias_is_finite(value: float):
    for kind, bias, path in [
        (LogitBiasSpec, {9: 1.0, 1: value}, "$.bias[1]"),
        (PromptBiasSpec, value, "$.bias"),
    ]:
        with pytest.raises(SpecError, match="Expected `float`") as error:
            kind(bias)  # pyright: ignore
        assert error.value.path == path


@pytest.mark.parametrize(
    "spec",
    [
        BannedSequencesSpec(((1,) * limits.MAX_PATTERN,) * (limits.MAX_TOKEN_IDS // 128)),
        BannedSequencesSpec(((1,),) * limits.MAX_SEQUENCES),
        LogitBiasSpec(dict.fromkeys(range(limits.MAX_TOKEN_IDS // 2), -limits.MAX_BIAS)),
        MinTokensSpec(limits.MAX_COUNT, (limits.MAX_TOKEN_ID,)),
        ForcedEndSpec(limits.MAX_COUNT, (1,)),
        ThinkingBudgetSpec(limits.MAX_COUNT, (1,), (2,)),
        ChoiceSpec(tuple((i,) * 4 for i in range(limits.MAX_SEQUENCES // 2)), 2),
        TriggerSpec((1,) * 4, (1,) * 28, limits.MAX_TIMES),
        TriggerSpec((1,) * limits.MAX_PATTERN, (1,) * (limits.MAX_TOKEN_IDS - 64), None),
        NoRepeatNgramSpec(limits.MAX_NGRAM, limits.MAX_NGRAM),
        NoRepeatNgramSpec(1, limits.MAX_COUNT),
        PromptBiasSpec(limits.MAX_BIAS),
        GrammarSpec(regex="a" * MAX_GRAMMAR),
        GrammarSpec(ebnf="::=".rjust(MAX_GRAMMAR)),
        GrammarSpec(choices=tuple(f"{i:032}" for i in range(limits.MAX_SEQUENCES))),
        SamplingSpec(
            temperature=2,
            top_p=1,
            top_k=limits.MAX_COUNT,
            min_p=1,
            presence_penalty=2,
            frequency_penalty=2,
            repetition_penalty=2,
        ),
        SamplingSpec(
            temperature=0, top_k=0, min_p=0, presence_penalty=-2, frequency_penalty=-2, top_p=5e-324
        ),
        PluginSpec("a" * limits.MAX_NAME),
    ],
    ids=lambda spec: spec.kind,
)
def test_limits_are_inclusive(spec: LogitsProcessorSpec):
    assert decode(encode(spec)).specs == (spec,)


FULL = tuple(range(limits.MAX_TOKEN_IDS))
TAG = tuple(range(limits.MAX_PATTERN))


@pytest.mark.parametrize(
    "together",
    [
        (ThinkingBudgetSpec(1, TAG, TAG[::-1], FULL),),
        (BannedTokensSpec(FULL[::2]), LogitBiasSpec(dict.fromkeys(FULL[::4], 1.0))),
        # Each of 500 tokens is banned after each of 63 beginnings.
        (BannedSequencesSpec((*((1, i) for i in range(500)), (1,) * 64)),),
    ],
    ids=lambda together: together[0].kind,
)
def test_tables_of_what_is_meant_to_be_sent(together: tuple[LogitsProcessorSpec, ...]):
    pytest.importorskip("numpy")
    from logitport.adapters.core import compile_specs

    assert compile_specs(together).cells > limits.MAX_CELLS / 4


@pytest.mark.parametrize(
    ("together", "path"),
    [
        ((BannedTokensSpec(FULL),) * 3, "$.specs[1]"),
        # Each of 1600 tokens is banned after each of 63 beginnings.
        ((BannedSequencesSpec((*((1, i) for i in range(1600)), (1,) * 64)),), "$.specs[0]"),
    ],
    ids=["sets", "banned sequences"],
)
def test_tables_that_are_too_large(together: tuple[LogitsProcessorSpec, ...], path: str):
    pytest.importorskip("numpy")
    from logitport.adapters.core import compile_specs

    with pytest.raises(SpecError, match=f"at most {limits.MAX_CELLS} states") as error:
        compile_specs(together)
    assert error.value.path == path


def test_prompt_biases_that_are_too_many():
    pytest.importorskip("numpy")
    from logitport.adapters.core import compile_specs

    most = [PromptBiasSpec(1.0, (i,)) for i in range(limits.MAX_PROMPT_BIASES)]
    assert len(compile_specs(most).prompt_biases) == len(most)
    with pytest.raises(SpecError, match="at most 4 prompt biases") as error:
        compile_specs([*most, PromptBiasSpec(2.0)])
    assert error.value.path == "$.specs[4]"


def test_ngram_rules_that_are_too_many():
    pytest.importorskip("numpy")
    from logitport.adapters.core import compile_specs

    most = [NoRepeatNgramSpec(1 + i) for i in range(limits.MAX_NGRAM_RULES)]
    assert compile_specs(most * 4).ngrams == tuple(most)  # equal ones are one
    with pytest.raises(SpecError, match="at most 2 different `no_repeat_ngram`") as error:
        compile_specs([*most, most[0], NoRepeatNgramSpec(9)])
    assert error.value.path == "$.specs[3]"


def test_what_a_parser_has_made_of_a_text_shares_its_program():
    pytest.importorskip("cachetools")
    from logitport.adapters.core import admitted
    from logitport.adapters.vllm import BACK_END

    banned, bias = BannedTokensSpec((7,)), LogitBiasSpec({9: -1.5})
    for carried in ([banned], [banned, bias]):
        text = encode(carried, generation_only=False)
        payload, program = admitted(BACK_END, text, 100)
        assert admitted(BACK_END, json.loads(text), 100) == (payload, program)
        assert admitted(BACK_END, json.loads(text), 100)[1] is program
        with pytest.raises(SpecError, match="beyond the vocabulary"):
            admitted(BACK_END, json.loads(text), 5)


def test_what_an_engine_remembers_of_admitted_payloads(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("cachetools")
    from logitport.adapters.core import Program, admission, compile_specs
    from logitport.adapters.vllm import BACK_END

    # A thinking budget with a long message: 5 MB of tables.
    large = compile_specs((ThinkingBudgetSpec(1, (1,), (2,), (2,) * 32_000),))
    monkeypatch.setattr(admission, "compile_specs", lambda specs: Program(large.automata))
    admission.forget()

    def cells_of(token_id: int) -> int:
        text = encode(BannedTokensSpec((token_id,)))
        _, program = admission.admitted(BACK_END, text, None)
        assert admission.admitted(BACK_END, text, None)[1] is program
        return program.cells

    sent = sum(cells_of(token_id) for token_id in range(70))
    remembered = sum(entry.program.cells for entry in admission._programs.values())
    admission.forget()
    assert sent / 2 < remembered < sent


class TestObjects:
    """Specs that hold a JSON object are values all the same."""

    def test_bias_is_copied(self):
        bias = {1: 2.0}
        spec = LogitBiasSpec(bias)
        bias[1] = 3.0
        assert spec.bias == {1: 2.0}
        assert spec == LogitBiasSpec({1: 2})

    def test_params_are_copied(self):
        params: dict[str, Any] = {"a": [1, {"b": 2}]}
        spec = PluginSpec("x", params)
        params["a"][1]["b"] = 3
        assert spec.params == {"a": (1, {"b": 2})}

    def test_schema_is_copied(self):
        schema: dict[str, Any] = {"enum": [1]}
        spec = GrammarSpec(json_schema=schema)
        schema["enum"].append(2)
        assert spec == GrammarSpec(json_schema={"enum": [1]})

    @pytest.mark.parametrize(
        "change",
        [
            lambda d: d.__setitem__(1, 0.0),
            lambda d: d.__delitem__(1),
            lambda d: d.__ior__({}),
            lambda d: d.update({}),
            lambda d: d.setdefault(3, 1.0),
            lambda d: d.pop(1),
            lambda d: d.popitem(),
            lambda d: d.clear(),
        ],
    )
    def test_unchangeable(self, change: Any):
        for spec in (LogitBiasSpec({1: 2.0}), copy.deepcopy(LogitBiasSpec({1: 2.0}))):
            with pytest.raises(TypeError, match="cannot change"):
                change(spec.bias)
            assert spec.bias == {1: 2.0}

    def test_order_means_nothing(self):
        specs = LogitBiasSpec({1: 2.0, 3: 4.0}), LogitBiasSpec({3: 4.0, 1: 2.0})
        assert specs[0] == specs[1]
        assert hash(specs[0]) == hash(specs[1])

    def test_token_ids_as_integers_in_process(self):
        content: Any = {"version": 1, "specs": [{"kind": "logit_bias", "bias": {5: 1}}]}
        assert decode(content).specs == (LogitBiasSpec({5: 1.0}),)


@pytest.mark.parametrize(
    ("spec", "token_id", "path"),
    [
        (AllowedTokensSpec((1, 9)), 9, "token_ids[1]"),
        (BannedTokensSpec((1, 9)), 9, "token_ids[1]"),
        (BannedSequencesSpec(((1,), (2, 9))), 9, "sequences[1][1]"),
        (LogitBiasSpec({1: 1.0, 9: 1.0}), 9, "bias[...]"),
        (MinTokensSpec(1, (1, 9)), 9, "stop_token_ids[1]"),
        (ForcedEndSpec(1, (1, 9)), 9, "token_ids[1]"),
        (ForcedEndSpec(1, (1,), 9), 9, "eos_token_id"),
        (ThinkingBudgetSpec(1, (1, 9), (2,)), 9, "start_token_ids[1]"),
        (ThinkingBudgetSpec(1, (1,), (9,)), 9, "end_token_ids[0]"),
        (ThinkingBudgetSpec(1, (1,), (2,), (3, 9)), 9, "message_token_ids[1]"),
        (ChoiceSpec(((1,), (1, 9)), 2), 9, "choices[1][1]"),
        (ChoiceSpec(((1,),), 9), 9, "eos_token_id"),
        (TriggerSpec((9,), (1,)), 9, "trigger_token_ids[0]"),
        (TriggerSpec((1,), (1, 9)), 9, "token_ids[1]"),
        (NoRepeatNgramSpec(1, None, (1, 9)), 9, "allowed_token_ids[1]"),
        (PromptBiasSpec(1, (1, 9)), 9, "excluded_token_ids[1]"),
    ],
)
def test_vocabulary(spec: LogitsProcessorSpec, token_id: int, path: str):
    spec.check_vocabulary(token_id + 1)
    with pytest.raises(SpecError) as error:
        decode(encode(spec)).check_vocabulary(token_id)
    assert error.value.path == f"$.specs[0].{path}"
    assert error.value.message == f"Token id {token_id} is beyond the vocabulary of 9 tokens"


class Greedy:
    """A tokenizer that takes the longest token it knows."""

    tokens = ("<eos>", " cat", "cat", " ", "5", " dog", "d", "og", "<think>", "</think>", "\n", "s")
    eos_token_id: int | None = 0

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        assert not add_special_tokens
        ids: list[int] = []
        while text:
            token = max((t for t in self.tokens if text.startswith(t)), key=len)
            ids.append(self.tokens.index(token))
            text = text[len(token) :]
        return ids


class NoEos(Greedy):
    eos_token_id = None


GREEDY = Greedy()
SPACE_CAT, CAT, SPACE, FIVE, SPACE_DOG, D, OG, THINK, END, NEWLINE, S = range(1, 12)


class TestText:
    @pytest.mark.parametrize(
        ("words", "leading_space", "token_ids"),
        [
            (["cat"], "both", (SPACE_CAT, CAT)),
            (["cat"], "with", (SPACE_CAT,)),
            (["cat"], "without", (CAT,)),
            ([" cat", "cat"], "both", (SPACE_CAT, CAT)),
            (["dog", "cats"], "both", (SPACE_DOG, D, OG, SPACE_CAT, S, CAT)),
            (["5"], "both", (SPACE, FIVE)),
        ],
    )
    def test_allowed_words(self, words: Any, leading_space: Any, token_ids: tuple[int, ...]):
        spec = AllowedTokensSpec.from_words(words, GREEDY, leading_space=leading_space)
        assert spec.token_ids == token_ids

    def test_banned_words_of_one_token(self):
        assert BannedTokensSpec.from_words(["cat"], GREEDY).token_ids == (SPACE_CAT, CAT)
        dog = BannedTokensSpec.from_words(["dog"], GREEDY, leading_space="with")
        assert dog.token_ids == (SPACE_DOG,)

    def test_a_space_of_its_own_need_not_be_banned(self):
        assert BannedTokensSpec.from_words(["5"], GREEDY).token_ids == (FIVE,)
        assert BannedSequencesSpec.from_words(["5"], GREEDY).sequences == ((FIVE,),)
        assert LogitBiasSpec.from_words({"5": 1}, GREEDY).bias == {FIVE: 1.0}

    def test_banned_word_of_several_tokens(self):
        with pytest.raises(
            SpecError, match=r"2 tokens of 'dog': .*BannedSequencesSpec\.from_words"
        ):
            BannedTokensSpec.from_words(["cat", "dog"], GREEDY)

    def test_banned_sequences(self):
        spec = BannedSequencesSpec.from_words(["dog", "cats", " dog"], GREEDY)
        assert spec.sequences == ((SPACE_DOG,), (D, OG), (SPACE_CAT, S), (CAT, S))

    def test_bias(self):
        spec = LogitBiasSpec.from_words({"cat": 2, " cat": 2}, GREEDY)
        assert spec.bias == {SPACE_CAT: 2.0, CAT: 2.0}
        with pytest.raises(SpecError, match="2 tokens of 'dog'"):
            LogitBiasSpec.from_words({"dog": 2}, GREEDY)
        with pytest.raises(SpecError, match="Token 1 of ' cat' has another bias already"):
            LogitBiasSpec.from_words({"cat": 2, " cat": 1}, GREEDY)

    @pytest.mark.parametrize("words", ["cat", [""], ["  "], []])
    def test_no_words(self, words: Iterable[str]):
        for kind in (AllowedTokensSpec, BannedTokensSpec, BannedSequencesSpec):
            with pytest.raises(SpecError, match="Expected"):
                kind.from_words(words, GREEDY)

    def test_min_tokens(self):
        assert MinTokensSpec.from_tokenizer(3, GREEDY) == MinTokensSpec(3, (0,))
        with pytest.raises(SpecError, match="has no EOS token"):
            MinTokensSpec.from_tokenizer(3, NoEos())

    def test_forced_end(self):
        assert ForcedEndSpec.from_text(3, " cats", GREEDY) == ForcedEndSpec(3, (SPACE_CAT, S), 0)
        free = ForcedEndSpec.from_text(3, "5", NoEos(), eos_token_id=None)
        assert free == ForcedEndSpec(3, (FIVE,))
        assert ForcedEndSpec.from_text(0, "5", NoEos(), eos_token_id=7).eos_token_id == 7
        with pytest.raises(SpecError, match="has no EOS token"):
            ForcedEndSpec.from_text(3, "5", NoEos())

    def test_thinking_budget(self):
        plain = ThinkingBudgetSpec.from_text(9, GREEDY)
        assert plain == ThinkingBudgetSpec(9, (THINK,), (END,))
        other = ThinkingBudgetSpec.from_text(9, GREEDY, start="5", end=" cats", message="\n")
        assert other == ThinkingBudgetSpec(9, (FIVE,), (SPACE_CAT, S), (NEWLINE,))

    def test_choice(self):
        spec = ChoiceSpec.from_text(["cat", "cats", "5"], GREEDY)
        assert spec == ChoiceSpec(((CAT,), (CAT, S), (FIVE,)), 0)
        assert ChoiceSpec.from_text(["5"], NoEos(), eos_token_id=7).eos_token_id == 7
        with pytest.raises(SpecError) as error:
            ChoiceSpec.from_text(["cat", "5", "cat"], GREEDY)
        assert error.value.path == "$.choices[2]"
        with pytest.raises(SpecError, match="got the text 'cat'"):
            ChoiceSpec.from_text("cat", GREEDY)
        with pytest.raises(SpecError, match="has no EOS token"):
            ChoiceSpec.from_text(["5"], NoEos())

    def test_trigger(self):
        spec = TriggerSpec.from_text("</think>", "\ncat", GREEDY, times=None)
        assert spec == TriggerSpec((END,), (NEWLINE, CAT), None)
        assert TriggerSpec.from_text("5", "5", GREEDY).times == 1

    def test_empty_text(self):
        for make in (
            lambda: ForcedEndSpec.from_text(1, "", GREEDY),
            lambda: ThinkingBudgetSpec.from_text(1, GREEDY, end=""),
            lambda: ChoiceSpec.from_text(["5", ""], GREEDY),
            lambda: TriggerSpec.from_text("", "5", GREEDY),
        ):
            with pytest.raises(SpecError, match="makes no tokens of ''"):
                make()

    def test_real_tokenizer(self, tokenizer: "PreTrainedTokenizerBase"):
        def texts(sequences: Iterable[tuple[int, ...]]) -> list[str]:
            return [str(tokenizer.decode(list(sequence))) for sequence in sequences]

        banned = BannedSequencesSpec.from_words(["Paris", "Ouagadougou"], tokenizer)
        assert texts(banned.sequences) == [" Paris", "Paris", " Ouagadougou", "Ouagadougou"]
        one = BannedTokensSpec.from_words([" the"], tokenizer)
        assert texts((token_id,) for token_id in one.token_ids) == [" the", "the"]
        choice = ChoiceSpec.from_text(["yes", "no", "no idea"], tokenizer)
        assert texts(choice.choices) == ["yes", "no", "no idea"]
        assert choice.eos_token_id == tokenizer.eos_token_id
        thinking = ThinkingBudgetSpec.from_text(8, tokenizer, message="\nEnough.\n")
        assert texts([thinking.start_token_ids, thinking.end_token_ids]) == ["<think>", "</think>"]
        assert texts([thinking.message_token_ids]) == ["\nEnough.\n"]
        decode(encode([banned, one, thinking])).check_vocabulary(len(tokenizer))


VALIDATOR = validator()

small = specs(8, kinds=KINDS)
large = specs(limits.MAX_TOKEN_ID + 1, kinds=KINDS, most=3, longest=3, count=limits.MAX_COUNT)


@given(small | large, st.booleans())
def test_round_trip(spec: LogitsProcessorSpec, generation_only: bool):
    text = encode(spec, generation_only=generation_only)
    payload = decode(text)
    assert payload == decode(text.encode()) == decode(json.loads(text))
    assert payload.specs == (spec,)
    assert hash(payload.specs) == hash((spec,))
    assert payload.generation_only is generation_only
    assert encode(payload.specs, generation_only=generation_only) == text


@given(small | large)
def test_schema_takes_every_spec(spec: LogitsProcessorSpec):
    VALIDATOR.validate(json.loads(encode(spec)))


@given(payload_specs(8, 6))
def test_round_trip_together(together: tuple[LogitsProcessorSpec, ...]):
    assert decode(encode(together)).specs == together
    decode(encode(together)).check_vocabulary(8)


@given(small, st.integers(1, 8))
def test_vocabulary_of_any_size(spec: LogitsProcessorSpec, vocab_size: int):
    largest = max((t for _, token_ids in spec.token_fields() for t in token_ids), default=-1)
    if largest < vocab_size:
        spec.check_vocabulary(vocab_size)
        return
    with pytest.raises(SpecError) as error:
        spec.check_vocabulary(vocab_size)
    # The path leads to the token that the message names.
    value = msgspec.to_builtins(spec)
    for step in error.value.path.removeprefix("$.").replace("[...]", "").split("."):
        name, *indices = step.replace("]", "").split("[")
        value = value[name]
        for index in indices:
            value = value[int(index)]
    named = int(error.value.message.split()[2])
    assert named >= vocab_size
    assert named in value if isinstance(value, dict) else named == value


@given(st.data(), payload_specs(8, 3, kinds=KINDS), json_values)
def test_mutations(data: st.DataObject, together: tuple[LogitsProcessorSpec, ...], planted: Any):
    """Replace, add or delete one thing anywhere: it decodes, or there is a ``SpecError``."""
    payload: Any = json.loads(encode(together))
    node = payload
    while True:
        key = data.draw(st.sampled_from(list(node) if isinstance(node, dict) else range(len(node))))
        if not (isinstance(node[key], dict | list) and node[key]) or data.draw(st.booleans()):
            break
        node = node[key]
    change = data.draw(st.sampled_from(["replace", "add", "delete"]))
    if change == "delete":
        del node[key]
    elif change == "replace":
        node[key] = planted
    elif isinstance(node, dict):
        node[data.draw(st.text() | st.sampled_from(["kind", "bias", "times", "0"]))] = planted
    else:
        node.insert(key, planted)
    for form in (payload, json.dumps(payload)):
        try:
            decoded = decode(form)
        except SpecError:
            continue
        again = encode(decoded.specs, generation_only=decoded.generation_only)
        assert decode(again) == decoded
