"""``banned_text``: an automaton over bytes, times the vocabulary of the engine's tokenizer."""

from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING

from ....spec import BannedTextSpec
from ....spec.kinds.banned_text import ACCENTS, SEPARATORS, unaccented
from ..parts import Part
from .base import Context, Merge, merge
from .simple import adding

if TYPE_CHECKING:
    from ..text.byte_automaton import Symbol

_SEPARATORS, _ACCENTS = (
    [tuple(zip(first.encode(), last.encode(), strict=True)) for first, last in ranges]
    for ranges in (SEPARATORS, ACCENTS)
)


@merge.register
def _(spec: BannedTextSpec) -> Merge:
    return Merge(_compile, (spec.ignore_case, spec.ignore_accents, spec.whole_words))


def _compile(specs: Sequence[BannedTextSpec], context: Context) -> Iterable[Part]:
    """Look for all texts in one automaton.

    Tokens that hold a text have an automaton of their own: they are banned in every state.
    """
    spec = specs[-1]
    vocabulary = context.vocabulary_for(spec)
    from ..text.token_product import completing_texts  # imports numba

    variants = _variants(spec.ignore_case, spec.ignore_accents)
    every = (each.without_accents(text) for each in specs for text in each.texts)
    texts = [[variants.get(c) or (c.encode(),) for c in text] for text in every]
    separators = _SEPARATORS if spec.whole_words else ()
    ignored = _ACCENTS if spec.ignore_accents else ()
    everywhere, automaton = completing_texts(
        texts, vocabulary, context.text_room, separators, ignored
    )
    made = [adding(everywhere)] if len(everywhere) else []
    made += [] if automaton is None else [automaton]
    context.text_room -= sum(each.table_bytes for each in made)
    return made


@cache
def _variants(ignore_case: bool, ignore_accents: bool) -> "dict[str, Symbol]":
    """Map each character to all that are equal to it, if there are others."""
    cases = _cases() if ignore_case else {}
    letters = unaccented() if ignore_accents else {}
    alike: dict[Symbol, Symbol] = {}
    for i, letter in letters.items():
        if letter:
            same = cases.get(letter, (letter.encode(),))
            # An accent is no letter: U+0345 has a small letter's case.
            left = alike.get(same) or tuple(c for c in same if c.decode().translate(letters))
            alike[same] = (*left, chr(i).encode())
    return cases | {c.decode(): same for same in alike.values() for c in same}


@cache
def _cases() -> "dict[str, Symbol]":
    """Map each character to all that are equal to it but for their case, if there are others.

    Characters are equal if ``str.casefold`` makes the same of them. All letters with a case are
    below U+20000.
    """
    blocks = ("".join(map(chr, range(i, i + 256))) for i in range(0, 0x20000, 256))
    in_blocks = (block for block in blocks if block.casefold() != block)  # one in ten
    folded = {c: fold for block in in_blocks for c in block if (fold := c.casefold()) != c}
    of_fold: dict[str, list[str]] = {fold: [fold] for fold in folded.values() if len(fold) == 1}
    for c, fold in folded.items():
        of_fold.setdefault(fold, []).append(c)
    return {c: tuple(each.encode() for each in same) for same in of_fold.values() for c in same}
