"""``prompt_bias``: batched as it is."""

from collections.abc import Iterable

from ....spec import PromptBiasSpec
from .base import Part, compile_spec


@compile_spec.register
def _compile(spec: PromptBiasSpec) -> Iterable[Part]:
    yield spec
