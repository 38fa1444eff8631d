"""A test suite for back ends: subclass ``ConformanceSuite``, and inherit its cases.

It needs pytest. See ``docs/writing-a-backend.md``.
"""

from .suite import ConformanceSuite, Generate, Output, Request

__all__ = ["ConformanceSuite", "Generate", "Output", "Request"]
