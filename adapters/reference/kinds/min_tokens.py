"""``min_tokens``."""

from ....spec import MinTokensSpec
from .base import Kind, ban

KIND = Kind(
    MinTokensSpec(1, (1,)),
    edit=lambda spec, prompt, output: ban(spec.stop_token_ids) if len(output) < spec.n else None,
    examples=lambda free: [MinTokensSpec(4, (free.output_ids[0], free.eos_token_id))],
)
