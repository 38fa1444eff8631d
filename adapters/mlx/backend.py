"""What this adapter can do."""

from .. import REALIZABLE, Backend

BACKEND = Backend("mlx", realizes=REALIZABLE, packages={"mlx": "mlx-lm"})
"""mlx-lm has no grammars, and samplers are functions that its callers make."""
