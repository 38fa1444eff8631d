"""What all tests share: the environment of the engines, the model and its tokenizer.

``--runner v2`` passes the tests once more for which vLLM's model runner makes a difference, those
that ask for the fixture ``runner``, under the V2 runner. What a run can say nothing about, for its
runner or for what this machine lacks, is deselected, so that each skip is one to look at; the first
lines of the output name what is lacking.
"""

import os
import re
import shutil
import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from examples._support import v2_on_cpu
from tests.support.paths import ROOT
from tests.support.share import is_drawn

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from examples._support.vllm_server import VllmServer

pytest.register_assert_rewrite("tests.support.transcripts")

# Read by vLLM when it is imported, here or in a server that a test starts.
for name, value in {
    "HF_HUB_OFFLINE": "1",
    # One thread, on any core: several wait for each other at every operation, which takes many
    # times as long wherever something else runs on one of their cores.
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # vLLM looks drafts up in parallel, and numba then sets OpenMP's threads for good. A later
    # engine of this process packs its weights for so many, but vLLM multiplies by what it has
    # kept for one: an engine then says nonsense at the batch sizes that an earlier one has seen.
    "NUMBA_NUM_THREADS": "1",
    # No further process for a worker, as with one GPU: it would take 7 s to start.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}.items():
    os.environ.setdefault(name, value)


# How long an example takes says what else the machine is doing.
settings.register_profile(
    "patient", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
# The same examples in each run of CI, so that a commit fails for what it changed. Other runs draw
# new examples, as Hypothesis advises.
settings.register_profile("ci", settings.get_profile("patient"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "patient")

ENGINES = "tests/adapters/vllm/", "tests/docs/test_benchmarks.py", "tests/docs/test_readme.py"
"""Where vLLM is started."""

SHARED = "mixed", "drafting", "embedding", "tiny", "vllm_server"
"""Fixtures of engines that several files share: one process runs all tests of those files."""

NEEDED = (
    *("nvidia-smi", "node", "kubectl", "promtool", "chromium"),
    *("examples/typescript/dist", ".venv-docs/bin/mkdocs"),
    *("llama_cpp", "kubernetes_validate", "fastapi", "litellm", "envoy_data_plane"),
    *("dynamo.llm.exceptions", "dynamo.common.backend.engine", "dynamo.vllm"),
    *("dynamo.logits_processing", "sglang"),
)
"""Programs, modules and files that the marker ``needs`` can name."""

HAS_GPU = shutil.which("nvidia-smi") is not None
# Before anything imports Triton, as the next conftest does when the command line names its folder.
# A process of pytest-xdist has the variable of the one that started it.
IS_V2 = not {"v2", "--runner=v2"}.isdisjoint(sys.argv) or (
    "PYTEST_XDIST_WORKER" in os.environ and os.environ["VLLM_USE_V2_MODEL_RUNNER"] == "1"
)
if IS_V2 and v2_on_cpu.is_needed():
    v2_on_cpu.install()
INTERPRETED = v2_on_cpu.is_installed()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--runner", choices=["v1", "v2"], default="v1", help="the model runner of vLLM's engines"
    )
    parser.addoption("--write-golden", action="store_true", help="write transcripts anew")
    parser.addoption(
        "--drawn",
        metavar="COMMIT",
        help="only a third of the modules, drawn by a commit",
    )


def pytest_configure(config: pytest.Config) -> None:
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "01"[config.getoption("--runner") == "v2"]


def pytest_report_header() -> str:
    return f"lacking: {', '.join(lacking()) or 'nothing'}"


@cache
def lacking() -> tuple[str, ...]:
    """What the marker ``needs`` names, and this machine does not have."""
    return tuple(name for name in NEEDED if not _is_here(name))


def _is_here(name: str) -> bool:
    if "/" in name:
        return (ROOT / name).exists()
    try:
        return bool(shutil.which(name) or find_spec(name))
    except ModuleNotFoundError:  # of a package around it
        return False


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import, for V2, what has no such tests."""
    engine = Path(__file__).parent / "adapters" / "vllm"
    is_other = collection_path.is_file() and engine not in collection_path.parents
    return True if is_other and config.getoption("--runner") == "v2" else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    runner, drawn = config.getoption("--runner"), config.getoption("--drawn")

    def says_something(item: pytest.Item) -> bool:
        only = item.get_closest_marker("only")
        needed = {name for mark in item.iter_markers("needs") for name in mark.args}
        return (
            (only is None or only.args == (runner,))
            and needed.isdisjoint(lacking())
            and (HAS_GPU or item.get_closest_marker("gpu") is None)
            and (HAS_GPU or INTERPRETED or item.get_closest_marker("device") is None)
            and (runner == "v1" or "runner" in getattr(item, "fixturenames", ()))
            and (not drawn or is_drawn(drawn, item.nodeid.partition("::")[0]))
        )

    config.hook.pytest_deselected(items=[item for item in items if not says_something(item)])
    # What takes long comes first, so that no process is left with it at the end.
    items[:] = sorted(
        filter(says_something, items),
        key=lambda item: (
            not item.nodeid.startswith((*ENGINES, "tests/core/test_interpreter.py")),
            _engine_of(item.nodeid.partition("::")[0], runner),
        ),
    )


@cache
def _engine_of(file: str, runner: str) -> str:
    """The shared engine that the tests of a file ask for, or nothing."""
    text = (ROOT / file).read_text("utf-8")
    asked = re.search(rf"\b({'|'.join(SHARED)}): (Engine|VllmServer)\b", text)
    name = asked[1] if asked else ""
    return "mixed" if runner == "v1" and name == "drafting" else name  # V1 has no drafts


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Several processes take the tests file by file, or all tests of a shared engine.

    If there is a GPU, one takes all engines. (``loadgroup`` of pytest-xdist 3.8 does nothing under
    pytest 9.2.)
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            if HAS_GPU and nodeid.startswith(ENGINES):
                return "engines"
            file = nodeid.partition("::")[0]
            return _engine_of(file, config.getoption("--runner")) or file

    return ByFile(config, log)


@pytest.fixture(scope="session")
def runner(request: pytest.FixtureRequest) -> str:
    """The model runner under which engines start: ``v1`` or ``v2``."""
    return request.config.getoption("--runner")


@pytest.fixture(scope="session")
def model() -> Path:
    """The folder of the SmolLM2-135M-Instruct checkpoint."""
    from examples._support.smollm2 import prepare

    return prepare()


@pytest.fixture(scope="session")
def vllm_server(model: Path) -> "Iterator[VllmServer]":
    """A server for the tests of routes and of the pages."""
    from examples._support.vllm_server import LOGITPORT, VllmServer

    name = "--served-model-name", "SmolLM2-135M-Instruct"
    # bfloat16 has ties, which processors break differently.
    exact = "--dtype", "float32"
    with VllmServer(model, *name, *exact, *LOGITPORT, "--enable-scale-out") as server:
        yield server


@pytest.fixture(scope="session")
def tokenizer(model: Path) -> "PreTrainedTokenizerBase":
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model)
