from typing import Any

import pytest
from logitport.adapters.core import compile_specs
from logitport.spec import ChainSpec, ChainStep, Smoothing, SpecError, Xtc

from tests.support.kinds import KindTests

ONE_OF = f"Expected one of {', '.join(ChainStep.__struct_fields__)}"


def step(**fields: Any) -> Any:
    return {"steps": [fields]}


class TestRows(KindTests):
    golden = ChainSpec(
        (
            *(ChainStep(top_n_sigma=1.5), ChainStep(top_k=40), ChainStep(typical=0.9)),
            *(ChainStep(top_p=0.95), ChainStep(min_p=0.05), ChainStep(top_a=0.2)),
            *(ChainStep(epsilon=0.0003), ChainStep(eta=0.0003), ChainStep(top_h=0.4)),
            *(ChainStep(p_less=True), ChainStep(min_k=3.0), ChainStep(smoothing=Smoothing(0.2))),
            *(ChainStep(xtc=Xtc(0.1, 0.5)), ChainStep(temperature=0.8)),
        )
    )
    refused = (
        ({"steps": []}, "Expected `array` of length >= 1", "steps"),
        (step(), f"{ONE_OF}, got none", "steps[0]"),
        (step(top_k=1, top_p=0.5), f"{ONE_OF}, got top_k and top_p", "steps[0]"),
        (step(temperature=0), "Expected `float` >= 0.01", "steps[0].temperature"),
        (step(top_k=0), "Expected `int` >= 1", "steps[0].top_k"),
        (step(top_p=1.5), "Expected `float` <= 1.0", "steps[0].top_p"),
        (step(p_less=False), "Invalid enum value False", "steps[0].p_less"),
        (
            step(xtc={"threshold": 0.6, "probability": 1}),
            "Expected `float` <= 0.5",
            "steps[0].xtc.threshold",
        ),
        (
            step(xtc={"threshold": 0.1}),
            "Object missing required field `probability`",
            "steps[0].xtc",
        ),
        (
            step(smoothing={"factor": 1, "curve": 4}),
            "Expected `float` <= 3.0",
            "steps[0].smoothing.curve",
        ),
        (step(mirostat=2), "Object contains unknown field `mirostat`", "steps[0]"),
        ({"steps": [{"top_k": 1}, {"top_k": 2}]}, "Expected top_k once", "steps[1]"),
        (
            {"steps": [{"xtc": {"threshold": 0.1, "probability": 1}}, {"min_p": 0.1}]},
            "Expected no min_p after xtc, which has to see it",
            "steps[1]",
        ),
    )
    largest = (golden,)


def test_a_request_has_one_chain():
    one, other = ChainSpec((ChainStep(top_k=1),)), ChainSpec((ChainStep(top_k=2),))
    assert len(compile_specs([one, one]).chains) == 1
    with pytest.raises(SpecError, match="A request has one chain") as error:
        compile_specs([one, other])
    assert error.value.path == "$.specs[1]"
