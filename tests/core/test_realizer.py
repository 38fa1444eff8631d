"""The neutral core on whole batches: rows, histories, failures, every layout of the logits."""

import re
import sys
import tracemalloc
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from logitport import spec as s
from logitport.adapters.core import (
    BAN_BIAS,
    AutomatonBuilder,
    Program,
    Realizer,
    compile_specs,
    editor_for,
)
from logitport.adapters.core.host.editors import HostEditor
from logitport.adapters.core.host.tensor_editors import TensorEditor
from logitport.adapters.reference import (
    Add,
    edit,
)
from logitport.spec import LogitsProcessorSpec
from logitport.spec.limits import MAX_PROMPT_RULES

from tests.support.host_driver import Batch, Host, applied, apply, assert_nothing_left, batch
from tests.support.life_cycle import LifeCycleTests
from tests.support.lives import lead
from tests.support.requests import (
    END,
    LAYOUTS,
    ONE_OF_EACH,
    STOP,
    VOCABULARY,
    BrokenError,
    Request,
    Rule,
    assert_row,
    break_updates,
    laid_out,
    python,
    random_logits,
)
from tests.support.seeds import seeds
from tests.support.strategies import specs, within_limits

GROUPS = st.lists(
    st.lists(specs(VOCABULARY, longest=3, count=6), max_size=4).filter(within_limits),
    min_size=1,
    max_size=8,
)


@settings(max_examples=25, deadline=None)
@given(groups=GROUPS, seed=st.integers(0, 2**31))
def test_any_lives(groups: Any, seed: int) -> None:
    lead(Host, seed, 30, groups)


@pytest.mark.parametrize("seed", seeds(3, 12))
def test_any_lives_with_failures(seed: int) -> None:
    lead(Host, seed)


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


# What the two realizers have in common: "tests/core/test_device_realizer.py" has the other engine.


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


def test_a_defect_that_stays_takes_the_specs_off(monkeypatch: pytest.MonkeyPatch) -> None:
    realizer, _ = batch(Request(ONE_OF_EACH[:1]), Request(ONE_OF_EACH[2:3]))
    break_updates(monkeypatch, (HostEditor, "apply"), range(1000))
    _, after = applied(realizer, 2)
    assert after.argmax(1).tolist() == [STOP, STOP]
    for _ in range(2):
        before, after = applied(realizer, 2)
        assert torch.equal(before, after)
        assert not realizer.rows
    assert_nothing_left(realizer)


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
    realizer.fail(1, BrokenError("unreadable"), STOP)
    realizer.fail(2, BrokenError("unreadable"), None)
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


def test_logits_without_an_editor() -> None:
    """The adapter has registered none for them."""
    with pytest.raises(TypeError, match="an editor for, got list"):
        editor_for([[0.0]])


@pytest.mark.parametrize(
    ("logits", "given"),
    [
        (np.zeros(VOCABULARY, np.float32), rf"\[{VOCABULARY}\] of float32"),
        (np.zeros((1, VOCABULARY), np.int32), rf"\[1, {VOCABULARY}\] of int32"),
        (torch.zeros(1, 1, VOCABULARY), rf"\[1, 1, {VOCABULARY}\] of torch.float32"),
        (torch.zeros(1, VOCABULARY, dtype=torch.long), rf"\[1, {VOCABULARY}\] of torch.int64"),
        ([[0.0]], r"\[\] of list"),
    ],
    ids=str,
)
def test_what_is_no_logits_is_named(logits: Any, given: str):
    errors: list[Exception] = []
    realizer = Realizer(VOCABULARY, report=lambda row, error, ends: errors.append(error))
    realizer.enter(0, CHAIN, [], [], STOP)
    realizer.apply(logits)
    (error,) = errors
    assert realizer.failed_requests == 1
    assert re.match(
        rf"Expected logits \[rows, vocabulary\] of a floating.*, got {given}", str(error)
    )


def test_a_negative_row_is_refused():
    realizer = Realizer(VOCABULARY)
    with pytest.raises(IndexError, match="Expected a row from 0, got -1"):
        realizer.enter(-1, CHAIN, [], [])
    assert realizer.rows == []


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


def test_callables_without_torch_end_their_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    realizer, logits = Realizer(VOCABULARY), np.zeros((2, VOCABULARY), np.float32)
    realizer.add(0, compile_specs([python(in_place)]), [], [], STOP)
    realizer.add(1, compile_specs([s.AllowedTokensSpec((5,))]), [], [], STOP)
    realizer.apply(logits)
    assert logits.argmax(1).tolist() == [STOP, 5]
    assert realizer.failed_requests == 1


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


FORCE_1 = s.ForcedTokenSequenceSpec((1,), 1)


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


@pytest.mark.parametrize(
    ("dtype", "editor"),
    [(torch.float32, None), (torch.float16, None), (torch.float32, TensorEditor)],
)
def test_a_row_beyond_the_logits_writes_nowhere(
    dtype: torch.dtype, editor: Any, caplog: pytest.LogCaptureFixture
):
    """Compiled loops check no bounds: a backend that never removes requests has such rows.

    A GPU checks some, and ends the process.
    """
    memory = torch.zeros((4, 8), dtype=dtype)
    realizer = Realizer(8, lambda specs: compile_specs(specs))
    if editor is not None:
        realizer._editor = editor()
    for row in range(3):
        realizer.enter(row, (s.BannedTokensSpec((5,)),), [], [], 0)
    realizer.apply(memory[:1])
    assert realizer.failed_requests == 3
    assert "Row 2 is beyond the logits of 1 rows" in caplog.text
    assert not memory[1:].any()
