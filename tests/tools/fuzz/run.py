"""``python -m tests.tools.fuzz``: send admission what nobody would, and find what costs most.

``--payloads N`` or ``--seconds S`` fuzz: every payload is admitted or refused with a ``SpecError``
that is safe to print. ``--climb`` looks for the slowest admission, entry and resumption instead, or
for what ``--of`` names; the time is shared among them. ``--keep`` puts what is found into the
corpus. The exit status is 1 if anything else happened. ``--table`` prints what the payloads of the
corpus cost at admission, and with ``--of`` what those that are admitted cost later, each beside a
harmless one of its size. ``--bodies N`` sends malformed JSON through the middleware: nothing passes
unchecked or holds the event loop for 10 ms.
"""

import argparse
import json
import math
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import chain
from random import Random
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from logitport.adapters import admission
from logitport.spec import WIRE_KINDS, encode, limits

from tests.support.strategies import payload_specs

from . import bodies, mutations, payloads, running, target

SMALL = 4096
"""Bytes; larger payloads of the corpus are sent now and then, and are for the climb."""
PROGRESS = 60
"""Seconds between two lines on how far a process has come."""


def pool(number: int) -> list[Any]:
    """Payloads to begin with: the small ones of the corpus, and some that Hypothesis makes."""
    found = [
        made
        for _, short in payloads.load()
        if not isinstance(made := payloads.expanded(short), str) and len(json.dumps(made)) < SMALL
    ]

    @seed(number)
    @settings(
        max_examples=200,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(payload_specs(64, 3, kinds=WIRE_KINDS))
    def make(specs: Any) -> None:
        found.append(json.loads(encode(specs)))

    make()
    return found


Slow = tuple[float, Any]


def fuzz(number: int, most: int, seconds: float) -> tuple[Counter[str], list[str], list[Slow]]:
    """Admit mutated payloads: the counts, what should not have happened, and the slowest."""
    target.install()
    random, seeds = Random(number), pool(number)
    large = [payloads.text_of(short) for _, short in payloads.load()]
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    slow: list[Slow] = []
    started = said = time.monotonic()
    while counts["tried"] < most and (now := time.monotonic()) - started < seconds:
        if now - said > PROGRESS:
            print(f"process {number} has tried {counts['tried']:,}", file=sys.stderr, flush=True)
            said = now
        if counts["tried"] % 10_000 == 0:
            made, payload = None, large[counts["tried"] // 10_000 % len(large)]
            admission.forget()
        else:
            made = mutations.mutated(random, random.choice(seeds), random.choice(seeds))
            try:
                payload = mutations.sent(random, made)
            except (TypeError, ValueError, UnicodeError):  # what JSON cannot say
                payload = made
        outcome = target.admit(payload, random.choice((None, 8, target.VOCAB)))
        # What is refused is changed no further: hardly any change makes it good again.
        if outcome.admitted and made and random.random() < 0.1 and len(repr(made)) < SMALL:
            seeds[random.randrange(len(seeds))] = made
        counts["tried"] += 1
        counts["admitted" if outcome.admitted else "refused" if not outcome.wrong else "other"] += 1
        if outcome.wrong and len(wrong) < 20:
            wrong.append(f"{outcome.wrong} for {payload!r}"[:2000])
        if len(slow) < 8 or outcome.seconds > slow[-1][0]:
            slow = sorted([*slow, (outcome.seconds, payload)], key=lambda s: -s[0])[:8]
    counts["milliseconds"] = int(1e3 * (time.monotonic() - started))
    return counts, wrong, slow


CLIMBED = ("admission", "entry", "resume")
"""What is climbed for if nothing is named: what one request costs all others."""


def climb(number: int, seconds: float, of: str) -> list[Slow]:
    """Search for payloads under the limits that cost the most, in short form, slowest first."""
    target.install()
    torch.set_num_threads(1)
    random = Random(number)
    shorts = [short for _, short in payloads.load() if not isinstance(short, str)]
    best = sorted(((cost_of(short, 2, of), short) for short in shorts), key=lambda s: -s[0])
    started = said = time.monotonic()
    tried = 0
    while (now := time.monotonic()) - started < seconds:
        tried += 1
        if now - said > PROGRESS:
            said = now
            # What a slow moment of the machine has made slow is measured again.
            best[:8] = [(min(cost, cost_of(short, 3, of)), short) for cost, short in best[:8]]
            best.sort(key=lambda s: -s[0])
            worst = ", ".join(f"{cost * 1e3:.1f}" for cost, _ in best[:3])
            done = f"{now - started:.0f} of {seconds:.0f} s, {tried:,} tried"
            print(f"{of} {number}: {done}, worst {worst} ms", file=sys.stderr, flush=True)
            print(f"    {json.dumps(best[0][1])}", file=sys.stderr, flush=True)
        # The slower, the more often; each kind of payload climbs by itself.
        at = min(int(random.expovariate(0.15)), len(best) - 1)
        before, short = best[at]
        changed = mutations.grown(random, short, random.choice(shorts))
        if len(json.dumps(changed)) > SMALL:
            continue
        cost = cost_of(changed, 1, of)
        if cost > before and (cost := cost_of(changed, 3, of)) > before * 1.03:
            best[at] = cost, changed
            best.sort(key=lambda s: -s[0])
    return best[:8]


def cost_of(short: Any, times: int, of: str = "admission") -> float:
    """Seconds that a payload in short form costs, there or later."""
    try:
        text = payloads.text_of(short)
    except (TypeError, ValueError, RecursionError, MemoryError):
        return 0.0
    if len(text.encode(errors="replace")) > limits.MAX_PAYLOAD_BYTES:
        return 0.0
    return target.seconds_of(text, times) if of == "admission" else running.cost_of(text, times, of)


def table(of: str) -> Iterator[str]:
    """What each payload of the corpus costs, the most first, beside a harmless one of its size."""
    texts = {name: payloads.text_of(short) for name, short in payloads.load()}
    costs = costs_at_admission(texts) if of == "admission" else costs_later(texts, of)
    unit, factor = ("MB", 1e-6) if of == "memory" else ("ms", 1e3)
    yield f"| payload | kinds | bytes | outcome | {of}, {unit} | harmless, {unit} | ratio |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for name, (cost, harmless) in sorted(costs.items(), key=lambda item: item[1], reverse=True):
        text = texts[name]
        outcome = "admitted" if target.admit(text).admitted else "refused"
        yield (
            f"| {name} | {target.kind_of(text)} | {len(text):,} | {outcome} "
            f"| {cost * factor:.2f} | {harmless * factor:.2f} | {cost / harmless:.1f} |"
        )
    if of in ("join", "step"):
        one_pass = running.one_pass()
        yield f"One pass of an ALLOW over {running.ROWS} rows: {one_pass * 1e3:.2f} ms"
        for name in [name for name, (cost, _) in costs.items() if cost > one_pass]:
            if of == "step":
                seconds = running.beside_pass(texts[name])
                cost, ours, engines = (each * 1e3 for each in seconds)
                yield f"In turn: {name} {cost:.2f} ms, one pass {ours:.2f}, vLLM's {engines:.2f}"


Costs = dict[str, tuple[float, float]]
"""By a payload's name: its cost, and that of a harmless one of its size."""


def costs_at_admission(texts: Mapping[str, str], times: int = 15) -> Costs:
    """Seconds of this thread, the fewest of so many times.

    Between two turns of a payload come all others, so that nothing is at hand from the last one.
    """
    plain = {name: target.harmless(len(text)) for name, text in texts.items()}
    costs: Costs = dict.fromkeys(texts, (math.inf, math.inf))
    for _ in range(times):
        for name, text in texts.items():
            admission.forget()
            cost, harmless = target.admit(text).seconds, target.admit(plain[name]).seconds
            costs[name] = min(costs[name][0], cost), min(costs[name][1], harmless)
    return costs


def costs_later(texts: Mapping[str, str], of: str, rounds: int = 3) -> Costs:
    """What payloads that are admitted cost then; ``of`` is one of ``running.COSTS``.

    The least of some rounds, because a shared server has slow minutes.
    """
    costs: Costs = {}
    for _ in range(rounds):
        for name, text in texts.items():
            if cost := running.cost_of(text, 2, of):
                harmless = running.cost_of(target.harmless(len(text)), 2, of)
                before = costs.get(name, (math.inf, math.inf))
                costs[name] = min(before[0], cost), min(before[1], harmless)
    return costs


def report(name: str, seconds: float, payload: Any) -> str:
    """One line on what a payload costs, beside a harmless one of equal size."""
    size = len(payload if isinstance(payload, str | bytes) else json.dumps(payload))
    ratio = seconds / max(target.seconds_of(target.harmless(size)), 1e-9)
    kind = target.kind_of(payload)
    return (
        f"{name}: {seconds * 1e3:.2f} ms, {size:,} bytes, {kind}, {ratio:.1f} times a harmless one"
    )


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.fuzz", description=__doc__)
    parser.add_argument("--payloads", type=int, default=1 << 62)
    parser.add_argument("--seconds", type=float, default=None)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--climb", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--of", choices=["admission", *running.COSTS], action="append")
    parser.add_argument("--keep", action="store_true", help="put what is found into the corpus")
    parser.add_argument("--bodies", type=int, help="send so many bodies through the middleware")
    arguments = parser.parse_args()
    if arguments.table:
        target.install()
        torch.set_num_threads(1)
        for line in chain.from_iterable(map(table, arguments.of or ["admission"])):
            print(line, flush=True)
        return 0
    bounded = arguments.payloads < 1 << 62
    seconds = arguments.seconds or (1e9 if bounded and not arguments.climb else 60.0)
    numbers = [arguments.seed + i for i in range(arguments.processes)]
    climbed = (arguments.of or CLIMBED) if arguments.climb else ()
    found: dict[str, list[Any]] = {}
    results: list[tuple[Counter[str], list[str], list[Slow]]] = []
    with multiprocessing.get_context("spawn").Pool(arguments.processes) as processes:
        if arguments.bodies:
            share, most = -(-arguments.bodies // arguments.processes), arguments.seconds or 1e9
            return bodies.report(
                processes.starmap(bodies.fuzz, [(number, share, most) for number in numbers])
            )
        for of in climbed:
            wanted = [(number, seconds / len(climbed), of) for number in numbers]
            shorts = [short for each in processes.starmap(climb, wanted) for _, short in each]
            found[of] = shorts
        if not climbed:
            share = -(-arguments.payloads // arguments.processes)
            results = processes.starmap(fuzz, [(number, share, seconds) for number in numbers])
    target.install()
    for of, shorts in found.items():
        costs = sorted(((cost_of(s, 5, of), i) for i, s in enumerate(shorts)), reverse=True)[:8]
        for rank, (cost, i) in enumerate(costs):
            print(report(f"slow {of} {rank}", cost, payloads.text_of(shorts[i])))
            print(f"    {json.dumps(shorts[i])}", flush=True)
            if arguments.keep:
                payloads.keep(f"slow_{of}_{rank}", "what a hill-climb found", shorts[i])
    if climbed:
        return 0
    counts = sum((counts for counts, _, _ in results), Counter[str]())
    wrong = [line for _, lines, _ in results for line in lines]
    rate = counts["tried"] / max(1, counts["milliseconds"]) * 1e3
    print(f"tried {counts['tried']:,} ({rate:,.0f} a second and process)")
    print(f"admitted {counts['admitted']:,}, refused {counts['refused']:,}")
    print(f"other exceptions {counts['other']:,}")
    slow = [payload for _, _, each in results for _, payload in each]
    costs = sorted(((target.seconds_of(p, 5), i) for i, p in enumerate(slow)), reverse=True)
    for cost, i in costs[:3]:
        print(report("slowest admission", cost, slow[i]))
    for i, line in enumerate(wrong):
        print(line)
        if arguments.keep:
            payloads.keep(f"wrong_{i}", line[:200], line)
    return 1 if counts["other"] else 0
