"""Compiles the loops of admission, so that no request waits for it."""

from importlib.util import find_spec

from .contradictions import warm_up
from .text.vocabulary import Vocabulary

SEQUENCES = (1, 1), (1, 2)


def prepare(vocabulary: Vocabulary | None = None) -> None:
    """Run each loop once.

    Args:
        vocabulary: a vocabulary, for rules about text. Its trie is made, which takes 0.2 s.
    """
    from .automaton.tries import choice, completing

    choice(SEQUENCES, 0)
    completing(SEQUENCES, None, lambda size: None)
    warm_up()
    if vocabulary is None:
        return
    from .text.token_product import completing_texts

    completing_texts([[(b"a",), (b"b",)]], vocabulary, lambda memory, step: None)
    if find_spec("fontTools") is not None:
        from .text.characters import completing_characters
        from .text.scripts import scripts_beside

        completing_characters(scripts_beside(()), vocabulary, lambda memory, step: None)
