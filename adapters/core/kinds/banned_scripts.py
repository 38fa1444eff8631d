"""``banned_scripts`` and ``allowed_scripts``: the characters' bytes, times the vocabulary."""

from collections.abc import Iterable, Sequence
from functools import reduce

import numpy as np

from ....spec import AllowedScriptsSpec, SpecError
from ....spec.kinds.banned_scripts import ScriptsSpec
from ..automaton import Edit
from ..parts import Part
from ..text.scripts import kinds_of, script_codes
from .base import Context, Merge, merge
from .simple import ADDING, adding

_BAN_OTHERS = np.array([Edit.BAN_OTHERS], np.int8)


@merge.register
def _merge(spec: ScriptsSpec) -> Merge:
    """Check the names.

    Raises:
        SpecError: for a name that is no script's, and if Unicode's table is missing.
    """
    try:
        script_codes(spec.scripts)
    except ModuleNotFoundError as error:
        what = f"needs {error.name} on the server: pip install 'logitport[scripts]'"
        raise SpecError(f"`{spec.kind}` {what}") from None
    return Merge(_compile)


def _compile(specs: Sequence[ScriptsSpec], context: Context) -> Iterable[Part]:
    """Ban the characters that any of the specs bans."""
    vocabulary = context.vocabulary_for(specs[-1])
    from ..text.characters import completing_characters  # imports numba

    of_script = reduce(
        np.maximum,
        (
            kinds_of(script_codes(spec.scripts), are_allowed=isinstance(spec, AllowedScriptsSpec))
            for spec in specs
        ),
    )
    everywhere, within = completing_characters(of_script, vocabulary, context.room)
    if 2 * len(everywhere) > vocabulary.size:  # the others are fewer
        others = np.ones(vocabulary.size, np.bool_)
        others[everywhere] = False
        yield ADDING.of_tokens(np.flatnonzero(others), edit=_BAN_OTHERS)
    elif len(everywhere):
        yield adding(everywhere)
    if within is not None:
        yield within
