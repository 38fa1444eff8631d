"""The neutral core: compiles specs, follows each request's tokens, edits the whole batch.

It has no code of an engine. An adapter reports the request of each row to a ``Realizer``, and
passes the logits. All that adapters need is here. It needs numpy and numba; logits in tensors, and
requests' own callables, need torch, and ``DeviceRealizer`` Triton too.
"""

from typing import TYPE_CHECKING

from ...spec.lazy import lazy
from .automaton import (
    BAN_BIAS,
    CARRY,
    CLEAR,
    KEEP,
    UNKNOWN,
    Automaton,
    AutomatonBuilder,
    Edit,
    Ints,
    UnknownTokenError,
)
from .automaton.history import check_continued
from .kinds import VocabularyOf
from .parts import Acting, Chain, Mark, Program, failing
from .plugins import HistoryRule
from .program import ProgramOf, compile_specs, unsupported
from .text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from .automaton.automata import states_along
    from .callables import log_failure
    from .device.context import History, LogitsLayout
    from .device.realizer import DeviceRealizer
    from .host.editors import Editor
    from .host.realizer import Realizer
    from .host.registry import editor_for
    from .on_host import SplitRealizer

__all__ = [
    "BAN_BIAS",
    "CARRY",
    "CLEAR",
    "KEEP",
    "UNKNOWN",
    "Acting",
    "Automaton",
    "AutomatonBuilder",
    "Chain",
    "DeviceRealizer",
    "Edit",
    "Editor",
    "History",
    "HistoryRule",
    "Ints",
    "LogitsLayout",
    "Mark",
    "Program",
    "ProgramOf",
    "Realizer",
    "SplitRealizer",
    "UnknownTokenError",
    "Vocabulary",
    "VocabularyOf",
    "check_continued",
    "compile_specs",
    "editor_for",
    "failing",
    "log_failure",
    "states_along",
    "unsupported",
]

# What compiles loops, or needs torch or Triton.
__getattr__ = lazy(
    __name__,
    Realizer=".host.realizer",
    editor_for=".host.registry",
    Editor=".host.editors",
    log_failure=".callables",
    states_along=".automaton.automata",
    DeviceRealizer=".device.realizer",
    History=".device.context",
    LogitsLayout=".device.context",
    SplitRealizer=".on_host",
)
