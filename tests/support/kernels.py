"""Triton's kernels, and the variants of them that a step would compile."""

from typing import Any

from logitport.adapters.core.device import (
    advance_kernel,
    chain_kernel,
    edit_kernel,
    history_kernels,
    loop_kernel,
    mark_kernel,
    search,
)
from triton._C.libtriton import native_specialize_impl
from triton.backends.nvidia.compiler import CUDABackend

TYPES = {
    "is_link_ptr": "*i8",
    "is_complete_ptr": "*i8",
    "edit_ptr": "*i8",
    "penalties_ptr": "*fp32",
    "numbers_ptr": "*fp32",
    "room_ptr": "*fp32",
    "set_values_ptr": "*fp32",
    "progress_ptr": "*i64",
    "highest": "fp32",
}


KERNELS = {
    "edit": (
        edit_kernel._edit_kernel,
        {"block_size": edit_kernel.BLOCK_SIZE, "chunk_size": edit_kernel.CHUNK_SIZE},
        edit_kernel.WARPS,
    ),
    "advance": (advance_kernel._advance_kernel, {}, 1),
    "scan": (history_kernels._scan_kernel, {"tile_size": search.TILE}, 4),
    "loops": (loop_kernel._loop_kernel, {"periods": loop_kernel.PERIODS}, 4),
    "chains": (chain_kernel._chain_kernel, {}, 8),
    "marks": (mark_kernel._mark_kernel, {}, 8),
    "penalize": (history_kernels._penalize_kernel, {}, 4),
}


class Launches:
    """Stands in for a kernel, and notes which variants of it Triton would compile.

    Attributes:
        variants: what tells each from the others, by argument.
    """

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self.variants: set[tuple[Any, ...]] = set()

    def __getitem__(self, grid: object) -> Any:
        return self._launch

    def _launch(self, *arguments: Any, num_warps: int, **sizes: int) -> None:
        of_arguments = (
            (
                parameter.name,
                *native_specialize_impl(
                    CUDABackend,
                    argument,
                    parameter.is_const,
                    not parameter.do_not_specialize,
                    not parameter.do_not_specialize_on_alignment,
                ),
            )
            for parameter, argument in zip(self._kernel.params, arguments, strict=False)
        )
        self.variants.add((num_warps, *sizes.items(), *of_arguments))
