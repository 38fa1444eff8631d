"""What a spec refuses, and what may be relied on once it exists."""

import copy
import pickle
import threading
from functools import partial
from typing import Any

import msgspec
import pytest
from logitport import spec as package
from logitport.spec import (
    WIRE_KINDS,
    ChoiceSpec,
    ForcedTokenSequenceSpec,
    LogitsProcessorSpec,
    PythonProcessorSpec,
    SpecError,
    decode,
    encode,
    limits,
)

from tests.support.paths import ROOT

BIG = limits.MAX_TOKEN_ID + 1

# fields of a forced sequence | message | path below the spec
BAD_FIELDS: list[tuple[dict[str, Any], str, str]] = [
    ({"token_ids": []}, "Expected `array` of length >= 1", "token_ids"),
    (
        {"token_ids": [1] * (limits.MAX_TOKEN_IDS + 1)},
        f"Expected `array` of length <= {limits.MAX_TOKEN_IDS}",
        "token_ids",
    ),
    ({"token_ids": None}, "Expected `array`, got `null`", "token_ids"),
    ({"token_ids": 5}, "Expected `array`, got `int`", "token_ids"),
    ({"token_ids": "12"}, "Expected `array`, got `str`", "token_ids"),
    ({"token_ids": {"0": 1}}, "Expected `array`, got `object`", "token_ids"),
    ({"token_ids": [1, 2, 3, -1]}, "Expected `int` >= 0", "token_ids[3]"),
    ({"token_ids": [1, BIG]}, f"Expected `int` <= {limits.MAX_TOKEN_ID}", "token_ids[1]"),
    ({"token_ids": [1, 2**63]}, f"Expected `int` <= {limits.MAX_TOKEN_ID}", "token_ids[1]"),
    ({"token_ids": [1, 1.0]}, "Expected `int`, got `float`", "token_ids[1]"),
    ({"token_ids": [True]}, "Expected `int`, got `bool`", "token_ids[0]"),
    ({"token_ids": [1, "2"]}, "Expected `int`, got `str`", "token_ids[1]"),
    ({"token_ids": [1, None]}, "Expected `int`, got `null`", "token_ids[1]"),
    ({"token_ids": [[1]]}, "Expected `int`, got `array`", "token_ids[0]"),
    ({"token_ids": [1], "eos_token_id": -1}, "Expected `int` >= 0", "eos_token_id"),
    (
        {"token_ids": [1], "eos_token_id": BIG},
        f"Expected `int` <= {limits.MAX_TOKEN_ID}",
        "eos_token_id",
    ),
    ({"token_ids": [1], "eos_token_id": 2.0}, "Expected `int | null`, got `float`", "eos_token_id"),
    ({"token_ids": [1], "eos_token_id": "2"}, "Expected `int | null`, got `str`", "eos_token_id"),
    (
        {"token_ids": [1], "eos_token_id": False},
        "Expected `int | null`, got `bool`",
        "eos_token_id",
    ),
    ({"token_ids": [1], "eos_token_id": [2]}, "Expected `int | null`, got `array`", "eos_token_id"),
]
bad_fields = pytest.mark.parametrize(
    ("fields", "message", "path"), BAD_FIELDS, ids=[str(fields)[:60] for fields, _, _ in BAD_FIELDS]
)


def raised(error: pytest.ExceptionInfo[SpecError]) -> tuple[str, str]:
    return error.value.message, error.value.path


@bad_fields
def test_constructor_refuses(fields: dict[str, Any], message: str, path: str):
    with pytest.raises(SpecError) as error:
        ForcedTokenSequenceSpec(**fields)
    assert raised(error) == (message, f"$.{path}")


@bad_fields
def test_decode_refuses(fields: dict[str, Any], message: str, path: str):
    content = {"version": 1, "specs": [{"kind": "forced_sequence", **fields}]}
    for payload in (content, msgspec.json.encode(content), msgspec.json.encode(content).decode()):
        with pytest.raises(SpecError) as error:
            decode(payload)
        assert raised(error) == (message, f"$.specs[0].{path}")


@bad_fields
def test_replace_refuses(fields: dict[str, Any], message: str, path: str):
    with pytest.raises(SpecError) as error:
        msgspec.structs.replace(ForcedTokenSequenceSpec((1,)), **fields)
    assert raised(error) == (message, f"$.{path}")


@pytest.mark.parametrize("unordered", [{7, 1, 2}, frozenset({7, 1, 2})])
def test_token_ids_need_an_order(unordered: Any):
    with pytest.raises(SpecError) as error:
        ForcedTokenSequenceSpec(unordered)
    assert error.value.path == "$.token_ids"
    with pytest.raises(SpecError) as error:
        ChoiceSpec([(1, 2), unordered], 0)
    assert error.value.path == "$.choices"


