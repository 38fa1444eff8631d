"""``banned_text``: an automaton over bytes, times the vocabulary of the engine's tokenizer."""

from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING

from ....spec import BannedTextSpec
from ....spec.kinds.banned_text import SEPARATORS
from ..parts import Part
from .banned_tokens import adding
from .base import Context, Merge, merge

if TYPE_CHECKING:
    from ..text.byte_automaton import Symbol

_SEPARATORS = [tuple(zip(first.encode(), last.encode(), strict=True)) for first, last in SEPARATORS]

merge.register(BannedTextSpec, lambda spec: Merge(_compile, (spec.ignore_case, spec.whole_words)))


def _compile(specs: Sequence[BannedTextSpec], context: Context) -> Iterable[Part]:
    """Look for all texts in one automaton.

    Tokens that hold a text have an automaton of their own: they are banned in every state.
    """
    spec = specs[-1]
    vocabulary = context.vocabulary_for(spec)
    from ..text.token_product import completing_texts  # imports numba

    variants = _variants() if spec.ignore_case else {}
    every = (text for each in specs for text in each.texts)
    texts = [[variants.get(c) or (c.encode(),) for c in text] for text in every]
    separators = _SEPARATORS if spec.whole_words else ()
    everywhere, automaton = completing_texts(texts, vocabulary, context.text_room, separators)
    made = [adding(everywhere)] if len(everywhere) else []
    made += [] if automaton is None else [automaton]
    context.text_room -= sum(each.table_bytes for each in made)
    return made


@cache
def _variants() -> "dict[str, Symbol]":
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
