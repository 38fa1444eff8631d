"""The mark that vLLM's V2 runner makes by itself, with ``--watermark-config``."""

from collections.abc import Callable
from typing import Any

from ...spec import SpecError
from ..core import Mark


def own_mark(own: Any, params: Any) -> Callable[[Mark], bool]:
    """Return whether the engine itself makes a mark: one with the same key and contexts.

    The function raises ``SpecError`` for a request that opts out of it.

    Args:
        own: the engine's ``watermark_config``; ``None`` without one.
        params: the request's ``SamplingParams``.
    """

    def makes(mark: Mark) -> bool:
        if own is None:
            return False
        scope = "none" if not mark.searched else "all" if mark.reads_prompt else "single_turn"
        made = own.algorithm, own.key, own.context_width, own.deduplicate_contexts
        if made != ("gumbel", mark.key, mark.width, scope):
            return False
        if params.watermarking is False:
            raise SpecError.of_field("This server marks its texts", "watermarking")
        return True

    return makes