def test_limits_are_inclusive():
    token_ids = (0,) * (limits.MAX_TOKEN_IDS - 1) + (limits.MAX_TOKEN_ID,)
    spec = ForcedTokenSequenceSpec(token_ids, eos_token_id=limits.MAX_TOKEN_ID)
    assert decode(encode(spec)).specs == (spec,)


def test_a_list_is_as_good_as_a_tuple():
    ids: Any = [1, 2]
    spec = ForcedTokenSequenceSpec(ids)
    ids.append(3)
    assert spec.token_ids == (1, 2)
    assert spec == ForcedTokenSequenceSpec((1, 2))


def test_equality_and_hash():
    spec = ForcedTokenSequenceSpec((1, 2), 3)
    same = ForcedTokenSequenceSpec(token_ids=(1, 2), eos_token_id=3)
    assert spec == same
    assert hash(spec) == hash(same)
    others = [ForcedTokenSequenceSpec(*other) for other in [((1, 2), None), ((2, 1), 3), ((1,), 3)]]
    assert spec not in others
    assert len({spec, same, *others}) == 4


def test_immutable():
    spec = ForcedTokenSequenceSpec((1, 2), 3)
    with pytest.raises(AttributeError, match="immutable"):
        spec.eos_token_id = 4  # pyright: ignore
    with pytest.raises(AttributeError):
        spec.other = 4  # pyright: ignore
    assert spec == ForcedTokenSequenceSpec((1, 2), 3)


def test_copies_and_pickles():
    spec = ForcedTokenSequenceSpec((1, 2), 3)
    assert copy.deepcopy(spec) == spec
    assert pickle.loads(pickle.dumps(spec)) == spec


def test_kind():
    assert ForcedTokenSequenceSpec((1,)).kind == "forced_sequence"
    assert PythonProcessorSpec(object).kind == "python"


@pytest.mark.parametrize(
    ("spec", "message", "path"),
    [
        (ForcedTokenSequenceSpec((9, 10, 11)), "Token id 10", "$.token_ids[1]"),
        (ForcedTokenSequenceSpec((9,), 10), "Token id 10", "$.eos_token_id"),
    ],
)
def test_vocabulary(spec: LogitsProcessorSpec, message: str, path: str):
    spec.check_vocabulary(12)
    with pytest.raises(SpecError) as error:
        spec.check_vocabulary(10)
    assert raised(error) == (f"{message} is beyond the vocabulary of 10 tokens", path)
    with pytest.raises(SpecError) as error:
        decode(encode(spec)).check_vocabulary(10)
    assert error.value.path == path.replace("$", "$.specs[0]")


def test_python_processor_needs_a_callable():
    not_callable: Any = 3
    with pytest.raises(SpecError) as error:
        PythonProcessorSpec(not_callable)
    assert raised(error) == ("Expected a callable, got 3", "$.factory")


def test_python_processor_is_not_copied():
    """Engines copy the parameters of a request, and what they hold is live."""
    spec = PythonProcessorSpec(partial(print, threading.Lock()))
    assert copy.deepcopy({"logitport": [spec]})["logitport"][0] is spec


def test_python_processor_never_travels():
    with pytest.raises(SpecError) as error:
        encode([ForcedTokenSequenceSpec((1,)), PythonProcessorSpec(dict)])
    message, path = raised(error)
    assert message.startswith(
        "PythonProcessorSpec cannot be serialized: it holds factory=<class 'd"
    )
    assert path == "$.specs[1]"


def test_spec_error():
    assert issubclass(SpecError, ValueError)
    error = SpecError("Too long", "$.specs[0]")
    assert str(error) == "Too long - at `$.specs[0]`"
    twins: list[Any] = [pickle.loads(pickle.dumps(error)), copy.copy(error)]
    for twin in twins:
        assert type(twin) is SpecError
        assert (twin.message, twin.path, str(twin)) == (error.message, error.path, str(error))
    assert SpecError("No").path == "$"
    assert str(SpecError("No")) == "No"
    assert SpecError("No", "$.token_ids[1]").under("$.specs[2]").path == "$.specs[2].token_ids[1]"


def test_every_kind_is_listed():
    """One line for each module, from which all else follows."""
    modules = {path.stem for path in (ROOT / "spec" / "kinds").glob("[!_]*.py")}
    assert {kind.__module__.rpartition(".")[2] for kind in WIRE_KINDS} == modules - {
        "python_processor"
    }
    assert {kind.__name__ for kind in WIRE_KINDS} <= {*package.__all__} & {*dir(package)}
