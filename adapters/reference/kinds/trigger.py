"""``trigger``."""

from ....spec import TriggerSpec
from .base import Edit, Force, Kind, Tokens, find, forcing


def _fired(spec: TriggerSpec, output: Tokens) -> tuple[int, Edit]:
    """Return how often the whole phrase has followed the trigger, and the edit."""
    position, fired = 0, 0
    while fired != spec.times:
        said = find(spec.trigger_token_ids, output, position)
        if said is None:
            break
        due = forcing(spec.token_ids, output, said)
        if isinstance(due, Force):
            return fired, due
        position, fired = due, fired + 1
    return fired, None


KIND = Kind(
    TriggerSpec((1,), (2,)),
    edit=lambda spec, prompt, output: _fired(spec, output)[1],
    examples=lambda free: [
        TriggerSpec(free.output_ids[:1], free.unused[:2]),
        TriggerSpec(free.output_ids[:2], free.unused[:1], None),
    ],
    complete=lambda spec, prompt, output: _fired(spec, output)[0] == spec.times,
)
