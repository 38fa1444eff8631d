"""Support for SGLang without a GPU, loaded in each of its processes when Python starts.

SGLang has a CPU engine, but some of its code assumes a GPU:

- ``torchvision``: the wheels for this version are CUDA builds, which declare no operators beside
  a CPU build of torch;
- ``sgl_kernel``: serving text in float32 calls none of its kernels (SGLang 0.5.23);
- NIXL, which hands the KV cache from prefill to decode: SGLang places the cache in GPU memory.

A ``.pth`` file in site-packages names this folder and imports this module.
"""

import os
import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from typing import Any

os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")


def _declare_operators() -> None:
    """Declare the operators whose shapes torchvision is about to describe."""
    import torch

    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float threshold) -> Tensor")
    _kept.append(library)


def _keep_kv_cache_on_host() -> None:
    """Register SGLang's KV cache with NIXL as host memory, where SGLang registers GPU memory."""
    from nixl._api import nixl_agent  # pyright: ignore

    def on_host(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            kinds = {"VRAM": "DRAM"}
            return method(*(kinds.get(a, a) if isinstance(a, str) else a for a in args), **kwargs)

        return call

    for name in ("register_memory", "get_xfer_descs", "prep_xfer_dlist"):
        setattr(nixl_agent, name, on_host(getattr(nixl_agent, name)))


_BEFORE_IMPORT = {
    "torchvision._meta_registrations": _declare_operators,
    "sglang.srt.disaggregation.nixl.conn": _keep_kv_cache_on_host,
}
_kept: list[Any] = []


class _Finder(MetaPathFinder):
    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if prepare := _BEFORE_IMPORT.pop(fullname, None):
            prepare()


sys.meta_path.insert(0, _Finder())
