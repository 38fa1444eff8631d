"""What is said about a contradiction that the walk has found."""

from collections.abc import Sequence

from ....spec import LogitsProcessorSpec
from ....spec.errors import Path
from ..automaton import Automaton
from .follow import ALLOW, FORCE


def specs_of(
    token: int, specs: Sequence[LogitsProcessorSpec], source: Sequence[int]
) -> Sequence[int]:
    """Select from the specs of a part those that ban a token, or do not allow it."""
    if token < 0 or len(source) == 1:
        return source
    return [i for i in source if bool(path_of(token, specs[i])) != specs[i].narrows] or source


WAITED_FOR = "start_token_ids", "other_start_token_ids", "trigger_token_ids"


def path_of(token: int, spec: LogitsProcessorSpec) -> Path:
    """Return the path of a token in a spec: of its field, if it is there more than once.

    A field with tokens that the spec only waits for counts last.
    """
    for path, token_ids in sorted(spec.token_fields(), key=lambda field: field[0][0] in WAITED_FOR):
        if token in token_ids:
            once = path[-1] == "*" and [*token_ids].count(token) == 1
            at = ([*token_ids].index(token),) if once else ()
            return (*path[:-1], *at) if path[-1] == "*" else path
    return ()


BOTH = ": both force a token at the same step"


def why(token: int, others: Sequence[Automaton]) -> str:
    """Say what other parts do with a forced token; without automata, it is a rule that bans it."""
    if token < 0:
        return ": no token is left"
    edits = {edit for each in others for edit in each.edit.tolist()} - {0}
    if edits == {FORCE}:
        return BOTH
    if edits == {ALLOW}:
        return f", which does not allow token {token}"
    if FORCE in edits:
        return f", which refuses token {token}"
    return f", which bans token {token}"
