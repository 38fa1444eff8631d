"""The performance targets and their measurements."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

import numpy as np
import torch
from logitport.adapters import Backend, admission
from logitport.adapters.core import compile_specs
from logitport.adapters.core.automaton import Edit, Lane
from logitport.adapters.core.automaton.automata import place
from logitport.adapters.core.automaton.history import TokenHistory
from logitport.adapters.vllm import BACKEND
from logitport.spec import ThinkingBudgetSpec, encode

from . import middleware, ours, peers, timing
from . import workload as w
from .cases import CAREFUL, OURS, same
from .throughput import Throughput
from .timing import Begin, Logits, StepTimes, Times
from .workload import History, Workload

VOCAB = 151_936


@dataclass(frozen=True, slots=True)
class Target:
    """One target and its measurement, a line of the table.

    Attributes:
        case: the measured case and its contender.
        goal: the target in words.
        warm: the measurement.
        cold: the measurement right after all logits were rewritten, if there is one.
        bound: the target value.
        at_least: whether more is better.
        unit: the unit of measurement and target.
        detail: the times behind the measurement, in seconds.
    """

    case: str
    goal: str
    warm: float
    bound: float
    at_least: bool = False
    cold: float | None = None
    unit: str = "x"
    detail: dict[str, Times] | None = None

    @property
    def verdict(self) -> str:
        """``met``, ``met warm`` or ``not met``."""
        if not self._holds(self.warm):
            return "not met"
        return "met" if self.cold is None or self._holds(self.cold) else "met warm"

    def _holds(self, value: float) -> bool:
        return value >= self.bound if self.at_least else value <= self.bound


def targets(
    *, seconds: float, rows: int = 256, device: str = "cpu", only: str = ""
) -> Iterator[Target]:
    """Measure the targets that need no engine.

    Args:
        seconds: the approximate time for each comparison.
        rows: rows of the largest batches; the targets are set for 256.
        device: the device of the logits.
        only: measure only targets with this text in their names.
    """
    measures: Mapping[str, Callable[[], Iterator[Target]]] = {
        "target: forced sequence": lambda: _forced(seconds, device, rows),
        "target: mixed": lambda: _mixed(seconds, device, rows),
        "target: allow": lambda: _allow(seconds, device, rows // 4),
        "target: idle": _idle,
        "target: host": lambda: _host(seconds, device, rows),
        "target: admission": _admission,
        "target: loops": lambda: _loops(seconds, device, rows),
        "target: text": lambda: _text(seconds, rows // 4),
        "target: fold": _fold,
        "target: middleware": _middleware,
    }
    for name, measure in measures.items():
        if only in name:
            yield from measure()


def engine_target(way: Throughput) -> Target:
    """Make the target for a real engine."""
    return Target(
        f"real engine, {way.requests} requests that each carry a spec: {way.name}",
        "at least 0.99 of the tokens per second without a processor",
        way.ratio.median,
        0.99,
        at_least=True,
        detail={way.name: way.ratio},
    )


class _Measures(TypedDict):
    warm: float
    cold: float


def _ratio(times: dict[str, StepTimes], over: str, under: str | Sequence[str] = OURS) -> _Measures:
    """Divide one contender's time by another's, or by the sum of others', warm and cold."""
    names = [under] if isinstance(under, str) else under
    return {
        "warm": times[over].warm.least / sum(times[name].warm.least for name in names),
        "cold": times[over].cold.least / sum(times[name].cold.least for name in names),
    }


def _detail(times: dict[str, StepTimes]) -> dict[str, Times]:
    return {
        f"{name}, {which}": getattr(step, which)
        for name, step in times.items()
        for which in ("warm", "cold")
    }


class BareWrite:
    """One indexed write of the forced cells, in plain torch."""

    def __init__(self, workload: Workload, history: History) -> None:
        self._parts = ours.Parts(workload, history)

    def advance(self) -> None:
        """See ``timing.time_steps``."""
        self._parts.advance()
        self._cells = self._parts.cells(Edit.FORCE)

    def __call__(self, logits: torch.Tensor) -> None:
        logits[self._cells] = 1e9


class BareFill:
    """A fill of the rows with allowed tokens, one run of adjacent rows at a time.

    This is faster than ``index_fill_``, on a CPU at least.
    """

    def __init__(self, workload: Workload, history: History) -> None:
        self._parts = ours.Parts(workload, history)

    def advance(self) -> None:
        """See ``timing.time_steps``."""
        self._parts.advance()
        rows = np.sort(self._parts.cells(Edit.ALLOW)[0].cpu().numpy())
        runs = np.split(rows, np.flatnonzero(np.diff(rows) > 1) + 1)
        self._runs = [slice(int(run[0]), int(run[-1]) + 1) for run in runs if len(run)]

    def __call__(self, logits: torch.Tensor) -> None:
        for run in self._runs:
            logits[run].fill_(-torch.inf)


