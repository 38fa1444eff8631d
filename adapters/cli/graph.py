"""The compiled automata of a spec as a drawing, in Mermaid or DOT."""

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence

from ...spec import LogitsProcessorSpec, SpecError
from ..core import Automaton, Edit, VocabularyOf, compile_specs
from ..reference import DECISIVE
from ..reference.automata import edit_of
from ..reference.kinds.base import Add, Allow, Force, Move
from .texts import TextOf, token

MOST_STATES = 100
"""States of an automaton that is drawn."""
MOST_LABELS = 4
"""Tokens of a state or an edge that are named."""
GREY = 'color="#888888", fontcolor="#888888"'
"""Legible on light and dark pages."""


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
    program = compile_specs((spec,), vocabulary)
    automata = program.automata if not program.loops else ()
    if not automata:
        yield f"{comment} {path} {spec.kind} has no automaton: it reads the history."
    for automaton in automata:
        if automaton.states > MOST_STATES:
            what = f"{automaton.states} states, more than {MOST_STATES}, are not drawn"
            raise SpecError.of_field(what, path)
        ways = _ways(automaton)
        states = [_state(automaton, i, text_of, ways.get(i, ())) for i in range(automaton.states)]
        if not is_dot:
            yield f"{comment} {path} {spec.kind}"
            yield "stateDiagram-v2"
            for state, label in enumerate(states):
                yield f"  s{state}: {label.replace(':', '#58;')}"
            for source, target, label in _edges(automaton, text_of):
                yield f"  s{source} --> s{target}: {label.replace(':', '#58;')}"
        else:
            yield f"digraph {json.dumps(f'{path} {spec.kind}')} {{"
            yield f"  bgcolor=transparent; node [{GREY}]; edge [{GREY}];"
            for state, label in enumerate(states):
                yield f"  s{state} [label={json.dumps(label)}];"
            for source, target, label in _edges(automaton, text_of):
                yield f"  s{source} -> s{target} [label={json.dumps(label)}];"
            yield "}"


def _state(automaton: Automaton, state: int, text_of: TextOf, seen: Sequence[int]) -> str:
    """Name a state by the newest tokens that lead to it, and say its edit."""
    after = f"{state}, after {_named(seen, text_of)}: " if seen else f"{state}: "
    if automaton.edit[state] == Edit.BAN_OTHERS:
        end = int(automaton.set_ends[automaton.operand[state]])
        first = end - int(automaton.set_sizes[automaton.operand[state]])
        return f"{after}ban all but {_named(automaton.set_tokens[first:end].tolist(), text_of)}"
    match edit_of(automaton, state):
        case None:
            return f"{after}free"
        case Force(forced):
            return f"{after}force {token(forced, text_of)}"
        case Allow(tokens):
            return f"{after}allow {_named(sorted(tokens), text_of)}"
        case Move(first, ends):
            return f"{after}{token(first, text_of)} in place of {_named(ends, text_of)}"
        case Add(values):
            by_value: defaultdict[float, list[int]] = defaultdict(list)
            for each, value in values.items():
                by_value[value].append(each)
            return after + ", ".join(
                ("ban " if value <= -DECISIVE else f"add {value:+g} to ") + _named(each, text_of)
                for value, each in by_value.items()
            )


def _named(token_ids: Sequence[int], text_of: TextOf) -> str:
    named = [token(each, text_of) for each in token_ids[:MOST_LABELS]]
    more = [f"{len(token_ids) - MOST_LABELS:,} more"] if len(token_ids) > MOST_LABELS else []
    return ", ".join([*named, *more])


def _ways(automaton: Automaton) -> dict[int, tuple[int, ...]]:
    """Find for each state the tokens that lead to it soonest: the newest of them, in order."""
    targets: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for key, target in zip(automaton.keys.tolist(), automaton.targets.tolist(), strict=True):
        targets[key >> 32].append((key & 0xFFFFFFFF, target))
    ways: dict[int, tuple[int, ...]] = {0: ()}
    for state in (waiting := [0]):
        edit, default = edit_of(automaton, state), int(automaton.default_target[state])
        forced = [(edit.token, default)] if isinstance(edit, Force) else []
        for each, target in targets[state] + forced:
            if target not in ways:
                ways[target] = (*ways[state], each)[-MOST_LABELS:]
                waiting.append(target)
    return ways


def _edges(automaton: Automaton, text_of: TextOf) -> Iterator[tuple[int, int, str]]:
    """Yield source, target and label of the edges; those with the same ends are one."""
    tokens: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for key, target in zip(automaton.keys.tolist(), automaton.targets.tolist(), strict=True):
        tokens[key >> 32, target].append(key & 0xFFFFFFFF)
    for (source, target), token_ids in tokens.items():
        yield source, target, _named(token_ids, text_of)
    for source in range(automaton.states):
        is_link = bool(automaton.is_failure_link[source])
        label = "otherwise, look again" if is_link else "otherwise"
        yield source, int(automaton.default_target[source]), label
        if (target := int(automaton.timeout[source])) >= 0:
            yield source, target, "time is out"
