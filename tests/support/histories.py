"""Histories that grow, shrink, change places, leave and join, for the tests of history rules."""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from hypothesis import strategies as st
from logitport.adapters.core.host.ngrams import NgramBatch
from logitport.adapters.core.host.state_table import Request

TAKEN_BACK = 6
"""The largest number of tokens taken back with others in their place."""

STEPS = st.lists(
    st.tuples(st.just(0) | st.integers(0, 9), st.integers(0, 7), st.integers(0, 2**31)), max_size=20
)
"""Tokens taken back, tokens put, and the seed that chooses these and all else."""


def simulate(
    rules: NgramBatch,
    requests: Sequence[tuple[Sequence[Any], int, int]],
    steps: Sequence[tuple[int, int, int]],
    seed: int,
    check: Callable[[NgramBatch, Mapping[int, Sequence[Any]]], None],
) -> list[Request]:
    """Give requests tokens and take some back, exchange rows, and let requests leave and join.

    Tokens that are put after none was taken back come one in a step, or all at once.

    Args:
        rules: the batch of all requests.
        requests: of each the specs, the prompt's length and the number of different tokens.
        steps: see ``STEPS``.
        seed: chooses the prompts.
        check: is called with the rules, and each row's specs, after every step.

    Returns:
        The requests that run.
    """
    numbers = random.Random(seed)
    specs: dict[int, Sequence[Any]] = {}
    running: list[tuple[Request, int]] = []
    waiting: list[tuple[Sequence[Any], Request, int]] = []

    def start(given: Sequence[Any], request: Request, tokens: int) -> None:
        rules.start(request, given)
        specs[request.row] = given
        running.append((request, tokens))

    for row, (given, length, tokens) in enumerate(requests):
        prompt = numbers.choices(range(tokens), k=length)
        start(given, Request(prompt, [], row=row), tokens)
    check(rules, specs)
    for back, more, step_seed in steps:
        numbers = random.Random(step_seed)
        if back == 0 and numbers.random() < 0.7:
            for _ in range(more):
                for request, tokens in running:
                    cast("list[int]", request.output_ids).append(numbers.randrange(tokens))
                check(rules, specs)
        else:
            for request, tokens in running:
                more_ids = numbers.choices(range(tokens), k=more if back <= TAKEN_BACK else 0)
                _replace(request, back, more_ids)
        match numbers.randrange(5):
            case 0 if len(running) > 1:
                _exchange_rows(running[0][0], running[1][0], specs)
            case 1 if len(running) > 1:
                request, tokens = running.pop(numbers.randrange(len(running)))
                waiting.append((specs.pop(request.row), request, tokens))
                _delete(request)
            case 2 if waiting:
                given, request, tokens = waiting.pop()
                start(
                    given, Request(request.prompt_ids, request.output_ids, row=request.row), tokens
                )
            case _:
                pass
        check(rules, specs)
    return [request for request, _ in running]


def _replace(request: Request, back: int, more: Sequence[int]) -> None:
    """Take tokens back and put others, such that it can be noticed."""
    output: Any = request.output_ids
    before = output[:]
    del output[max(len(output) - back, 0) :]
    output += more
    if back and len(output) == len(before):
        output.append(0)  # as many in their place are not noticed
    if back and len(output) == len(before) + 1 and before[-1:] == output[-2:-1]:
        output.append(0)  # nor one more, after the same last token


def _exchange_rows(a: Request, b: Request, specs: dict[int, Sequence[Any]]) -> None:
    specs[a.row], specs[b.row] = specs[b.row], specs[a.row]
    a.row, b.row = b.row, a.row
    for request in (a, b):
        for entry in request.entries:
            entry.table.set_row(entry.slot, request.row)


def _delete(request: Request) -> None:
    for entry in list(request.entries):
        entry.table.delete(entry.slot)
