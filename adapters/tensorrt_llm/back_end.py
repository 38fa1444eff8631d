"""What this adapter can do."""

from ...spec import GrammarSpec, PythonProcessorSpec, SamplingSpec
from ..back_end import REALIZABLE, BackEnd

BACK_END = BackEnd(
    "tensorrt_llm",
    realizes=REALIZABLE - {PythonProcessorSpec},
    lowers=frozenset({GrammarSpec, SamplingSpec}),
)
"""Its workers are processes of their own, which no live callable reaches; its server takes no
processors from clients."""
