"""Compiles the loops of admission, so that no request waits for it."""

from importlib.util import find_spec

from ...spec import (
    AllowedScriptsSpec,
    BannedSequencesSpec,
    BannedTextSpec,
    ChoiceSpec,
    LogitsProcessorSpec,
)
from .program import compile_specs
from .text.vocabulary import Vocabulary
from .walk import warm_up

LONG = ((1,) * 9, (1, 1, 2))


def prepare(vocabulary: Vocabulary | None = None) -> None:
    """Compile specs whose kinds have loops.

    Args:
        vocabulary: a vocabulary, for rules about text. Its trie is made, which takes 0.2 s.
    """
    specs: list[LogitsProcessorSpec] = [BannedSequencesSpec(LONG), ChoiceSpec(LONG, 0)]
    if vocabulary is not None:
        specs.append(BannedTextSpec(("text",)))
        if find_spec("fontTools") is not None:
            specs.append(AllowedScriptsSpec(("Latin",)))
    for spec in specs:
        compile_specs((spec,), lambda: vocabulary)
    warm_up()
