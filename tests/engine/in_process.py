"""A vLLM engine in the tests' own process, with its scheduler and our processors in reach."""

import gc
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from logitport.adapters.vllm import attach
from logitport.spec import LogitsProcessorSpec

if TYPE_CHECKING:
    from vllm import CompletionOutput, SamplingParams

FLAG = ["logitport.adapters.vllm:LogitportProcessor"]
"""``LLM(logits_processors=FLAG)`` is ``--logits-processors`` of the command line."""


class Engine:
    """One engine and what it did.

    Attributes:
        processors: our instances, in the order in which vLLM calls them.
        steps: for each step, how many tokens of each request were scheduled.
        preempted: for each preemption, the output tokens that the request had.
    """

    def __init__(self, model: Path, **arguments: Any):
        from logitport.adapters.vllm import LogitportProcessor
        from vllm import LLM

        defaults = {
            # Free tokens are compared between engines: rounding must not decide between two.
            "dtype": "float32",
            "enforce_eager": True,
            "max_model_len": 1024,
            "max_num_seqs": 16,
        }
        self.llm = LLM(str(model), **(defaults | arguments))
        self.client: Any = self.llm.llm_engine.engine_core
        self.steps: list[dict[str, int]] = []
        self.preempted: list[int] = []
        core = self.client.engine_core
        runner = core.model_executor.driver_worker.worker.model_runner
        assert not core.vllm_config.use_v2_model_runner
        self.processors: list[LogitportProcessor] = [
            processor
            for processor in runner.input_batch.logitsprocs.all
            if isinstance(processor, LogitportProcessor)
        ]
        scheduler = core.scheduler
        schedule, preempt = scheduler.schedule, scheduler._preempt_request

        def recorded_schedule(*args: Any, **kwargs: Any) -> Any:
            output = schedule(*args, **kwargs)
            self.steps.append(dict(output.num_scheduled_tokens))
            return output

        def recorded_preempt(request: Any, *args: Any, **kwargs: Any) -> None:
            self.preempted.append(request.num_output_tokens)
            preempt(request, *args, **kwargs)

        scheduler.schedule, scheduler._preempt_request = recorded_schedule, recorded_preempt

    def generate(
        self, prompts: Sequence[Any], params: "Sequence[SamplingParams]"
    ) -> "list[CompletionOutput]":
        """One completion for each prompt, all requests at once."""
        outputs = self.llm.generate(list(prompts), list(params), use_tqdm=False)
        return [output.outputs[0] for output in outputs]

    def held_requests(self) -> int:
        """Requests that the core still knows, one free request later.

        vLLM reports that a request has left with the step after.
        """
        self.generate(["The end"], [params(max_tokens=2)])
        return sum(len(processor._realizer) for processor in self.processors)


@contextmanager
def engine(model: Path, *, entry_point: bool = True, **arguments: Any) -> Iterator[Engine]:
    """An engine that is gone, with its memory, when the block ends.

    Args:
        model: the checkpoint.
        entry_point: ``False`` starts it as if our package were not installed.
        arguments: for ``vllm.LLM``.
    """
    from vllm.v1.sample import logits_processor as loader

    installed = (
        nullcontext() if entry_point else patch.object(loader, "_load_logitsprocs_plugins", list)
    )
    # vLLM remembers for the whole process which classes it asks to validate parameters.
    loader.cached_load_custom_logitsprocs.cache_clear()
    with (
        patch.dict(os.environ, VLLM_ENABLE_V1_MULTIPROCESSING="0"),
        installed,
    ):
        running = Engine(model, **arguments)
        try:
            yield running
        finally:
            running.client.shutdown()
            vars(running).clear()  # whoever still holds it does not hold the model
            gc.collect()
    loader.cached_load_custom_logitsprocs.cache_clear()


def params(spec: LogitsProcessorSpec | None = None, **fields: Any) -> "SamplingParams":
    """Greedy sampling parameters unless ``fields`` say otherwise, with ``spec`` attached."""
    from vllm import SamplingParams

    fields.setdefault("temperature", 0.0)
    sampling_params = SamplingParams(**fields)
    return attach(sampling_params, spec) if spec else sampling_params
