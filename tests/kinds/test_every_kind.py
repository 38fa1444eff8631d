"""What holds for every kind, by the rows that each kind has in a file of its name."""

import json
from importlib import import_module

import jsonschema
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from logitport.adapters.reference.kinds import KINDS, REALIZED
from logitport.spec import (
    WIRE_KINDS,
    AllowedScriptsSpec,
    BannedScriptsSpec,
    BannedTextSpec,
    ChainSpec,
    GrammarSpec,
    LogitsProcessorSpec,
    MaxRunSpec,
    PluginSpec,
    SamplingSpec,
    SpecError,
    WatermarkSpec,
    decode,
    encode,
    json_schema,
    limits,
)
from logitport.spec.base import kind_of

from tests.support.kinds import VALIDATOR, RealizedKindTests
from tests.support.strategies import payload_specs, specs


def test_each_kind_has_its_rows():
    for spec_type in WIRE_KINDS:
        rows = import_module(f"tests.kinds.test_{kind_of(spec_type)}").TestRows
        assert type(rows.golden) is spec_type
        assert issubclass(rows, RealizedKindTests) is (spec_type in REALIZED)
    others = {ChainSpec, GrammarSpec, SamplingSpec, PluginSpec, WatermarkSpec}
    others |= {BannedTextSpec, MaxRunSpec, BannedScriptsSpec, AllowedScriptsSpec}
    assert {*WIRE_KINDS} - {*REALIZED} == others
    assert len({KINDS[spec_type].minimal for spec_type in WIRE_KINDS}) == len(WIRE_KINDS)


def test_schema_is_valid():
    jsonschema.Draft202012Validator.check_schema(json_schema())


small = specs(8, kinds=WIRE_KINDS)
large = specs(limits.MAX_INT + 1, kinds=WIRE_KINDS, most=3, longest=3, count=limits.MAX_INT)


@given(small | large, st.booleans())
def test_round_trip(spec: LogitsProcessorSpec, generation_only: bool):
    text = encode(spec, generation_only=generation_only)
    VALIDATOR.validate(json.loads(text))
    payload = decode(text)
    assert payload == decode(text.encode()) == decode(json.loads(text))
    assert payload.specs == (spec,)
    assert hash(payload.specs) == hash((spec,))
    assert payload.generation_only is generation_only
    assert encode(payload.specs, generation_only=generation_only) == text


@given(payload_specs(8, 3))
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
