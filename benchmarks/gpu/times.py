"""The times of a step on the device and on the host, with what they can be at best."""

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import torch

from .. import workload as w
from ..timing import Begin, Logits, undisturbed
from ..workload import Step, Workload
from .device import DEVICE, REHEARSAL, Row
from .slots import Ours, PlainTorch, row_bytes

OURS = "logitport"
H100 = 3.35e12
"""Bytes per second of an H100's memory, by its data sheet: for what is expected without a GPU."""

KINDS: Mapping[str, Callable[[random.Random, int], Any]] = {
    "forced_sequence": w.forced_sequence(1000),
    "allowed_tokens": w.allowed_tokens(100),
    "banned_tokens": w.banned_tokens(100),
    "banned_sequences": w.banned_sequences(20),
    "logit_bias": w.logit_bias(100),
    "min_tokens": w.min_tokens,
    "forced_end": w.forced_end,
    "thinking_budget": w.thinking_budget,
    "choice": w.choice(20),
    "trigger": w.trigger,
    "no_repeat_ngram": w.no_repeat_ngram,
    "dry": w.dry,
    "no_loop": w.no_loop,
    "prompt_bias": w.prompt_bias,
}
ROWS, VOCAB = (2, 1000) if REHEARSAL else (64, 151_936)
REPETITIONS, STEPS = (2, 2) if REHEARSAL else (3, 8)
BESIDE = 2 if REHEARSAL else 8


@dataclass
class Took:
    """Seconds of each step: on the device, and on the host until all is launched."""

    device: list[float] = field(default_factory=list[float])
    host: list[float] = field(default_factory=list[float])
    launches: float | None = None


def time_steps(
    contenders: Mapping[str, Begin], workload: Workload, *, drafts: int = 0
) -> dict[str, Took]:
    """Time each contender's steps, in turns, on logits that have just been written.

    The device sleeps while a step is launched, so that its time has no gaps. A contender that takes
    some milliseconds, or waits for the device, has the host's work in the device's time.
    """
    logits = Logits(len(workload) * (1 + drafts), workload.vocab_size, DEVICE.type)
    took = {name: Took() for name in contenders}
    with undisturbed():
        for repetition in range(REPETITIONS):
            for name, begin in contenders.items():
                history = w.History(workload)
                with DEVICE:  # new tensors go there
                    step = begin(workload, history)
                for at in range(STEPS):
                    history.grow()
                    with DEVICE:
                        getattr(step, "advance", int)()
                    logits.restore()
                    if repetition == 0 and at == 1:
                        took[name].launches = _count_launches(step, logits.tensor)
                        continue
                    host, device = _time(step, logits.tensor)
                    if repetition and at:  # compiled, and all uploaded
                        took[name].host.append(host)
                        took[name].device.append(device)
                assert not getattr(step, "failures", 0), f"{name} has ended requests"
    return took


def _time(step: Step, logits: torch.Tensor) -> tuple[float, float]:
    """Measure the host's and the device's seconds of a step, which are one in a rehearsal."""
    if REHEARSAL:
        start = perf_counter()
        step(logits)
        return (perf_counter() - start,) * 2
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    torch.cuda._sleep(8_000_000)  # cycles: a few milliseconds
    before.record()
    start = perf_counter()
    step(logits)
    host = perf_counter() - start
    after.record()
    torch.cuda.synchronize()
    return host, before.elapsed_time(after) / 1e3


def _count_launches(step: Step, logits: torch.Tensor) -> float | None:
    """Count the kernels and copies of a step."""
    if REHEARSAL:
        step(logits)
        return None
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        step(logits)
        torch.cuda.synchronize()
    events = profiled.events() or ()
    return float(sum(str(event.device_type) == "DeviceType.CUDA" for event in events))


def measure_copy() -> Iterator[Row]:
    """Measure the bandwidth of a copy, and the time of a kernel that does nothing."""
    size = 1 << (12 if REHEARSAL else 28)
    source = torch.empty(size, dtype=torch.float32, device=DEVICE)
    target = torch.empty_like(source)
    one = source[:1]
    seconds = min(_time(lambda _: target.copy_(source), one)[1] for _ in range(10))
    least = min(_time(lambda _: one.zero_(), one)[1] for _ in range(20))
    yield {
        "table": "Memory",
        "copied bytes": 2 * 4 * size,
        "TB/s": 2 * 4 * size / seconds / 1e12,
        "us of a kernel that does nothing": least * 1e6,
    }


def expect() -> Iterator[Row]:
    """Yield the times that the bytes alone would take."""
    for name, make in KINDS.items():
        total = _bytes(w.workload([make], 64, 151_936))
        yield {
            "table": "Expected of 64 rows x 151,936, by the bytes that must move",
            "kind": name,
            "bytes per row": round(total / 64),
            "us at 3.35 TB/s": total / H100 * 1e6,
        }


def _bytes(workload: Workload) -> float:
    """Estimate the bytes that a step must move: the mean of all steps of some rows."""
    rows = workload.active[: 2 * len(KINDS)]
    total = sum(
        row_bytes(workload.specs[row], workload.prompts[row], script[:end], workload.vocab_size)
        for row in rows
        for script in [workload.scripts[row]]
        for end in range(workload.already, len(script))
    )
    steps = len(workload.scripts[0]) - workload.already
    return total / steps * len(workload.active) / max(len(rows), 1)


