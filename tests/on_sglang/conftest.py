"""What the tests on SGLang share. Where it cannot run, there are none."""

from importlib.util import find_spec
from pathlib import Path

import pytest

# Its processors are among the benchmark's peers, so the package alone says nothing.
collect_ignore_glob = [] if find_spec("sgl_kernel") else ["test_*.py"]


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a model of chance, which has no tokenizer."""
    from tests.model_of_chance import model_of_chance

    folder = tmp_path_factory.mktemp("model")
    model_of_chance(0).save_pretrained(folder)
    return folder
