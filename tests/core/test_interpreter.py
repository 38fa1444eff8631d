"""The tests of kernels, which Triton interprets: once more as Python, in one process of its own."""

import pytest

from tests.support.processes import python
from tests.support.triton_process import INTERPRETED


@pytest.mark.skipif(INTERPRETED, reason="this is the interpreter's process")
def test_kernels(pytestconfig: pytest.Config) -> None:
    pytest.importorskip("triton")
    also = f" and ({pytestconfig.option.markexpr})" if pytestconfig.option.markexpr else ""
    arguments = "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", f"device{also}", "tests/core"
    done = python(*arguments, TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout.splitlines()[-1])
