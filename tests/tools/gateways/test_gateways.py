"""Specs behind gateways, before servers without an engine: no spec is lost without a sign."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("uvicorn")

from .asks import Ask, Outcome
from .gateway import GATEWAYS, PYTHON
from .matrix import DIRECT, Matrix, before_recorders, matrix, table
from .recorder import recorders

pytestmark = pytest.mark.skipif(
    not PYTHON.exists(), reason="no gateway is installed: make test-gateways"
)

PAGE = Path(__file__).parents[3] / "docs" / "gateways.md"
OPENAI = "/v1/chat/completions", "/v1/completions"


@pytest.fixture(scope="module", params=["vllm", "sglang"])
def matrices(request: Any) -> list[Matrix]:
    return before_recorders(request.param)


def test_no_spec_is_lost_without_a_sign(matrices: list[Matrix]):
    for found in matrices:
        assert found
        for at, (outcome, why) in found.items():
            assert outcome in (Outcome.OBEYED, Outcome.REFUSED, Outcome.NOT_OURS), (at, why)


def test_the_documentation_has_this_matrix(matrices: list[Matrix]):
    assert table(*matrices) in PAGE.read_text()


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_lost_field_is_named(engine: str):
    field = {"vllm": "vllm_xargs", "sglang": "custom_params"}[engine]
    with recorders(engine) as urls:
        outcome, why = matrix(engine, urls, ["sglang-router"])[
            "sglang-router", Ask("/v1/chat/completions", False, "field")
        ]
    assert outcome is Outcome.NOT_OURS
    assert f"`{field}.logitport` was lost" in why
    assert "carrier='schema'" in why


@pytest.mark.parametrize("gateway", [DIRECT, *GATEWAYS])
def test_servers_without_logitport(gateway: str):
    with recorders("vllm", has_logitport=False) as urls:
        found = matrix("vllm", urls, [gateway])
    for (_, ask), (outcome, why) in found.items():
        is_route = ask.route in OPENAI
        assert outcome is Outcome.NOT_OURS or (not is_route and outcome is Outcome.REFUSED), why
