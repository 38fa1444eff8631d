"""The neutral core on whole batches: rows, histories, failures, every layout of the logits."""

import tracemalloc
import weakref
from collections.abc import Sequence
from itertools import cycle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from logitport import spec as s
from logitport.adapters.conformance.kinds.base import flat
from logitport.adapters.conformance.reference import (
    FORCED,
    Add,
    Force,
    edit,
    edits,
)
from logitport.adapters.core import (
    BAN_BIAS,
    AutomatonBuilder,
    Program,
    Realizer,
    compile_specs,
    editor_for,
)
from logitport.adapters.core.host.editors import Edits, HostEditor
from logitport.adapters.core.host.requests import Outputs
from logitport.spec import LogitsProcessorSpec
from logitport.spec.limits import MAX_PROMPT_RULES

from tests.support.requests import (
    END,
    LAYOUTS,
    ONE_OF_EACH,
    STOP,
    VOCABULARY,
    BrokenError,
    Request,
    Row,
    Rule,
    assert_row,
    banning,
    break_updates,
    forcing,
    laid_out,
    nothing_left,
    python,
    raises,
    random_logits,
    requests_with,
    seeds,
    token_ids,
    writes_and_raises,
)


def applied(
    realizer: Realizer,
    rows: int,
    *,
    seed: int = 0,
    layout: str = "plain",
    dtype: torch.dtype = torch.float32,
    columns: int = VOCABULARY,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Random logits, and what the realizer makes of them."""
    before = random_logits(rows, columns, seed, dtype)
    after = laid_out(before, layout)
    realizer.apply(after)
    return before, after


def apply(
    realizer: Realizer, requests: Sequence[Request | None], **how: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Apply to random logits, check every row, and return them before and after."""
    before, after = applied(realizer, len(requests), **how)
    for i, request in enumerate(requests):
        assert_row(before[i], after[i], request.edits() if request else [])
    return before, after


def batch(*requests: Request) -> tuple[Realizer, list[Request]]:
    realizer = Realizer(VOCABULARY)
    for row, request in enumerate(requests):
        request.add_to(realizer, row)
    return realizer, list(requests)


def assert_nothing_left(realizer: Realizer) -> None:
    assert len(realizer) == 0
    assert realizer.rows == []
    assert (len(realizer._automata), realizer._automata.running) == (0, [])
    assert not realizer._outputs.requests
    assert not realizer._outputs._output_ids
    assert not realizer._edits.rules


def make_small(realizer: Realizer) -> None:
    """Leave the tables so little room that new programs make them be built anew."""
    realizer._automata.tables._clear({"states": 4, "edges": 4, "tokens": 4, "sets": 2})


requests = requests_with(st.none() | st.lists(token_ids, max_size=12))


class Engine(RuleBasedStateMachine):
    """What an engine does with its persistent batch, in any order."""

    @initialize(
        dtype=st.sampled_from([torch.float32, torch.float32, torch.float16, torch.bfloat16]),
        columns=st.integers(VOCABULARY, VOCABULARY + 3),
        first=st.lists(requests, min_size=1, max_size=6),
        small=st.booleans(),
    )
    def start(
        self,
        dtype: torch.dtype,
        columns: int,
        first: list[Request],
        small: bool,
    ) -> None:
        self.dtype, self.columns = dtype, columns
        self.realizer, self.requests = batch(*first)
        if small:
            self.realizer, self.requests = Realizer(VOCABULARY), []
            make_small(self.realizer)
            self.schedule(set(), first)

    def check(self, seed: int = 0, layout: str = "plain") -> torch.Tensor:
        how = {"seed": seed, "layout": layout, "dtype": self.dtype, "columns": self.columns}
        _, after = apply(self.realizer, self.requests, **how)
        assert len(self.realizer) == sum(bool(request.specs) for request in self.requests)
        assert self.realizer.failed_requests == 0
        return after

    @rule(
        seed=seeds,
        layout=st.sampled_from(LAYOUTS),
        how_many=st.lists(st.sampled_from([1, 1, 1, 0, 2, 3]), min_size=1, max_size=4),
        obeys=st.booleans(),
    )
    def step(self, seed: int, layout: str, how_many: list[int], obeys: bool) -> None:
        """Tokens arrive: none for a chunk of a prompt, several that were speculated."""
        after = self.check(seed, layout)
        numbers = np.random.default_rng(seed)
        for i, request in enumerate(self.requests):
            for k in range(how_many[i % len(how_many)]):
                chosen = int(after[i, :VOCABULARY].argmax())
                if not obeys or k:
                    chosen = int(numbers.integers(VOCABULARY))
                request.output.append(chosen)

    @rule(seed=seeds, steps=st.integers(2, 12))
    def decode(self, seed: int, steps: int) -> None:
        """The usual: one token each, again and again, chosen from the edited logits."""
        for k in range(steps):
            self.step(seed + k, "plain", [1], obeys=True)

    @precondition(lambda self: self.requests)
    @rule(finished=st.sets(st.integers(0, 7), max_size=4), new=st.lists(requests, max_size=3))
    def schedule(self, finished: set[int], new: list[Request]) -> None:
        """Requests end and begin: removed, then added, then moved, as vLLM's V1 runner has it."""
        rows: list[Request | None] = list(self.requests)
        free = sorted(row for row in finished if row < len(rows))
        for row in free:
            rows[row] = None
        into = free[: len(new)] + list(range(len(rows), len(rows) + len(new)))
        into = into[: len(new)]
        for row in set(free) - set(into):
            self.realizer.remove(row)
        for row, request in zip(into, new, strict=True):
            rows[row : row + 1] = [request]
            request.add_to(self.realizer, row)
        while None in rows:  # condense
            last = len(rows) - 1
            empty = rows.index(None)
            moved = rows.pop()
            if moved is not None:
                rows[empty] = moved
                self.realizer.move(last, empty)
        self.requests = [request for request in rows if request]

    @rule(a=st.integers(0, 7), b=st.integers(0, 7))
    def swap(self, a: int, b: int) -> None:
        if max(a, b) < len(self.requests):
            self.realizer.swap(a, b)
            rows = self.requests
            rows[a], rows[b] = rows[b], rows[a]

    @rule(row=st.integers(0, 7), request=requests)
    def replace(self, row: int, request: Request) -> None:
        if row < len(self.requests):
            self.requests[row] = request
            request.add_to(self.realizer, row)

    @rule(row=st.integers(0, 7), more=st.lists(token_ids, max_size=3))
    def resume(self, row: int, more: list[int]) -> None:
        """A preempted request comes again, with the output that it has, in another list."""
        if row < len(self.requests):
            request = self.requests[row]
            self.realizer.remove(row)
            request.output = [*request.output, *more]
            request.add_to(self.realizer, row)

    @rule(row=st.integers(0, 7), tokens=st.integers(1, 4))
    def take_back(self, row: int, tokens: int) -> None:
        if row < len(self.requests):
            del self.requests[row].output[-tokens:]
            self.check()

    @rule(row=st.integers(0, 7), token=token_ids, more=st.lists(token_ids, max_size=1))
    def replace_last(self, row: int, token: int, more: list[int]) -> None:
        """Another token comes in place of the last one, unless that was forced."""
        self.check()
        if row < len(self.requests) and (output := self.requests[row].output):
            request = self.requests[row]
            before = flat(edits(request.specs, request.prompt or (), output[:-1]))
            forced = [edit.token for edit in before if isinstance(edit, Force)]
            if forced[:1] != output[-1:]:
                output[-1:] = [token, *more]
                self.check()

    @rule()
    def restart(self) -> None:
        """Another worker takes everything over: folding is stepping."""
        self.realizer = Realizer(VOCABULARY)
        for row, request in enumerate(self.requests):
            request.add_to(self.realizer, row)

    def teardown(self) -> None:
        if hasattr(self, "realizer"):
            self.check()
            for row in self.realizer.rows:
                self.realizer.remove(row)
            assert_nothing_left(self.realizer)


TestEngine: Any = Engine.TestCase
TestEngine.settings = settings(
    max_examples=100,
    deadline=None,
    stateful_step_count=20,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_kind_in_one_batch(dtype: torch.dtype, layout: str) -> None:
    realizer, requests = batch(*(Request((spec,), [1, 5, 2, 1]) for spec in ONE_OF_EACH), Request())
    numbers = np.random.default_rng(0)
    for step in range(40):
        apply(realizer, requests, seed=step, layout=layout, dtype=dtype, columns=VOCABULARY + 2)
        for request in requests:
            request.output.append(int(numbers.integers(VOCABULARY)))


def test_many_requests_with_long_histories_of_their_own() -> None:
    """More slots than there is room for at first, and more tokens."""
    numbers = np.random.default_rng(1)
    realizer, requests = batch(
        *(
            Request(
                (s.NoRepeatNgramSpec(1 + i % 3, 40 + i), ONE_OF_EACH[i % 12]),
                numbers.integers(0, VOCABULARY, 20 * i + 980).tolist(),
            )
            for i in range(40)
        )
    )
    for step in range(8):
        apply(realizer, requests, seed=step)
        for row in range(0, 40, 1 + step):
            requests[row].output.extend(numbers.integers(0, VOCABULARY, step or 30).tolist())
        realizer.swap(step, 39 - step)
        requests[step], requests[39 - step] = requests[39 - step], requests[step]
    for row in range(40):
        realizer.remove(row)
    assert_nothing_left(realizer)


def test_tables_that_are_full_are_built_anew_and_states_stay() -> None:
    vocabulary = 3000
    realizer = Realizer(vocabulary)
    requests: list[Request] = []
    numbers = np.random.default_rng(2)
    for step in range(24):
        listed = tuple(numbers.permutation(vocabulary)[:2000].tolist())
        spec = (s.AllowedTokensSpec, s.BannedTokensSpec)[step % 2](listed)
        chain = s.ForcedTokenSequenceSpec(tuple(numbers.integers(0, vocabulary, 500).tolist()))
        request = Request([ONE_OF_EACH[step % 12], spec] if step % 3 else [chain], [1, 2, 1])
        row = step if step < 10 else step % 10
        requests[row : row + 1] = [request]
        request.add_to(realizer, row)
        _, after = apply(realizer, requests, seed=step, columns=vocabulary)
        for request, logits in zip(requests, after, strict=True):
            request.output.append(int(logits.argmax()))
    assert realizer._automata.tables.generation > 1


def test_new_tables_may_number_new_lists_like_old_ones() -> None:
    vocabulary = 6000
    realizer = Realizer(vocabulary)
    for first in (0, 3000):  # either fills the room that there is at first
        request = Request([s.BannedTokensSpec(tuple(range(first, first + 3000)))])
        request.add_to(realizer, 0)
        apply(realizer, [request], columns=vocabulary)
    assert realizer._automata.tables.generation == 1


def test_programs_that_are_shared_are_in_the_tables_once() -> None:
    realizer = Realizer(VOCABULARY)
    program = compile_specs(ONE_OF_EACH[:-1])  # a prompt's biases are its own
    sizes: list[int] = []
    for row in range(5):
        realizer.add(row, program, [1], [])
        sizes.append(len(realizer._automata.tables))
    assert np.diff(sizes).tolist() == [0] * 4


@pytest.mark.parametrize("more", [[], [4]])
@pytest.mark.parametrize(
    "spec",
    [
        spec
        for spec in ONE_OF_EACH
        if isinstance(spec, s.BannedSequencesSpec | s.ThinkingBudgetSpec | s.TriggerSpec)
    ],
    ids=lambda spec: spec.kind,
)
def test_tokens_that_are_replaced(spec: LogitsProcessorSpec, more: list[int]) -> None:
    """As many, or one more, between two steps."""
    realizer, requests = batch(Request((spec,), [1, 5]), Request((spec,), [1]))
    output = requests[0].output
    for seed, token in enumerate((1, 2, 3, 1, 1)):
        apply(realizer, requests, seed=seed)
        output.append(token)
        requests[1].output.append(token)
        apply(realizer, requests, seed=seed)
        output[-2:] = [(token + 1) % 8, (token + 2) % 8, *more][-len(output[-2:]) - len(more) :]
        apply(realizer, requests, seed=seed)


def test_a_token_is_replaced_that_only_some_automata_have_read() -> None:
    """The other automata of the request take each token once."""
    specs = (s.TriggerSpec((1, 6), (7,)), s.ForcedTokenSequenceSpec((0, 1, 2, 3, 4)))
    realizer, (request,) = batch(Request(specs, [5]))
    for token in (0, 1):
        apply(realizer, [request])
        request.output.append(token)
    apply(realizer, [request])
    request.output[-1:] = [6, 2]
    apply(realizer, [request])


def test_nothing_to_do() -> None:
    realizer = Realizer(VOCABULARY)
    apply(realizer, [None, None])
    realizer.remove(3)
    realizer.swap(0, 1)
    realizer.move(1, 0)
    apply(realizer, [None, None])
    Request(ONE_OF_EACH[:1]).add_to(realizer, 1)
    realizer.move(0, 1)  # a request without specs takes the place of one that has some
    apply(realizer, [None, None])
    assert_nothing_left(realizer)


def test_moving_a_row_to_where_it_is() -> None:
    realizer, requests = batch(Request(ONE_OF_EACH[:1], output=[1]))
    realizer.move(0, 0)
    realizer.swap(0, 0)
    apply(realizer, requests)


# Failures: whoever fails is ended, and nobody else notices.


# What the two realizers have in common: "tests/core/test_device_realizer.py" has the other engine.


class Batch:
    """An engine that has one row of logits for each of its requests, with one realizer."""

    updates = Outputs, "read"

    def __init__(self) -> None:
        self.realizer = Realizer(VOCABULARY)
        self.requests: dict[int, Request] = {}

    def add(self, request: Request) -> int:
        row = len(self.requests)
        self.requests[row] = request
        request.add_to(self.realizer, row)
        return row

    def accept(self, row: int, token_ids: Sequence[int]) -> None:
        self.requests[row].output += token_ids

    def step(self) -> list[Row]:
        before, after = applied(self.realizer, len(self.requests))
        return [(request, before[i], after[i], ()) for i, request in self.requests.items()]

    def assert_nothing_left(self) -> None:
        assert_nothing_left(self.realizer)


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
            sum("It goes on without them" in record.getMessage() for record in caplog.records) == 1
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

    def test_automata_of_plugins(self, engine: Any, install: Any) -> None:
        builder = AutomatonBuilder()
        builder.chain((4, 5))
        builder.free()
        slot = engine.add(Request((install(builder.build()),)))
        for forced in (4, 5, None):
            (_, before, after, _), *_ = engine.step()
            assert_row(before, after, [Force(forced)] if forced else [])
            engine.accept(slot, [forced or 0])


class TestLifeCycle(LifeCycleTests):
    @pytest.fixture
    def engine(self) -> Batch:
        return Batch()


@pytest.mark.parametrize(
    "acting",
    [
        (s.ChoiceSpec(((1, 2), (3,)), 0),),
        (s.TriggerSpec((1,), (2,)),),
        (s.BannedSequencesSpec(((1, 2),)),),
        (s.NoRepeatNgramSpec(2),),
        (s.ThinkingBudgetSpec(3, (1,), (2,)),),
        (s.ChoiceSpec(((1, 2), (3,)), 0), s.NoRepeatNgramSpec(2), s.LogitBiasSpec({1: 1.0})),
    ],
)
@pytest.mark.parametrize("later", [[], [-1], [0, -1], [-1, 2]])
def test_an_unknown_token_that_decides(
    acting: Sequence[LogitsProcessorSpec], later: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """It is there when the request is added, or comes later, alone or with others."""

    def failing(stop: int | None) -> Request:
        return Request(acting, stop=stop, output=[] if later else [-1])

    neighbour = Request(ONE_OF_EACH[:1])
    realizer, requests = batch(failing(STOP), neighbour, Request(), failing(None))
    if later:
        apply(realizer, requests)
        for request in requests:
            request.output.extend([1] if request is neighbour else later)
    for _ in range(2):
        before, after = applied(realizer, 4)
        assert_row(before[0], after[0], END)
        assert_row(before[1], after[1], neighbour.edits())
        assert torch.equal(before[2:], after[2:])
        assert realizer.failed_requests == 2
        for request in requests:
            request.output.append(int(after[1].argmax()) if request is neighbour else -1)
    assert caplog.text.count("turn asynchronous scheduling off") >= 2


@pytest.mark.parametrize("fails", [0, 1, 2])
def test_a_request_that_fails_leaves_the_newest_tokens_to_others(fails: int) -> None:
    """The one that takes its place among the states has not taken its token yet."""
    trigger = s.TriggerSpec((1, 2), (3, 4), None)
    realizer, requests = batch(
        *(Request((s.NoRepeatNgramSpec(2) if row == fails else trigger,)) for row in range(3))
    )
    for tokens in ((1, 1, 5), (5, 1, 1), (1, 2, 2)):
        apply(realizer, requests)
        for request, token in zip(requests, tokens, strict=True):
            request.output.append(token)
    requests[fails].output[-1] = -1
    before, after = applied(realizer, 3)
    for row, request in enumerate(requests):
        assert_row(before[row], after[row], END if row == fails else request.edits())
    assert realizer.failed_requests == 1


def test_unknown_tokens_of_many_requests_with_history_rules() -> None:
    """The one that cannot even start has a slot for which there is no room yet."""
    realizer, requests = batch(*(Request((s.NoRepeatNgramSpec(2),), [1, 2, 1]) for _ in range(16)))
    realizer.add(16, compile_specs([s.NoRepeatNgramSpec(2)]), [1], [-1])
    assert realizer.failed_requests == 1
    apply(realizer, [*requests, None])


def test_what_is_short_for_a_moment_ends_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    realizer, requests = batch(*(Request((spec,), [1, 5, 2, 1]) for spec in ONE_OF_EACH))
    break_updates(monkeypatch, Batch.updates, range(1))
    for step in range(3):
        apply(realizer, requests, seed=step)
        for request in requests:
            request.output.append(step)
    assert realizer.failed_requests == 0


def test_a_defect_of_ours_ends_those_who_have_specs(monkeypatch: pytest.MonkeyPatch) -> None:
    realizer, requests = batch(*(Request((spec,), [1, 5, 2, 1]) for spec in ONE_OF_EACH[:3]))
    realizer.add(4, compile_specs(ONE_OF_EACH[3:4]), [], [], None)
    break_updates(monkeypatch, Batch.updates, range(2))
    for _ in range(2):
        before, after = applied(realizer, 6)
        for row in range(3):
            assert_row(before[row], after[row], END)
        assert torch.equal(before[3:], after[3:])
        assert (realizer.failed_requests, sorted(realizer.rows)) == (4, [0, 1, 2])
        for request in requests:
            request.output.append(STOP)


def test_a_defect_that_stays_takes_the_specs_off(monkeypatch: pytest.MonkeyPatch) -> None:
    realizer, _ = batch(Request(ONE_OF_EACH[:1]), Request(ONE_OF_EACH[2:3]))
    break_updates(monkeypatch, (HostEditor, "apply"), range(1000))
    _, after = applied(realizer, 2)
    assert after.argmax(1).tolist() == [STOP, STOP]
    for _ in range(2):
        before, after = applied(realizer, 2)
        assert torch.equal(before, after)
        assert not realizer.rows


def test_what_leaves_after_a_defect_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    realizer, _ = batch(Request(ONE_OF_EACH[:1]), Request(ONE_OF_EACH[2:3]))
    break_updates(monkeypatch, (HostEditor, "apply"), range(1000))
    applied(realizer, 2)
    for row in range(2):
        realizer.remove(row)
    assert not realizer._automata.running


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_what_fails_while_logits_are_written_ends_those_who_have_specs(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    """In this very step, because some rows may have part of their edits."""
    realizer, _ = batch(*(Request((spec,), [1, 5, 2, 1]) for spec in ONE_OF_EACH[:3]))
    before = random_logits(4, VOCABULARY, 0, dtype)
    after = before.clone()
    with monkeypatch.context() as patch:
        if dtype == torch.float32:
            break_updates(patch, (Edits, "write_automata"), range(1))
        else:
            break_updates(patch, (torch.Tensor, "__setitem__"), range(2))
        realizer.apply(after)
    assert after[:3].argmax(1).tolist() == [STOP] * 3
    assert torch.equal(before[3], after[3])
    assert realizer.failed_requests == 3
    before, after = applied(realizer, 4)
    for row in range(3):
        assert_row(before[row], after[row], END)


def test_rows_that_are_copied_are_written_again_if_that_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    realizer, requests = batch(*(Request((spec,), [1, 5, 2, 1]) for spec in ONE_OF_EACH[:3]))
    before = random_logits(3, VOCABULARY, 0, torch.bfloat16)
    after = before.clone()
    with monkeypatch.context() as patch:
        break_updates(patch, (torch.Tensor, "__setitem__"), range(1))
        realizer.apply(after)
    for i, request in enumerate(requests):
        assert_row(before[i], after[i], request.edits())
    assert realizer.failed_requests == 0


def test_prompts_may_be_arrays() -> None:
    realizer = Realizer(VOCABULARY)
    realizer.add(0, compile_specs((s.PromptBiasSpec(3.0),)), np.array([1, 2]), [])  # pyright: ignore
    realizer.add(1, compile_specs((s.NoRepeatNgramSpec(1),)), np.array([1, 2]), [])  # pyright: ignore
    before, after = applied(realizer, 2)
    assert_row(before[0], after[0], [edit(s.PromptBiasSpec(3.0), [1, 2], [])])
    assert_row(before[1], after[1], [edit(s.NoRepeatNgramSpec(1), [1, 2], [])])


def test_prompt_biases_take_little_memory() -> None:
    """However many there are, and tokens in the prompt."""
    vocabulary, prompt = 1 << 15, list(range(1 << 15)) * 2
    specs = [s.PromptBiasSpec(1.0 + i, tuple(range(i, 4000, 4))) for i in range(MAX_PROMPT_RULES)]
    realizer, program = Realizer(vocabulary), compile_specs(specs)
    tracemalloc.start()
    realizer.add(0, program, prompt, [])
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert held < 40 * vocabulary
    request = Request(specs, prompt)
    for row in (0, 0, 1):
        realizer.move(0, row)
        apply(realizer, [request] if row == 0 else [None, request], columns=vocabulary)


def test_what_a_long_history_has_needed_is_given_back() -> None:
    realizer, spec = Realizer(VOCABULARY), s.NoRepeatNgramSpec(1, allowed_token_ids=(2, 4))
    short, prompt = [2, 3], [4, 5]
    for row, prompt_ids in enumerate(([1] * 100_000, prompt)):
        realizer.add(row, compile_specs((spec,)), prompt_ids, [] if row == 0 else short)
    held = weakref.ref(next(iter(realizer._edits.rules.values())).tokens)
    realizer.remove(0)
    assert held() is None
    before = random_logits(2, VOCABULARY, 0, torch.float32)
    for token in (6, 7):
        after = before.clone()
        realizer.apply(after)
        assert_row(before[1], after[1], [edit(spec, prompt, short)])
        short.append(token)


def test_a_request_that_the_adapter_cannot_read_is_ended() -> None:
    realizer, requests = batch(Request(ONE_OF_EACH[:1]), Request(ONE_OF_EACH[2:3]))
    realizer.fail(1, BrokenError("unreadable"), [1, 2], STOP)
    realizer.fail(2, BrokenError("unreadable"), [], None)
    before, after = applied(realizer, 3)
    assert_row(before[0], after[0], requests[0].edits())
    assert_row(before[1], after[1], END)
    assert torch.equal(before[2], after[2])
    assert realizer.failed_requests == 2


def entering(**programs: Program | Exception | None) -> tuple[Realizer, list[str]]:
    """A realizer of requests that are the names of these programs, and what it has asked for."""
    asked: list[str] = []

    def program_of(name: str) -> Program | None:
        asked.append(name)
        if isinstance(program := programs[name], Exception):
            raise program
        return program

    return Realizer(VOCABULARY, program_of), asked


def chosen(realizer: Realizer, rows: int) -> list[int]:
    """Token 0 is what nothing has acted on."""
    logits = torch.zeros(rows, VOCABULARY)
    logits[:, 0] = 1
    realizer.apply(logits)
    return logits.argmax(1).tolist()


CHAIN = compile_specs((s.ForcedTokenSequenceSpec((1, 2, 3, 4), 5),))


def test_requests_enter() -> None:
    """With what acts on them, with nothing, or to be ended."""
    looks = compile_specs((s.PromptBiasSpec(5.0),))
    realizer, _ = entering(chain=CHAIN, none=None, broken=BrokenError(), looks=looks)
    for row, name in enumerate(("chain", "none", "broken", "looks")):
        realizer.enter(row, name, None, [], STOP)
    assert chosen(realizer, 4) == [1, 0, STOP, STOP]
    assert realizer.failed_requests == 2
    realizer.enter(0, "none", [], [], STOP)
    realizer.enter(2, "chain", [], [1], STOP)
    realizer.enter(3, "looks", [6], [], STOP)
    assert chosen(realizer, 4) == [0, 0, 2, 6]


def test_what_enters_is_a_program_by_default() -> None:
    realizer = Realizer(VOCABULARY)
    realizer.enter(0, CHAIN, [], [])
    assert chosen(realizer, 1) == [1]


def test_rows_are_synced_with_tokens_that_come_whole() -> None:
    realizer, asked = entering(a=CHAIN, b=CHAIN, broken=BrokenError(), none=None)

    def step(row: int, name: str, output_ids: list[int]) -> None:
        if not realizer.sync(row, name, output_ids):
            realizer.enter(row, name, [], output_ids)

    for output_ids, expected in (([], 1), ([], 1), ([1], 2), ([1, 2], 3), ([1, 2], 3)):
        step(0, "a", output_ids)
        assert chosen(realizer, 1) == [expected]
    assert asked == ["a"]
    # Two tokens more, other tokens, fewer, another request.
    for name, output_ids in (("a", [1] * 4), ("a", [1, 6, 6]), ("a", [1]), ("b", [1])):
        asked.clear()
        step(0, name, output_ids)
        assert asked == [name]
        assert chosen(realizer, 1) == [1 + len(output_ids)]
    asked.clear()
    for output_ids in ([], [0], [0, 0]):  # none of them is asked about, or fails, twice
        step(1, "broken", output_ids)
        step(2, "none", output_ids)
        assert chosen(realizer, 3) == [2, 0, 0]
    assert (asked, realizer.failed_requests) == (["broken", "none"], 1)


def test_rows_that_go_on_or_are_forgotten() -> None:
    realizer, _ = entering(a=CHAIN)
    for row in range(3):
        realizer.enter(row, "a", [], [1] * row)
    realizer.append([1, 2, 3])
    assert chosen(realizer, 3) == [2, 3, 4]
    realizer.truncate(1)
    assert chosen(realizer, 3) == [2, 0, 0]
    assert [realizer.sync(row, "a", [1]) for row in range(3)] == [True, False, False]
    realizer.enter(1, "a", [], [])
    realizer.move(0, 2)
    assert [realizer.sync(row, "a", [1]) for row in (0, 2)] == [False, True]
    realizer.append([0, 1, 2])
    assert chosen(realizer, 3) == [0, 2, 3]


def test_logits_without_an_editor_hurt_nobody() -> None:
    """The adapter has registered none for them."""
    realizer = Realizer(VOCABULARY)
    realizer.enter(0, CHAIN, [], [], STOP)
    with pytest.raises(TypeError, match="an editor for, got list"):
        editor_for([[0.0]])
    realizer.apply([[0.0] * VOCABULARY])
    assert realizer.failed_requests == 1


# Code of a request's own.


def in_place(output_ids: list[int], logits: torch.Tensor) -> None:
    logits[len(output_ids) % VOCABULARY] += 2


def new_tensor(output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
    return logits + 2 * torch.nn.functional.one_hot(torch.tensor(len(output_ids)), VOCABULARY)


def with_prompt(prompt_ids: list[int], output_ids: list[int], logits: torch.Tensor) -> None:
    assert prompt_ids == [3, 4]
    in_place(output_ids, logits)


def new_with_prompt(
    prompt_ids: list[int], output_ids: list[int], logits: torch.Tensor
) -> torch.Tensor:
    return new_tensor(output_ids, logits).double()


def with_default(output_ids: list[int], logits: torch.Tensor, strength: float = 2.0) -> None:
    logits[len(output_ids)] += strength


class Bound:
    def __call__(self, output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
        in_place(output_ids, logits)
        return logits


@pytest.mark.parametrize(
    "processor", [in_place, new_tensor, with_prompt, new_with_prompt, with_default, Bound()]
)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_callables_of_all_forms(processor: Any, layout: str) -> None:
    """They see the engine's logits, before any spec of another kind has edited them."""
    spec = python(processor)
    realizer = Realizer(VOCABULARY)
    output: list[int] = []
    realizer.add(1, compile_specs([s.BannedTokensSpec((0,)), spec]), [3, 4], output)
    for step in range(4):
        before = random_logits(3, VOCABULARY, step, torch.float32)
        after = laid_out(before, layout)
        realizer.apply(after)
        assert torch.equal(before[::2], after[::2])
        assert_row(before[1], after[1], [Add({step: 2.0}), Add({0: BAN_BIAS})])
        output.append(step)
    assert realizer.failed_requests == 0


def test_history_rules_of_plugins(install: Any) -> None:
    rule = Rule(lambda prompt, output: {prompt[0]: BAN_BIAS} | dict.fromkeys(output[-1:], 1.5))
    realizer, requests = batch(
        *(Request((install(rule),), [row], [5]) for row in range(3)), Request()
    )
    realizer.swap(0, 2)
    before, after = applied(realizer, 4)
    for row, request in zip((2, 1, 0), requests, strict=False):
        assert_row(before[row], after[row], [Add({(request.prompt or [])[0]: BAN_BIAS, 5: 1.5})])
    assert torch.equal(before[3], after[3])


@pytest.mark.parametrize("spec", [s.PromptBiasSpec(1.5), s.NoRepeatNgramSpec(1)])
def test_prompt_tokens_that_the_vocabulary_does_not_have(spec: LogitsProcessorSpec) -> None:
    """A tokenizer can have more tokens than the model has logits: placeholders of images, say."""
    prompt = [2, VOCABULARY, 3 * VOCABULARY, 5]
    realizer, _ = batch(Request((spec,), prompt), Request(), Request((spec,), prompt))
    apply(realizer, [Request((spec,), [2, 5]), None, Request((spec,), [2, 5])])
    assert realizer.failed_requests == 0


# Edits that contradict one another.


FORCE_1, FORCE_2 = s.ForcedTokenSequenceSpec((1,), 1), s.ForcedTokenSequenceSpec((2,), 2)


@pytest.mark.parametrize(
    "acting",
    [
        [FORCE_1],
        [FORCE_1, FORCE_2],
        [FORCE_2, FORCE_1, FORCE_2],
        [FORCE_1, s.BannedTokensSpec((1,))],
        [s.BannedTokensSpec((1,)), FORCE_1],
        [s.AllowedTokensSpec((2,)), FORCE_1],
        [FORCE_1, s.AllowedTokensSpec((1, 2)), s.BannedTokensSpec((2,))],
        [FORCE_1, s.LogitBiasSpec({1: -50.0})],
        [s.AllowedTokensSpec((1,)), s.BannedTokensSpec((1, 2))],
        [s.AllowedTokensSpec((1, 2)), s.BannedTokensSpec((1,))],
        [s.AllowedTokensSpec((1,)), s.AllowedTokensSpec((2,))],
        [s.AllowedTokensSpec((1, 2)), s.AllowedTokensSpec((2, 3))],
    ],
)
def test_edits_that_contradict_one_another(acting: list[LogitsProcessorSpec]) -> None:
    realizer, requests = batch(Request(acting), Request())
    for step in range(3):
        apply(realizer, requests, seed=step)
        requests[0].output.append(1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_row_has_a_finite_logit(dtype: torch.dtype) -> None:
    everything = s.BannedTokensSpec(tuple(range(VOCABULARY)))
    realizer, requests = batch(
        Request([everything] * 16),
        Request([s.AllowedTokensSpec((3,)), everything]),
        Request([s.AllowedTokensSpec((3, 4)), s.AllowedTokensSpec((5,))]),
        Request([everything, FORCE_1]),
        Request([s.LogitBiasSpec(dict.fromkeys(range(VOCABULARY), -10000.0))] * 16),
    )
    _, after = apply(realizer, requests, dtype=dtype)
    assert torch.isfinite(after).any(1).all()


FAVOURED = s.LogitBiasSpec({2: 10_000.0, 1: 9_000.0})
DISLIKED = s.LogitBiasSpec({1: -10_000.0})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("of_arrays", [False, True], ids=["torch", "numpy"])
@pytest.mark.parametrize(
    ("acting", "chosen"),
    [
        ([FAVOURED, FORCE_1], 1),
        ([FAVOURED] * 15 + [FORCE_1], 1),
        ([FAVOURED], 2),
        ([FAVOURED, FAVOURED, s.BannedTokensSpec((2,))], 1),
        ([s.BannedTokensSpec((2,)), FAVOURED], 1),
        ([FAVOURED, s.AllowedTokensSpec((1, 2)), s.AllowedTokensSpec((1, 3))], 1),
        ([FAVOURED, s.AllowedTokensSpec((1, 2)), s.ChoiceSpec(((1,), (3,)), 0)], 1),
        ([FAVOURED, *[DISLIKED] * 8], 2),
        ([FAVOURED, *[s.BannedTokensSpec((2,))] * 5], 1),
    ],
)
def test_sums_stay_in_order(
    dtype: torch.dtype, of_arrays: bool, acting: list[LogitsProcessorSpec], chosen: int
) -> None:
    """Whatever the type can hold: what is forced wins, what is banned loses."""
    if of_arrays and dtype == torch.bfloat16:
        pytest.skip("numpy does not have it")
    realizer = Realizer(VOCABULARY)
    realizer.add(0, compile_specs(acting), [], [])
    logits = random_logits(1, VOCABULARY, 1, dtype).nan_to_num(neginf=0)
    logits[0, 5] = -torch.inf
    realizer.apply(logits.numpy() if of_arrays else logits)
    assert logits[0].argmax() == chosen
    assert not torch.isnan(logits).any()
    assert not torch.isposinf(logits).any()
    assert torch.isneginf(logits[0, 5])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_no_rule_adds_more_than_force_does(dtype: torch.dtype, install: Any) -> None:
    builder = AutomatonBuilder()
    builder.add(builder.token_set([2, 3], [3e38, -3e38]))
    for part in (Rule(lambda *_: {2: 3e38, 3: -3e38}), builder.build()):
        program = compile_specs([install(part)] * 15 + [FORCE_1])
        realizer = Realizer(VOCABULARY)
        realizer.add(0, program, [], [])
        logits = torch.zeros(1, VOCABULARY, dtype=dtype)
        realizer.apply(logits)
        assert logits[0].argmax() == 1
        assert torch.isfinite(logits).all()
        assert logits[0].argmin() == 3


def test_lists_that_are_allowed_together() -> None:
    """However many there are, and whatever a choice leaves of them as it goes on."""
    lists = [s.AllowedTokensSpec(tuple(t for t in range(8) if t != n)) for n in (5, 6)]
    choice = s.ChoiceSpec(((1, 2, 3), (1, 5), (4, 6, 0)), 0)
    orders = [[choice, *lists], [*lists, choice], [lists[0], choice, lists[1]], lists * 7]
    assert max(len(compile_specs(order).automata) for order in orders) == 3
    realizer, requests = batch(*(Request(order) for order in orders), Request(lists[:1]))
    for step in range(12):
        _, after = apply(realizer, requests, seed=step)
        for request, row in zip(requests, after, strict=True):
            request.output.append(int(row.argmax()))
            if len(request.output) % 5 == 0:
                request.output.clear()


def test_a_row_that_came_without_a_finite_logit_gets_one_from_an_allow() -> None:
    realizer, _ = batch(Request([s.AllowedTokensSpec((3, 4))]), Request([s.BannedTokensSpec((1,))]))
    logits = torch.full((3, VOCABULARY), -torch.inf)
    realizer.apply(logits)
    assert logits[0].tolist() == [-FORCED if token in (3, 4) else -torch.inf for token in range(8)]
    assert torch.isneginf(logits[1:]).all()


def test_a_contest_that_is_over_is_forgotten() -> None:
    """Rows with two specs leave; those that stay have one each."""
    contested = [Request([FORCE_1, s.LogitBiasSpec({2: 1.0})]) for _ in range(3)]
    realizer, requests = batch(Request([FORCE_2]), *contested)
    apply(realizer, requests)
    for row in (1, 2, 3):
        realizer.remove(row)
    apply(realizer, [requests[0], None, None, None])
    realizer, requests = batch(Request([FORCE_1, s.LogitBiasSpec({2: 1.0})]))
    apply(realizer, requests)
    requests = [Request([FORCE_1])]
    requests[0].add_to(realizer, 0)
    masked = torch.zeros(1, VOCABULARY)
    masked[0, 1] = -torch.inf
    realizer.apply(masked)
    assert masked.argmax() == 1


def test_own_code_runs_once_in_a_step_whatever_fails_after_it(monkeypatch: pytest.MonkeyPatch):
    from logitport.adapters.core.parts import PerRequest, Program
    from logitport.adapters.core.plugins import HistoryRule

    class Rule(HistoryRule):
        def additions(self, prompt_ids: Any, output_ids: Any) -> dict[int, float]:
            return {1: 2.0}

    def edits(output_ids: Any, logits: torch.Tensor) -> None:
        logits[0] += 1.0

    break_updates(monkeypatch, Batch.updates, range(1))
    realizer = Realizer(4)
    program = Program(per_request=(PerRequest(Rule), PerRequest(lambda: edits)))
    realizer.add(0, program, [1], [])
    logits = torch.zeros(1, 4)
    realizer.apply(logits)
    assert logits[0].tolist() == [1.0, 2.0, 0.0, 0.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_row_beyond_the_logits_writes_nowhere(dtype: torch.dtype):
    """Compiled loops check no bounds: a backend that never removes requests has such rows."""
    memory = torch.zeros((4, 8), dtype=dtype)
    realizer = Realizer(8, lambda specs: compile_specs(specs))
    for row in range(3):
        realizer.enter(row, (s.BannedTokensSpec((5,)),), [], [], 0)
    realizer.apply(memory[:1])
    assert realizer.failed_requests == 3
    assert not memory[1:].any()
