"""Timed token automata: their tables, and how to build, fold and pool them."""

from .arrays import Ints
from .automaton import (
    BAN_BIAS,
    CARRY,
    CLEAR,
    KEEP,
    NO_TIMEOUT,
    NO_TIMER,
    UNKNOWN,
    Automaton,
    Edit,
    Lane,
    UnknownTokenError,
)
from .builder import AutomatonBuilder

__all__ = [
    "BAN_BIAS",
    "CARRY",
    "CLEAR",
    "KEEP",
    "NO_TIMEOUT",
    "NO_TIMER",
    "UNKNOWN",
    "Automaton",
    "AutomatonBuilder",
    "Edit",
    "Ints",
    "Lane",
    "UnknownTokenError",
]
