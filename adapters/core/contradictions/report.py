"""The errors for contradictions."""

from collections.abc import Iterable, Sequence
from itertools import chain, islice

from ....spec import LogitsProcessorSpec, SpecError
from ....spec.errors import Path
from ..automaton import Automaton
from ..parts import Program
from .follow import ALLOW, FORCE
from .sets import Contradiction


def error_of(
    found: Contradiction, specs: Sequence[LogitsProcessorSpec], program: Program
) -> SpecError:
    """Make the error at the spec that forces a token, or at the last one that takes part."""
    automata, (part, others, token) = program.automata, found
    parts = (part, *others) if part >= 0 else others
    of_parts = [specs_of(token, specs, program.compared[part].specs) for part in parts]
    reason = why(token, [automata[i] for i in parts[1:]])
    named = {i for each in of_parts for i in each}
    index, path = max(named), Path()
    if token >= 0 and reason != BOTH:
        index = of_parts[0][-1]
        path = path_of(token, specs[index])
    if named == {index}:
        return SpecError(f"Contradicts itself{reason}", "specs", index, *path)
    listed = chain.from_iterable((" and ", ("specs", i)) for i in sorted(named - {index}))
    return SpecError(("Conflicts with ", *islice(listed, 1, None), reason), "specs", index, *path)


def kinds_of(
    parts: Iterable[int], specs: Sequence[LogitsProcessorSpec], program: Program
) -> tuple[str, ...]:
    """Return the kinds of the specs that some parts come from, in the order of the specs."""
    indices = {i for part in parts for i in program.compared[part].specs}
    return tuple(dict.fromkeys(specs[i].kind for i in sorted(indices)))


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
    """Say what other automata do with a forced token."""
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
