"""``python -m tests.tools.neighbours``: what hostile payloads cost the requests beside them.

Eight requests without specs and eight with the payloads that once were the slowest run in one
engine. The same is run with a harmless payload on the same prompts, in turn. The table has the
time per token of those without specs, the slowest step, in which the others enter, and the ratios
to the harmless run; its first line compares harmless runs with one another, which is the noise.
"""

import os
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple, cast

import typer
from logitport import spec as lp
from rich.console import Console
from rich.table import Table

from examples._support import v2_on_cpu
from examples._support.smollm2 import prepare

FREE = HOSTILE = 8
TOKENS = 16
LONG = 1000
HARMLESS = lp.BannedTokensSpec((5,))
ONES, TAGS = [11] * LONG, [11, 12] * (LONG // 2)

Specs = Sequence[lp.LogitsProcessorSpec]


class Case(NamedTuple):
    """One hostile payload.

    Attributes:
        name: as the table has it.
        prompt: token ids.
        specs: of the hostile request with that number.
        short: whether all hostile requests but the first have a short prompt.
    """

    name: str
    prompt: Sequence[int]
    specs: Callable[[int], Specs]
    short: bool = False


def _trigger(number: int) -> Specs:
    return [lp.TriggerSpec((11,) * 63 + (20 + number,), (12,) * 64, 1024)]


def _lists_and_a_choice(number: int) -> Specs:
    lists = [lp.AllowedTokensSpec(tuple(range(705 + 5 * i, 1705 + 5 * i))) for i in range(15)]
    return [*lists, lp.ChoiceSpec(((1000 + number, *range(1001, 1040)), (1500, 1600)), 1700)]


def _chain(number: int) -> Specs:
    return [lp.BannedSequencesSpec(tuple((*(11,) * n, 12 + number) for n in range(1, 64)))]


CASES = [
    Case("harmless again", ONES, lambda number: [HARMLESS]),
    Case(
        "two n-gram rules, n = 63 and 64",
        ONES,
        lambda number: [lp.NoRepeatNgramSpec(63), lp.NoRepeatNgramSpec(64)],
    ),
    Case("one long history of eight", ONES, lambda number: [lp.NoRepeatNgramSpec(2)], short=True),
    Case(
        "3 thinking budgets, prompt of tags",
        TAGS,
        lambda number: [lp.ThinkingBudgetSpec(3 + i, (11,), (12,), (13 + i,)) for i in range(3)],
    ),
    Case("trigger 64 + 64, 1,024 times", ONES, _trigger),
    Case("15 lists and a choice", ONES[:100], _lists_and_a_choice),
    Case("failure chain", ONES, _chain),
    Case(
        "16,000 banned tokens",
        ONES[:100],
        lambda number: [lp.BannedTokensSpec(tuple(range(100, 16_100)))],
    ),
]


def measure(engine: Any, case: Case, specs: Callable[[int], Specs]) -> tuple[float, float]:
    """Seconds of a step in which all decode, in the median, and of the slowest step."""
    from tests.adapters.vllm.in_process import params

    def add(name: str, prompt: Sequence[int], params: Any) -> None:
        prompt_ids: Any = {"prompt_token_ids": list(prompt)}
        engine.add_request(name, prompt_ids, params)

    fields: dict[str, Any] = {"max_tokens": TOKENS, "ignore_eos": True, "detokenize": False}
    for number in range(FREE):
        alone = params(max_tokens=TOKENS + 4, ignore_eos=True)
        add(f"free {number}", [100 + number] * 20, alone)
    for _ in range(4):
        engine.step()
    for number in range(HOSTILE):
        prompt = case.prompt[:50] if case.short and number else case.prompt
        hostile = params(cast("lp.LogitsProcessorSpec", specs(number)), **fields)
        add(f"hostile {number}", prompt, hostile)
    steps: list[float] = []
    while engine.has_unfinished_requests():
        began = perf_counter()
        engine.step()
        steps.append(perf_counter() - began)
    return median(steps[4 : TOKENS - 2]), max(steps[:4])


def main(runner: str = "v1", rounds: int = 3) -> None:
    """Measure under one of vLLM's model runners: v1 or v2."""
    if runner == "v2" and v2_on_cpu.is_needed():
        v2_on_cpu.install()
    os.environ["HF_HUB_OFFLINE"] = "1"
    from tests.adapters.vllm.in_process import FLAG, engine

    titles = "hostile payload", "ms per token", "ratio", "slowest step, ms", "ratio"
    table = Table(*titles, title=f"vLLM, {runner}")
    with engine(
        prepare(),
        runner=runner,
        logits_processors=FLAG,
        max_model_len=LONG + 2 * TOKENS,
        kv_cache_memory_bytes=1 << 30,
        max_num_seqs=FREE + HOSTILE,
    ) as running:
        run = partial(measure, running.llm.llm_engine)
        for case in CASES:
            run(case, lambda _: [HARMLESS])  # the prompt is in the cache from here on
            pairs = [
                (run(case, lambda _: [HARMLESS]), run(case, case.specs)) for _ in range(rounds)
            ]
            cells = [case.name]
            for which in range(2):
                took = median(hostile[which] for _, hostile in pairs)
                ratio = median(hostile[which] / harmless[which] for harmless, hostile in pairs)
                cells += [f"{took * 1000:.1f}", f"{ratio:.2f}"]
            table.add_row(*cells)
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