def _forced(seconds: float, device: str, rows: int) -> Iterator[Target]:
    batch = w.workload([w.forced_sequence(1000)], rows, VOCAB)
    logits = Logits(rows, VOCAB, device)
    adapter = "Dynamo, vLLM's adapter"
    contenders: dict[str, Begin] = {OURS: ours.begin, adapter: peers.dynamo}
    times = timing.time_steps(contenders, batch, logits, seconds=2 * seconds)
    case = f"forced sequence, {rows} x {VOCAB:,}, all rows"
    yield Target(
        f"{case}: update and apply",
        "100 times faster than Dynamo's processor in vLLM's adapter",
        **_ratio(times, adapter),
        bound=100,
        at_least=True,
        detail=_detail(times),
    )
    times = timing.time_steps(
        {OURS: ours.EditAlone, "bare write": BareWrite}, batch, logits, seconds=seconds
    )
    yield Target(
        f"{case}: apply alone",
        "at most 10 times a bare indexed write of the same cells",
        **_ratio(times, OURS, "bare write"),
        bound=10,
        detail=_detail(times),
    )


def _mixed(seconds: float, device: str, rows: int) -> Iterator[Target]:
    logits = Logits(rows, VOCAB, device)
    batch = w.workload(w.RAISING_OR_ADDING, rows, VOCAB)
    without = timing.time_steps({OURS: ours.begin, **CAREFUL}, batch, logits, seconds=2 * seconds)
    case = f"automata of all kinds, {rows} rows"
    for name in CAREFUL:
        yield Target(
            f"{case}, without those that ALLOW, against {name}",
            "30 times faster than callables for one row that do the same",
            **_ratio(without, name),
            bound=30,
            at_least=True,
            detail=_detail(without),
        )
    batch = w.workload((*w.RAISING_OR_ADDING, *w.ALLOWING), rows, VOCAB)
    contenders: dict[str, Begin] = {OURS: ours.begin, "bare fill": BareFill}
    times = timing.time_steps(contenders, batch, logits, seconds=2 * seconds)
    times["without ALLOW"] = without[OURS]
    yield Target(
        f"{case}, with them",
        "at most 1.5 times a bare fill of the ALLOW rows plus the line above",
        **_ratio(times, OURS, ("bare fill", "without ALLOW")),
        bound=1.5,
        detail=_detail(times),
    )


def _allow(seconds: float, device: str, rows: int) -> Iterator[Target]:
    batch = w.workload([w.allowed_tokens(100)], rows, VOCAB)
    contenders: dict[str, Begin] = {
        OURS: ours.begin,
        "bare fill": BareFill,
        "xgrammar": peers.xgrammar_allowed,
    }
    times = timing.time_steps(contenders, batch, Logits(rows, VOCAB, device), seconds=2 * seconds)
    case = f"ALLOW of 100 tokens, {rows} rows"
    for name, bound, goal in (
        ("bare fill", 1.3, "at most 1.3 times a bare fill of those rows"),
        ("xgrammar", 1.0, "not slower than xgrammar's CPU kernel"),
    ):
        yield Target(case, goal, **_ratio(times, OURS, name), bound=bound, detail=_detail(times))


def _idle() -> Iterator[Target]:
    step = ours.begin(batch := w.workload([], 256, VOCAB, active=0), History(batch))
    logits = torch.empty(256, VOCAB)
    times = timing.time_call(lambda: step(logits), repetitions=20, calls=1000)
    yield Target(
        "no row active, 256 rows",
        "below 2 microseconds a step",
        times.least * 1e6,
        2.0,
        unit="us",
        detail={OURS: times},
    )


def _loops(seconds: float, device: str, rows: int) -> Iterator[Target]:
    batch = w.workload([w.no_loop], rows, VOCAB, already=1_000)
    times = timing.time_steps(
        {OURS: ours.begin}, batch, Logits(rows, VOCAB, device), seconds=seconds
    )
    yield Target(
        f"no_loop, periods of up to 512 tokens, {rows} rows",
        "below 0.5 ms a step",
        1e3 * times[OURS].warm.least,
        0.5,
        unit="ms",
        cold=1e3 * times[OURS].cold.least,
        detail=_detail(times),
    )


