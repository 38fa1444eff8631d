"""Detection of marks in texts, by profiles; numpy alone, without an engine.

``logitport detect`` is its command.
"""

from .detection import Detection, Finding, Span, detect
from .profiles import KeySource, Profile
from .schemes import (
    Kgw,
    SglangDual,
    SglangGumbel,
    SynthId,
    VllmDualGumbel,
    VllmGumbel,
    read_profiles,
)

__all__ = [
    "Detection",
    "Finding",
    "KeySource",
    "Kgw",
    "Profile",
    "SglangDual",
    "SglangGumbel",
    "Span",
    "SynthId",
    "VllmDualGumbel",
    "VllmGumbel",
    "detect",
    "read_profiles",
]
