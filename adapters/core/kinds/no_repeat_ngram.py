"""``no_repeat_ngram``: batched as it is."""

from collections.abc import Iterable

from ....spec import NoRepeatNgramSpec
from .base import Part, compile_spec


@compile_spec.register
def _compile(spec: NoRepeatNgramSpec) -> Iterable[Part]:
    yield spec
