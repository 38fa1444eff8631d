"""What the tests on SGLang share. Where it cannot run, there are none."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from examples._support.sglang_server import SglangServer

# Its processors are among the benchmark's peers, so the package alone says nothing.
collect_ignore_glob = [] if find_spec("sgl_kernel") else ["test_*.py"]


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a model of chance, which has no tokenizer."""
    from tests.support.tiny_model import tiny_model

    folder = tmp_path_factory.mktemp("model")
    tiny_model(0).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def server(model: Path) -> Iterator[SglangServer]:
    """Two front ends; an engine in this process would end the server when it is shut down."""
    arguments = ("--enable-metrics", "--chunked-prefill-size", "64", "--tokenizer-worker-num", "2")
    # The one name that Responses takes; other routes take any.
    with SglangServer(model, *arguments, "--served-model-name", "any") as server:
        yield server
