"""A vLLM engine in the tests' own process, with its scheduler and our processors in reach."""

import gc
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

import pytest
from logitport.adapters.vllm import attach
from logitport.spec.texts import Given

if TYPE_CHECKING:
    from vllm import CompletionOutput, SamplingParams

FLAG = ["logitport.adapters.vllm:LogitportProcessor"]
"""``LLM(logits_processors=FLAG)`` is ``--logits-processors`` of the command line."""


def v2_takes_processors() -> bool:
    """Whether custom processors can act under this vLLM's V2 runner: from 0.31 on."""
    return find_spec("vllm.v1.worker.gpu.sample.logits_processor") is not None


class Drafts(NamedTuple):
    """What became of draft tokens."""

    accepted: int
    rejected: int


class Engine:
    """One engine and what it did."""

    def __init__(self, model: Path, **arguments: Any):
        from logitport.adapters.vllm import LogitportProcessor
        from vllm import LLM

        defaults = {
            # Free tokens are compared between engines: rounding must not decide between two.
            "dtype": "float32",
            "enforce_eager": True,
            "kv_cache_memory_bytes": 512 << 20,  # most of a start is to fill it with zeros
            "max_model_len": 1024,
            "max_num_seqs": 16,
        }
        self.llm = LLM(str(model), **(defaults | arguments))
        self.client: Any = self.llm.llm_engine.engine_core
        self.steps: list[dict[str, int]] = []  # the tokens scheduled for each request
        self.preempted: list[int] = []  # the output tokens that requests had
        self.drafts: list[Drafts] = []  # of each request of the latest ``generate``
        self.numbers: list[str] = []  # of the same requests, with which their ids begin
        core = self.client.engine_core
        self.vocab_size: int = core.vllm_config.model_config.get_vocab_size()
        self._slots: int = core.vllm_config.scheduler_config.max_num_seqs
        runner = core.model_executor.driver_worker.worker.model_runner
        is_v2 = core.vllm_config.use_v2_model_runner
        loaded = runner.sampler.logits_processors if is_v2 else runner.input_batch.logitsprocs.all
        self.processors = [each for each in loaded if isinstance(each, LogitportProcessor)]
        self._record(core.scheduler)

    def _record(self, scheduler: Any) -> None:
        schedule, preempt = scheduler.schedule, scheduler._preempt_request
        note_drafts = scheduler.make_spec_decoding_stats
        self._drafts: dict[str, Drafts] = {}

        def recorded_schedule(*args: Any, **kwargs: Any) -> Any:
            output = schedule(*args, **kwargs)
            self.steps.append(dict(output.num_scheduled_tokens))
            return output

        def recorded_preempt(request: Any, *args: Any, **kwargs: Any) -> None:
            self.preempted.append(request.num_output_tokens)
            preempt(request, *args, **kwargs)

        def recorded_drafts(*args: Any, **kwargs: Any) -> Any:
            number = kwargs["request_id"].split("-")[0]
            accepted, rejected = self._drafts.get(number, (0, 0))
            new = kwargs["num_accepted_tokens"]
            rejected += kwargs["num_draft_tokens"] - new
            self._drafts[number] = Drafts(accepted + new, rejected)
            return note_drafts(*args, **kwargs)

        scheduler.schedule, scheduler._preempt_request = recorded_schedule, recorded_preempt
        scheduler.make_spec_decoding_stats = recorded_drafts

    def generate(
        self, prompts: Sequence[Any], params: "Sequence[SamplingParams]"
    ) -> "list[CompletionOutput]":
        """One completion for each prompt, all requests at once."""
        outputs = self.llm.generate(list(prompts), list(params), use_tqdm=False)
        self.numbers = [output.request_id for output in outputs]
        self.drafts = [self._drafts.pop(number, Drafts(0, 0)) for number in self.numbers]
        return [output.outputs[0] for output in outputs]

    @property
    def acting(self) -> Any:
        """Of our instances, the one that acts."""
        (processor,) = (processor for processor in self.processors if processor._acts)
        return processor

    def held_requests(self) -> int:
        """Requests that the core still knows when free ones have taken all places.

        Under V1 a request has left with the step after, under V2 once its slot is taken.
        """
        self.generate(["The end"] * self._slots, [params(max_tokens=2)] * self._slots)
        return sum(len(processor._realizer) for processor in self.processors)


class Shared:
    """The engine that modules share at the moment. It ends when another one starts: two are large.

    The names are those of fixtures in ``conftest.py``, and of ``SHARED`` in ``tests/conftest.py``.
    """

    def __init__(self) -> None:
        self._name, self._engine, self._stack = "", None, ExitStack()

    def get(self, name: str, start: Callable[[], AbstractContextManager[Engine]]) -> Engine:
        if name != self._name:
            self._engine, self._name = self._stack.enter_context(start()), name
        assert self._engine is not None
        return self._engine

    def close(self) -> None:
        self._name, self._engine = "", None
        self._stack.close()


SHARED = Shared()


def lookup(drafts: int, longest: int = 3, **more: Any) -> dict[str, Any]:
    """A speculative config: so many drafts at each step, looked up in prompt and output."""
    lengths = {"prompt_lookup_max": longest, "prompt_lookup_min": 1}
    return {"method": "ngram", "num_speculative_tokens": drafts, **lengths, **more}


def refused(match: str | None = None) -> Any:
    """As ``pytest.raises``, for a request that vLLM does not take."""
    from vllm.exceptions import VLLMValidationError

    return pytest.raises(VLLMValidationError, match=match)


@contextmanager
def engine(model: Path, *, runner: str | None = None, **arguments: Any) -> Iterator[Engine]:
    """An engine that is gone, with its memory, when the block ends.

    Its runner is ``v1`` or ``v2``, by default the one that pytest was asked for.
    """
    SHARED.close()
    from vllm import envs
    from vllm.v1.sample import logits_processor as v1

    try:
        from vllm.v1.worker.gpu.sample.logits_processor import loader as v2
    except ImportError:  # before vLLM 0.31
        v2 = None

    # vLLM remembers for the whole process which classes it asks to validate parameters, and what
    # the environment was when the first engine started.
    def forget() -> None:
        v1.cached_load_custom_logitsprocs.cache_clear()
        if v2 is not None:
            v2._cached_load_v2_logitsprocs.cache_clear()
        envs.disable_envs_cache()

    environment = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    if runner is not None:
        environment["VLLM_USE_V2_MODEL_RUNNER"] = "1" if runner == "v2" else "0"
    with ExitStack() as stack:
        stack.callback(forget)
        stack.enter_context(patch.dict(os.environ, environment))
        forget()
        gc.freeze()  # vLLM collects garbage time and again, and need not look at all of pytest
        running = Engine(model, **arguments)
        try:
            yield running
        finally:
            running.client.shutdown()
            vars(running).clear()  # whoever still holds it does not hold the model
            gc.collect()


def params(spec: Given | None = None, *, continued: int = 0, **fields: Any) -> "SamplingParams":
    """Greedy sampling parameters unless ``fields`` say otherwise, with ``spec`` attached."""
    from vllm import SamplingParams

    fields.setdefault("temperature", 0.0)
    sampling_params = SamplingParams(**fields)
    return attach(sampling_params, spec, continued=continued) if spec else sampling_params
