"""``banned_text``. It has a meaning only with a vocabulary: see ``completing``."""

import re
import unicodedata
from collections.abc import Sequence
from itertools import dropwhile

from ....spec import BannedTextSpec
from ....spec.kinds.banned_text import SEPARATORS, in_word
from .base import Kind, Tokens, text_of


def completing(
    spec: BannedTextSpec, vocabulary: Sequence[bytes | None], output: Tokens
) -> set[int]:
    """Find the tokens that would complete a text: the reference, by the text of the whole output.

    Args:
        spec: the texts.
        vocabulary: the bytes of each token, ``None`` for a special token.
        output: the output so far.
    """
    before = text_of(vocabulary, output)
    return {
        token
        for token, piece in enumerate(vocabulary)
        if piece is not None
        if any(
            _ends(spec, before + piece[:n])
            and (not spec.whole_words or _separates(piece[n:], spec.ignore_accents))
            for n in range(1, len(piece) + 1)
        )
    }


def _ends(spec: BannedTextSpec, written: bytes) -> bool:
    """Whether the bytes end with one of the texts. Bytes of no character equal no text."""
    shown = written.decode(errors="surrogateescape")
    texts = spec.texts
    if spec.ignore_accents:
        if _ACCENT.match(shown[-1:]):
            return False  # the text has ended before
        shown, *texts = map(_without_accents, (shown, *texts))
    for text in texts:
        before, end = shown[: -len(text)], shown[-len(text) :]
        is_text = end == text or (spec.ignore_case and _folded(end) == _folded(text))
        if is_text and not (spec.whole_words and before and in_word(before[-1])):
            return True
    return False


def _separates(after: bytes, ignore_accents: bool) -> bool:
    """Whether the bytes after a text begin, or may begin, with a character that is in no word.

    A token may end within a character. Its first bytes decide if all characters that begin with
    them are separators.
    """
    if ignore_accents:
        after = re.sub(rb"^(\xcc[\x80-\xbf]|\xcd[\x80-\xaf])*([\xcc\xcd]\Z)?", b"", after)
    ranges = ([*zip(first.encode(), last.encode(), strict=True)] for first, last in SEPARATORS)
    decisive = ([*dropwhile((0x80, 0xBF).__eq__, each[::-1])][::-1] for each in ranges)
    return not after or any(
        all(low <= byte <= high for byte, (low, high) in zip(after, each, strict=False))
        for each in decisive
    )


_ACCENT = re.compile("[\u0300-\u036f]")


def _without_accents(text: str) -> str:
    return "".join(map(_unaccented, text))


def _unaccented(c: str) -> str:
    letter, *marks = unicodedata.normalize("NFD", c)
    if _ACCENT.match(c):
        return ""
    return letter if marks and letter.isalpha() and all(map(_ACCENT.match, marks)) else c


def _folded(text: str) -> list[str]:
    return [c.casefold() for c in text]


KIND = Kind(BannedTextSpec(("a",)))
