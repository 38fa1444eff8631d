"""``no_repeat_ngram``: batched as it is."""

from collections.abc import Iterable, Sequence

from ....spec import NoRepeatNgramSpec
from ..parts import Part
from .base import Context, Merge, merge

merge.register(NoRepeatNgramSpec, lambda spec: Merge(_compile, spec))


def _compile(specs: Sequence[NoRepeatNgramSpec], _: Context) -> Iterable[Part]:
    """Let one of several equal rules act."""
    return specs[:1]
