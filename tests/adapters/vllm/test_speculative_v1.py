"""Speculative decoding under the V1 model runner, which silently loads no processors then."""

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from logitport import spec as lp
from logitport.adapters import Policy
from logitport.adapters.vllm import KEY, LogitportProcessor, admission, processor
from logitport.adapters.vllm.admission import Admitting

from .in_process import Engine, engine, lookup, params, refused
from .stand_ins import configuration

pytestmark = pytest.mark.only("v1", reason="about the V1 runner")

PROMPT = "one two three one two three one two three one two"
SPECULATIVE = {"speculative_config": lookup(3)}
REFUSED = (
    "logitport: The request has specs, but vLLM's V1 model runner loads no logits processors when "
    "it decodes speculatively: .* VLLM_USE_V2_MODEL_RUNNER=1, or without a speculative config"
)
DEFAULTS = "logitport: The server adds specs, but vLLM"


@pytest.fixture(scope="module")
def running(model: Path) -> Iterator[Engine]:
    import llvmlite.binding.ffi

    # The n-gram drafter brings in numba, and so llvmlite, whose library takes any name for that of
    # a C function; an engine that starts later in the process looks for Triton kernels in the
    # ``__dict__`` of all there is (vllm/triton_utils/dispatcher.py), and fails at this one.
    llvmlite.binding.ffi.lib._fntab["__dict__"] = {}
    with engine(model, runner="v1", **SPECULATIVE) as running:
        assert running.processors == []
        yield running


@pytest.mark.slow
@pytest.mark.parametrize(
    "spec",
    [lp.ForcedTokenSequenceSpec((5, 6, 7)), lp.PythonProcessorSpec(lambda: print)],
    ids=lambda spec: spec.kind,
)
def test_specs_are_refused(running: Engine, spec: lp.LogitsProcessorSpec):
    with refused(REFUSED):
        running.generate([PROMPT], [params(spec, max_tokens=12)])
    for extra_args in (None, {"others": KEY}):
        (output,) = running.generate([PROMPT], [params(max_tokens=12, extra_args=extra_args)])
        assert len(output.token_ids) == 12
        assert running.drafts[0].accepted > 0


@pytest.mark.parametrize(
    ("kv_role", "generation_only", "is_refused"),
    [
        ("kv_producer", True, False),
        ("kv_producer", False, True),
        ("kv_consumer", True, True),
        ("kv_both", True, True),
    ],
)
def test_what_acts_on_other_workers_only_is_admitted(
    monkeypatch: pytest.MonkeyPatch, kv_role: str, generation_only: bool, is_refused: bool
):
    """A proxy copies a request's body to the prefill worker, too."""
    config = configuration(kv_role=kv_role, speculative_config=SimpleNamespace())
    monkeypatch.setattr(processor, "admitting_engine", lambda: Admitting(config))
    payload = lp.encode(lp.ForcedTokenSequenceSpec((5,)), generation_only=generation_only)
    with pytest.raises(ValueError, match=REFUSED) if is_refused else nullcontext():
        LogitportProcessor.validate_params(params(extra_args={KEY: payload}))


@pytest.mark.parametrize("kv_role", ["kv_producer", "kv_consumer", "kv_both"])
def test_default_specs_are_refused(monkeypatch: pytest.MonkeyPatch, kv_role: str):
    """Requests without specs too: they would have those that the variable stands for."""
    config = configuration(kv_role=kv_role, speculative_config=SimpleNamespace())
    monkeypatch.setattr(processor, "admitting_engine", lambda: Admitting(config))
    monkeypatch.setattr(admission, "policy_of", lambda *_: Policy((lp.BannedTokensSpec((5,)),)))
    generates = kv_role != "kv_producer"
    for sampling in (params(), params(extra_args={"others": KEY})):
        with pytest.raises(ValueError, match=DEFAULTS) if generates else nullcontext():
            LogitportProcessor.validate_params(sampling)