def measure_times() -> Iterator[Row]:
    """Measure each kind against its peers, then larger batches, vocabularies, and drafts."""
    bandwidth = next(measure_copy())["TB/s"] * 1e12
    try:
        from .peers import peers_of

        peers = peers_of(DEVICE)
    except Exception as error:  # our own times are worth more than none
        yield {"table": "Without peers", "because": repr(error)}
        peers = {}
    plain: Mapping[str, Begin] = {OURS: Ours, "plain torch, prepared": PlainTorch}
    for name, make in KINDS.items():
        once = make(random.Random(0), VOCAB)  # peers may take one set of parameters for all
        others = {**plain, **peers.get(name, {})}
        already = 100 if name in ("no_repeat_ngram", "dry", "no_loop") else 0  # or nothing repeats
        batch = w.workload([lambda rng, size, spec=once: spec], ROWS, VOCAB, already=already)
        yield from _rows("Every kind", name, others, batch, bandwidth)
    mixed = [*KINDS.values()]
    forced, allowed = [KINDS["forced_sequence"]], [KINDS["allowed_tokens"]]
    ours: Mapping[str, Begin] = {OURS: Ours}
    for rows in (2,) if REHEARSAL else (1, 8, 64, 256, 1024):
        for name, makers in {"all kinds": mixed, "forced": forced, "allowed": allowed}.items():
            yield from _rows("Batch", name, ours, w.workload(makers, rows, VOCAB), bandwidth)
    for vocab in (1000,) if REHEARSAL else (32_000, 151_936, 262_144):
        batch = w.workload(mixed, 4 * ROWS, vocab)
        yield from _rows("Vocabulary", "all kinds", ours, batch, bandwidth)
    drafts: Mapping[str, Begin] = {OURS: partial(Ours, drafts=3)}
    yield from _rows("Drafts", "all kinds", drafts, w.workload(mixed, ROWS, VOCAB), bandwidth, 3)
    nothing = w.workload([], ROWS, VOCAB, active=0)
    yield from _rows("No specs", "nothing", ours, nothing, bandwidth)


def _rows(
    table: str,
    name: str,
    contenders: Mapping[str, Begin],
    batch: Workload,
    bandwidth: float,
    drafts: int = 0,
) -> Iterator[Row]:
    best = _bytes(batch) * (1 + drafts) / bandwidth
    alone: float | None = None
    for contender in contenders:
        try:
            times = time_steps({contender: contenders[contender]}, batch, drafts=drafts)[contender]
        except Exception as error:
            if contender == OURS:
                raise
            yield {"table": table, "case": name, "contender": contender, "error": repr(error)[:200]}
            continue
        device = median(times.device)
        alone = device if alone is None else alone
        yield {
            "table": table,
            "case": f"{name}, {len(batch):,} x {batch.vocab_size:,}",
            "contender": contender,
            "device us": device * 1e6,
            "over ours": device / alone,
            "host us": median(times.host) * 1e6,
            "launches": times.launches,
            "us by the bytes": best * 1e6,
        }


def measure_neighbours() -> Iterator[Row]:
    """Measure what the costliest payloads cost the rows beside them, which stay as they are."""
    from logitport.adapters import admission
    from logitport.adapters.core import Program, compile_specs
    from logitport.spec import SpecError

    from tests.tools.fuzz import payloads, target
    from tests.tools.neighbours import CASES, HARMLESS

    programs: dict[str, Program] = {}
    for name, payload in payloads.load():
        try:
            program = admission.admit(target.BACKEND, payloads.text_of(payload), target.VOCAB)[1]
        except (SpecError, ValueError):
            continue
        if not program.per_request:  # such code runs on the host
            programs[f"corpus: {name}"] = program
    programs |= {case.name: compile_specs([*case.specs(0)]) for case in CASES}
    chosen = [*programs.items()][:: 60 if REHEARSAL else 1]
    harmless = _neighbours(compile_specs([HARMLESS]))
    for name, program in chosen:
        device, host = _neighbours(program)
        yield {
            "table": f"Neighbours: {BESIDE} rows without specs beside {BESIDE} with the payload",
            "payload": name,
            "device us": device * 1e6,
            "over a harmless one": device / harmless[0],
            "host us": host * 1e6,
            "over a harmless one, host": host / harmless[1],
        }


def _neighbours(program: Any) -> tuple[float, float]:
    """Time a batch of which half has a program, after a long prompt of one token."""
    rows, vocab = 2 * BESIDE, 151_936
    prompts = [[11] * (100 if REHEARSAL else 4000)] * rows
    specs = [program] * BESIDE + [None] * BESIDE
    batch = Workload(vocab, specs, prompts, [[11] * (STEPS + 2)] * rows)
    logits = Logits(rows, vocab, DEVICE.type)
    history = w.History(batch)
    history.grow()
    with DEVICE:
        step = Ours(batch, history, program=lambda program: program)
    logits.restore()
    before = logits.tensor[BESIDE:].clone()
    times: list[tuple[float, float]] = []
    for _ in range(STEPS):
        times.append(_time(step, logits.tensor))
        history.grow()
        with DEVICE:
            step.advance()
    assert not step.failures
    assert torch.equal(logits.tensor[BESIDE:], before)
    return median(device for _, device in times[1:]), median(host for host, _ in times[1:])
