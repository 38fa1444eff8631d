"""What this adapter can do."""

from ...spec import BannedTextSpec, GrammarSpec, PythonProcessorSpec, SamplingSpec
from .. import REALIZABLE, Backend

BACKEND = Backend(
    "tensorrt_llm",
    realizes=REALIZABLE - {BannedTextSpec, PythonProcessorSpec},
    lowers=frozenset({GrammarSpec, SamplingSpec}),
    prefill_samples=True,
)
"""Its workers are separate processes, which no live callable can reach, and have no tokenizer."""
