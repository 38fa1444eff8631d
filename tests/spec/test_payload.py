"""The wire format: what it looks like, what it refuses, and that it refuses it politely."""

import json
import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from logitport import spec as s

from tests.support import strategies
from tests.support.kinds import VALIDATOR
from tests.support.paths import GOLDEN
from tests.support.small_tokenizer import GREEDY
from tests.support.transcripts import check, inputs, transcripts

GOLDEN_SPECS = (s.ForcedTokenSequenceSpec((0, 19556, 905, 17), eos_token_id=2),)

FORCED = {"kind": "forced_sequence", "token_ids": [1]}
NEST = 6_000


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


class TestFormat:
    """Change a golden file only together with VERSION, or by adding what old readers never see."""

    def test_encode(self):
        golden = (GOLDEN / "payload_v1.json").read_text()
        assert s.encode(GOLDEN_SPECS) + "\n" == golden

    def test_json_schema(self):
        golden = json.loads((GOLDEN / "schema_v1.json").read_text())
        assert json.loads(json.dumps(without_descriptions(s.json_schema()))) == golden

    def test_one_spec_is_as_good_as_a_list_of_one(self):
        assert s.encode(GOLDEN_SPECS[0]) == s.encode(GOLDEN_SPECS) == s.encode(list(GOLDEN_SPECS))


def without_descriptions(schema: Any) -> Any:
    """A schema less its docstrings, which may be reworded at any time."""
    if isinstance(schema, dict):
        return {
            key: without_descriptions(value)
            for key, value in schema.items()
            if not (key == "description" and isinstance(value, str))
        }
    return [without_descriptions(value) for value in schema] if isinstance(schema, list) else schema


def sent(*specs: Any, **fields: Any) -> dict[str, Any]:
    return {"version": 1, "specs": list(specs), **fields}


def refusal(command: str, text: str) -> Iterator[str]:
    """Decode the input of a transcript, in each form: the path, and the message."""
    tokenizer = GREEDY if "tokenizer" in command else None
    refused: set[tuple[str, str]] = set()
    for form in (text, text.encode(), json.loads(text)):
        with pytest.raises(s.SpecError) as error:
            s.decode(form, tokenizer)
        refused.add((error.value.path, error.value.message))
    ((path, message),) = refused
    yield f"{path}: {message}"


@transcripts("payloads")
def test_transcript(file: Path, request: pytest.FixtureRequest):
    """The schema has no words for the payloads in ``beyond_schema.txt``."""
    check(file, refusal, request)


@pytest.mark.parametrize(
    "path", ["$.specs[99]", "$.specs[99].bias", "$.specs", "$.version", "$.foo", "$[...]"]
)
def test_a_field_with_the_name_of_a_path_is_refused(path: str):
    """msgspec's message of it has two paths, or one that is none."""
    named = {f"x` - at `{path}": 1}
    for payload in (sent(FORCED, **named), sent(FORCED | named), [FORCED | named]):
        for form in (payload, json.dumps(payload)):
            with pytest.raises(s.SpecError):
                s.decode(form)


@pytest.mark.parametrize("payload", [text for text, _ in inputs("payloads/refused.txt")])
def test_schema_refuses(payload: str):
    assert not VALIDATOR.is_valid(json.loads(payload))


