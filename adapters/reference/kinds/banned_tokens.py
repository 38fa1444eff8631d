"""``banned_tokens``."""

from ....spec import BannedTokensSpec
from .base import Kind, ban

KIND = Kind(
    BannedTokensSpec((1,)),
    edit=lambda spec, prompt, output: ban(spec.token_ids),
    examples=lambda free: [BannedTokensSpec(free.output_ids[:2])],
)
