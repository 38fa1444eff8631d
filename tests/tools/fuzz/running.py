"""What an admitted payload costs while it runs: at entry, in a step, and in memory.

It runs on the host's realizer, with the prompts and outputs that are the worst known: text with
the frequencies of a language, one token over and over, and the payload's own tokens, in several
orders.
"""

import gc
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np
import torch
from logitport.adapters import admission
from logitport.adapters.core import Program, Realizer, compile_specs
from logitport.spec import AllowedTokensSpec

from . import target

PROMPT = 1 << 17
"""Tokens of the prompt with which a request enters, or of the output with which it comes again."""
HISTORY = 1 << 14
"""Tokens that each row has before its steps."""
ROWS = 64
STEPS = 6


COSTS = ("admission", "entry", "resume", "join", "step", "memory")
"""What is measured: seconds of admission; until a request is in the batch with a prompt of
``PROMPT`` tokens, or again with an output of as many; of a step of ``ROWS`` rows of which one is
new, of a step with the rows of the last one; and bytes."""


@cache
def _natural(count: int) -> tuple[int, ...]:
    """Tokens as frequent as those of a language: Zipf's law."""
    tokens = np.random.default_rng(0).zipf(1.2, 2 * count)
    return tuple(tokens[tokens < target.VOCAB][:count].tolist())


def histories(program: Program, count: int) -> Iterator[tuple[int, ...]]:
    """Tokens that may cost a program the most."""
    yield _natural(count)
    edges = [automaton.keys & 0xFFFFFFFF for automaton in program.automata]
    sets = [automaton.set_tokens for automaton in program.automata]
    for own in (np.concatenate([np.array([1]), *edges]), np.concatenate([np.array([1]), *sets])):
        tokens, counts = np.unique(own[own < target.VOCAB], return_counts=True)
        tokens = tokens[np.argsort(-counts, kind="stable")]
        yield (int(tokens[0]),) * count
        if len(tokens) > 1:
            ranks = np.array(_natural(count))
            yield tuple(tokens[ranks % len(tokens)].tolist())
            yield tuple(np.resize(tokens, count).tolist())
            # One token before all others, at each second step.
            yield tuple(np.resize(np.insert(tokens, range(len(tokens)), tokens[0]), count).tolist())


def realizer(
    programs: Sequence[Program], prompt: tuple[int, ...]
) -> tuple[Realizer, list[list[int]]]:
    """A batch with a request for each program."""
    made, outputs = Realizer(target.VOCAB), [list[int]() for _ in programs]
    for row, (program, output) in enumerate(zip(programs, outputs, strict=True)):
        made.add(row, program, prompt, output, 2)
    return made, outputs


def entry(program: Program, times: int = 2, *, resumes: bool = False) -> float:
    """Seconds, with the prompt, or the output, for which it takes the longest."""

    def seconds(tokens: tuple[int, ...]) -> float:
        made, output = Realizer(target.VOCAB), [*tokens] if resumes else []
        start = time.thread_time()
        made.add(0, program, (1,) if resumes else tokens, output, 2)
        return time.thread_time() - start

    return max(min(seconds(tokens) for _ in range(times)) for tokens in histories(program, PROMPT))


def turn(programs: Sequence[Program], history: tuple[int, ...]) -> list[float]:
    """Seconds of each step; in the last one, a row is new."""
    logits = torch.zeros(ROWS, target.VOCAB)
    made, outputs = realizer(programs, history[:HISTORY])
    seconds: list[float] = []
    for i, token in enumerate(history[HISTORY:]):
        logits.zero_()
        if i == STEPS - 1:
            made.add(0, programs[0], history[:HISTORY], outputs[0], 2)
        start = time.thread_time()
        made.apply(logits)
        seconds.append(time.thread_time() - start)
        for output in outputs:
            output.append(token)
    return seconds


def steps(programs: Sequence[Program], times: int = 2) -> tuple[float, float]:
    """Seconds of a step in which a row is new, and of the slowest in which none is."""
    worst = [0.0, 0.0]
    for history in histories(programs[0], HISTORY + STEPS):
        best = np.min([turn(programs, history) for _ in range(times)], axis=0).tolist()
        # In the first step, all are new, which no engine does.
        worst = [max(worst[0], best[-1]), max(worst[1], *best[1:-1])]
    return worst[0], worst[1]


def memory(text: str) -> int:
    """Bytes that a payload holds: as admitted, and in a batch."""
    program = admission.admit(target.BACKEND, text, target.VOCAB)[1]
    realizer([program], (1,))  # imports, and what is kept for all
    admission.forget()
    logits = torch.zeros(1, target.VOCAB)
    gc.collect()
    tracemalloc.start()
    program = admission.admit(target.BACKEND, text, target.VOCAB)[1]
    made, outputs = realizer([program], (1,))
    made.apply(logits)
    gc.collect()
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    del made, outputs
    return held


def cost_of(text: str, times: int, of: str) -> float:
    """What a payload costs; later than admission, 0 for one that is refused or has no rules."""
    if of == "admission":
        return target.seconds_of(text, times)
    if not target.admit(text).admitted:
        return 0.0
    program = admission.admit(target.BACKEND, text, target.VOCAB)[1]
    if not (program.automata or program.history_rules or program.prompt_biases):
        return 0.0
    if of == "memory":
        return float(memory(text))
    if of in ("entry", "resume"):
        return entry(program, times, resumes=of == "resume")
    return steps([program] * ROWS, times)[of == "step"]


def one_pass() -> tuple[float, float]:
    """Seconds of a step in which each row may have some tokens only, of its own list.

    The second is vLLM's own pass for `allowed_token_ids` (``vllm/v1/sample/sampler.py``).
    """
    programs = [
        compile_specs([AllowedTokensSpec(tuple(range(row, row + (1 << 14))))])
        for row in range(ROWS)
    ]
    logits = torch.zeros(ROWS, target.VOCAB)
    is_banned = torch.ones(ROWS, target.VOCAB, dtype=torch.bool)
    for row, program in enumerate(programs):
        is_banned[row, program.automata[0].set_tokens] = False
    engines: list[float] = []
    for _ in range(12):
        start = time.thread_time()
        logits.masked_fill_(is_banned, float("-inf"))
        engines.append(time.thread_time() - start)
    return steps(programs, 5)[1], min(engines)
