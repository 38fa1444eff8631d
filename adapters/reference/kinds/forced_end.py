"""``forced_end``: a forced sequence, after a number of tokens."""

from ....spec import ForcedEndSpec
from .base import Edit, Kind, Tokens
from .forced_sequence import forced


def _edit(spec: ForcedEndSpec, prompt: Tokens, output: Tokens) -> Edit:
    if len(output) < spec.after:
        return None
    return forced(spec.token_ids, spec.eos_token_id, output[spec.after :])


KIND = Kind(
    ForcedEndSpec(1, (1,)),
    edit=_edit,
    examples=lambda free: [
        ForcedEndSpec(2, free.unused[:2], free.eos_token_id),
        ForcedEndSpec(3, free.unused[:2]),
    ],
    complete=lambda spec, prompt, output: (
        len(output) >= spec.after and _edit(spec, prompt, output) is None
    ),
)
