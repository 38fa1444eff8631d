"""``logit_bias``: one state, which adds to some tokens."""

from collections.abc import Iterable

from ....spec import LogitBiasSpec
from .banned_tokens import adding
from .base import Part, compile_spec


@compile_spec.register
def _compile(spec: LogitBiasSpec) -> Iterable[Part]:
    yield adding(spec.bias.keys(), spec.bias.values())
