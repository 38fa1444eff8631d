"""The neutral core: compiles specs, follows each request's output ids, edits the whole batch.

It knows no engine. An adapter tells a ``Realizer`` which request is in which row, and hands it
the logits.
"""

from .automaton import Automaton, compile_payload
from .defaults import default_specs
from .realizer import Realizer

__all__ = ["Automaton", "Realizer", "compile_payload", "default_specs"]
