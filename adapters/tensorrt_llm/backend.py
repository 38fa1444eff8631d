"""What this adapter can do."""

from ...spec import GrammarSpec, PythonProcessorSpec, SamplingSpec
from .. import REALIZABLE, Backend

BACKEND = Backend(
    "tensorrt_llm",
    realizes=REALIZABLE - {PythonProcessorSpec},
    lowers=frozenset({GrammarSpec, SamplingSpec}),
    prefill_samples=True,
)
"""Its workers are separate processes, which no live callable can reach."""
