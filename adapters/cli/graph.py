"""The compiled automata of a spec as a drawing, in Mermaid or DOT."""

import json
from collections import defaultdict
from collections.abc import Iterator

from ...spec import LogitsProcessorSpec, SpecError
from ..conformance.automata import edit_of
from ..conformance.kinds.base import Add, Allow, Force
from ..core import Automaton, Edit, VocabularyOf, compile_specs
from .texts import TextOf, token

MOST_STATES = 100
"""States of an automaton that is drawn."""
MOST_LABELS = 4
"""Tokens on an edge that are named."""


def draw(
    spec: LogitsProcessorSpec,
    path: str,
    text_of: TextOf,
    vocabulary: VocabularyOf,
    *,
    is_dot: bool,
) -> Iterator[str]:
    """Yield the lines of a drawing per automaton of a spec, in DOT or in Mermaid.

    Raises:
        SpecError: if an automaton has more than ``MOST_STATES`` states.
    """
    comment = "//" if is_dot else "%%"
    automata = compile_specs((spec,), vocabulary).automata
    if not automata:
        yield f"{comment} {path} {spec.kind} has no automaton: it reads the history."
    for automaton in automata:
        if automaton.states > MOST_STATES:
            what = f"{automaton.states} states, more than {MOST_STATES}, are not drawn"
            raise SpecError.of_field(what, path)
        if not is_dot:
            yield f"{comment} {path} {spec.kind}"
            yield "stateDiagram-v2"
            for state in range(automaton.states):
                yield f"  s{state}: {_state(automaton, state, text_of).replace(':', '#58;')}"
            for source, target, label in _edges(automaton, text_of):
                yield f"  s{source} --> s{target}: {label.replace(':', '#58;')}"
        else:
            yield f"digraph {json.dumps(f'{path} {spec.kind}')} {{"
            for state in range(automaton.states):
                yield f"  s{state} [label={json.dumps(_state(automaton, state, text_of))}];"
            for source, target, label in _edges(automaton, text_of):
                yield f"  s{source} -> s{target} [label={json.dumps(label)}];"
            yield "}"


def _state(automaton: Automaton, state: int, text_of: TextOf) -> str:
    """Name the edit of a state."""
    if automaton.edit[state] == Edit.BAN_OTHERS:
        kept = automaton.set_sizes[automaton.operand[state]]
        return f"{state} ban all but {kept} token(s)"
    match edit_of(automaton, state):
        case None:
            return f"{state} free"
        case Force(forced):
            return f"{state} force {token(forced, text_of)}"
        case Allow(tokens):
            return f"{state} allow {len(tokens)} token(s)"
        case Add(values):
            return f"{state} add to {len(values)} token(s)"


def _edges(automaton: Automaton, text_of: TextOf) -> Iterator[tuple[int, int, str]]:
    """Yield source, target and label of the edges; those with the same ends are one."""
    tokens: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for key, target in zip(automaton.keys.tolist(), automaton.targets.tolist(), strict=True):
        tokens[key >> 32, target].append(key & 0xFFFFFFFF)
    for (source, target), token_ids in tokens.items():
        named = [token(each, text_of) for each in token_ids[:MOST_LABELS]]
        more = [f"{len(token_ids) - MOST_LABELS} more"] if len(token_ids) > MOST_LABELS else []
        yield source, target, ", ".join([*named, *more])
    for source in range(automaton.states):
        is_link = bool(automaton.is_failure_link[source])
        label = "otherwise, look again" if is_link else "otherwise"
        yield source, int(automaton.default_target[source]), label
        if (target := int(automaton.timeout[source])) >= 0:
            yield source, target, "time is out"
