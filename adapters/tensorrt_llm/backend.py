"""What this adapter can do."""

from ...spec import (
    AllowedScriptsSpec,
    BannedScriptsSpec,
    BannedTextSpec,
    GrammarSpec,
    MaxRunSpec,
    PythonProcessorSpec,
    SamplingSpec,
)
from .. import REALIZABLE, Backend

BACKEND = Backend(
    "tensorrt_llm",
    realizes=REALIZABLE
    - {AllowedScriptsSpec, BannedScriptsSpec, BannedTextSpec, MaxRunSpec, PythonProcessorSpec},
    lowers=frozenset({GrammarSpec, SamplingSpec}),
    prefill_samples=True,
    packages={"tensorrt-llm": "tensorrt-llm"},
)
"""Its workers are separate processes, which no live callable can reach, and have no tokenizer."""
