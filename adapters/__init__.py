"""How specs act: one neutral core, and one thin adapter per engine that maps rows and history."""

from .back_end import REALIZABLE, BackEnd, back_ends, extra_body, payload_for
from .middleware import SpecMiddleware
from .support import Support, probe

__all__ = [
    "REALIZABLE",
    "BackEnd",
    "SpecMiddleware",
    "Support",
    "back_ends",
    "extra_body",
    "payload_for",
    "probe",
]
