"""What this adapter can do."""

from ..back_end import REALIZABLE, BackEnd

BACK_END = BackEnd(
    "mlx",
    realizes=REALIZABLE,
)
"""mlx-lm has no grammars, and samplers are functions that its callers make."""
