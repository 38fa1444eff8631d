"""Other projects' processors for the same jobs, driven as their engines drive them.

Each function puts the requests of a workload into a peer and returns the function for a step. If
a peer takes one set of parameters for the whole batch, it gets those of the first request.
"""

import importlib.util
from array import array
from collections.abc import Callable
from functools import cache
from importlib.metadata import distribution
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from transformers.generation import logits_process as hf
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import (
    AdapterLogitsProcessor,
    BatchUpdate,
    LogitBiasLogitsProcessor,
    LogitsProcessor,
    MinTokensLogitsProcessor,
    MoveDirectionality,
)
from vllm.v1.sample.ops.bad_words import apply_bad_words
from vllm.v1.sample.thinking_budget_state import ThinkingBudgetStateHolder

from . import callables
from .ours import batch_update
from .workload import BUDGET, END_THINK, EOS, NEWLINE, THINK, History, Step, Workload


class PerRequest(AdapterLogitsProcessor):
    """vLLM's wrapper around processors for one request, which ``extra_args["make"]`` makes."""

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> Callable[..., Any] | None:
        return params.extra_args["make"]() if params.extra_args else None


def _vllm_step(processor: LogitsProcessor) -> Step:
    def step(logits: torch.Tensor) -> None:
        processor.update_state(None)
        processor.apply(logits)

    return step


def per_request(workload: Workload, history: History, make: Callable[[Any], Any]) -> Step:
    """Run callables for one request each through vLLM's adapter."""
    processor = PerRequest(None, torch.get_default_device(), False)  # pyright: ignore[reportArgumentType]
    extra = [spec and {"make": lambda spec=spec: make(spec)} for spec in workload.specs]
    processor.update_state(batch_update(workload, history, extra))
    return _vllm_step(processor)


def careful_mask(workload: Workload, history: History) -> Step:
    """Run careful callables that force by masking the row."""
    return per_request(workload, history, lambda spec: callables.callable_for(spec, callables.mask))


def careful_touch(workload: Workload, history: History) -> Step:
    """Run careful callables that force by raising one logit."""
    return per_request(
        workload, history, lambda spec: callables.callable_for(spec, callables.touch)
    )


