"""Contradictions, found at admission as far as the tokens are determined.

``check`` compares the specs of a request with each other, ``guard`` compares them with those of the
operator. What is not found here, the order of edits decides in the row.
"""

from .check import budget, check_contradictions, check_without_engine, may_lose
from .guard import check_guard, may_stop

__all__ = [
    "budget",
    "check_contradictions",
    "check_guard",
    "check_without_engine",
    "may_lose",
    "may_stop",
]
