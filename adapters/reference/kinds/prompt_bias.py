"""``prompt_bias``."""

from ....spec import PromptBiasSpec
from .base import Add, FreeRun, Kind


def _examples(free: FreeRun) -> list[PromptBiasSpec]:
    prompt, output = set(free.prompt_ids), set(free.output_ids)
    if prompt <= output:
        return [PromptBiasSpec(-1000)]
    return [PromptBiasSpec(1000, tuple(output & prompt))]


KIND = Kind(
    PromptBiasSpec(1.0),
    edit=lambda spec, prompt, output: Add(
        dict.fromkeys({*prompt} - {*spec.excluded_token_ids}, spec.bias)
    ),
    examples=_examples,
)
