"""All Triton kernels compile, for GPUs that this machine need not have, and in time."""

from typing import Any

import pytest
import torch

from tests.support.triton_process import INTERPRETED

pytest.importorskip("triton")
import triton
from logitport import spec as s
from logitport.adapters.core import (
    Acting,
    DeviceRealizer,
    History,
    LogitsLayout,
    Mark,
    Program,
    compile_specs,
)
from logitport.adapters.core.device import (
    advance_kernel,
    chain_kernel,
    edit_kernel,
    history_kernels,
    loop_kernel,
    mark_kernel,
)
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tests.support.kernels import KERNELS, TYPES, Launches

pytestmark = pytest.mark.skipif(INTERPRETED, reason="an interpreted kernel is not compiled")


CASES = [
    (name, dtype, ones)
    for name, (kernel, _, _) in KERNELS.items()
    for dtype in ("fp32", "fp16", "bf16")
    for ones in (False, True)
    if dtype == "fp32" or (not ones and "logits_ptr" in kernel.arg_names)
]


TARGETS = [("cuda", 90, 32), ("cuda", 80, 32), ("hip", "gfx942", 64)]
LARGE = "chains", "marks"
"""They take long to compile, and do the same in each type: others than float32 for one target."""


@pytest.mark.parametrize(
    ("target", "name", "dtype", "ones"),
    [
        pytest.param(target, name, dtype, ones, marks=[] if is_quick else pytest.mark.slow)
        for target in TARGETS
        for name, dtype, ones in CASES
        if target == TARGETS[0] or name not in LARGE or (dtype == "fp32" and not ones)
        for is_quick in [(target, dtype, ones) == (TARGETS[0], "fp32", False) and name not in LARGE]
    ],
)
def test_compiles(target: tuple[str, Any, int], name: str, dtype: str, ones: bool) -> None:
    kernel, sizes, warps = KERNELS[name]
    constants: dict[str, Any] = dict(sizes)
    if ones:  # Triton makes a constant of an integer that is 1
        fixed = {parameter.name for parameter in kernel.params if parameter.do_not_specialize}
        constants |= {
            name: 1
            for name in kernel.arg_names
            if not name.endswith("_ptr") and name not in fixed | set(sizes) | {"highest"}
        }
    signature = {
        name: "constexpr"
        if name in constants
        else TYPES.get(name)
        or (f"*{dtype}" if name == "logits_ptr" else "*i32" if name.endswith("_ptr") else "i32")
        for name in kernel.arg_names
    }
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    options = {"num_warps": warps}
    assert triton.compile(source, target=GPUTarget(*target), options=options).kernel


@pytest.mark.parametrize("longest", [1024, 1001])
@pytest.mark.parametrize("vocabulary", [151_936, 50_257])
@pytest.mark.parametrize("requests", [1, 7, 16])
def test_no_request_waits_for_a_kernel(
    monkeypatch: pytest.MonkeyPatch, vocabulary: int, longest: int, requests: int
) -> None:
    """Whatever requests come, Triton has compiled what they need while the engine started."""
    launches: dict[str, Launches] = {}
    for module in (
        advance_kernel,
        chain_kernel,
        edit_kernel,
        history_kernels,
        loop_kernel,
        mark_kernel,
    ):
        for kernel, _, _ in KERNELS.values():
            name = kernel.fn.__name__
            if hasattr(module, name):
                launches[name] = Launches(kernel)
                monkeypatch.setattr(module, name, launches[name])
    assert len(launches) == len(KERNELS)
    zeros = torch.zeros(requests, dtype=torch.int32)
    history = History(torch.zeros((requests, longest), dtype=torch.int32), zeros, zeros)
    DeviceRealizer.warm_up(vocabulary, history, vocabulary)
    warm = {name: set(kernel.variants) for name, kernel in launches.items()}
    assert all(warm.values())

    realizer = DeviceRealizer(vocabulary, requests, torch.device("cpu"))
    several = (
        s.PromptBiasSpec(1.0, (1, 2, 3)),
        s.PromptBiasSpec(2.0),
        s.NoRepeatNgramSpec(1),
        s.TriggerSpec((1,), (2,)),
        s.AllowedTokensSpec((1, 2)),
        s.LogitBiasSpec({1: 1.0}),
        s.NoLoopSpec(3, then_token_ids=(1, 2), start_token_ids=(3,), end_token_ids=(4,)),
    )
    for number in range(requests):
        rule = s.DrySpec(1.0) if number % 2 else s.NoRepeatNgramSpec(3, 16, (1,))
        program = compile_specs((rule, *several[number % 2 : 3 + number]))
        realizer.add(number, program.then(Program((Acting(Mark("", 1)),))))
        realizer.upload(history)
        for dtype in (torch.int32, torch.int64):
            for first in range(number + 1):  # drafts are verified in chunks of rows
                chunk = slice(first, number + 1)
                numbers = torch.arange(requests, dtype=dtype)[chunk]
                rows = LogitsLayout(numbers, zeros[chunk], zeros[chunk])
                logits = torch.zeros(len(rows), vocabulary)
                realizer.apply(logits, history, rows, numbers.numpy(), longest)
    assert realizer.failed_requests == 0
    assert {name: kernel.variants - warm[name] for name, kernel in launches.items()} == {
        name: set() for name in launches
    }
