"""What all tests share: the environment of the engines, the model and its tokenizer.

``--runner v2`` passes the tests once more for which vLLM's model runner makes a difference, those
that ask for the fixture ``runner``, under the V2 runner.
"""

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from examples._support import v2_on_cpu

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

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


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--runner", choices=["v1", "v2"], default="v1", help="the model runner of vLLM's engines"
    )
    parser.addoption("--write-golden", action="store_true", help="write transcripts anew")


def pytest_configure(config: pytest.Config) -> None:
    runner = config.getoption("--runner")
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1" if runner == "v2" else "0"
    if runner == "v2" and v2_on_cpu.is_needed():
        v2_on_cpu.install()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import, for V2, what has no such tests."""
    engine = Path(__file__).parent / "adapters" / "vllm"
    is_other = collection_path.is_file() and engine not in collection_path.parents
    return True if is_other and config.getoption("--runner") == "v2" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    runner = config.getoption("--runner")
    for item in items:
        only = item.get_closest_marker("only")
        if only is not None and only.args != (runner,):
            item.add_marker(pytest.mark.skip(**only.kwargs))
    if runner == "v2":
        others = [item for item in items if "runner" not in getattr(item, "fixturenames", ())]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in others]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Several processes take the tests file by file; if there is a GPU, one takes all engines.

    (``loadgroup`` of pytest-xdist 3.8 does nothing under pytest 9.2.)
    """
    from xdist.scheduler import LoadScopeScheduling

    has_gpu = shutil.which("nvidia-smi") is not None

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            is_on_gpu = has_gpu and nodeid.startswith(ENGINES)
            return "engines" if is_on_gpu else nodeid.partition("::")[0]

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
def tokenizer(model: Path) -> "PreTrainedTokenizerBase":
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model)
