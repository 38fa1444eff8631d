"""Histories that grow, shrink and change places, for the tests of rules that read them."""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hypothesis import strategies as st
from logitport.adapters.core.host.ngrams import NgramBatch
from logitport.adapters.core.host.state_table import Request

TAKEN_BACK = 6
"""The largest number of tokens taken back with others in their place."""

STEPS = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 7), st.integers(0, 2**31)), max_size=20
)
"""Tokens taken back, tokens put, and the seed that chooses these."""


def simulate(
    rules: NgramBatch,
    requests: Sequence[tuple[Sequence[Any], int, int]],
    steps: Sequence[tuple[int, int, int]],
    seed: int,
    check: Callable[[NgramBatch, Mapping[int, Sequence[Any]]], None],
) -> list[Request]:
    """Give requests tokens, alone or several at once, take some back, and exchange rows.

    Args:
        rules: the batch of all requests.
        requests: of each the specs, the prompt's length and the number of different tokens.
        steps: see ``STEPS``.
        seed: chooses the prompts.
        check: is called with the rules, and each row's specs, after every step.

    Returns:
        The requests, all running.
    """
    numbers = random.Random(seed)
    specs: dict[int, Sequence[Any]] = {}
    running: list[tuple[Request, int]] = []
    for row, (given, length, tokens) in enumerate(requests):
        request = Request(numbers.choices(range(tokens), k=length), [], row=row)
        rules.start(request, given)
        specs[row] = given
        running.append((request, tokens))
    check(rules, specs)
    for back, more, step_seed in steps:
        numbers = random.Random(step_seed)
        for request, tokens in running:
            output: Any = request.output_ids
            before = output[:]
            del output[max(len(output) - back, 0) :]
            output += numbers.choices(range(tokens), k=more if back <= TAKEN_BACK else 0)
            if back and len(output) == len(before):
                output.append(0)  # as many in their place are not noticed
            if back and len(output) == len(before) + 1 and before[-1:] == output[-2:-1]:
                output.append(0)  # nor one more, after the same last token
        if more % 2 and len(running) > 1:
            a, b = running[0][0], running[1][0]
            specs[a.row], specs[b.row] = specs[b.row], specs[a.row]
            a.row, b.row = b.row, a.row
            for request in (a, b):
                for entry in request.entries:
                    entry.table.set_row(entry.slot, request.row)
        check(rules, specs)
    return [request for request, _ in running]
