"""``banned_text``: the output never contains some texts, however they are tokenized."""

import re
import unicodedata
from functools import cache
from typing import Annotated

import msgspec

from ..base import Sizes, TextSpec, check_text, check_total
from ..errors import SpecError
from ..limits import MAX_PATTERN, MAX_TEXT_BYTES

_Text = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_PATTERN)]
_Texts = Annotated[tuple[_Text, ...], msgspec.Meta(min_length=1, max_length=MAX_TEXT_BYTES)]

SEPARATORS = (
    *(("\0", "/"), (":", "@"), ("[", "^"), ("`", "`"), ("{", "\x7f")),
    *(("\x80", "\xb4"), ("\xb6", "\xbf")),  # the signs of Latin-1, but for micro, which is a mu
    *(("\u2000", "\u20ff"), ("\u2190", "\u21bf"), ("\u21c0", "\u2bff")),  # General Punctuation
    *(("\u3000", "\u303f"), ("\U0001f000", "\U0001ffff")),  # East Asian; pictures
)
"""Ranges of the characters that are in no word. Of each range, each byte in UTF-8 has a range."""

ACCENTS = (("\u0300", "\u033f"), ("\u0340", "\u036f"))
"""Ranges of the combining marks that ``ignore_accents`` leaves out, each of one first byte."""

_RANGES = (f"{re.escape(first)}-{re.escape(last)}" for first, last in SEPARATORS)
_SEPARATOR = re.compile(f"[{''.join(_RANGES)}]")


class BannedTextSpec(TextSpec, frozen=True, tag="banned_text", omit_defaults=True):
    """The output, as text, never contains one of ``texts``.

    A token that would complete a text is banned, whatever tokens the text is made of, and also if
    the text begins or ends within a token. ``banned_sequences`` bans one tokenization of a word:
    with ``" banana"`` as one token, the model may still choose ``" Ban"`` and ``"anas"``.

    Texts are compared byte by byte, in UTF-8. Without ``ignore_accents``, ``é`` as one character is
    not ``e`` and an accent. A text is found within words, too: ``" ass"`` with a space leaves
    ``class`` free. Texts that begin with a space also take much less memory, because few tokens
    end with a space and the first letters of a word.

    With ``whole_words``, a text counts only where no word goes on before or after it. The end of
    the output so far is the end of a word, because the output may end there: the model can still
    choose ``assess`` as a token that holds all of it, but not ``ass`` and then ``ess``. Letters,
    digits, the underscore, and most characters beyond ASCII are in words; spaces, punctuation,
    symbols and emoji are not (``SEPARATORS``). This takes little memory, with or without a space.

    Only the output is read: a text that the prompt begins is not completed by the output. A
    special token has no text, and nothing that begins before it is completed after it.

    The engine's adapter has to give the vocabulary of the tokenizer; where it does not, the kind is
    refused. The texts' tables are refused where they would take more than ``MAX_PROGRAM_BYTES``:
    many texts that begin with different letters, or end with a space.

    ``BannedTextSpec(("banana", "as an AI"), ignore_case=True, whole_words=True)`` bans ``Banana``
    as well, and leaves ``"bananas"`` free where that is one token.

    Examples:
        >>> from logitport.adapters.reference.kinds.banned_text import completing
        >>> spec = BannedTextSpec(("banana",), ignore_case=True)
        >>> completing(spec, vocabulary=(b" Ban", b"an", b"ana"), output=(0,))
        {2}

    Args:
        texts: non-empty texts, at least one, of up to ``MAX_PATTERN`` bytes in UTF-8, and
            ``MAX_TEXT_BYTES`` in all.
        ignore_case: whether characters are equal that Unicode's case folding makes the same:
            ``k``, ``K`` and the Kelvin sign; ``ß`` and ``ẞ``; the two small sigmas and ``Σ``. One
            character never equals two: ``ß`` is not ``ss``. The Turkish letters, ``İ`` and the
            dotless i, equal only themselves.
        whole_words: whether a text counts only as a whole word, or as several. Each text begins and
            ends with a character of a word then.
        ignore_accents: whether texts are compared without accents, the marks from U+0300 to U+036F:
            ``Paris`` and ``París`` are equal, of one character for a letter or of several. So are
            ``и`` and ``й``. A stroke is no accent: ``ø`` is not ``o``, and ``ł`` is not ``l``.

    Raises:
        SpecError: if a field is out of bounds, or a text begins or ends between words although
            ``whole_words`` is set, or has nothing but accents although ``ignore_accents`` is.
    """

    texts: _Texts
    ignore_case: bool = False
    whole_words: bool = False
    ignore_accents: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for i, text in enumerate(self.texts):
            check_text(text, "texts", i)
            left = self.without_accents(text)
            if not left:
                what = "Expected a text that is more than accents, because of `ignore_accents`"
                raise SpecError(what, "texts", i)
            if self.whole_words and not (in_word(left[0]) and in_word(left[-1])):
                what = "Expected a text that begins and ends in a word, because of `whole_words`"
                raise SpecError(what, "texts", i)
        check_total(self.sizes().text_bytes, MAX_TEXT_BYTES, "bytes", "texts")

    def sizes(self) -> Sizes:
        return Sizes(text_bytes=sum(len(text.encode()) for text in self.texts))

    def without_accents(self, text: str) -> str:
        """Leave the accents out, if they are to be ignored."""
        return text.translate(unaccented()) if self.ignore_accents else text

    def bans_text(self, text: str) -> bool:
        fold = _folded if self.ignore_case else str
        folded, *texts = (fold(self.without_accents(each)) for each in (text, *self.texts))
        return any(self._is_in(folded, each) for each in texts)

    def _is_in(self, text: str, banned: str) -> bool:
        at = text.find(banned)
        while at >= 0:
            end = at + len(banned)
            around = text[max(at - 1, 0) : at] + text[end : end + 1]
            if not (self.whole_words and any(map(in_word, around))):
                return True
            at = text.find(banned, at + 1)
        return False


def _folded(text: str) -> str:
    """Fold the case of each character by itself: one never becomes two."""
    return text.translate(_stand_ins()).casefold()


@cache
def _stand_ins() -> dict[int, str]:
    """Map each character that folds to several to one for private use, equal ones to the same."""
    several = {
        i: fold
        for i in (*range(0x80, 0x2000), *range(0xFB00, 0xFB18))
        if len(fold := chr(i).casefold()) > 1
    }
    numbers = {fold: chr(0xF0000 + n) for n, fold in enumerate(dict.fromkeys(several.values()))}
    return {i: numbers[fold] for i, fold in several.items()}


@cache
def unaccented() -> dict[int, str]:
    """Map each letter with accents to the letter alone, and each accent to nothing."""
    accents = {i: "" for first, last in ACCENTS for i in range(ord(first), ord(last) + 1)}
    parts = {i: unicodedata.normalize("NFD", chr(i)) for i in range(0xC0, 0x2200)}
    return accents | {
        i: letter
        for i, (letter, *marks) in parts.items()
        if marks and letter.isalpha() and all(ord(mark) in accents for mark in marks)
    }


def in_word(character: str) -> bool:
    """Whether a character is part of a word."""
    return not _SEPARATOR.match(character)
