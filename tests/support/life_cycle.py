"""What holds for an engine with either realizer."""

from itertools import cycle
from typing import Any

import numpy as np
import pytest
import torch
from logitport import spec as s
from logitport.adapters.reference import Add

from tests.support.requests import (
    END,
    ONE_OF_EACH,
    VOCABULARY,
    Request,
    Rule,
    assert_row,
    banning,
    break_updates,
    forcing,
    nothing_left,
    python,
    raises,
    writes_and_raises,
)

FAIL_AT_ONCE: list[tuple[Any, str]] = [
    (python(raises), "takes 0 arguments"),
    (python(lambda logits: None), "takes 1 arguments"),
    (python(lambda a, b, c, d: None), "takes 4 arguments"),
    (python(5), "expected a callable, got one of type int"),
    (s.PythonProcessorSpec(raises), "on purpose"),
    (forcing(VOCABULARY), "beyond the vocabulary"),
    (banning(2, VOCABULARY), "beyond the vocabulary"),
]
"""Specs and parts of plugins, and what the log has of them."""

FAIL_IN_A_STEP: list[tuple[Any, str]] = [
    (python(writes_and_raises), "on purpose"),
    (python(lambda output, logits: raises() if len(output) > 1 else None), "on purpose"),
    (python(lambda output, logits: logits[:-1]), "returned (7,), expected (8,)"),
    (python(lambda output, logits: logits.tolist()), "returned list, expected (8,)"),
    (python(nothing_left), "left no finite logit"),
    (python(lambda output, logits: logits * torch.nan), "left no finite logit"),
    (Rule(raises), "on purpose"),
    (Rule(lambda *_: {VOCABULARY: 1.0}), "beyond the vocabulary of 8 tokens"),
    (Rule(lambda _, output: {8: 1.0} if len(output) > 1 else {}), "beyond the vocabulary"),
    (Rule(lambda *_: {-1: 1.0}), "beyond the vocabulary of 8 tokens"),
    (Rule(lambda *_: {1: -np.inf}), "not finite"),
    (Rule(lambda *_: {1: np.nan}), "not finite"),
    (Rule(lambda *_: {"a": 1.0}), "cannot be realized"),
    (Rule(lambda *_: [1, 2]), "cannot be realized"),
]


class LifeCycleTests:
    """What holds for an engine with either realizer, which is the fixture ``engine``."""

    @pytest.mark.parametrize(
        ("at_once", "part", "logged", "no_stop"),
        [
            (at_once, *case, no_stop)
            for at_once, cases in ((True, FAIL_AT_ONCE), (False, FAIL_IN_A_STEP))
            for case, no_stop in zip(cases, cycle((None, -1, VOCABULARY)), strict=False)
        ],
    )
    def test_what_fails_ends_its_own_request(
        self,
        engine: Any,
        install: Any,
        caplog: Any,
        at_once: bool,
        part: Any,
        logged: str,
        no_stop: int | None,
    ) -> None:
        """Two requests fail, of which one can be ended; of their neighbours, one has specs."""
        spec = part if isinstance(part, s.PythonProcessorSpec) else install(part)
        ended, goes_on = (
            Request((ONE_OF_EACH[4], spec), [1, 2], stop=stop) for stop in (7, no_stop)
        )
        slots = [engine.add(r) for r in (ended, Request(ONE_OF_EACH[:1]), Request(), goes_on)]
        assert engine.realizer.failed_requests == 2 * at_once
        for step in range(3):
            for request, before, after, drafts in engine.step():
                if request not in (ended, goes_on):
                    assert_row(before, after, request.edits(drafts))
                elif engine.realizer.failed_requests:
                    assert_row(before, after, END if request is ended else [])
            assert engine.realizer.failed_requests in ((0, 2) if step < 2 else (2,))
            for slot in slots:
                engine.accept(slot, [1 + step])
        assert len(engine.realizer) == 2
        assert sum(logged in record.getMessage() for record in caplog.records) == 2
        assert (
            sum("continues without them" in record.getMessage() for record in caplog.records) == 1
        )
        for slot in slots:
            engine.realizer.remove(slot)
        engine.assert_nothing_left()

    @pytest.mark.parametrize("failing", [0, 1])
    def test_code_that_has_run_is_not_run_again(
        self, engine: Any, monkeypatch: pytest.MonkeyPatch, failing: int
    ) -> None:
        """Where something fails before it, or after it: the ends of those whose code has failed."""
        calls = 0

        def adds(output_ids: list[int], logits: torch.Tensor) -> None:
            nonlocal calls
            calls += 1
            logits[3] += 2

        break_updates(monkeypatch, engine.updates, [failing])
        one = Request((python(adds),), [1, 5])
        for request in (one, Request((python(writes_and_raises),), [1, 5])):
            engine.add(request)
        rows = engine.step()
        for request, before, after, _ in rows:
            assert_row(before, after, [Add({3: 2.0})] if request is one else END)
        assert (calls, engine.realizer.failed_requests) == (len(rows) // 2, 1)
