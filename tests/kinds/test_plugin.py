from typing import Any

import pytest
from logitport.spec import PluginSpec, SpecError, decode, encode, limits

from tests.support.kinds import VALIDATOR, KindTests

INTEGER = "Expected an integer of at most 64 bits"


class TestRows(KindTests):
    golden = PluginSpec("acme.watermark", {"key": 7, "words": ["a", None, {"b": [True, 0.5]}]})
    refused = (
        ({"name": ""}, "Expected `str` of length >= 1", "name"),
        ({"name": "a" * 129}, "Expected `str` of length <= 128", "name"),
        ({"name": "x", "params": []}, "Expected `object`, got `array`", "params"),
        ({"name": "x", "params": None}, "Expected `object`, got `null`", "params"),
        ({"name": "x", "params": {"a": [{"b": 1 << 63}]}}, INTEGER, "params.a[0].b"),
    )
    largest = (PluginSpec("a" * limits.MAX_NAME),)


@pytest.mark.parametrize("name", ["a b", "a\n", "é", "a/b", " ", "\n"])
def test_names(name: str):
    with pytest.raises(SpecError, match="matching regex") as error:
        PluginSpec(name)
    assert error.value.path == "$.name"
    assert not VALIDATOR.is_valid({"version": 1, "specs": [{"kind": "plugin", "name": name}]})


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
        ({"a": 10**5000}, INTEGER, "params.a"),
    ],
    ids=range(8),
)
def test_params_are_json(fields: dict[Any, Any], message: str, path: str):
    with pytest.raises(SpecError) as error:
        PluginSpec("x", fields)
    assert (error.value.message, error.value.path) == (message, f"$.{path}")


def test_params_nest_so_deep():
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


def test_params_are_copied():
    params: dict[str, Any] = {"a": [1, {"b": 2}]}
    spec = PluginSpec("x", params)
    params["a"][1]["b"] = 3
    assert spec.params == {"a": (1, {"b": 2})}
