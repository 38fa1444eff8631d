"""What the tests on real engines share."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples._support import v2_on_cpu
from tests.tools.compatibility import NO_PROCESSORS

from .in_process import v2_takes_processors
from .small_vocabulary import with_small_vocabulary


@pytest.fixture(scope="session")
def model(model: Path, runner: str) -> Iterator[Path]:
    """The folder of the checkpoint; with a small vocabulary where kernels are interpreted."""
    if runner == "v2" and not v2_takes_processors():
        pytest.skip(NO_PROCESSORS)
    if not v2_on_cpu.is_installed():
        yield model
        return
    with tempfile.TemporaryDirectory(prefix="logitport-") as folder:
        yield with_small_vocabulary(model, Path(folder) / model.name)


@pytest.fixture(scope="session")
def server_environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment variables of a server; they install the interpreter where this process has it."""
    if v2_on_cpu.is_installed():
        return v2_on_cpu.environment_of_children(tmp_path_factory.mktemp("site"))
    return {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
