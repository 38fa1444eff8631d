"""``logit_bias``: one state, which adds to some tokens."""

from collections.abc import Iterable

from ....spec import LogitBiasSpec
from ..parts import Part
from .banned_tokens import adding
from .base import Context, compile_spec


@compile_spec.register
def _compile(spec: LogitBiasSpec, _: Context) -> Iterable[Part]:
    yield adding(spec.bias.keys(), spec.bias.values())
