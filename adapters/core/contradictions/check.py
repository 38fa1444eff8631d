"""Whether the specs of a request contradict each other, whatever the model says.

They do if

- an automaton forces a token that another one refuses in each of its states,
- an automaton forces or offers the token that stands for an end of the reply,
- all automata, followed from the start as long as the tokens are determined, come to a step that
  leaves no token, or
- an automaton cannot give an answer that it offers itself, because others refuse its tokens.

A token is refused by a ban, by a list that does not have it, and by another forced token. Biases
refuse nothing. What depends on the model's choices, the order of edits decides in the row.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from math import inf
from typing import Any

import numpy as np

from ....spec import (
    ChoiceSpec,
    ForcedEndSpec,
    ForcedTokenSequenceSpec,
    LogitsProcessorSpec,
    NativeSpec,
    PluginSpec,
    PythonProcessorSpec,
    SpecError,
)
from ..automaton import Automaton
from ..automaton.arrays import distinct, token_array
from ..parts import Grammar, LoopRule, Program
from ..program import compile_specs
from .follow import ALLOW, BAN, BAN_OTHERS, FORCE, MAX_WORK, NOT_FOUND, follow
from .report import error_of, kinds_of
from .sets import Contradiction, find_forced, find_used, is_any, offered_by, refusals, tables_of


def budget() -> Any:
    """Return the work that the searches of a request may take in all, which they lower."""
    return np.array([MAX_WORK])


def check_contradictions(
    specs: Sequence[LogitsProcessorSpec],
    program: Program,
    vocab_size: int | None = None,
    left: Any = None,
) -> None:
    """Refuse specs that cannot be obeyed together, whatever the model says.

    Args:
        specs: the specs of the request.
        program: what they compile to.
        vocab_size: the number of the engine's tokens, if it is known.
        left: the work that is left, see ``budget``; by default, as much as a request has.

    Raises:
        SpecError: at a spec that forces or offers what others refuse, and with their paths.
    """
    left = budget() if left is None else left
    ends = ends_of(specs)
    found = find_used(program) or follow_all(program, vocab_size, ends, left)
    found = found or find_forced(program, None, ends, left)
    if found is not None:
        raise error_of(found, specs, program)


def follow_all(
    program: Program, vocab_size: int | None, ends: Any, left: Any
) -> Contradiction | None:
    """Follow all automata together."""
    of_loops = [rule.forcing for rule in program.loops]  # a rule decides when these force
    which = [
        i
        for i, (each, _, end) in enumerate(program.lanes)
        if (end or _refuses(each)) and each not in of_loops
    ]
    lanes = [program.lanes[i] for i in which]
    automata = [each for each, *_ in lanes]
    may_edit_all = vocab_size is not None and _edited(automata) + len(ends) >= vocab_size
    may_refuse = len(automata) > 1 and any(is_any(each, *_LIMITS) for each in automata)
    if not automata or not (may_edit_all or may_refuse):
        return None
    parts, is_refusing = (*which, -1), np.zeros(len(which), np.bool_)
    choices = [
        k
        for k, (each, phase, _) in enumerate(lanes)
        if each.states > 1 and is_any(each, ALLOW) and program.since[phase] == 0
    ]
    pool, bases = tables_of(automata)
    sets = pool.set_ends, pool.set_tokens, pool.set_values
    numbers = np.array([each[1:] for each in lanes], np.int32).T
    of_lanes = np.zeros((5, len(lanes)), np.int32)
    of_lanes[:3] = bases, *numbers
    tables: Any = pool.tables, sets, of_lanes, np.array(program.since, np.int32)
    tables += ends, vocab_size if may_edit_all else 0
    for offering in (-1, *choices):
        arguments: Any = *tables, offering, is_refusing, left
        part, token = follow(*arguments)
        if part != NOT_FOUND:
            return parts[part], [parts[k] for k in np.flatnonzero(is_refusing)], int(token)
    return None


def may_lose(
    specs: Sequence[LogitsProcessorSpec], program: Program, vocab_size: int | None = None
) -> tuple[str, ...]:
    """Return the kinds that others of the request may override, as the order of edits has it.

    The arguments are those of ``check_contradictions``, which must not have refused the specs. A
    kind that is not named is obeyed at each step, whatever the prompt and the model say; code of
    plugins aside. Kinds may be named that cannot lose.
    """
    automata, parts = program.automata, program.compared
    refusing = [i for i, each in enumerate(automata) if _refuses(each)]
    winning = [i for i in refusing if is_any(automata[i], FORCE, ALLOW)]
    bans = [rule.spec.max_period for rule in program.loops if rule.forcing is None]
    edited = _edited([automata[i] for i in refusing])
    may_ban_all = bool(bans) and vocab_size is not None and edited + sum(bans) >= vocab_size
    winning = refusing if may_ban_all else winning
    losing = [*_losing_to_grammars(program)]
    since = program.since
    spans = [_span([specs[j] for j in each.specs], since[each.phase]) for each in parts]
    for i, (part, phase, _, of) in enumerate(parts):
        begins, over = spans[i]
        others = [
            k
            for k in winning
            if k != i and program.act_together(phase, parts[k].phase)
            if begins < spans[k][1] and spans[k][0] < over
        ]
        if all(isinstance(specs[j], ForcedTokenSequenceSpec | ChoiceSpec) for j in of):
            # Where the output begins so, no text for its end can come before.
            others = [k for k in others if not automata[k].moves]
        if isinstance(part, Automaton) and part.moves:
            continue  # what it forces comes before all else
        if not isinstance(part, Automaton):
            is_forcing = isinstance(part, LoopRule) and part.forcing is not None
            losing += [i] if others and not is_forcing else []
        elif (others or may_ban_all) and i in winning:
            losing.append(i)
        elif others and i in refusing:
            offered = distinct(np.concatenate([offered_by(automata[k]) for k in others]))
            losing += [i] if refusals(part, offered).any() else []
    return kinds_of(losing, specs, program)


def _span(specs: Sequence[LogitsProcessorSpec], since: int) -> tuple[float, float]:
    """Return the output tokens between which the specs of a part act, as far as they tell it."""
    begins = min(each.after if isinstance(each, ForcedEndSpec) else 0 for each in specs)
    return begins, max(map(_length, specs)) if since == 0 else inf


def _length(spec: LogitsProcessorSpec) -> float:
    """Return the tokens of a text or an answer that begins a reply, with the end."""
    if not isinstance(spec, ForcedTokenSequenceSpec | ChoiceSpec):
        return inf
    texts = spec.choices if isinstance(spec, ChoiceSpec) else (spec.token_ids,)
    return max(map(len, texts)) + (spec.eos_token_id is not None)


def _losing_to_grammars(program: Program) -> Iterator[int]:
    """Yield the parts that ban what a grammar may need, but those before which the request ends.

    It ends where automata leave nothing but the end of the text.
    """
    for i, (part, phase, *_) in enumerate(program.compared):
        for grammar, other, *_ in program.parts:
            if isinstance(grammar, Grammar) and program.act_together(phase, other):
                ends = distinct(token_array(grammar.end_tokens))
                if not isinstance(part, Automaton) or refusals(part, ends).any():
                    yield i


def check_without_engine(specs: Sequence[LogitsProcessorSpec]) -> None:
    """Check specs where the engine is not known: all but plugins, code, and specs about text.

    Raises:
        SpecError: as ``check_contradictions`` does. What does not compile is not checked.
    """
    left_out = NativeSpec | PluginSpec | PythonProcessorSpec
    which = [
        i
        for i, each in enumerate(specs)
        if not (isinstance(each, left_out) or each.needs_vocabulary)
    ]
    try:
        program = compile_specs([specs[i] for i in which])
    except SpecError:  # admission says so
        return
    parts = (each._replace(specs=[which[i] for i in each.specs]) for each in program.parts)
    check_contradictions(specs, replace(program, parts=tuple(parts)))


def ends_of(specs: Sequence[LogitsProcessorSpec]) -> Any:
    """Return the tokens that specs take for the end of the request, ascending."""
    fields = chain.from_iterable(spec.token_fields() for spec in specs)
    ends = [each for path, each in fields if {"eos_token_id", "stop_token_ids"}.intersection(path)]
    return distinct(token_array(chain.from_iterable(ends)))


def _edited(automata: Sequence[Automaton]) -> int:
    """Return how many tokens the sets of some automata have at most, at one step."""
    return sum(int(each.set_sizes.max(initial=0)) for each in automata)


_LIMITS = FORCE, ALLOW, BAN_OTHERS


def _refuses(automaton: Automaton) -> bool:
    """Whether an automaton refuses a token in any of its states, and does not just add to some."""
    return bool((automaton.set_values < BAN).any()) or is_any(automaton, *_LIMITS)
