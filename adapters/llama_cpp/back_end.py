"""What this adapter can do."""

from ...spec import GrammarSpec, SamplingSpec
from ..back_end import REALIZABLE, BackEnd

BACK_END = BackEnd(
    "llama_cpp",
    realizes=REALIZABLE,
    lowers=frozenset({GrammarSpec, SamplingSpec}),
)
"""``arguments`` asks for what llama.cpp does by itself; some of its fields it refuses."""
