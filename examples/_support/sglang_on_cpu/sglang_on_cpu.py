"""Lets SGLang run where there is no GPU; loaded when Python starts, in all of its processes.

SGLang has a CPU engine, but takes some things for granted that are there with GPUs alone:

- ``torchvision``, whose wheels for this version are CUDA builds, which declare no operators beside
  a CPU build of torch;
- ``sgl_kernel``, of which serving text in float32 calls nothing (SGLang 0.5.23);
- that NIXL, which hands the KV cache from prefill to decode, finds it in a GPU's memory.

A ``.pth`` file in site-packages names this folder and imports this module.
"""

import os
import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from typing import Any

os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")


def _declare_operators() -> None:
    """Those of which torchvision is about to describe the shapes."""
    import torch

    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float threshold) -> Tensor")
    _kept.append(library)


def _keep_kv_cache_on_host() -> None:
    """SGLang calls all of its KV cache a GPU's; NIXL is told that it is in the host's memory."""
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
