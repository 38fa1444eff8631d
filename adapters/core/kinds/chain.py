"""``chain``: its steps, without the request's own temperature, which an adapter knows."""

from collections.abc import Iterable, Sequence

from ....spec import ChainSpec, SpecError
from ..parts import Chain, Part
from .base import Context, Merge, merge

merge.register(ChainSpec, lambda spec: Merge(_compile, ChainSpec))


def _compile(specs: Sequence[ChainSpec], _: Context) -> Iterable[Part]:
    """Let one of several equal chains act, and refuse another."""
    if len({*specs}) > 1:
        raise SpecError("A request has one chain")
    yield Chain(tuple(each for each in specs[0].steps if 1 not in (each.top_p, each.typical)))
