"""Random tests: a few with every run, the others with all tests."""

from typing import Any

import pytest


def seeds(quick: int, all_: int) -> list[Any]:
    """Seeds to parametrize with: the first ones, and the others with the marker ``slow``."""
    return [*range(quick), *(pytest.param(n, marks=pytest.mark.slow) for n in range(quick, all_))]
