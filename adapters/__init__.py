"""How specs act: one neutral core, and one thin adapter per engine that maps rows and history."""

from .back_end import BackEnd, back_ends, extra_body, payload_for

__all__ = ["BackEnd", "back_ends", "extra_body", "payload_for"]
