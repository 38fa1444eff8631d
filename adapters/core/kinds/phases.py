"""``phases``: the automata of the phases, one after the other, each beside what ends its phase."""

from collections.abc import Iterable, Iterator
from functools import reduce
from typing import NamedTuple, cast

import msgspec
import numpy as np

from ....spec import (
    ForcedEndSpec,
    LogitsProcessorSpec,
    PhasesSpec,
    SpecError,
    ThinkingBudgetSpec,
    TriggerSpec,
)
from ....spec.limits import MAX_CELLS, MAX_PATTERN
from ..automaton import Automaton, Edit
from ..automaton.algebra import (
    FREE,
    Fragment,
    Marked,
    counter,
    detector,
    joined,
    product,
    repeated,
    unlinked,
)
from ..automaton.arrays import Ints
from ..parts import Part
from .banned_tokens import adding
from .base import Context, check_size, compile_spec
from .thinking_budget import thinking

SHORT = 3
"""The most tokens that are counted without a timer, even if there is one."""

TO_PRUNE = 1 << 12
"""The most states and edges that are searched for states which no history leads to."""


@compile_spec.register
def _compile(spec: PhasesSpec, context: Context) -> Iterable[Part]:
    """Yield one automaton for each spec that acts at the same time.

    Each of them goes through all phases. It follows what ends the phases by itself.
    """
    indices, size = _reachable(spec), _Size()
    phases: list[_CompiledPhase] = []
    for i in indices:
        try:
            made = _CompiledPhase(spec, i, size, context)
            phases.append(made)
        except SpecError as error:
            raise error.at("phases", i) from error.__cause__
    # The phases that nothing leads to are left out.
    number = {index: at for at, index in enumerate(indices)}
    number[len(spec.phases)] = 0 if spec.repeat else len(indices)
    to_prune = TO_PRUNE
    for track in range(max(1, *(len(phase.parts) for phase in phases))):
        fragments: list[Fragment] = []
        for i, phase in zip(indices, phases, strict=True):
            follow = [number[i + 1 if end.phase is None else end.phase] for end in phase.ends]
            try:
                made = phase.track(track)
            except SpecError as error:
                raise error.at("phases", i) from None
            by_timeout = i == 0 and made.automaton.reads_prompt
            fragments.append(Fragment(made.automaton, phase.following(made, follow), by_timeout))
        yield joined(fragments, spec.eos_token_id if track == 0 else None, to_prune)
        to_prune -= sum(part.automaton.states + len(part.automaton.keys) for part in fragments)


def _reachable(spec: PhasesSpec) -> list[int]:
    """List the phases that some output leads to, in ascending order. The first is among them."""
    seen, front = {0}, [0]
    while front:
        i = front.pop()
        for end in spec.phases[i].ends:
            following = i + 1 if end.phase is None else end.phase
            if following < len(spec.phases) and following not in seen:
                seen.add(following)
                front.append(following)
    return sorted(seen)


class _Size:
    """The size of all phases of a request, against the limits."""

    def __init__(self) -> None:
        self._cells = self._edges = 0

    def add_cells(self, cells: int) -> None:
        """Count the cells of the specs by themselves."""
        self._cells += cells
        check_size(self._cells)

    def add_edges(self, size: int) -> None:
        """Count the states and edges of products, and of what looks for texts by itself."""
        self._edges += size
        if self._edges > MAX_CELLS // 2:
            what = f"at most {MAX_CELLS // 2} states and edges in all; this one goes beyond"
            raise SpecError(f"Expected phases that compile to {what}")


class _SpecPart(NamedTuple):
    """An automaton of a spec.

    Attributes:
        of_spec: the spec's index in the phase.
        marked: the automaton. A spec that may complete has its own bit.
    """

    of_spec: int
    marked: Marked


