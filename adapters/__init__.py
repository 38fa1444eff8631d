"""How specs act: one neutral core, and one thin adapter per engine that maps rows and history."""

from .back_end import REALIZABLE, BackEnd, back_ends, extra_body, payload_for
from .middleware import SpecMiddleware

__all__ = [
    "REALIZABLE",
    "BackEnd",
    "SpecMiddleware",
    "back_ends",
    "extra_body",
    "payload_for",
]
