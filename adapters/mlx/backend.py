"""What this adapter can do."""

from .. import REALIZABLE, Backend

BACKEND = Backend("mlx", realizes=REALIZABLE)
"""mlx-lm has no grammars, and samplers are functions that its callers make."""
