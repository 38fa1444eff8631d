"""The edits of automata, in the terms of the reference."""

from ..core import Automaton, Edit
from .kinds.base import BAN, Add, Allow, Force, Move


def edit_of(
    automaton: Automaton, state: int, vocab_size: int = 0
) -> Force | Allow | Add | Move | None:
    """Return the edit that a state of an automaton makes, in a vocabulary of some size."""
    edit, operand = automaton.edit[state], int(automaton.operand[state])
    if edit == Edit.FREE:
        return None
    if edit == Edit.FORCE:
        return Force(operand, is_last=automaton.moves)
    end = int(automaton.set_ends[operand])
    part = slice(end - int(automaton.set_sizes[operand]), end)
    tokens = automaton.set_tokens[part].tolist()
    if edit == Edit.ALLOW:
        return Allow(frozenset(tokens))
    if edit == Edit.BAN_OTHERS:
        return Add(dict.fromkeys({*range(vocab_size)} - {*tokens}, BAN))
    values = automaton.set_values[part].tolist()
    if edit == Edit.MOVE:
        ends = tuple(token for token, value in zip(tokens, values, strict=True) if not value)
        return Move(tokens[values.index(max(values))], ends, max(values))
    return Add(dict(zip(tokens, values, strict=True)))
