"""``banned_text``. It has a meaning only with a vocabulary: see ``completing``."""

from collections.abc import Sequence
from typing import Any

from ....spec import BannedTextSpec
from .base import Draws, Kind, Tokens


def completing(
    spec: BannedTextSpec, vocabulary: Sequence[bytes | None], output: Tokens
) -> set[int]:
    """Find the tokens that would complete a text: the reference, by the text of the whole output.

    Args:
        spec: the texts.
        vocabulary: the bytes of each token, ``None`` for a special token.
        output: the output so far.
    """
    before = b""
    for token in output:
        piece = vocabulary[token]
        before = b"" if piece is None else before + piece
    return {
        token
        for token, piece in enumerate(vocabulary)
        if piece is not None
        if any(_ends(spec, before + piece[: n + 1]) for n in range(len(piece)))
    }


def _ends(spec: BannedTextSpec, written: bytes) -> bool:
    """Whether the bytes end with one of the texts. Bytes of no character equal no text."""
    shown = written.decode(errors="surrogateescape")
    for text in spec.texts:
        end = shown[-len(text) :]
        if end == text or (spec.ignore_case and _folded(end) == _folded(text)):
            return True
    return False


def _folded(text: str) -> list[str]:
    return [c.casefold() for c in text]


def texts(draw: Draws) -> Any:
    """Draw texts of letters that equal others, or look like them."""
    text = draw.st.text("abAkK\u212aßẞsé ", min_size=1, max_size=6)
    return draw.st.lists(text, min_size=1, max_size=4).map(tuple)


KIND = Kind(
    BannedTextSpec(("a",)),
    strategy=lambda draw: draw.builds(BannedTextSpec, texts(draw), draw.st.booleans()),
)