# A text or object that is no payload at all | what its error says.
@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ("", "is not valid JSON"),
        ('{"version": 1', "is not valid JSON"),
        (b"\xff\xfe", "is not valid JSON"),
        ('{"version": NaN}', "is not valid JSON"),
        ('[{"token_ids": [1e999]}]', "is not valid JSON"),
        ('{"version": ' + "1" * 5000 + "}", "is not valid JSON"),
        ('{"version": 1' + "0" * 9 + "}", "is newer than 1"),
        (r'{"version": "\ud800"}', "is not valid JSON"),
        ("\ud800", "is not valid Unicode"),
        ("[" * (NEST // 2), "at most 80 levels"),
        ('{"a":' * (NEST // 4), "at most 80 levels"),
        ("null", "Expected a payload or a list of specs, got `null`"),
        ('"text"', "Expected a payload or a list of specs, got `str`"),
        (object(), "Expected a payload or a list of specs, got `object`"),
        (s.PythonProcessorSpec(dict), "got `PythonProcessorSpec`"),
        (sent(s.PythonProcessorSpec(dict)), "Expected `object`, got `PythonProcessorSpec`"),
        (sent(object()), "Expected `object`, got `object`"),
        # What a parser more lenient than ours, or the caller itself, may hand over.
        (sent(FORCED, version=math.nan), "Expected `int`, got `float`"),
        (sent(FORCED, version=10**5000), "$.version"),
        (sent(FORCED, version=nested(NEST)), "at most 80 levels"),
        (sent(nested(NEST)), "at most 80 levels"),
        (sent(FORCED | {"token_ids": [math.nan]}), "Expected `int`, got `float`"),
        (sent(FORCED | {"token_ids": [10**5000]}), "Expected `int` <= 2147483647"),
        (sent(FORCED | {"\ud800": 1}), "is not valid Unicode"),
        (sent(FORCED, **{"\ud800": 1}), "is not valid Unicode"),
        ({**sent(FORCED), 1: 2}, "Expected `str`"),
    ],
    ids=range(26),
)
def test_no_payload_at_all(payload: Any, message: str):
    with pytest.raises(s.SpecError) as error:
        s.decode(payload)
    assert message in str(error.value)
    assert str(error.value).count(" - at ") == (error.value.path != "$")


@pytest.fixture(params=[900, 20_000])
def recursion_limit(request: pytest.FixtureRequest) -> Iterator[None]:
    """Python's own limit, which libraries change, torch's compiler for one."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(request.param)
    yield
    sys.setrecursionlimit(before)


OPEN = "[{" * 100
TOO_DEEP = "Expected a payload with at most 80 levels of arrays and objects"


def deep(levels: int) -> dict[str, Any]:
    """A payload that is wrong all the same, of so many levels."""
    return sent(FORCED, x=nested(levels - 2))


@pytest.mark.usefixtures("recursion_limit")
@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (deep(80), "unknown field `x`"),
        (json.dumps(deep(80)), "unknown field `x`"),
        (deep(81), TOO_DEEP),
        (json.dumps(deep(81)), TOO_DEEP),
        ([FORCED, nested(1500)], TOO_DEEP),
        ("[" * 1500, TOO_DEEP),
        ('{"a":' * 1500 + "]" * 2000, TOO_DEEP),
        ("]" * 2000 + "[" * 1500, "is not valid JSON"),
        (json.dumps({"version": 1, "specs": OPEN, "x": f'"{OPEN}\\'}), "Expected `array`"),
        (f'{{"version": 1, "specs": [], "x": "{OPEN}', "is not valid JSON"),
    ],
    ids=range(10),
)
def test_depth_is_a_limit_of_our_own(payload: Any, message: str):
    with pytest.raises(s.SpecError, match=re.escape(message)):
        s.decode(payload)


class TestSizes:
    def test_specs(self):
        specs = [s.ForcedTokenSequenceSpec((1,))] * (s.limits.MAX_SPECS + 1)
        with pytest.raises(
            s.SpecError, match=f"1 to {s.limits.MAX_SPECS} specs, got 17 - at `.*specs"
        ):
            s.encode(specs)
        with pytest.raises(s.SpecError, match="1 to 16 specs, got 0"):
            s.encode([])

    def test_bytes_decoded(self):
        payload = s.encode(GOLDEN_SPECS)
        padded = payload + " " * (s.limits.MAX_PAYLOAD_BYTES - len(payload))
        assert s.decode(padded).specs == GOLDEN_SPECS
        for one_too_many in (padded + " ", (padded + " ").encode(), "é" * (1 << 17) + " "):
            with pytest.raises(s.SpecError, match="has 262145 bytes; the limit is 262144"):
                s.decode(one_too_many)

    @pytest.mark.parametrize(
        ("params", "message"),
        [
            ({"text": "x" * (1 << 18)}, r"has \d+ bytes; the limit is 262144"),
            ({"a": [0] * 40_000}, "at most 18432 parts .*, got 400.."),
        ],
        ids=["bytes", "parts"],
    )
    def test_size_of_an_object(self, params: dict[str, Any], message: str):
        """What a JSON parser has made of a text is no smaller."""
        spec = {"kind": "plugin", "name": "any", "params": params}
        for payload in ({"version": 1, "specs": [spec]}, [spec]):
            with pytest.raises(s.SpecError, match=message):
                s.decode(payload)

    def test_bytes_encoded(self, monkeypatch: pytest.MonkeyPatch):
        size = len(s.encode(GOLDEN_SPECS))
        monkeypatch.setattr("logitport.spec.json_values.MAX_PAYLOAD_BYTES", size)
        s.encode(GOLDEN_SPECS)
        monkeypatch.setattr("logitport.spec.json_values.MAX_PAYLOAD_BYTES", size - 1)
        with pytest.raises(s.SpecError, match=f"has {size} bytes; the limit is {size - 1}"):
            s.encode(GOLDEN_SPECS)


def live(specs: Any, *, generation_only: bool = True) -> s.InProcessPayload:
    return s.InProcessPayload(1, specs, generation_only)


class TestContinued:
    def test_the_field_comes_if_there_are_tokens(self):
        plain = s.encode(GOLDEN_SPECS[0])
        assert s.encode(GOLDEN_SPECS[0], continued=0) == plain
        assert s.encode(GOLDEN_SPECS[0], continued=5) == plain.removesuffix("}") + ',"continued":5}'
        assert s.decode(s.encode(GOLDEN_SPECS[0], continued=5)).continued == 5
        assert live((GOLDEN_SPECS[0],)).continued == 0

    @pytest.mark.parametrize("wrong", [-1, 1 << 31, True, 1.5, "3", None])
    def test_what_is_no_count(self, wrong: Any):
        for make in (s.encode, lambda specs, **more: s.InProcessPayload(1, (specs,), **more)):
            with pytest.raises(s.SpecError) as error:
                make(GOLDEN_SPECS[0], continued=wrong)
            assert error.value.path == "$.continued"

    @pytest.mark.parametrize("form", [str, json.loads])
    def test_it_is_an_argument(self, form: Any):
        with pytest.raises(s.SpecError, match="Expected continued=5 as an argument") as error:
            s.encode(form(s.encode(GOLDEN_SPECS[0], continued=5)))
        assert error.value.path == "$.continued"

    def test_a_grammar_goes_on(self):
        text = s.encode([s.BannedTokensSpec((1,)), s.GrammarSpec(regex="a")], continued=1)
        assert s.decode(text).continued == 1


class TestEncodeRefuses:
    def test_conflicts(self):
        with pytest.raises(s.SpecError) as error:
            s.encode([s.GrammarSpec(regex="a"), s.ForcedTokenSequenceSpec((2,))])
        assert error.value.path == "$.specs[1]"

    @pytest.mark.parametrize("thing", [None, set[Any](), "text", b"{}", {}, FORCED, object()])
    def test_neither_one_spec_nor_several(self, thing: Any):
        takes_objects = () if isinstance(thing, dict | str | bytes) else (s.encode,)
        for refuse in (*takes_objects, live):
            with pytest.raises(s.SpecError, match="Expected a LogitsProcessorSpec, or several"):
                refuse(thing)

    @pytest.mark.parametrize("value", ["x", 1, None])
    def test_generation_only(self, value: Any):
        for refuse in (s.encode, live):
            with pytest.raises(s.SpecError) as error:
                refuse(GOLDEN_SPECS, generation_only=value)
            assert error.value.path == "$.generation_only"


class TestDynamo:
    ENTRIES = ({"kind": "forced_sequence", "token_ids": [1, 2], "eos_token_id": 3},)
    SPEC = s.ForcedTokenSequenceSpec((1, 2), 3)

    def test_in(self):
        for form in (self.ENTRIES, list(self.ENTRIES), json.dumps(self.ENTRIES)):
            assert s.decode(form) == s.Payload(1, (self.SPEC,), generation_only=True)

    def test_out(self):
        assert json.loads(s.encode(self.SPEC))["specs"] == list(self.ENTRIES)


specs = strategies.specs(8, kinds=s.WIRE_KINDS)
# Lone surrogates, NaN and integers of any size included: in-process callers can hand them over.
json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda values: st.lists(values) | st.dictionaries(st.text(st.characters()), values),
)


def decodes_or_says_why(payload: Any) -> None:
    """Anything but SpecError fails the test; so does a payload that would not decode again."""
    try:
        decoded = s.decode(payload)
    except s.SpecError:
        return
    again = s.encode(decoded.specs, generation_only=decoded.generation_only)
    assert s.decode(again) == decoded


@given(st.text(st.characters()) | st.binary())
def test_any_text(text: str | bytes):
    decodes_or_says_why(text)


@given(json_values)
def test_any_json_value(value: Any):
    decodes_or_says_why(value)
    decodes_or_says_why(json.dumps(value))


@given(st.data(), specs, st.text(st.characters(), max_size=4))
def test_mutated_text(data: st.DataObject, spec: s.LogitsProcessorSpec, inserted: str):
    text = s.encode(spec)
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 8)))
    decodes_or_says_why(text[:start] + inserted + text[end:])


@given(
    st.data(),
    strategies.payload_specs(8, 3, kinds=s.WIRE_KINDS),
    st.booleans(),
    json_values | strategies.Draws(2).json_value,
)
def test_mutated_structure(
    data: st.DataObject,
    together: tuple[s.LogitsProcessorSpec, ...],
    as_entries: bool,
    planted: Any,
):
    """Replace, add or delete one thing anywhere: it decodes, or there is a ``SpecError``."""
    payload: Any = json.loads(s.encode(together))
    if as_entries:
        payload = payload["specs"]
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
    elif isinstance(node, list):
        node.insert(key, planted)
    else:
        names = st.text(st.characters()) | st.sampled_from(["kind", "bias", "times", "0"])
        node[data.draw(names)] = planted
    decodes_or_says_why(payload)
    decodes_or_says_why(json.dumps(payload))
