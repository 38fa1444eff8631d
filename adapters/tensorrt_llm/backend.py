"""What this adapter can do."""

from ...spec import (
    AllowedScriptsSpec,
    BannedScriptsSpec,
    BannedTextSpec,
    ChainSpec,
    GrammarSpec,
    MaxRunSpec,
    PythonProcessorSpec,
    SamplingSpec,
    WatermarkSpec,
)
from .. import REALIZABLE, Backend

BACKEND = Backend(
    "tensorrt_llm",
    realizes=REALIZABLE
    - {AllowedScriptsSpec, BannedScriptsSpec, BannedTextSpec, MaxRunSpec, PythonProcessorSpec}
    - {ChainSpec, GrammarSpec, WatermarkSpec},
    lowers=frozenset({GrammarSpec, SamplingSpec}),
    prefill_samples=True,
    packages={"tensorrt-llm": "tensorrt-llm"},
)
"""Its workers are separate processes, which no live callable can reach, and have no tokenizer.
They have no configuration either, and so no key of a mark, and do not see the sampling that a chain
comes before."""
