"""Kernels are tested in Triton's interpreter, and on a GPU where there is one.

Whether a kernel is interpreted is settled when it is defined, so the interpreter gets a process of
its own, which ``tests/core/test_interpreter.py`` starts for the marker ``device``.
"""

import pytest
import torch

from examples._support import v2_on_cpu

INTERPRETED = v2_on_cpu.is_installed()
"""Whether this is the interpreter's process."""

if INTERPRETED:
    v2_on_cpu.be_quick()

DEVICES = ["cpu"] if INTERPRETED else [pytest.param("cuda", marks=pytest.mark.gpu)]
"""To parametrize a fixture with; see ``device_or_skip``."""


def device_or_skip(name: str) -> torch.device:
    """The device, if this machine has it."""
    if name == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    return torch.device(name)
