"""``forced_end``: the same chain, after a number of tokens."""

from collections.abc import Iterable

from ....spec import ForcedEndSpec
from ..parts import Part
from .base import Context, compile_spec
from .forced_sequence import forced_chain


@compile_spec.register
def _compile(spec: ForcedEndSpec, _: Context) -> Iterable[Part]:
    yield forced_chain(spec.token_ids, spec.eos_token_id, after=spec.after)
