"""``forced_sequence``."""

from ....spec import ForcedTokenSequenceSpec
from .base import Edit, Force, Kind, Tokens, forcing


def forced(text: Tokens, eos_token_id: int | None, output: Tokens) -> Edit:
    """Return the edit after an output in which ``text`` is forced, and then EOS."""
    due = forcing(text, output, 0)
    if isinstance(due, Force):
        return due
    return None if eos_token_id is None else Force(eos_token_id)


KIND = Kind(
    ForcedTokenSequenceSpec((1,)),
    edit=lambda spec, prompt, output: forced(spec.token_ids, spec.eos_token_id, output),
    examples=lambda free: [
        ForcedTokenSequenceSpec(free.unused, free.eos_token_id),
        ForcedTokenSequenceSpec(free.unused[:2]),
    ],
    complete=lambda spec, prompt, output: forced(spec.token_ids, None, output) is None,
)
