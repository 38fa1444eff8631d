"""What all tests share: the environment of the engines, the model and its tokenizer."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Read by vLLM when it is imported, here or in a server that a test starts.
for name, value in {
    "HF_HUB_OFFLINE": "1",
    # One thread, on any core: several wait for each other at every operation, which takes many
    # times as long wherever something else runs on one of their cores.
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_USE_V2_MODEL_RUNNER": "0",
}.items():
    os.environ.setdefault(name, value)


@pytest.fixture(scope="session")
def model() -> Path:
    """The folder of the SmolLM2-135M-Instruct checkpoint."""
    from examples.smollm2 import prepare

    return prepare()


@pytest.fixture(scope="session")
def tokenizer(model: Path) -> "PreTrainedTokenizerBase":
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model)
