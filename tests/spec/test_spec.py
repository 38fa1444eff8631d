"""What a spec refuses, and what may be relied on once it exists."""

import copy
import pickle
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from logitport import spec as package
from logitport.spec.base import processor_specs, restore_paths
from logitport.spec.errors import Key, Name, Path, path_text

from tests.support.paths import ROOT


@pytest.mark.parametrize("unordered", [{7, 1, 2}, frozenset({7, 1, 2})])
def test_token_ids_need_an_order(unordered: Any):
    with pytest.raises(package.SpecError) as error:
        package.ForcedTokenSequenceSpec(unordered)
    assert error.value.path == "$.token_ids"
    with pytest.raises(package.SpecError) as error:
        package.ChoiceSpec([(1, 2), unordered], 0)
    assert error.value.path == "$.choices"


def test_a_list_is_as_good_as_a_tuple():
    ids: Any = [1, 2]
    spec = package.ForcedTokenSequenceSpec(ids)
    ids.append(3)
    assert spec.token_ids == (1, 2)
    assert spec == package.ForcedTokenSequenceSpec((1, 2))


def test_python_processor_needs_a_callable():
    not_callable: Any = 3
    with pytest.raises(package.SpecError) as error:
        package.PythonProcessorSpec(not_callable)
    assert shown(error.value) == ("Expected a callable, got 3", "$.factory")


def test_python_processor_is_not_copied():
    """Engines copy the parameters of a request, and what they hold is live."""
    spec = package.PythonProcessorSpec(partial(print, threading.Lock()))
    assert copy.deepcopy({"logitport": [spec]})["logitport"][0] is spec


def test_python_processor_never_travels():
    with pytest.raises(package.SpecError) as error:
        package.encode([package.ForcedTokenSequenceSpec((1,)), package.PythonProcessorSpec(dict)])
    message, path = shown(error.value)
    assert message.startswith(
        "PythonProcessorSpec cannot be serialized: it holds factory=<class 'd"
    )
    assert path == "$.specs[1]"


def test_spec_error():
    assert issubclass(package.SpecError, ValueError)
    error = package.SpecError("Too long", "specs", 0)
    assert str(error) == "Too long - at `$.specs[0]`"
    assert error.location == ("specs", 0)
    twins: list[Any] = [pickle.loads(pickle.dumps(error)), copy.copy(error)]
    for twin in twins:
        assert type(twin) is package.SpecError
        assert (twin.message, twin.path, str(twin)) == (error.message, error.path, str(error))
    assert package.SpecError("No").path == "$"
    assert str(package.SpecError("No")) == "No"


@pytest.mark.parametrize(
    ("location", "path"),
    [
        (("token_ids", 1), "$.token_ids[1]"),
        (("bias", Key("5")), "$.bias[5]"),
        (("bias", Key("...")), "$.bias[...]"),
        ((3, "specs"), "$[3].specs"),
        ((Name("min_tokens"),), "min_tokens"),
        ((Name("$.specs[0]"), "phases", 1), "$.specs[0].phases[1]"),
        ((), "$"),
    ],
)
def test_paths_as_text(location: Path, path: str):
    error = package.SpecError("No", *location)
    assert error.path == path_text(location) == path
    assert pickle.loads(pickle.dumps(error)).path == path


def test_an_error_moves_with_the_specs_that_it_names():
    error = package.SpecError(
        ("Conflicts with ", ("specs", 0), ", as `$.specs[0]` says"), "specs", 2, "n"
    )
    outside = package.SpecError("No", Name("min_tokens"))
    moves: list[tuple[Callable[[package.SpecError], package.SpecError], str]] = [
        (lambda e: e.at("phases", 4), "`$.phases[4].specs[0]`|$.phases[4].specs[2].n"),
        (lambda e: e.moved(lambda path: path[1:]), "`$[0]`|$[2].n"),
        (lambda e: e.specs_at(lambda i: ("specs", i + 7)), "`$.specs[7]`|$.specs[9].n"),
        (lambda e: e.specs_at(lambda i: (Name("mine"),) if i == 0 else (i,)), "mine|$[2].n"),
    ]
    for move, expected in moves:
        other, path = expected.split("|")
        moved = move(error)
        assert shown(moved) == (f"Conflicts with {other}, as `$.specs[0]` says", path)
        assert shown(move(outside)) == ("No", "min_tokens")
    assert shown(package.SpecError("No", "specs").specs_at(lambda i: (i,))) == ("No", "$.specs")


def test_paths_count_native_specs():
    specs = (
        package.SamplingSpec(temperature=0),
        package.BannedTokensSpec((7,)),
        package.ForcedTokenSequenceSpec((7,)),
    )
    conflict = package.SpecError(("Conflicts with ", ("specs", 0), ", a ban"), "specs", 1, "n")
    assert len(processor_specs(specs)) == 2
    with pytest.raises(package.SpecError) as error, restore_paths(specs):
        raise conflict
    assert shown(error.value) == ("Conflicts with `$.specs[1]`, a ban", "$.specs[2].n")


def shown(error: package.SpecError) -> tuple[str, str]:
    return error.message, error.path


def test_every_kind_is_listed():
    """One line for each module, from which all else follows."""
    modules = {path.stem for path in (ROOT / "spec" / "kinds").glob("[!_]*.py")}
    assert {kind.__module__.rpartition(".")[2] for kind in package.WIRE_KINDS} == modules - {
        "python_processor"
    }
    assert {kind.__name__ for kind in package.WIRE_KINDS} <= {*package.__all__} & {*dir(package)}
