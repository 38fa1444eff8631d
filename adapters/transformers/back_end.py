"""What this adapter can do."""

from ..back_end import REALIZABLE, BackEnd

BACK_END = BackEnd(
    "transformers",
    realizes=REALIZABLE,
)
"""``generate`` has sampling parameters for a whole batch alone, and no grammars."""
