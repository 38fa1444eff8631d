"""What is known of the kernels without a GPU: their resources when compiled for compute 9.0."""

import re
import subprocess
import tempfile
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource
from triton.runtime import JITFunction, driver

from .device import Row

TARGET = GPUTarget("cuda", 90, 32)

REGISTERS, SHARED, WARPS, BLOCKS = 65_536, 227 << 10, 64, 32
"""What a multiprocessor of compute 9.0 has."""


def compile_only() -> None:
    """Let Triton compile for compute 9.0 what would be launched, on a machine without a GPU."""
    device: Any = SimpleNamespace(
        get_current_device=lambda: 0,
        get_current_stream=lambda device: 0,
        get_current_target=lambda: TARGET,
    )
    driver.set_active(device)
    run = JITFunction.run

    def compile_alone(self: Any, *arguments: Any, warmup: bool, **options: Any) -> Any:
        return run(self, *arguments, warmup=True, **options)

    JITFunction.run = compile_alone


def compile_all() -> Iterator[Row]:
    """Compile each kernel as the tests do, and yield its resources."""
    from tests.support.kernels import KERNELS, TYPES

    for name, (kernel, constants, warps) in KERNELS.items():
        signature = {
            argument: "constexpr"
            if argument in constants
            else TYPES.get(argument)
            or ("*fp32" if argument == "logits_ptr" else "*i32" if "_ptr" in argument else "i32")
            for argument in kernel.arg_names
        }
        aligned = {
            (parameter.num,): [("tt.divisibility", 16)]
            for parameter in kernel.params
            if not (parameter.do_not_specialize or parameter.do_not_specialize_on_alignment)
            and signature[parameter.name] not in ("constexpr", "fp32")
        }
        source = ASTSource(fn=kernel, signature=signature, constexprs={**constants}, attrs=aligned)
        options = {"num_warps": warps}
        made = triton.compile(source, target=TARGET, options=options)
        log = _assemble(made.asm["ptx"])
        registers = _number(r"Used (\d+) registers", log)
        shared = made.metadata.shared
        yield {
            "table": "Kernels, compiled for compute 9.0 with float32",
            "kernel": name,
            "registers": registers,
            "spilled bytes": _number(r"(\d+) bytes spill stores", log),
            "shared bytes": shared,
            "warps": warps,
            "occupancy %": 100 * _resident(registers, shared, warps) * warps // WARPS,
        }


def _assemble(ptx: str) -> str:
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        (chip,) = re.findall(r"\.target (\w+)", ptx)
        command = [get_ptxas(90).path, "-v", f"--gpu-name={chip}", "-o", "/dev/null"]
        done = subprocess.run([*command, file.name], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    assert found is not None, text
    return int(found.group(1))


def _resident(registers: int, shared: int, warps: int) -> int:
    """Count the programs that a multiprocessor can hold at once."""
    of_warp = -(-registers * 32 // 256) * 256  # registers come in units of 256
    by_shared = SHARED // (shared + 1024)  # each block takes a KiB more
    return min(REGISTERS // (of_warp * warps), by_shared, WARPS // warps, BLOCKS)
