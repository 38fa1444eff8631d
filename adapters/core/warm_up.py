"""Compiles the loops while a server or a worker starts, so that no request waits for it."""

import logging
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from threading import Thread

from ...spec import BannedTokensSpec, SpecError, TriggerSpec
from .contradictions import check_contradictions
from .program import compile_specs
from .text.vocabulary import Vocabulary

logger = logging.getLogger(__name__)

SEQUENCES = (1, 1), (1, 2)

_thread: Thread | None = None
_is_ready = False


def compile_loops(take_steps: Callable[[], None]) -> None:
    """Begin to compile the loops, beside what else a worker does when it starts."""
    global _thread
    if _thread is None:
        _thread = Thread(target=run_loops, args=(take_steps,), name="logitport-loops")
        _thread.start()


def wait_for_loops() -> None:
    """Wait until the loops are compiled."""
    global _is_ready
    if not _is_ready and _thread is not None:
        _thread.join()
        _is_ready = True


def run_loops(take_steps: Callable[[], None]) -> None:
    """Run each loop once on a little batch, which takes some steps."""
    for _ in range(2):  # where machine code cannot be saved, it is there all the same
        try:
            take_steps()
            prepare()
            return
        except Exception as error:
            logger.warning("Loops cannot be compiled before the first request: %s", error)


def prepare(vocabulary: Vocabulary | None = None) -> None:
    """Run each loop of admission once.

    Args:
        vocabulary: a vocabulary, for rules about text. Its trie is made, which takes 0.2 s.
    """
    from .automaton.tries import choice, completing

    choice(SEQUENCES, 0)
    completing(SEQUENCES, None, lambda size: None)
    specs = TriggerSpec((1,), (2,)), BannedTokensSpec((2,))
    with suppress(SpecError):
        check_contradictions(specs, compile_specs(specs), 4)
    if vocabulary is None:
        return
    from .text.token_product import completing_texts

    completing_texts([[(b"a",), (b"b",)]], vocabulary, sys.maxsize)
    if find_spec("fontTools") is not None:
        from .text.characters import completing_characters
        from .text.scripts import kinds_of

        completing_characters(kinds_of((), are_allowed=True), vocabulary, sys.maxsize)
