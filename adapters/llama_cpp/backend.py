"""What this adapter can do."""

from ...spec import GrammarSpec, SamplingSpec
from .. import REALIZABLE, Backend

BACKEND = Backend(
    "llama_cpp",
    realizes=REALIZABLE,
    lowers=frozenset({GrammarSpec, SamplingSpec}),
    packages={"llama-cpp": "llama-cpp-python"},
)
"""``arguments`` asks for what llama.cpp does by itself; some of its fields it refuses."""
