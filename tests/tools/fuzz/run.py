"""``python -m tests.tools.fuzz``: send admission what nobody would, and find what costs most.

``--payloads N`` or ``--seconds S`` fuzz: every payload is admitted or refused with a ``SpecError``
that is safe to print. ``--climb`` looks for the slowest admission, entry and resumption instead, or
for what ``--of`` names; the time is shared among them. ``--keep`` puts what is found into the
corpus. The exit status is 1 if anything else happened. ``--table`` prints what the payloads of the
corpus cost at admission, and with ``--of`` what those that are admitted cost later. ``--bodies N``
sends malformed JSON through the middleware: nothing passes unchecked or holds the event loop for
10 ms more than Python's parser.
"""

import argparse
import json
import multiprocessing
import time
from collections import Counter
from collections.abc import Iterator
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
    started = time.monotonic()
    while counts["tried"] < most and time.monotonic() - started < seconds:
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


def climb(number: int, seconds: float, of: str) -> list[Any]:
    """Search for payloads under the limits that cost the most, in short form, slowest first."""
    target.install()
    torch.set_num_threads(1)
    random = Random(number)
    shorts = [short for _, short in payloads.load() if not isinstance(short, str)]
    best = sorted(((cost_of(short, 2, of), short) for short in shorts), key=lambda s: -s[0])
    started = said = time.monotonic()
    while (now := time.monotonic()) - started < seconds:
        if now - said > 60:  # what a slow moment of the machine has made slow is measured again
            said = now
            best[:8] = [(min(cost, cost_of(short, 3, of)), short) for cost, short in best[:8]]
            best.sort(key=lambda s: -s[0])
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
    return [short for _, short in best[:8]]


def cost_of(short: Any, times: int, of: str) -> float:
    """Seconds that a payload in short form costs, there or later."""
    try:
        text = payloads.text_of(short)
    except (TypeError, ValueError, RecursionError, MemoryError):
        return 0.0
    if len(text.encode(errors="replace")) > limits.MAX_PAYLOAD_BYTES:
        return 0.0
    return running.cost_of(text, times, of)


def table(of: str) -> Iterator[str]:
    """What each payload of the corpus costs, the most first.

    The least of some rounds, because a shared server has slow minutes. Between two turns of a
    payload come all others, so that nothing is at hand from the last one.
    """
    texts = {name: payloads.text_of(short) for name, short in payloads.load()}
    rounds, times = (15, 1) if of == "admission" else (3, 2)
    costs: dict[str, float] = {}
    for _ in range(rounds):
        for name, text in texts.items():
            if cost := running.cost_of(text, times, of):
                costs[name] = min(costs.get(name, cost), cost)
    unit, factor = ("MB", 1e-6) if of == "memory" else ("ms", 1e3)
    yield f"| payload | bytes | outcome | {of}, {unit} |"
    yield "| --- | --- | --- | --- |"
    for name, cost in sorted(costs.items(), key=lambda item: item[1], reverse=True):
        outcome = "admitted" if target.admit(texts[name]).admitted else "refused"
        yield f"| {name} | {len(texts[name]):,} | {outcome} | {cost * factor:.2f} |"
    if of in ("join", "step"):
        ours, engines = (each * 1e3 for each in running.one_pass())
        yield f"One pass of an ALLOW over {running.ROWS} rows: {ours:.2f} ms, vLLM's {engines:.2f}"


def report(name: str, seconds: float, payload: Any) -> str:
    """One line on what a payload costs."""
    text = payload if isinstance(payload, str | bytes) else json.dumps(payload)
    return f"{name}: {seconds * 1e3:.2f} ms, {len(text):,} bytes: {text[:100]!r}"


def report_fuzz(results: list[tuple[Counter[str], list[str], list[Slow]]], keep: bool) -> int:
    """Print what came of the fuzz; return 1 if anything else than it may."""
    counts = sum((counts for counts, _, _ in results), Counter[str]())
    rate = counts["tried"] / max(1, counts["milliseconds"]) * 1e3
    print(f"tried {counts['tried']:,} ({rate:,.0f} a second and process)")
    print(f"admitted {counts['admitted']:,}, refused {counts['refused']:,}")
    print(f"other exceptions {counts['other']:,}")
    slow = [payload for _, _, each in results for _, payload in each]
    costs = sorted(((target.seconds_of(p, 5), i) for i, p in enumerate(slow)), reverse=True)
    for cost, i in costs[:3]:
        print(report("slowest admission", cost, slow[i]))
    for i, line in enumerate(line for _, wrong, _ in results for line in wrong):
        print(line)
        if keep:
            payloads.keep(f"wrong_{i}", line[:200], line)
    return int(counts["other"] > 0)


def report_climb(of: str, shorts: list[Any], keep: bool) -> None:
    """Print the costliest payloads that a climb has found."""
    costs = sorted(((cost_of(short, 5, of), i) for i, short in enumerate(shorts)), reverse=True)
    for rank, (cost, i) in enumerate(costs[:8]):
        print(report(f"slow {of} {rank}", cost, payloads.text_of(shorts[i])))
        print(f"    {json.dumps(shorts[i])}", flush=True)
        if keep:
            payloads.keep(f"slow_{of}_{rank}", "what a hill-climb found", shorts[i])


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.fuzz", description=__doc__)
    parser.add_argument("--payloads", type=int)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--climb", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--of", choices=running.COSTS, action="append")
    parser.add_argument("--keep", action="store_true", help="put what is found into the corpus")
    parser.add_argument("--bodies", type=int, help="send so many bodies through the middleware")
    arguments = parser.parse_args()
    target.install()
    torch.set_num_threads(1)
    if arguments.table:
        for of in arguments.of or ["admission"]:
            for line in table(of):
                print(line, flush=True)
        return 0
    numbers = [arguments.seed + i for i in range(arguments.processes)]
    most = arguments.bodies or arguments.payloads
    share = -(-most // arguments.processes) if most else 1 << 62
    seconds = arguments.seconds or (1e9 if most and not arguments.climb else 60.0)
    with multiprocessing.get_context("spawn").Pool(arguments.processes) as processes:
        if arguments.climb:
            climbed = arguments.of or CLIMBED
            for of in climbed:
                wanted = [(number, seconds / len(climbed), of) for number in numbers]
                shorts = [short for each in processes.starmap(climb, wanted) for short in each]
                report_climb(of, shorts, arguments.keep)
            return 0
        wanted = [(number, share, seconds) for number in numbers]
        if arguments.bodies:
            return bodies.report(processes.starmap(bodies.fuzz, wanted))
        return report_fuzz(processes.starmap(fuzz, wanted), arguments.keep)
