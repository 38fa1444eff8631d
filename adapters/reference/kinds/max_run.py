"""``max_run``. It has a meaning only with a vocabulary: see ``completing``."""

import re
from collections.abc import Sequence

from ....spec import MaxRunSpec
from .base import Kind, Tokens, text_of


def completing(spec: MaxRunSpec, vocabulary: Sequence[bytes | None], output: Tokens) -> set[int]:
    """Find the tokens that would make a run too long: the reference, by the text of the output.

    Args:
        spec: the class, and the longest run.
        vocabulary: the bytes of each token, ``None`` for a special token.
        output: the output so far.
    """
    before = text_of(vocabulary, output)
    any_text = b"|".join(re.escape(text.encode()) for text in spec.characters)
    too_long = re.compile(rb"(?:%s){%d}" % (any_text, spec.n + 1))
    return {
        token
        for token, piece in enumerate(vocabulary)
        if piece is not None and _ends_within(too_long, before, piece)
    }


def _ends_within(too_long: re.Pattern[bytes], before: bytes, piece: bytes) -> bool:
    """Whether a match ends after the text before."""
    text = before + piece
    matches = (too_long.match(text, start) for start in range(len(text)))
    return any(match is not None and match.end() > len(before) for match in matches)


KIND = Kind(MaxRunSpec(1))
