"""``watermark``: a mark without its key, which an adapter knows."""

from collections.abc import Iterable, Sequence

from ....spec import SpecError, WatermarkSpec
from ..parts import Mark, Part
from .base import Context, Merge, merge

merge.register(WatermarkSpec, lambda spec: Merge(_compile, WatermarkSpec))


def _compile(specs: Sequence[WatermarkSpec], _: Context) -> Iterable[Part]:
    """Let one of several equal marks act, and refuse another."""
    if len({*specs}) > 1:
        raise SpecError("A text has one mark")
    yield Mark(specs[0].profile)
