"""Which request is in which row, told in the words of vLLM's V1 runner."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from logitport.adapters.vllm import LogitportProcessor, attach
from logitport.spec import ForcedTokenSequenceSpec, LogitBiasSpec
from vllm import SamplingParams
from vllm.v1.sample.logits_processor.interface import BatchUpdate, MoveDirectionality
from vllm.v1.sample.logits_processor.state import BatchUpdateBuilder

VOCABULARY = 64
ONE_WAY, SWAP = MoveDirectionality.UNIDIRECTIONAL, MoveDirectionality.SWAP

Names = Sequence[str | None]
"""Requests by row: a capital letter has specs, a small one none, ``None`` is no request."""


def token_of(name: str) -> int:
    return ord(name) - ord("A")


class Config(SimpleNamespace):
    """Stands for a ``VllmConfig``; unlike its base it can be referenced weakly, as that can."""


class ThroughVllm:
    def __init__(self) -> None:
        config: Any = Config(
            kv_transfer_config=None,
            use_v2_model_runner=False,
            scheduler_config=SimpleNamespace(async_scheduling=False),
            model_config=SimpleNamespace(
                get_vocab_size=lambda: VOCABULARY, model="model", served_model_name=None
            ),
            additional_config={},
        )
        self.processor = LogitportProcessor(config, torch.device("cpu"))

    def update(self, update: BatchUpdate) -> None:
        self.processor.update_state(update)

    def apply(self, logits: torch.Tensor) -> None:
        self.processor.apply(logits)


def specs_of(token: int) -> list[Any]:
    """What makes a row its request's: the token that is forced, after one more for each output."""
    chain = ForcedTokenSequenceSpec(tuple((token + i) % VOCABULARY for i in range(40)))
    return [LogitBiasSpec({token: 1.0}), chain]


def added(row: int, name: str, output: list[int] | None = None) -> tuple[Any, ...]:
    params = SamplingParams(seed=token_of(name))
    if name.isupper():
        attach(params, specs_of(token_of(name)))
    return row, params, [1, 2, 3], [] if output is None else output


def rows_of(names: Names, outputs: dict[str, list[int]]) -> list[int | None]:
    return [
        (token_of(name) + len(outputs.get(name, ()))) % VOCABULARY
        if name and name.isupper()
        else None
        for name in names
    ]


def assert_rows(
    through: ThroughVllm, names: Names, outputs: dict[str, list[int]] | None = None
) -> None:
    before = torch.randn(len(names), VOCABULARY, generator=torch.Generator().manual_seed(0))
    after = before.clone()
    through.apply(after)
    for row, expected in enumerate(rows_of(names, outputs or {})):
        if expected is None:
            assert torch.equal(before[row], after[row]), (names, row)
        else:
            assert after[row].argmax() == expected, (names, row)
            assert after[row].max() > 1e6


