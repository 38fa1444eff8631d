"""What this adapter can do."""

from .. import REALIZABLE, Backend

BACKEND = Backend("transformers", realizes=REALIZABLE, packages={"transformers": "transformers"})
"""``generate`` has sampling parameters for a whole batch alone, and no grammars."""
