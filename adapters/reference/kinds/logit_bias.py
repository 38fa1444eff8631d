"""``logit_bias``."""

from ....spec import LogitBiasSpec
from .base import Add, Kind

KIND = Kind(
    LogitBiasSpec({1: 1.0}),
    edit=lambda spec, prompt, output: Add(dict(spec.bias)),
    examples=lambda free: [
        LogitBiasSpec({free.output_ids[0]: -1000}),
        LogitBiasSpec(dict.fromkeys(free.unused[:2], 1000)),
    ],
)