@pytest.mark.parametrize(
    ("first", "events", "names"),
    [
        # vLLM's documentation (docs/features/custom_logitsprocs.md): E is new, A and C are done.
        (
            "ABCD",
            {"added": [(0, "E")], "removed": [2], "moved": [(3, 2, ONE_WAY), (0, 1, SWAP)]},
            "BED",
        ),
        # E and F are new, C is done.
        ("ABCD", {"added": [(2, "E"), (4, "F")], "moved": [(0, 1, SWAP)]}, "BAEDF"),
        # A row that is removed is filled again.
        ("ABC", {"removed": [1], "added": [(1, "E")]}, "AEC"),
        ("ABC", {"removed": [1], "added": [(1, "e")]}, "AeC"),
        ("AbC", {"removed": [1], "added": [(1, "E")]}, "AEC"),
        # One is replaced without having been removed.
        ("ABC", {"added": [(1, "E")]}, "AEC"),
        ("ABC", {"added": [(1, "e")]}, "AeC"),
        ("AbC", {"added": [(1, "E")]}, "AEC"),
        # Moved rows take the place of whatever was there.
        ("ABCD", {"moved": [(3, 1, ONE_WAY)]}, "ADC"),
        ("ABCd", {"moved": [(3, 1, ONE_WAY)]}, "AdC"),
        ("AbCD", {"moved": [(3, 1, ONE_WAY)]}, "ADC"),
        ("ABCD", {"removed": [0, 1], "moved": [(3, 0, ONE_WAY), (2, 1, ONE_WAY)]}, "DC"),
        ("aBcD", {"moved": [(0, 1, SWAP), (2, 0, SWAP), (3, 2, SWAP)]}, "caDB"),
        ("AB", {"removed": [1, 0]}, ""),
        ("", {"added": [(0, "A"), (1, "b"), (0, "C")]}, "Cb"),
        ("AB", {"added": [(2, "C")], "moved": [(2, 0, SWAP), (1, 2, SWAP)]}, "CAB"),
    ],
)
def test_the_rows_after_an_update(first: str, events: dict[str, Any], names: str) -> None:
    through = ThroughVllm()
    everything = [added(row, name) for row, name in enumerate(first)]
    through.update(BatchUpdate(len(first), removed=[], added=everything, moved=[]))
    assert_rows(through, first)
    through.update(
        BatchUpdate(
            batch_size=len(names),
            removed=events.get("removed", []),
            added=[added(row, name) for row, name in events.get("added", [])],
            moved=events.get("moved", []),
        )
    )
    # Rows beyond the batch may be there, for a graph of a fixed size.
    assert_rows(through, [*names, None, None])


class Runner:
    """vLLM's persistent batch (``InputBatch``): its rows, and the builder that tells of them."""

    def __init__(self, tell: Callable[[BatchUpdate], None]) -> None:
        self.names: list[str | None] = []
        self.outputs: dict[str, list[int]] = {}
        self.builder = BatchUpdateBuilder()
        self._tell = tell

    def schedule(self, done: Sequence[int], new: str, swaps: Sequence[tuple[int, int]]) -> None:
        names, builder = self.names, self.builder
        for row in done:
            builder.removed_append(row)
            names[row] = None
        for name in new:
            row = builder.pop_removed()
            if row is None:
                row = len(names)
                names.append(None)
            names[row] = name
            # A request that was preempted comes with the output that it has.
            output = self.outputs[name] = [*self.outputs.get(name, [])]
            builder.added.append(added(row, name, output))  # pyright: ignore[reportArgumentType]
        while (empty := builder.peek_removed()) is not None:
            last = max((row for row, name in enumerate(names) if name), default=-1)
            if empty >= last:
                break
            builder.pop_removed()
            names[empty], names[last] = names[last], None
            builder.moved.append((last, empty, ONE_WAY))
        names[:] = [name for name in names if name]
        for a, b in swaps:
            if a != b and max(a, b) < len(names):
                names[a], names[b] = names[b], names[a]
                builder.moved.append((a, b, SWAP))
        update = builder.get_and_reset(len(names))
        if update is not None:
            self._tell(update)


rows = st.integers(0, 7)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sets(rows, max_size=4),
            st.sets(st.sampled_from("ABCDEFGHabcd"), max_size=4),
            st.lists(st.tuples(rows, rows), max_size=2),
            st.integers(0, 2),
        ),
        max_size=12,
    )
)
def test_any_course_of_vllms_batch(
    steps: list[tuple[set[int], set[str], list[tuple[int, int]], int]],
) -> None:
    through = ThroughVllm()
    runner = Runner(through.update)
    for done, new, swaps, tokens in steps:
        runner.schedule(
            sorted(row for row in done if row < len(runner.names)),
            "".join(sorted(new.difference(filter(None, runner.names)))),
            swaps,
        )
        assert_rows(through, runner.names, runner.outputs)
        for name, token in zip(runner.names, rows_of(runner.names, runner.outputs), strict=True):
            if name and len(runner.outputs[name]) < 32:
                first = token or 0
                runner.outputs[name] += [(first + i) % VOCABULARY for i in range(tokens)]


def test_an_update_that_says_nothing() -> None:
    through = ThroughVllm()
    through.processor.update_state(None)
    assert_rows(through, ["a"])
