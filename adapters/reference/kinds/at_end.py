"""``at_end``."""

from ....spec import AtEndSpec
from .base import Edit, Force, Kind, Move, Tokens, find, forcing


def _edit(spec: AtEndSpec, prompt: Tokens, output: Tokens) -> Edit:
    begun = find(spec.token_ids[:1], output)
    if begun is None:
        return Move(spec.token_ids[0], spec.stop_token_ids, spec.temperature)
    rest = spec.token_ids[1:]
    due = forcing(rest, output, begun) if rest else None
    return Force(due.token if isinstance(due, Force) else spec.stop_token_ids[0], is_last=True)


KIND = Kind(
    AtEndSpec((1,), (2,)),
    edit=_edit,
    examples=lambda free: [
        AtEndSpec(free.unused[:2], (free.output_ids[1],)),
        AtEndSpec(free.unused[:1], (free.output_ids[0],)),
    ],
)
