"""Kinds that compile in a few lines. Kinds with a mechanism have a file of their own."""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ....spec import (
    AllowedTokensSpec,
    BannedSequencesSpec,
    BannedTokensSpec,
    ChainSpec,
    ChoiceSpec,
    DrySpec,
    ForcedEndSpec,
    ForcedTokenSequenceSpec,
    LogitBiasSpec,
    NativeSpec,
    NoRepeatNgramSpec,
    PluginSpec,
    PromptBiasSpec,
    PythonProcessorSpec,
    SequenceBiasSpec,
    SpecError,
    WatermarkSpec,
)
from ....spec.kinds.dry import MAX_MATCH
from ....spec.limits import MAX_BIAS
from ..automaton import CARRY, Automaton, AutomatonBuilder, Edit, Ints
from ..automaton.arrays import distinct, token_array
from ..logits import Floats
from ..parts import Chain, Mark, Part, PerRequest
from ..plugins import resolve_plugin
from .base import Context, Merge, check_size, compile_spec, merge

Parts = Iterable[Part]

_builder = AutomatonBuilder()
_builder.add(_builder.token_set((0,)))
ADDING = _builder.build()
"""Made once: the automata of different requests differ only in the tokens."""


def adding(
    token_ids: Iterable[int] | Ints, *values: Iterable[float] | npt.NDArray[Any] | float
) -> Automaton:
    """Build an automaton that adds to some tokens in any state; by default it bans them."""
    return ADDING.of_tokens(token_ids, *values)


def adding_at_ends(
    sequences: Sequence[Sequence[int]], values: npt.NDArray[np.float64] | None = None
) -> Parts:
    """Add to the tokens that would complete a sequence.

    Single tokens have an automaton of their own, as these are added to in every state.

    Args:
        sequences: of one token or more.
        values: the value to add for each, no two sequences equal; ``None`` bans the tokens.
    """
    from ..automaton.tries import completing  # imports numba

    is_single = np.array([*map(len, sequences)]) == 1
    if is_single.any():
        tokens = [sequence[0] for sequence in sequences if len(sequence) == 1]
        yield adding(tokens) if values is None else adding(tokens, values[is_single])
    if not is_single.all():
        longer = [sequence for sequence in sequences if len(sequence) > 1]
        yield completing(longer, None if values is None else values[~is_single], check_size)


def forced_chain(
    token_ids: Sequence[int], eos_token_id: int | None, *, after: int = 0
) -> Automaton:
    """Force ``token_ids`` from output index ``after`` on, then EOS forever, if it is given."""
    builder = AutomatonBuilder()
    if after:
        counting, waiting = builder.free(timer=after), builder.free(timer=CARRY)
        builder.default(counting, waiting)
        builder.timeout(counting, len(builder))
        builder.timeout(waiting, len(builder))
    builder.chain(token_ids)
    if eos_token_id is None:
        builder.free()
    else:
        builder.force(eos_token_id)
    return builder.build()


@lru_cache(maxsize=64)
def ending(eos_token_id: int) -> Automaton:
    """Build the automaton that ends a request whose specs have failed."""
    return forced_chain((), eos_token_id)


def penalties(spec: DrySpec) -> Floats:
    """Compute what ``dry`` adds after a match of each length, ``[1 + MAX_MATCH]``."""
    further = np.arange(1 + MAX_MATCH) - spec.allowed_length
    penalties = np.minimum(spec.multiplier * spec.base ** np.maximum(further, 0.0), MAX_BIAS)
    return np.where(further < 0, 0, -penalties).astype(np.float32)


def _refuse(spec: NativeSpec) -> Parts:
    raise SpecError(
        f"The engine does `{spec.kind}` by itself, and not from a payload: "
        "use attach(), or the request's own fields (temperature, top_p, ...)"
    )


def _choice(spec: ChoiceSpec) -> Parts:
    from ..automaton.tries import choice  # imports numba

    yield choice(spec.choices, spec.eos_token_id)


def _plugin(spec: PluginSpec) -> Parts:
    part = resolve_plugin(spec.name, spec.params)
    is_shared = isinstance(part, Automaton)
    yield part if is_shared else PerRequest(lambda: resolve_plugin(spec.name, spec.params))


def _allowed(specs: Sequence[AllowedTokensSpec]) -> Parts:
    """Allow the first list, and ban the tokens of it that another list does not contain."""
    yield ADDING.of_tokens(specs[0].token_ids, edit=np.array([Edit.ALLOW], np.int8))
    first, *others = (distinct(token_array(spec.token_ids)) for spec in specs)
    in_all = np.ones(len(first), np.bool_)
    for other in others:
        in_all &= np.isin(first, other, assume_unique=True)
    if not in_all.all():
        yield adding(first[~in_all])


def _one(specs: Sequence[Any], most: str) -> Any:
    """Return the one spec of which there may be several equal ones."""
    if len({*specs}) > 1:
        raise SpecError(most)
    return specs[0]


def _first(specs: Sequence[NoRepeatNgramSpec], _: Context) -> Parts:
    """Let one of several equal rules act."""
    return specs[:1]


def _dry(specs: Sequence[DrySpec]) -> Parts:
    """Let one act: the sum of several penalties would depend on their order."""
    if len(specs) > 1:
        raise SpecError("Expected at most 1 `dry` on a request")
    return specs


def _chain(specs: Sequence[ChainSpec]) -> Parts:
    """Leave out the request's own temperature, which an adapter knows."""
    steps = _one(specs, "A request has one chain").steps
    yield Chain(tuple(each for each in steps if 1 not in (each.top_p, each.typical)))


ALONE: dict[type, Callable[[Any], Parts]] = {
    BannedTokensSpec: lambda spec: [adding(spec.token_ids)],
    ChoiceSpec: _choice,
    ForcedEndSpec: lambda spec: [forced_chain(spec.token_ids, spec.eos_token_id, after=spec.after)],
    ForcedTokenSequenceSpec: lambda spec: [forced_chain(spec.token_ids, spec.eos_token_id)],
    LogitBiasSpec: lambda spec: [adding(spec.bias.keys(), spec.bias.values())],
    NativeSpec: _refuse,
    PluginSpec: _plugin,
    PromptBiasSpec: lambda spec: [spec],
    PythonProcessorSpec: lambda spec: [PerRequest(spec.factory)],
    SequenceBiasSpec: lambda spec: adding_at_ends(spec.sequences, np.array(spec.biases)),
}
"""How each spec of a kind is compiled by itself."""

TOGETHER: dict[type, Callable[[Sequence[Any]], Parts]] = {
    AllowedTokensSpec: _allowed,
    BannedSequencesSpec: lambda specs: adding_at_ends(
        [t for each in specs for t in each.sequences]
    ),
    ChainSpec: _chain,
    DrySpec: _dry,
    WatermarkSpec: lambda specs: [Mark(_one(specs, "A text has one mark").profile)],
}
"""How all specs of a kind are compiled together."""

for _kind, _make in ALONE.items():
    compile_spec.register(_kind, lambda spec, _, make=_make: make(spec))
for _kind, _make in TOGETHER.items():
    _merge = Merge(lambda specs, _, make=_make: make(specs))
    merge.register(_kind, lambda _, how=_merge: how)
merge.register(NoRepeatNgramSpec, lambda spec: Merge(_first, spec))
