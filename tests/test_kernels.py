"""All Triton kernels compile, for GPUs that this machine need not have."""

from typing import Any

import pytest

from tests.triton_process import INTERPRETED

pytest.importorskip("triton")
import triton
from logitport.adapters.core import advance_kernel, edit_kernel, history_kernels
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

pytestmark = pytest.mark.skipif(INTERPRETED, reason="an interpreted kernel is not compiled")

TYPES = {
    "consumes_ptr": "*i8",
    "edit_ptr": "*i8",
    "biases_ptr": "*fp32",
    "set_values_ptr": "*fp32",
    "progress_ptr": "*i64",
    "overruled_ptr": "*i64",
    "highest": "fp32",
}
KERNELS = {
    "edit": (
        edit_kernel._edit_kernel,
        {"block_size": edit_kernel.BLOCK_SIZE, "chunk_size": edit_kernel.CHUNK_SIZE},
        edit_kernel.WARPS,
    ),
    "advance": (advance_kernel._advance_kernel, {"block_size": advance_kernel.BLOCK_SIZE}, 4),
    "ngram": (history_kernels._ngram_kernel, {"block_size": history_kernels.BLOCK_SIZE}, 4),
    "mark": (history_kernels._mark_kernel, {"block_size": history_kernels.BLOCK_SIZE}, 4),
    "prompt bias": (
        history_kernels._prompt_bias_kernel,
        {"block_size": history_kernels.BLOCK_SIZE},
        4,
    ),
}


CASES = [
    (name, dtype, ones)
    for name, (kernel, _, _) in KERNELS.items()
    for dtype in ("fp32", "fp16", "bf16")
    for ones in (False, True)
    if dtype == "fp32" or (not ones and "logits_ptr" in kernel.arg_names)
]


@pytest.mark.parametrize(("name", "dtype", "ones"), CASES)
@pytest.mark.parametrize("target", [("cuda", 80, 32), ("cuda", 90, 32), ("hip", "gfx942", 64)])
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
