"""Kernels are tested in Triton's interpreter, and on a GPU where there is one.

Whether a kernel is interpreted is settled when it is defined, so the interpreter gets a process of
its own, which runs a module of tests once more.
"""

import pytest
import torch

from examples._support import v2_on_cpu
from tests.support.processes import python

INTERPRETED = v2_on_cpu.is_installed()
"""Whether this is the interpreter's process."""

if INTERPRETED:
    v2_on_cpu.be_quick()

DEVICES = ["cpu"] if INTERPRETED else [pytest.param("cuda", marks=pytest.mark.gpu)]
"""To parametrize a fixture with; see ``device_or_skip``."""

outside = pytest.mark.skipif(INTERPRETED, reason="this is the interpreter's process")
"""Marks the test that starts the process."""


def run_in_interpreter(module: str) -> None:
    """Run the tests of a module's file in Triton's interpreter."""
    arguments = "-m", "pytest", "-q", "-p", "no:cacheprovider", module
    done = python(*arguments, TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stdout + done.stderr


def device_or_skip(name: str) -> torch.device:
    """The device, if this machine has it."""
    if name == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    return torch.device(name)
