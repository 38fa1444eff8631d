"""What this adapter can do."""

from ...spec import WIRE_KINDS, NativeSpec, PythonProcessorSpec
from ..back_end import BackEnd

BACK_END = BackEnd(
    "transformers",
    realizes=frozenset(kind for kind in WIRE_KINDS if not issubclass(kind, NativeSpec))
    | {PythonProcessorSpec},
)
"""``generate`` has sampling parameters for a whole batch alone, and no grammars."""