def dynamo_processor(spec: Any) -> Callable[..., torch.Tensor]:
    """Wrap Dynamo's forced-sequence processor to return the logits, as vLLM's adapter requires."""
    from dynamo.logits_processing.examples import ForcedSequenceLogitsProcessor

    forced = ForcedSequenceLogitsProcessor(spec.token_ids, spec.eos_token_id)

    def process(output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
        forced(output_ids, logits)
        return logits

    return process


def dynamo(workload: Workload, history: History) -> Step:
    """Run Dynamo's forced-sequence processor through vLLM's adapter."""
    return per_request(workload, history, dynamo_processor)


class OneToken(LogitsProcessor):
    """A processor that masks all but one token of a row, for the whole batch at once.

    It follows the example in vLLM's documentation ("Custom logits processors").
    """

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self._targets: dict[int, int] = {}

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if batch_update is None:
            return
        for row, params, _, _ in batch_update.added:
            if params.extra_args and (target := params.extra_args.get("target_token")) is not None:
                self._targets[row] = target
            else:
                self._targets.pop(row, None)
        for row in batch_update.removed:
            self._targets.pop(row, None)
        for a, b, direction in batch_update.moved:
            target_a, target_b = self._targets.pop(a, None), self._targets.pop(b, None)
            if target_a is not None:
                self._targets[b] = target_a
            if target_b is not None and direction is MoveDirectionality.SWAP:
                self._targets[a] = target_b

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        if not self._targets:
            return logits
        rows = torch.tensor(list(self._targets.keys()), device=logits.device)
        columns = torch.tensor(list(self._targets.values()), device=logits.device)
        kept = logits[rows, columns].clone()
        logits[rows] = -torch.inf
        logits[rows, columns] = kept
        return logits


def one_token(workload: Workload, history: History) -> Step:
    """Run the example of vLLM's documentation."""
    processor = OneToken(None, torch.get_default_device(), False)
    extra = [spec and {"target_token": spec.token_ids[0]} for spec in workload.specs]  # pyright: ignore
    processor.update_state(batch_update(workload, history, extra))
    return _vllm_step(processor)


def _vllm_built_in(
    processor: LogitsProcessor,
    workload: Workload,
    history: History,
    params: Callable[[Any], SamplingParams],
) -> Step:
    added = [
        (row, params(spec), workload.prompts[row], history.outputs[row])
        for row, spec in enumerate(workload.specs)
    ]
    processor.update_state(BatchUpdate(len(added), removed=[], added=added, moved=[]))
    return _vllm_step(processor)


def vllm_logit_bias(workload: Workload, history: History) -> Step:
    def params(spec: Any) -> SamplingParams:
        return SamplingParams(logit_bias=dict(spec.bias) if spec else None)

    return _vllm_built_in(
        LogitBiasLogitsProcessor(None, torch.get_default_device(), False), workload, history, params
    )


def vllm_min_tokens(workload: Workload, history: History) -> Step:
    def params(spec: Any) -> SamplingParams:
        stops = list(spec.stop_token_ids)
        return SamplingParams(max_tokens=None, min_tokens=spec.n, stop_token_ids=stops)

    processor = MinTokensLogitsProcessor(None, torch.get_default_device(), False)  # pyright: ignore[reportArgumentType]
    return _vllm_built_in(processor, workload, history, params)


def vllm_bad_words(workload: Workload, history: History) -> Step:
    bad = {
        row: [list(sequence) for sequence in workload.specs[row].sequences]  # pyright: ignore
        for row in workload.active
    }
    return lambda logits: apply_bad_words(logits, bad, history.outputs)


def vllm_thinking_budget(workload: Workload, history: History) -> Step:
    tags: Any = SimpleNamespace(
        reasoning_start_token_ids=[THINK], reasoning_end_token_ids=[NEWLINE, END_THINK]
    )
    holder = ThinkingBudgetStateHolder(tags, len(workload), 0, torch.get_default_device(), False)
    params = SamplingParams(thinking_token_budget=BUDGET)
    added = [(row, params, workload.prompts[row], history.outputs[row]) for row in workload.active]
    holder.sync_batch(BatchUpdate(len(workload), removed=[], added=added, moved=[]))

    def step(logits: torch.Tensor) -> None:
        holder.update_state(history.outputs, None)
        holder.apply_to_logits(logits, False, None)

    return step


def vllm_allowed(workload: Workload, history: History) -> Step:
    """Apply vLLM's ``allowed_token_ids``: a mask as large as the logits."""
    masked = torch.zeros(len(workload), workload.vocab_size, dtype=torch.bool)
    for row in workload.active:
        masked[row] = True
        masked[row, list(workload.specs[row].token_ids)] = False  # pyright: ignore
    return lambda logits: logits.masked_fill_(masked, -torch.inf)


def xgrammar_allowed(workload: Workload, history: History) -> Step:
    """Run xgrammar's kernel with prepared masks."""
    import xgrammar

    bitmask = xgrammar.allocate_token_bitmask(len(workload), workload.vocab_size)
    for row in workload.active:
        bits = torch.zeros(bitmask.shape[1] * 32, dtype=torch.bool)
        bits[list(workload.specs[row].token_ids)] = True  # pyright: ignore
        words = (bits.view(-1, 32).long() << torch.arange(32)).sum(1)
        bitmask[row] = words.to(torch.int32)
    rows = workload.active
    return lambda logits: xgrammar.apply_token_bitmask_inplace(logits, bitmask, indices=rows)


@cache
def _sglang() -> ModuleType:
    """Load SGLang's module alone: the package would import the dependencies of the server."""
    name = "sglang/srt/sampling/custom_logit_processor.py"
    path = str(distribution("sglang").locate_file(name))
    loader = importlib.util.spec_from_file_location("_sglang_custom_logit_processor", path)
    assert loader is not None
    assert loader.loader is not None
    module = importlib.util.module_from_spec(loader)
    loader.loader.exec_module(module)
    return module


def _sglang_step(
    workload: Workload, history: History, processor: Any, params: dict[str, Any]
) -> Step:
    requests = [
        SimpleNamespace(origin_input_ids=array("q", prompt), output_ids=array("q", output))
        for prompt, output in zip(workload.prompts, history.outputs, strict=True)
    ]
    given = [{**params, "__req__": request} for request in requests]

    class Stepper:
        def advance(self) -> None:  # SGLang's engine appends to its own arrays
            for request, output in zip(requests, history.outputs, strict=True):
                request.output_ids.extend(output[len(request.output_ids) :])

        def __call__(self, logits: torch.Tensor) -> None:
            processor(logits, given)

    return Stepper()


def sglang_disallowed(workload: Workload, history: History) -> Step:
    token_ids = list(workload.specs[0].token_ids)  # pyright: ignore
    processor = _sglang().DisallowedTokensLogitsProcessor()
    return _sglang_step(workload, history, processor, {"token_ids": token_ids})


def sglang_thinking_budget(workload: Workload, history: History) -> Step:
    processor = _sglang().ThinkingBudgetLogitProcessor()
    processor.THINKING_START_TOKEN_ID = THINK
    processor.THINKING_END_TOKEN_ID = END_THINK
    processor.NEW_LINE_TOKEN_ID = NEWLINE
    return _sglang_step(workload, history, processor, {"thinking_budget": BUDGET})


def sglang_ngram(workload: Workload, history: History) -> Step:
    spec: Any = workload.specs[0]
    processor = _sglang().DeepseekOCRNoRepeatNGramLogitProcessor()
    params = {"ngram_size": spec.n, "window_size": spec.window}
    return _sglang_step(workload, history, processor, params)


def _transformers(
    make: Callable[[Any, Workload], hf.LogitsProcessor],
) -> Callable[[Workload, History], Step]:
    def begin(workload: Workload, history: History) -> Step:
        processor = make(workload.specs[0], workload)
        return lambda logits: processor(history.tensor(), logits)  # pyright: ignore

    return begin


transformers_suppress = _transformers(
    lambda spec, _: hf.SuppressTokensLogitsProcessor(list(spec.token_ids))
)
transformers_bias = _transformers(
    lambda spec, _: hf.SequenceBiasLogitsProcessor([[[t], b] for t, b in spec.bias.items()])
)
transformers_min_tokens = _transformers(
    lambda spec, work: hf.MinNewTokensLengthLogitsProcessor(
        len(work.prompts[0]), spec.n, list(spec.stop_token_ids)
    )
)
transformers_bad_words = _transformers(
    lambda spec, _: hf.NoBadWordsLogitsProcessor([list(s) for s in spec.sequences], EOS)
)
transformers_allowed = _transformers(
    lambda spec, _: hf.PrefixConstrainedLogitsProcessor(
        lambda row, ids, allowed=list(spec.token_ids): allowed, 1
    )
)
transformers_ngram = _transformers(lambda spec, _: hf.NoRepeatNGramLogitsProcessor(spec.n))


class _Numbers:
    """A tokenizer for texts of numbers, which are the token ids."""

    eos_token_id = EOS
    add_prefix_space = False

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return [int(word) for word in text.split()]

    def get_vocab(self) -> dict[str, int]:
        return {}


def _text(token_ids: Any) -> str:
    return " ".join(map(str, token_ids))


def _zoo(make: Callable[[Any, Any], Any]) -> Callable[[Workload, History], Step]:
    def begin(workload: Workload, history: History) -> Step:
        from logits_processor_zoo import vllm as zoo

        return per_request(workload, history, lambda spec: make(zoo, spec))

    return begin


zoo_trigger = _zoo(
    lambda zoo, spec: zoo.TriggerPhraseLogitsProcessor(
        _Numbers(), _text(spec.token_ids), _text(spec.trigger_token_ids[-1:]), trigger_count=1 << 30
    )
)
zoo_last_phrase = _zoo(
    lambda zoo, spec: zoo.ForceLastPhraseLogitsProcessor(_text(spec.token_ids), _Numbers())
)
zoo_choice = _zoo(
    lambda zoo, spec: zoo.MultipleChoiceLogitsProcessor(
        _Numbers(), [str(choice[0]) for choice in spec.choices], delimiter="1"
    )
)
zoo_cite = _zoo(
    lambda zoo, spec: zoo.CiteFromPromptLogitsProcessor(_Numbers(), spec.bias, boost_eos=False)
)
