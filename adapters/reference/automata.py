"""The edits of automata, in the terms of the reference."""

from ..core import Automaton, Edit
from .kinds.base import BAN, Add, Allow, Force


def edit_of(automaton: Automaton, state: int, vocab_size: int = 0) -> Force | Allow | Add | None:
    """Return the edit that a state of an automaton makes, in a vocabulary of some size."""
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
    if edit == Edit.BAN_OTHERS:
        return Add(dict.fromkeys({*range(vocab_size)} - {*tokens}, BAN))
    return Add(dict(zip(tokens, automaton.set_values[part].tolist(), strict=True)))
