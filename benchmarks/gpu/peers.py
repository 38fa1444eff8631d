"""The peers on a GPU: vLLM's V2 kernels, vLLM's adapter around callables, transformers.

vLLM is imported without its compiled parts: ``use_python_files`` comes first.
"""

import os
from collections.abc import Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from ..timing import Begin
from ..workload import BUDGET, END_THINK, NEWLINE, THINK, History, Step, Workload
from .slots import VllmStates


def use_python_files(device: torch.device) -> None:
    """Make vLLM take the device without asking for its own compiled parts.

    Numbers that vLLM's kernels read from pinned memory of the host are copied to the device
    instead, which makes them faster, if anything.
    """
    os.environ |= {"VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    from vllm import platforms
    from vllm.platforms.interface import UnspecifiedPlatform

    platform: Any = UnspecifiedPlatform()
    platform.device_type = device.type
    platform.is_pin_memory_available = lambda: device.type == "cuda"
    platforms._current_platform = platform
    from vllm.v1.worker.gpu import buffer_utils

    buffer_utils.is_uva_available = lambda: False


def peers_of(device: torch.device) -> Mapping[str, Mapping[str, Begin]]:
    """Return the peers of each kind, by name."""
    use_python_files(device)
    from vllm.v1.worker.gpu.sample.bad_words import BadWordsState
    from vllm.v1.worker.gpu.sample.logit_bias import LogitBiasState
    from vllm.v1.worker.gpu.sample.thinking_budget import ThinkingBudgetState

    from .. import peers

    tags = SimpleNamespace(
        reasoning_start_token_ids=[THINK],
        reasoning_end_token_ids=[NEWLINE, END_THINK],
        natural_reasoning_end_token_ids=[END_THINK],
    )
    biases, bad_words = partial(LogitBiasState, None), partial(BadWordsState, None)  # pyright: ignore

    def transformers_ngram(workload: Workload, history: History) -> Step:
        history.tensor()  # on the device, as `generate` has it
        return peers.transformers_ngram(workload, history)

    adapter = {"callables, vLLM's adapter": peers.careful_touch}
    kernels: dict[str, Begin] = {
        "allowed_tokens": partial(
            VllmStates, biases, lambda spec: {"allowed_token_ids": [*spec.token_ids]}
        ),
        "logit_bias": partial(VllmStates, biases, lambda spec: {"logit_bias": dict(spec.bias)}),
        "min_tokens": partial(
            VllmStates,
            biases,
            lambda spec: {"min_tokens": spec.n, "_all_stop_token_ids": {*spec.stop_token_ids}},
        ),
        "banned_sequences": partial(
            VllmStates,
            bad_words,
            lambda spec: {"_bad_words_token_ids": [[*one] for one in spec.sequences]},
        ),
        "thinking_budget": partial(
            VllmStates,
            lambda states: ThinkingBudgetState(states, tags),  # pyright: ignore
            lambda spec: {"thinking_token_budget": BUDGET},
        ),
    }
    by_adapter = ("forced_sequence", "banned_tokens", "forced_end", "choice", "trigger")
    return {kind: {"vLLM's V2 kernel": begin} | adapter for kind, begin in kernels.items()} | {
        **dict.fromkeys((*by_adapter, "prompt_bias"), adapter),
        "no_repeat_ngram": {"transformers": transformers_ngram},
    }
