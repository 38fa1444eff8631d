"""What vLLM's middleware says when the server starts. No engine is started."""

from types import SimpleNamespace
from typing import Any

import pytest
from logitport.adapters.vllm import SpecMiddleware

from .stand_ins import configuration

NEEDS = "logitport: `effort` sets thinking_token_budget, which vLLM refuses: add --reasoning-parser"


@pytest.mark.parametrize(
    ("settings", "reasoning", "warns"),
    [
        ({"effort": {"low": 5}}, None, True),
        ({"effort": {"low": 5}}, SimpleNamespace(enabled=False), True),
        ({"effort": {"low": 5}}, SimpleNamespace(enabled=True), False),
        ({"effort": {"low": 5}}, SimpleNamespace(), False),
        ({"forbid": ["dry"]}, None, False),
        (None, None, False),
        ({"effort": {"low": "x"}}, None, False),  # the engine does not start
    ],
)
def test_effort_without_a_reasoning_parser(
    settings: Any, reasoning: Any, warns: bool, caplog: pytest.LogCaptureFixture
):
    """A client would get vLLM's error about a field that it did not send."""
    caplog.set_level("WARNING", "logitport")
    config = configuration(reasoning_config=reasoning, additional_config={"logitport": settings})
    app: Any = SimpleNamespace(state=SimpleNamespace(vllm_config=config))
    SpecMiddleware(app).start({"type": "lifespan", "app": app})
    assert (NEEDS in caplog.text) is warns
