"""A benchmark of a real engine, with and without a processor.

All runs use one engine and exchange its processors, because two engines differ in other ways too.
Compared runs follow one another. Each run sends all its requests at once, and all requests produce
the same number of tokens, so that all runs make the same steps.
"""

import gc
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import cycle, islice
from time import perf_counter
from typing import Any

os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the processors are exchanged in this process
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_USE_V2_MODEL_RUNNER": "0",
}

import torch
from logitport.adapters.vllm import KEY, LogitportProcessor
from logitport.spec import ForcedTokenSequenceSpec, encode
from vllm import LLM, SamplingParams
from vllm.v1.sample import logits_processor as vllm_processors
from vllm.v1.sample.logits_processor import LogitsProcessor, LogitsProcessors

from . import peers
from . import workload as w
from .throughput import Throughput

NOBODY, OURS, MIXED, ADAPTER = (
    "no processor",
    "logitport, forced sequences",
    "logitport, all kinds",
    "Dynamo, vLLM's adapter",
)


class Stopwatch(LogitsProcessor):
    """A wrapper that measures the time in another processor."""

    def __init__(self, inner: LogitsProcessor) -> None:
        self.inner = inner
        self.seconds = 0.0

    def is_argmax_invariant(self) -> bool:
        return self.inner.is_argmax_invariant()

    def update_state(self, batch_update: Any) -> None:
        start = perf_counter()
        self.inner.update_state(batch_update)
        self.seconds += perf_counter() - start

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        start = perf_counter()
        logits = self.inner.apply(logits)
        self.seconds += perf_counter() - start
        return logits


class Dynamo(peers.PerRequest):
    """Dynamo's forced sequences through vLLM's adapter, from ``extra_args["token_ids"]``."""

    def new_req_logits_processor(self, params: SamplingParams) -> Callable[..., Any] | None:
        if not params.extra_args:
            return None
        spec = ForcedTokenSequenceSpec(params.extra_args["token_ids"], w.EOS)
        return peers.dynamo_processor(spec)


class Engine:
    """vLLM with a small model, in this process."""

    def __init__(self, model: str) -> None:
        # With a processor in this option, the engine passes the sampled output ids to processors.
        processors: Any = [LogitportProcessor]
        self._llm = LLM(
            model,
            dtype="bfloat16",
            max_model_len=512,
            max_num_seqs=64,
            enforce_eager=True,
            enable_prefix_caching=False,
            disable_log_stats=True,
            logits_processors=processors,
            seed=0,
        )
        self._vocab_size = self._llm.llm_engine.model_config.get_vocab_size()
        core: Any = self._llm.llm_engine.engine_core
        worker = core.engine_core.model_executor.driver_worker
        self._runner = getattr(worker, "worker", worker).model_runner

    def _load(self, make: Callable[..., LogitsProcessor] | None) -> Stopwatch | None:
        """Replace the engine's processors."""
        batch, config = self._runner.input_batch, self._llm.llm_engine.vllm_config
        device = self._runner.device
        made = [built_in(config, device, False) for built_in in _BUILT_IN]
        watch = None if make is None else Stopwatch(make(config, device, False))
        batch.logitsprocs = LogitsProcessors([*made, *([watch] if watch else [])])
        batch.logitsprocs_need_output_token_ids = watch is not None
        return watch

    def run(
        self, make: Callable[..., LogitsProcessor] | None, extra_args: Sequence[Any], length: int
    ) -> tuple[float, float, list[Sequence[int]]]:
        """Run all requests; return the seconds, the processor's share of them, and the outputs."""
        watch = self._load(make)
        rng = random.Random(0)
        prompts: Any = [
            {"prompt_token_ids": w.tokens(rng, self._vocab_size, 16)} for _ in extra_args
        ]
        params = [
            SamplingParams(
                temperature=0,
                max_tokens=length,
                ignore_eos=True,
                detokenize=False,
                extra_args=extra,
            )
            for extra in extra_args
        ]
        gc.collect()
        start = perf_counter()
        outputs = self._llm.generate(prompts, params, use_tqdm=False)
        seconds = perf_counter() - start
        return (
            seconds,
            watch.seconds / seconds if watch else 0.0,
            [output.outputs[0].token_ids for output in outputs],
        )

    def throughput(self, requests: int, length: int, rounds: int) -> Iterator[Throughput]:
        """Run all configurations in turn, ``rounds`` times, and yield their throughputs.

        Raises:
            AssertionError: if a processor did not force its tokens.
        """
        rng = random.Random(1)
        forced = [
            ForcedTokenSequenceSpec(tuple(w.tokens(rng, self._vocab_size, length)), w.EOS)
            for _ in range(requests)
        ]
        mixed = w.workload((*w.RAISING_OR_ADDING, *w.ALLOWING), requests, self._vocab_size).specs
        ways: Mapping[str, tuple[Any, Sequence[Any]]] = {
            NOBODY: (None, [None] * requests),
            OURS: (LogitportProcessor, [{KEY: encode(spec)} for spec in forced]),
            MIXED: (LogitportProcessor, [{KEY: encode(spec)} for spec in mixed if spec]),
            ADAPTER: (Dynamo, [{"token_ids": list(spec.token_ids)} for spec in forced]),
        }
        results = {name: Throughput(requests, name) for name in ways}
        order = list(ways)
        for i in range(rounds + 1):
            tokens_per_second: dict[str, float] = {}
            for name in islice(cycle(order), i, i + len(order)):
                make, extra = ways[name]
                seconds, share, outputs = self.run(make, extra, length)
                if name in (OURS, ADAPTER):
                    assert outputs == [list(spec.token_ids) for spec in forced], name
                tokens_per_second[name] = requests * length / seconds
                if i:
                    results[name].shares.append(share)
            for name, result in results.items():
                if i:  # the first round warms up
                    result.tokens_per_second.append(tokens_per_second[name])
                    result.ratios.append(tokens_per_second[name] / tokens_per_second[NOBODY])
        yield from results.values()


_BUILT_IN: list[Any] = vllm_processors.BUILTIN_LOGITS_PROCESSORS