def _host(seconds: float, device: str, rows: int) -> Iterator[Target]:
    mixed = (*w.RAISING_OR_ADDING, *w.ALLOWING)
    matching = [same(w.trigger), w.thinking_budget, same(w.banned_sequences(20))]
    lists = [same(w.banned_tokens(8_000)), same(w.allowed_tokens(8_000))]
    batches = {
        "mixed kinds": w.workload(mixed, rows, VOCAB),
        "lists of 8,000": w.workload(lists, rows, VOCAB),
        "sequences of 8,000": w.workload([same(w.forced_sequence(8_000))], rows, VOCAB),
        "1,800 banned sequences": w.workload([same(w.banned_sequences(1800))], rows, VOCAB),
        "kinds that match, no history": w.workload(matching, rows, VOCAB),
        "kinds that match, 32,000 tokens out": w.workload(matching, rows, VOCAB, already=32_000),
    }
    logits = Logits(64, VOCAB, device)  # not edited: restoring them empties the caches
    for name, batch in batches.items():
        times = timing.time_steps({OURS: ours.begin_host}, batch, logits, seconds=seconds)[OURS]
        yield Target(
            f"host's part, {name}, {rows} rows",
            "below 1 microsecond per active row",
            times.warm.least * 1e6 / rows,
            1.0,
            cold=times.cold.least * 1e6 / rows,
            unit="us",
            detail=_detail({OURS: times}),
        )


def _admission() -> Iterator[Target]:
    makers = {
        "allowed_tokens": w.allowed_tokens(8_000),
        "banned_tokens": w.banned_tokens(8_000),
        "logit_bias": w.logit_bias(8_000),
        "forced_sequence": w.forced_sequence(8_000),
        "banned_sequences": w.banned_sequences(1800),
    }
    for kind, make in makers.items():
        text = encode(make(random.Random(0), VOCAB))
        yield from _admitted(f"admission of 8,000 tokens, {kind}", BACKEND, text, 5)


def _admitted(case: str, backend: Backend, text: str, most_ms: float) -> Iterator[Target]:
    admit, forget = admission.admit, admission.forget
    first = timing.time_call(lambda: admit(backend, text, VOCAB), repetitions=20, before=forget)
    # Each request brings a new string, whose hash is not computed yet.
    copies: list[str] = []
    cached = timing.time_call(
        lambda: admit(backend, copies.pop(), VOCAB),
        repetitions=50,
        before=lambda: copies.append(text.encode().decode()),
    )
    yield Target(
        f"{case}, first time",
        f"below {most_ms:g} ms",
        first.median * 1e3,
        most_ms,
        unit="ms",
        detail={OURS: first},
    )
    yield Target(
        f"{case}, cached",
        "below 50 microseconds",
        cached.median * 1e6,
        50.0,
        unit="us",
        detail={OURS: cached},
    )


def _text(seconds: float, rows: int) -> Iterator[Target]:
    """Ban 24 words as texts: admission, and a step beside one with as many token sequences."""
    rng = random.Random(0)
    vocabulary = w.vocabulary(rng, VOCAB)
    backend = replace(BACKEND, load_vocabulary=lambda: vocabulary)
    texts, sequences = w.banned_text(rng, vocabulary, 24), w.banned_sequences(24)(rng, VOCAB)
    yield from _admitted("admission of 24 banned texts", backend, encode(texts), 100)
    programs = [compile_specs([spec], backend.vocabulary) for spec in (texts, sequences)]
    names = ("banned_text", "banned_sequences")
    times = timing.time_steps(
        {name: ours.begin_program(made) for name, made in zip(names, programs, strict=True)},
        w.workload([w.banned_sequences(1)], rows, VOCAB),
        Logits(rows, VOCAB, "cpu"),
        seconds=seconds,
    )
    yield Target(
        f"24 banned texts, {rows} rows, over 24 banned sequences",
        "at most 1.5 times the time",
        **_ratio(times, "banned_text", "banned_sequences"),
        bound=1.5,
        detail=_detail(times),
    )


def _fold() -> Iterator[Target]:
    spec = ThinkingBudgetSpec(100, (w.THINK,), (w.END_THINK,))
    (automaton,) = compile_specs([spec]).automata
    prompt = w.tokens(random.Random(0), VOCAB, 32_768)
    prompt[100] = w.THINK
    prompt[20_000] = w.END_THINK
    lanes = (Lane(automaton),)
    fold: Callable[[], object] = lambda: place(lanes, (0,), TokenHistory(prompt, ()))  # noqa: E731
    times = timing.time_call(fold, repetitions=50)
    yield Target(
        "a prompt of 32,768 tokens folded by a thinking budget",
        "well below 1 ms",
        times.median * 1e3,
        1.0,
        unit="ms",
        detail={OURS: times},
    )


def _middleware() -> Iterator[Target]:
    for case, added, times in middleware.costs():
        goal = "adds at most 50 us" if "no specs" in case else "adds at most 1 ms"
        bound = 50.0 if "no specs" in case else 1000.0
        yield Target(case, goal, added, bound, unit="us", detail=times)
