"""Speculative decoding under the V1 model runner, which takes no logits processors then.

It does not start with one that is named on the command line, and says nothing of one that it
finds by itself. So what is asked of ours has to be refused at admission.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from logitport import spec as lp
from logitport.adapters.vllm import KEY
from logitport.adapters.vllm.admission import Admitting, admit_request, check_free
from logitport.hooks.hello_world import VARIABLES

from .in_process import FLAG, Engine, engine, lookup, params, refused

pytestmark = [pytest.mark.engine, pytest.mark.only("v1", reason="about the V1 runner")]

DEFAULTS = import_module("logitport.adapters.default_specs")
PROMPT = "one two three one two three one two three one two"
SPECULATIVE = {"speculative_config": lookup(3)}
REFUSED = (
    "logitport: The request has specs, but vLLM's V1 model runner loads no logits processors when "
    "it decodes speculatively: .* VLLM_USE_V2_MODEL_RUNNER=1, or without a speculative config"
)


@contextmanager
def speculative(model: Path, **arguments: Any) -> Iterator[Engine]:
    import llvmlite.binding.ffi

    # The n-gram drafter brings in numba, and so llvmlite, whose library takes any name for that of
    # a C function; an engine that starts later in the process looks for Triton kernels in the
    # ``__dict__`` of all there is (vllm/triton_utils/dispatcher.py), and fails at this one.
    llvmlite.binding.ffi.lib._fntab["__dict__"] = {}
    with engine(model, runner="v1", **SPECULATIVE, **arguments) as running:
        yield running


@pytest.fixture(scope="module")
def running(model: Path) -> Iterator[Engine]:
    with speculative(model) as running:
        assert running.processors == []
        yield running


@pytest.mark.parametrize(
    "spec",
    [
        lp.ForcedTokenSequenceSpec((5, 6, 7)),
        lp.BannedTokensSpec((5,)),
        lp.PythonProcessorSpec(lambda: print),
    ],
    ids=lambda spec: spec.kind,
)
def test_specs_are_refused(running: Engine, spec: lp.LogitsProcessorSpec):
    for _ in range(2):
        with refused(REFUSED):
            running.generate([PROMPT], [params(spec, max_tokens=12)])
        for extra_args in (None, {"others": KEY}):
            (output,) = running.generate([PROMPT], [params(max_tokens=12, extra_args=extra_args)])
            assert len(output.token_ids) == 12
            assert running.drafts[0].accepted > 0


def test_default_specs_are_refused(model: Path, monkeypatch: pytest.MonkeyPatch):
    """Requests without specs too: they would have those that the variable stands for."""
    monkeypatch.setenv(VARIABLES[1], "1")
    with (
        speculative(model) as running,
        patch.object(DEFAULTS, "entry_points", wraps=DEFAULTS.entry_points) as look_up,
    ):
        for sampling in (params(), params(extra_args={"others": KEY})):
            with refused("Default specs are configured, but vLLM"):
                running.generate([PROMPT], [sampling])
        with refused(REFUSED):
            running.generate([PROMPT], [params(lp.ForcedTokenSequenceSpec((5,)))])
        assert look_up.call_count == 1


def test_the_command_line_is_refused_by_vllm(model: Path):
    message = "Custom logits processors are not supported when speculative decoding is enabled"
    with pytest.raises(ValueError, match=message), speculative(model, logits_processors=FLAG):
        pass


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
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    kv_role: str,
    generation_only: bool,
    is_refused: bool,
):
    """A proxy copies a request's body to the prefill worker, too."""
    from vllm import EngineArgs

    monkeypatch.setenv(VARIABLES[0], "1")
    transfer: Any = {"kv_connector": "ExampleConnector", "kv_role": kv_role}
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
    arguments = EngineArgs(str(model), kv_transfer_config=transfer, **SPECULATIVE)
    config = arguments.create_engine_config()
    payload = lp.encode(lp.ForcedTokenSequenceSpec((5,)), generation_only=generation_only)

    with pytest.raises(lp.SpecError, match="has specs") if is_refused else nullcontext():
        admit_request(Admitting(config), params(), payload)
    generates = kv_role != "kv_producer"
    with pytest.raises(lp.SpecError, match="Default specs") if generates else nullcontext():
        check_free(config)
