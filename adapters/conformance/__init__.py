"""A test suite for backends: subclass ``ConformanceSuite``, and inherit its cases.

See ``docs/writing-a-backend.md``.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .suite import ConformanceSuite, Generate, Output, Request

__all__ = ["ConformanceSuite", "Generate", "Output", "Request"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        import pytest

        # So that failures show values.
        pytest.register_assert_rewrite(f"{__name__}.base", f"{__name__}.suite")
        from . import suite

        return getattr(suite, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
