"""Which worker reports a failure, under what name, and how log lines look. No engine is started."""

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from logitport.adapters.vllm import KEY, failures
from logitport.adapters.vllm.failures import FailureReport
from logitport.adapters.vllm.v1_batch import V1Batch
from logitport.spec import ForcedTokenSequenceSpec, encode
from vllm.v1.sample.logits_processor.interface import BatchUpdate, MoveDirectionality

from .in_process import params
from .stand_ins import configuration

SWAP, MOVE = MoveDirectionality.SWAP, MoveDirectionality.UNIDIRECTIONAL


def set_groups(patch: Any, tp: int = 0, size: int = 1, *, first: bool = True, last: bool = True):
    """Be one of an engine's workers."""
    patch.setattr(failures, "model_parallel_is_initialized", lambda: True)
    for name, group in {
        "get_tp_group": SimpleNamespace(rank_in_group=tp, world_size=size),
        "get_pcp_group": SimpleNamespace(is_first_rank=first),
        "get_pp_group": SimpleNamespace(is_last_rank=last),
    }.items():
        patch.setattr(failures, name, lambda group=group: group)


@pytest.fixture
def reported(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names under which failures are logged; each is counted as well."""
    names: list[str] = []
    counted = Counter[str]()
    monkeypatch.setattr(failures, "log_failure", lambda name, *_, **__: names.append(name))
    monkeypatch.setattr(
        failures, "count", lambda decision, stage, n=1: counted.update({decision: n})
    )
    yield names
    assert dict(counted) == {"failed": len(names)}  # 0 as well: an alert misses a new series


SHARDED = {"enable_batch_sharded_sampling": True}


@pytest.mark.parametrize(
    ("worker", "parallel", "rows"),
    [
        ({}, {}, [0, 1, 2, 3]),
        ({"size": 2}, {}, [0, 1, 2, 3]),
        ({"size": 2, "tp": 1}, {}, []),
        ({"last": False}, {}, []),
        ({"size": 2, "last": False}, {}, []),
        ({"first": False}, {}, []),
        ({"size": 2}, {"enable_batch_sharded_sampling": False}, [0, 1, 2, 3]),
        ({"size": 2}, SHARDED, [0, 2]),
        ({"size": 2, "tp": 1}, SHARDED, [1, 3]),
        ({"size": 3, "tp": 2}, SHARDED, [2]),
        ({"size": 2, "last": False}, SHARDED, []),
    ],
)
def test_one_worker_reports(
    monkeypatch: pytest.MonkeyPatch, reported: list[str], worker: Any, parallel: Any, rows: Any
):
    set_groups(monkeypatch, **worker)
    config = configuration(parallel_config=SimpleNamespace(**parallel))
    report = FailureReport(config, "abcd".__getitem__)
    for row in range(4):
        report(row, ValueError("no"), True)
    assert reported == [f"request {'abcd'[row]}" for row in rows]


def test_a_process_without_groups_reports(reported: list[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(failures, "model_parallel_is_initialized", lambda: False)
    FailureReport(configuration(), {}.__getitem__)(7, ValueError("no"), True)
    assert reported == ["the request in row 7"]  # of which no id can be found


class Runner(SimpleNamespace):
    """vLLM's V1 model runner, as far as a processor's callers matter."""

    def update(self, update: BatchUpdate) -> None:
        self.batch.update(update)


@pytest.mark.parametrize(
    ("row", "moved", "ids", "name"),
    [
        (0, [], "abc", "a"),
        (2, [], "abc", "c"),
        (2, [(2, 0, MOVE)], "cb", "c"),
        (2, [(2, 0, SWAP)], "cba", "c"),
        (0, [(2, 0, SWAP)], "cba", "a"),
        (2, [(2, 1, SWAP), (1, 0, SWAP)], "cab", "c"),
        (0, [(2, 1, SWAP), (1, 0, SWAP)], "cab", "a"),
    ],
)
def test_a_request_has_its_id_while_rows_move(
    monkeypatch: pytest.MonkeyPatch, reported: list[str], row: int, moved: Any, ids: str, name: str
):
    """In an update the engine has done the moves already."""
    set_groups(monkeypatch)

    def fail(params: Any) -> None:
        if params.extra_args:
            raise ValueError("no")

    batch = V1Batch(configuration(), 8, fail, torch.device("cpu"))
    specs = params(extra_args={KEY: encode(ForcedTokenSequenceSpec([1]))})
    added: list[Any] = [(i, specs if i == row else params(), [1], []) for i in range(3)]
    runner = Runner(batch=batch, input_batch=SimpleNamespace(req_ids=list(ids)))
    runner.update(BatchUpdate(3, removed=[], added=added, moved=moved))
    assert reported == [f"request {name}"]
    assert batch.realizer.failed_requests == 1


VLLM = """
import logging

handler = logging.StreamHandler()
handler.setFormatter(logging.Formatter("vLLM %(levelname)s: %(message)s"))
vllm = logging.getLogger("vllm")
vllm.addHandler(handler)
vllm.setLevel("INFO")
vllm.propagate = False
"""
LOGS = """
from logitport.adapters.vllm.logs import show_logs

for _ in range(2):  # two engines
    show_logs()
logging.getLogger("logitport.adapters.core.callables").error("it failed")
logging.getLogger("logitport.adapters.vllm.processor").info("it started")
"""


@pytest.mark.parametrize(
    ("configured", "expected"),
    [
        ("", ["vLLM ERROR: it failed", "vLLM INFO: it started"]),
        ("vllm.setLevel('ERROR')", ["vLLM ERROR: it failed"]),
        ("logging.getLogger('logitport').setLevel('ERROR')", ["vLLM ERROR: it failed"]),
        (
            "logging.basicConfig(format='mine: %(message)s')",
            ["mine: it failed", "mine: it started"],
        ),
    ],
    ids=["vLLM's", "vLLM's level", "the operator's level", "the operator's own"],
)
def test_lines_are_shown_once(configured: str, expected: list[str]):
    command = [sys.executable, "-c", "\n".join([VLLM, configured, LOGS])]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr.splitlines() == expected
