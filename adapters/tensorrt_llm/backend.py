"""What this adapter can do."""

from ...spec import ChainSpec, GrammarSpec, PythonProcessorSpec, SamplingSpec, WatermarkSpec
from ...spec.base import TextSpec
from .. import REALIZABLE, Backend

BACKEND = Backend(
    "tensorrt_llm",
    realizes=REALIZABLE
    - {kind for kind in REALIZABLE if issubclass(kind, TextSpec)}
    - {ChainSpec, GrammarSpec, PythonProcessorSpec, WatermarkSpec},
    lowers=frozenset({GrammarSpec, SamplingSpec}),
    prefill_samples=True,
    packages={"tensorrt-llm": "tensorrt-llm"},
)
"""Its workers are separate processes, which no live callable can reach, and have no tokenizer.
They have no configuration either, and so no key of a mark, and do not see the sampling that a chain
comes before."""
