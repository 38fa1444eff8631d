"""What a spec refuses, and what may be relied on once it exists."""

import copy
import pickle
import threading
from functools import partial
from typing import Any

import pytest
from logitport import spec as package
from logitport.spec import (
    WIRE_KINDS,
    ChoiceSpec,
    ForcedTokenSequenceSpec,
    PythonProcessorSpec,
    SpecError,
    encode,
)

from tests.support.paths import ROOT


def raised(error: pytest.ExceptionInfo[SpecError]) -> tuple[str, str]:
    return error.value.message, error.value.path


@pytest.mark.parametrize("unordered", [{7, 1, 2}, frozenset({7, 1, 2})])
def test_token_ids_need_an_order(unordered: Any):
    with pytest.raises(SpecError) as error:
        ForcedTokenSequenceSpec(unordered)
    assert error.value.path == "$.token_ids"
    with pytest.raises(SpecError) as error:
        ChoiceSpec([(1, 2), unordered], 0)
    assert error.value.path == "$.choices"


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
