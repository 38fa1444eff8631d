"""What the tests on real engines share."""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

import pytest

from examples._support import v2_on_cpu
from tests.tools.compatibility import NO_PROCESSORS

from .asynchronous import asynchronous
from .in_process import FLAG, SHARED, Engine, engine, lookup, v2_takes_processors
from .small_vocabulary import with_small_vocabulary


def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """Close the shared engine before tests elsewhere, which would see its plugins."""
    if nextitem is None or Path(__file__).parent not in nextitem.path.parents:
        SHARED.close()


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


@pytest.fixture
def mixed(model: Path, runner: str, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """The engine of most tests: it preempts, and V1 is scheduled as on a GPU."""
    how = asynchronous if runner == "v1" else engine
    return SHARED.get("mixed", lambda: _mixed(how, model, tmp_path_factory))


@pytest.fixture
def drafting(model: Path, runner: str, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """The same, beside drafts, which V1 does not take with processors: there it is ``mixed``."""
    if runner == "v1":
        return SHARED.get("mixed", lambda: _mixed(asynchronous, model, tmp_path_factory))
    start = partial(engine, speculative_config=lookup(3))
    return SHARED.get("drafting", lambda: _mixed(start, model, tmp_path_factory))


@contextmanager
def _mixed(
    start: Callable[..., AbstractContextManager[Engine]],
    model: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Engine]:
    from . import mixed_batch  # which imports vLLM: the V2 runner's interpreter comes before it

    with (
        mixed_batch.plugins_installed(tmp_path_factory.mktemp("site")),
        start(model, logits_processors=FLAG, **mixed_batch.ARGUMENTS) as running,
    ):
        yield running


@pytest.fixture
def embedding(model: Path) -> Engine:
    """Takes prompts of embeddings, after which vLLM 0.32 reads nonsense if it is asynchronous."""

    def start() -> AbstractContextManager[Engine]:
        # A greedy model may never end a document in which any white space is allowed.
        backend = {"backend": "xgrammar", "disable_any_whitespace": True}
        return engine(model, enable_prompt_embeds=True, structured_outputs_config=backend)

    return SHARED.get("embedding", start)


@pytest.fixture
def tiny(runner: str, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """A model of chance for the conformance suite: hundreds of requests, and any model will do."""
    if runner == "v2" and not v2_takes_processors():
        pytest.skip(NO_PROCESSORS)

    @contextmanager
    def start() -> Iterator[Engine]:
        from tests.support.tiny_model import tiny_model

        model = tmp_path_factory.mktemp("model")
        tiny_model(0, heads=2).save_pretrained(model)  # vLLM has no heads of 16 on CPUs
        with engine(
            model,
            skip_tokenizer_init=True,
            logits_processors=FLAG,
            max_model_len=256,
            max_num_seqs=4,
            max_num_batched_tokens=32,  # so that a long prompt is prefilled in chunks
            enable_chunked_prefill=True,
            enable_prefix_caching=False,
            logprobs_mode="processed_logits",
            max_logprobs=-1,
        ) as running:
            yield running

    return SHARED.get("tiny", start)


@pytest.fixture(scope="session")
def server_environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment variables of a server; they install the interpreter where this process has it."""
    if v2_on_cpu.is_installed():
        return v2_on_cpu.environment_of_children(tmp_path_factory.mktemp("site"))
    return {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
