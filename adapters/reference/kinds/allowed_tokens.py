"""``allowed_tokens``."""

from ....spec import AllowedTokensSpec
from .base import Allow, Kind

KIND = Kind(
    AllowedTokensSpec((1,)),
    edit=lambda spec, prompt, output: Allow(frozenset(spec.token_ids)),
    examples=lambda free: [AllowedTokensSpec(free.unused)],
)
