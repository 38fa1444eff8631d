"""The edits of automata, in the terms of the reference."""

from ..core import Automaton, Edit
from .kinds.base import Add, Allow, Force


def edit_of(automaton: Automaton, state: int) -> Force | Allow | Add | None:
    """Return the edit that a state of an automaton makes."""
    edit, operand = automaton.edit[state], int(automaton.operand[state])
    if edit == Edit.FREE:
        return None
    if edit == Edit.FORCE:
        return Force(operand)
    end = int(automaton.set_ends[operand])
    part = slice(end - int(automaton.set_sizes[operand]), end)
    tokens = automaton.set_tokens[part].tolist()
    if edit == Edit.ALLOW:
        return Allow(frozenset(tokens))
    return Add(dict(zip(tokens, automaton.set_values[part].tolist(), strict=True)))