class _CompiledPhase:
    """A phase's automata, and what ends it.

    Attributes:
        ends: the ends of the phase.
        parts: the automata of all specs; of a spec that compiles to two, both.
        completing: those whose specs together complete the phase, if an end asks for it.
    """

    def __init__(
        self,
        phases: PhasesSpec,
        index: int,
        size: _Size,
        context: Context,
    ) -> None:
        phase = phases.phases[index]
        self.ends = phase.ends
        self.parts: list[_SpecPart] = []
        self.completing: list[_SpecPart] = []
        is_awaited = any(end.complete for end in phase.ends)
        for j, spec in enumerate(phase.specs):
            bit = 1 << len(self.ends) + j
            counts = [end.n for end in phase.ends if end.n is not None and not is_awaited]
            if isinstance(spec, ForcedEndSpec) and any(n <= spec.after for n in counts):
                continue  # the phase is over before
            try:
                if isinstance(spec, TriggerSpec):
                    round_ = len(spec.trigger_token_ids) + len(spec.token_ids)
                    check_size(round_ * (spec.times or 1))
                if spec.can_complete and is_awaited:
                    made = [_completing(spec, bit, context)]
                else:
                    made = [Marked.of(automaton) for automaton in _automata(spec, context)]
                if not spec.needs_vocabulary:  # its memory is bounded
                    size.add_cells(sum(each.automaton.cells for each in made))
            except SpecError as error:
                raise error.at("specs", j) from error.__cause__
            self.parts += [_SpecPart(j, each) for each in made]
            if spec.can_complete and is_awaited:
                self.completing += self.parts[-1:]
        if phases.stop_token_ids and index < len(phases.phases) - 1:
            stops = adding(phases.stop_token_ids)
            size.add_cells(stops.cells)
            self.parts.append(_SpecPart(len(phase.specs), Marked.of(stops)))
        self._completed = sum(1 << len(self.ends) + part.of_spec for part in self.completing)
        self._reads_prompt, self._size = index == 0, size
        sequences = {1 << k: end.token_ids for k, end in enumerate(self.ends) if end.token_ids}
        self._sequences = detector(sequences, size.add_edges) if sequences else None
        self._texts: list[Marked] = []
        for k, end in enumerate(self.ends):
            try:
                if end.text:
                    from ..text.token_product import detecting  # imports numba

                    vocabulary = context.vocabulary_for(phases)
                    automaton = detecting(end.text.encode(), vocabulary, size.add_edges)
                    self._texts.append(Marked.of(automaton, 1 << k, (automaton.states - 1,)))
            except SpecError as error:
                raise error.at("ends", k, "text") from None
        counts = [(end.n, k) for k, end in enumerate(self.ends) if end.n is not None]
        self._count = min(counts, default=None)
        self._joined: dict[tuple[int, bool], Marked] = {}

    def track(self, track: int) -> Marked:
        """Make the product of one of the automata, if there is one, and of all that ends the phase.

        Raises:
            SpecError: if they cannot run side by side, or are too large.
        """
        own = self.parts[track] if track < len(self.parts) else None
        made = FREE if own is None else own.marked
        if not self.ends:
            return made
        others = [part for part in self.completing if part is not own]
        beside = [*others] if own is None else [own, *others]
        if self._reads_prompt:
            self._check_prompt(beside)
        timed = [part for part in beside if part.marked.is_timed]
        if len(timed) > 1:
            what = "Expected specs that count one thing at a time, with what ends the phase"
            raise SpecError(what, "specs", max(part.of_spec for part in timed))
        # The detector is the same for all specs, unless one of them is a part of it, or counts.
        key = own.of_spec if own in self.completing and own else -1, bool(timed)
        if key not in self._joined:
            detectors = [*(part.marked for part in others), *self._detectors(timed)]
            if not detectors:
                return made
            self._joined[key] = reduce(self._product, detectors)
        if made.automaton.states > 1:  # ``product`` would do it again for each of the specs
            self._joined[key] = unlinked(self._joined[key], self._size.add_edges)
        return self._product(made, self._joined[key])

    def following(self, made: Marked, follow: list[int]) -> Ints:
        """Return ``follow`` of the end that has come in each state; -1 for none."""
        following = np.full(len(made.marks), -1)
        for k in reversed(range(len(follow))):
            wanted = self._completed if self.ends[k].complete else 1 << k
            following[made.marks & wanted == wanted] = follow[k]
        return following

    def _product(self, one: Marked, other: Marked) -> Marked:
        return product(one, other, self._size.add_edges)

    def _detectors(self, timed: list[_SpecPart]) -> Iterator[Marked]:
        """Yield what ends the phase, beside the specs that complete it."""
        yield from self._texts
        if self._sequences is not None:
            yield self._sequences
        if self._count is not None:
            n, k = self._count
            if timed and n > MAX_PATTERN:
                beside = f"Expected at most {MAX_PATTERN} tokens, beside "
                what = beside, ("specs", timed[0].of_spec), f", which counts, too; got {n}"
                raise SpecError(what, "ends", k, "n")
            yield counter(n, 1 << k, timed=not timed and n > SHORT)

    def _check_prompt(self, parts: Iterable[_SpecPart]) -> None:
        """Refuse what would take the prompt for output, beside an automaton that reads it."""
        readers = [part for part in parts if part.marked.automaton.reads_prompt]
        if not readers or not self.ends:
            return
        reader = ("specs", readers[0].of_spec), " reads the prompt, and this only the output"
        for k, end in enumerate(self.ends):
            if not end.complete:
                what = "Expected only the end `complete`: ", *reader
                raise SpecError(what, "ends", k)
        for part in parts:
            if part not in readers and part.marked.automaton.states > 1:
                what = "Expected no spec that follows the output: ", *reader
                raise SpecError(what, "specs", part.of_spec)


def _automata(spec: LogitsProcessorSpec, context: Context) -> Iterator[Automaton]:
    """Compile a spec to automata.

    Raises:
        SpecError: for a kind that is more than that.
    """
    if isinstance(spec, TriggerSpec) and spec.times is not None:  # counted without a timer
        (once,) = compile_spec(msgspec.structs.replace(spec, times=1), context)
        yield repeated(cast("Automaton", once), spec.times)
        return
    for part in compile_spec(spec, context):
        if not isinstance(part, Automaton):
            raise SpecError(f"`{spec.kind}` cannot be in a phase, only beside `phases`")
        yield part


def _completing(spec: LogitsProcessorSpec, bit: int, context: Context) -> Marked:
    """Compile a spec, and mark the states in which it is complete."""
    if isinstance(spec, ThinkingBudgetSpec):
        automaton, closed = thinking(spec, completes=True)
        return Marked.of(automaton, bit, closed)
    (automaton,) = _automata(spec, context)
    # The last state stays free, and so do states that can only lead to it.
    last = automaton.states - 1
    leads = automaton.default_target == last
    leads &= (automaton.edit == Edit.FREE) & (automaton.timeout < 0)
    leads[automaton.keys >> 32] = False
    return Marked.of(automaton, bit, np.flatnonzero(leads).tolist())
