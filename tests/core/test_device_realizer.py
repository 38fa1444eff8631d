"""``DeviceRealizer`` on batches as an engine has them that keeps its tokens on the device."""

import gc
import random
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from logitport.adapters.core import (
    AutomatonBuilder,
    compile_specs,
)
from logitport.adapters.reference import edits
from logitport.spec import (
    BannedTokensSpec,
    DrySpec,
    ForcedEndSpec,
    LogitBiasSpec,
    LogitsProcessorSpec,
    MinTokensSpec,
    NoRepeatNgramSpec,
    PromptBiasSpec,
    ThinkingBudgetSpec,
    TriggerSpec,
)
from logitport.spec.kinds.dry import MAX_MATCHES
from logitport.spec.limits import MAX_HISTORY_RULES

from tests.support import scripts
from tests.support.life_cycle import LifeCycleTests
from tests.support.requests import (
    END,
    ONE_OF_EACH,
    STOP,
    VOCABULARY,
    BrokenError,
    Request,
    Rule,
    assert_row,
    break_updates,
    python,
    raises,
    random_logits,
    writes_and_raises,
)

pytest.importorskip("triton")
from logitport.adapters.core.device import (
    edit_kernel,
    history_kernels,
    pool,
    search,
)
from logitport.adapters.core.device import realizer as device_realizer
from logitport.adapters.core.device.context import LogitsLayout
from logitport.adapters.core.device.realizer import DeviceRealizer

from tests.support.device_engine import LONGEST, SLOTS, Device, Engine
from tests.support.lives import lead
from tests.support.seeds import seeds

pytestmark = pytest.mark.device


@pytest.fixture
def engine(device: torch.device) -> Engine:
    return Engine(device)


def free_run(engine: Engine, slots: Sequence[int], steps: int, drafts: int = 2) -> None:
    """Steps with drafts of which some are accepted, in an order of rows that changes."""
    numbers = np.random.default_rng(0)
    for step in range(steps):
        order = numbers.permutation(slots).tolist()
        given = {
            slot: numbers.integers(0, VOCABULARY, numbers.integers(drafts + 1)).tolist()
            for slot in order
        }
        engine.check(given, seed=step)
        for slot in order:
            accepted = int(numbers.integers(len(given[slot]) + 1))
            sampled = int(numbers.integers(VOCABULARY))
            engine.accept(slot, [*given[slot][:accepted], sampled])


@pytest.mark.parametrize("seed", seeds(2, 6))
def test_any_lives(device: torch.device, seed: int) -> None:
    lead(Device, seed, 25)


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("fontTools"), reason="fonttools is missing")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_bans_of_most_tokens(device: torch.device, dtype: torch.dtype) -> None:
    """They stay bans beside lists and choices, in whatever order the specs come."""
    engine = Engine(device, vocabulary=len(scripts.BYTES), slots=len(scripts.CASES))
    of_slot = {engine.add(Request(), scripts.compiled(specs)): specs for _, specs in scripts.CASES}
    drafts: dict[int, list[int]] = {slot: [0] for slot in of_slot}
    before = random_logits(2 * len(of_slot), engine.vocabulary, 1, dtype)
    after, of_rows = engine.apply(drafts, before)
    for row, (slot, drafted) in enumerate(of_rows):
        acting = scripts.edits_of(of_slot[slot], [0][:drafted])
        assert_row(before[row], after[row], acting)


BLOCK, TILE = 1024, search.TILE
TAGS = {"start_token_ids": (1, 2), "end_token_ids": (3, 3, 4), "message_token_ids": (6,)}


@pytest.mark.parametrize(
    ("spec", "prompt"),
    [
        pytest.param(ThinkingBudgetSpec(BLOCK + 9, **TAGS), [1, 2] + [5] * (BLOCK + 7), id="open"),
        pytest.param(ThinkingBudgetSpec(3, **TAGS), [1, 2] + [5] * 2 * BLOCK, id="overdrawn"),
        pytest.param(
            ThinkingBudgetSpec(3, **TAGS), [5] * (BLOCK - 1) + [1, 2, 0], id="tag across blocks"
        ),
        pytest.param(
            ThinkingBudgetSpec(3, **TAGS), [1, 2] + [3, 5] * 200 + [3, 3, 4], id="half end tags"
        ),
        pytest.param(
            ThinkingBudgetSpec(3, **TAGS),
            [1, 2] + [5] * 9 + [3, 3, 4, 5],
            id="overdrawn and closed",
        ),
        pytest.param(NoRepeatNgramSpec(3), [5, 6, 7] + [0] * 2 * BLOCK + [5, 6], id="n-gram"),
        pytest.param(
            NoRepeatNgramSpec(2, BLOCK + 3), [5, 6] + [0] * BLOCK + [6, 5], id="n-gram, window"
        ),
        pytest.param(
            NoRepeatNgramSpec(2), [5] * (BLOCK - 1) + [3], id="n-gram, a block of its own"
        ),
        *(
            pytest.param(
                NoRepeatNgramSpec(64),
                [5] * length,
                id=f"one token {length} times",
                marks=pytest.mark.slow if length > 64 else (),
            )
            for length in (63, 64, TILE - 64, TILE - 63, 2 * TILE)
        ),
        pytest.param(
            NoRepeatNgramSpec(9), [1, 2, 3, 4, 5, 6, 3, 7] * 500, id="n-grams across tiles"
        ),
        pytest.param(DrySpec(1.0, 1.1), [5, 6, 7] + [0] * 2 * BLOCK + [5, 6], id="repetition"),
        pytest.param(DrySpec(1.0, 1.1, 64), [5] * 2 * TILE, id="one token, repeated"),
        pytest.param(PromptBiasSpec(3.0, (2,)), [2, 3] + [0] * BLOCK + [4], id="bias"),
    ],
)
def test_long_prompts(device: torch.device, spec: LogitsProcessorSpec, prompt: list[int]) -> None:
    engine = Engine(device, longest=5 * BLOCK)
    slots = [engine.add(Request((spec,), [*prompt])) for _ in range(2)]  # see ``Engine.add``
    for step, draft in enumerate([[6, 3], [], [3], [3, 3], [3, 4], [5, 1, 2], [0]]):
        engine.check(dict.fromkeys(slots, draft), seed=step)
        for slot in slots:
            engine.accept(slot, [*draft, 5])


@pytest.mark.parametrize(
    ("spec", "prompt", "output"),
    [
        pytest.param(ThinkingBudgetSpec(3, **TAGS), [1, 2, 5, 5], [5], id="thinking budget"),
        pytest.param(TriggerSpec((5, 6), (3, 4)), [5], [6, 5, 6], id="trigger"),
    ],
)
def test_tokens_that_the_host_has_read(
    device: torch.device, spec: LogitsProcessorSpec, prompt: list[int], output: list[int]
) -> None:
    """No automaton reads them again."""
    engine = Engine(device)
    request = Request((spec,), prompt, output)
    slot = engine.add(request)
    engine.realizer.add(slot, request.program, prompt, output, request.stop)
    engine.token_ids[slot, : len(prompt) + len(output)] = 0  # nothing has begun with these
    for step, draft in enumerate([[5, 6], [], [3]]):
        engine.check({slot: draft}, seed=step)
        engine.accept(slot, [*draft, 5])


def test_prompt_tokens_that_the_vocabulary_does_not_have(device: torch.device) -> None:
    engine = Engine(device)
    images = [99, 8, 31, 32, -1]  # placeholders; some of them have a bit in a mask of whole words
    slot = engine.add(Request((PromptBiasSpec(3.0), NoRepeatNgramSpec(1)), [2, *images, 4]))
    after, _ = engine.apply({slot: []}, torch.zeros(1, VOCABULARY + 40))
    assert after.nonzero().tolist() == [[0, 2], [0, 4]]


@pytest.mark.parametrize("spec", ONE_OF_EACH, ids=lambda spec: spec.kind)
def test_resumed_with_a_long_output(device: torch.device, spec: LogitsProcessorSpec) -> None:
    """Folding many tokens at once is taking them one by one."""
    output = np.random.default_rng(1).integers(0, VOCABULARY, 300).tolist()
    engine = Engine(device, longest=4 * BLOCK)
    for request in (
        Request((spec,), [1, 5, 2, 1], output),
        Request((spec,), [1, 5, 2, 1], [0] * 2 * BLOCK),
        Request((ThinkingBudgetSpec(3, **TAGS),), [1, 2, 5, 5, 5, 5], [5, 6, 5, 5]),
        Request((MinTokensSpec(1500, (1,)), ForcedEndSpec(2 * BLOCK, (5, 6))), [], [0] * 1499),
        Request((MinTokensSpec(1500, (1,)), ForcedEndSpec(1499, (5, 6))), [], [0] * 1500),
    ):
        slot = engine.add(request)
        engine.check({slot: [5, 6]})
        engine.finish(slot)


def test_a_slot_forgets_automata_that_its_request_does_not_have(device: torch.device) -> None:
    """The steps of a request alone do not look at them; those beside others do."""
    engine = Engine(device, slots=2)
    many = (ForcedEndSpec(0, (5,) * 9), MinTokensSpec(9, (1,)))
    slot = engine.add(Request(many, [1]))
    engine.check({slot: []})
    engine.accept(slot, [5])
    engine.check({slot: []})
    engine.finish(slot)
    engine.finish(engine.add(Request((), [1])))
    assert engine.add(Request((BannedTokensSpec((3,)),), [1])) == slot
    engine.check({slot: []})
    other = engine.add(Request(many, [1]))
    engine.check({slot: [], other: []})


def test_a_request_without_specs_is_not_read(device: torch.device) -> None:
    engine = Engine(device)
    slots = [engine.add(Request(specs, [1] * 300)) for specs in ((), ONE_OF_EACH[:1])]
    engine.check({slot: [] for slot in slots})
    _, lengths = engine.realizer._advance._kept
    assert lengths[0, slots].tolist() == [1 << 30, 300]


@pytest.mark.parametrize("seed", seeds(3, 8))
def test_repetitions_of_any_kind(
    device: torch.device, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In tiles of a few candidates each, with drafts."""
    monkeypatch.setattr(search, "TILE", 128)
    numbers = random.Random(seed)
    engine = Engine(device)
    slots: list[int] = []
    for _ in range(3):
        spec = DrySpec(
            1.0,
            numbers.choice((1.0, 1.1, 2.0)),
            numbers.choice((1, 2, 3, 64)),
            numbers.choice((None, 3, 20, 90, 200)),
            tuple(numbers.sample(range(VOCABULARY), numbers.randint(0, 2))),
        )
        prompt = numbers.choices(range(numbers.randint(1, 4)), k=numbers.randint(0, 300))
        slots.append(engine.add(Request((spec,), prompt)))
    free_run(engine, slots, 6, drafts=3)
    assert engine.realizer.failed_requests == 0


@pytest.mark.parametrize("seed", seeds(3, 8))
def test_ngram_rules_of_any_kind(
    device: torch.device, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In tiles of a few candidates each, with drafts."""
    monkeypatch.setattr(search, "TILE", 128)
    numbers = random.Random(seed)
    engine = Engine(device)
    slots: list[int] = []
    for _ in range(3):
        rules = tuple(
            NoRepeatNgramSpec(
                n,
                numbers.choice((None, n, n + 5, n + 90)),
                tuple(numbers.sample(range(VOCABULARY), numbers.randint(0, 2))),
                numbers.random() < 0.3,
            )
            for n in numbers.choices((1, 2, 3, 5, 64), k=numbers.randint(1, MAX_HISTORY_RULES))
        )
        tokens = numbers.choices(range(numbers.randint(1, 3)), k=numbers.randint(0, 300))
        end = numbers.randint(0, len(tokens))
        slots.append(engine.add(Request(rules, tokens[:end], tokens[end:])))
    free_run(engine, slots, 6, drafts=3)
    assert engine.realizer.failed_requests == 0


def test_time_outs_that_lead_to_others(engine: Engine, install: Any) -> None:
    builder = AutomatonBuilder()
    first, second = builder.free(timer=0), builder.force(2)
    third, fourth = builder.free(timer=0), builder.force(3)
    builder.timeout(first, third)
    builder.timeout(third, fourth)
    builder.default(fourth, second)
    slot = engine.add(Request((install(builder.build()),)))
    after, _ = engine.apply({slot: [3]}, torch.zeros(2, VOCABULARY))
    assert after.argmax(1).tolist() == [3, 2]


def test_rows_that_are_no_drafts(device: torch.device) -> None:
    """An engine may pad a request's rows with tokens that are none; what is sampled there is not
    kept, and its next step is not disturbed.
    """

    def no_gaps(output_ids: list[int], logits: torch.Tensor) -> None:
        assert -1 not in output_ids

    engine = Engine(device, slots=len(ONE_OF_EACH) + 1)
    code = python(no_gaps)
    slots = [engine.add(Request((spec,), [1, 5, 2, 1])) for spec in (*ONE_OF_EACH, code)]
    engine.apply({slot: [-1, -1] for slot in slots}, torch.zeros(3 * len(slots), VOCABULARY))
    engine.finish(slots.pop())
    free_run(engine, slots, 3)
    assert engine.realizer.failed_requests == 0


# --- code of a request's own ---


def test_code_sees_drafts_as_output(engine: Engine, install: Any) -> None:
    histories: list[tuple[list[int], list[int]]] = []

    def favour_newest(prompt: Sequence[int], output: Sequence[int]) -> dict[int, float]:
        histories.append((list(prompt), list(output)))
        return {output[-1]: 4.0}

    rule = Rule(favour_newest)
    other = engine.add(Request((BannedTokensSpec((2,)),)))
    slot = engine.add(Request((install(rule),), [1, 2], [3]))
    before = torch.zeros(4, VOCABULARY)
    after, _ = engine.apply({other: [], slot: [4, 5]}, before)
    assert histories == [([1, 2], [3]), ([1, 2], [3, 4]), ([1, 2], [3, 4, 5])]
    assert after[1:].nonzero().tolist() == [[0, 3], [1, 4], [2, 5]]
    assert after[0].nonzero().tolist() == [[2]]


def test_code_is_not_run_where_there_is_no_history(engine: Engine, install: Any) -> None:
    """An engine that measures its memory has slots, and rows of logits, but no requests."""
    rule, called = Rule(raises), python(writes_and_raises)
    slots = [engine.add(Request((spec,))) for spec in (install(rule), called, *ONE_OF_EACH[:2])]
    before = torch.zeros(4, VOCABULARY)
    after, _ = engine.apply({slot: [] for slot in slots}, before)
    assert torch.equal(after[:2], before[:2])
    assert not torch.equal(after[2:], before[2:])
    assert engine.realizer.failed_requests == 0


class TestLifeCycle(LifeCycleTests):
    """With the device's engine."""


@pytest.mark.parametrize(
    "edit",
    [
        (device_realizer, "add"),
        (history_kernels.HistoryKernels, "launch"),
        (edit_kernel.EditKernel, "launch"),
    ],
    ids=lambda edit: f"{edit[0].__name__.rpartition('.')[2]}.{edit[1]}",
)
@pytest.mark.parametrize("times", [1, 2, 1000])
def test_an_edit_that_fails(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, install: Any, edit: Any, times: int
) -> None:
    """Once: all edits are made, each once. Otherwise the requests of the step are ended."""
    bias = LogitBiasSpec({3: 1.5})
    specs = (NoRepeatNgramSpec(1), PromptBiasSpec(2.0), bias, DrySpec(1.0, 1.1, 1))
    spec = install(Rule(lambda *_: {3: 1.5}))
    one, other, away = (engine.add(Request((spec, *specs), [1, 5])) for _ in range(3))
    free = engine.add(Request())
    with monkeypatch.context() as context:
        break_updates(context, edit, range(times))
        before = random_logits(6, VOCABULARY, 0, torch.float32)
        after, of_rows = engine.apply({one: [1, 2], other: [1], free: []}, before)
    for row, (slot, drafts) in enumerate(of_rows):
        if slot == free:
            assert torch.equal(after[row], before[row])
        elif times > 1:
            assert after[row].argmax() == STOP
        else:
            expected = edits((bias, *specs), [1, 5], [1, 2][:drafts])
            assert_row(before[row], after[row], expected)
    assert engine.realizer.failed_requests == (0 if times == 1 else 2)
    after, _ = engine.apply({other: [], away: []}, before)
    mine = edits((bias, *specs), [1, 5], [])
    assert_row(before[0], after[0], mine if times == 1 else END)
    assert_row(before[1], after[1], mine)


class NoMemory:
    """Fails at the n-th call, and at those after it."""

    def __init__(self, call: Any, n: int, times: int) -> None:
        self._call, self._left, self._times = call, n, times

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        self._left -= 1
        if -self._times < self._left <= 0:
            raise torch.OutOfMemoryError
        return self._call(*arguments, **keywords)


@pytest.mark.parametrize(("n", "times"), [*((n, 3) for n in range(1, 14)), (1, 1), (7, 2)])
def test_no_memory_for_tables(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, n: int, times: int
) -> None:
    """Wherever it is that memory is short while the tables grow: for a moment, or longer."""
    engine = Engine(device)
    older, free = engine.add(Request((ONE_OF_EACH[0],), [1, 5])), engine.add(Request())
    engine.check({older: []})
    big = (BannedTokensSpec((1, 2, 3)), ForcedEndSpec(300, (1,) * 90), TriggerSpec((1,), (2,)))
    newcomer = engine.add(Request(big, [1, 5]))
    no_memory = NoMemory(pool.DeviceArray.write, n, times)
    monkeypatch.setattr(pool.DeviceArray, "write", lambda *arguments: no_memory(*arguments))
    if times < 3:  # `upload` tries, and `apply` twice
        engine.check({newcomer: []})
    else:
        after, _ = engine.apply({newcomer: []}, torch.zeros(1, VOCABULARY))
        assert after.argmax() == STOP
    assert no_memory._left <= 0
    assert engine.realizer.failed_requests == (times == 3)
    engine.check({older: [], free: []})
    slots = [engine.add(Request((spec,), [1, 5])) for spec in (*big, PromptBiasSpec(1.0))[1:]]
    free_run(engine, slots, 3)


def test_a_reply_ends_where_only_banned_tokens_are_left(device: torch.device) -> None:
    """At each row of a request whose program has a token for that, drafts included."""
    engine, bans = Engine(device), compile_specs([BannedTokensSpec((5, 6))])
    ends, others = (engine.add(Request(), each) for each in (replace(bans, end_token=7), bans))
    before = torch.full((4, VOCABULARY), -torch.inf)
    before[[0, 2, 3], 5] = 1.0
    before[1, 4] = 1.0
    for _ in range(2):
        after, _ = engine.apply({ends: [4, 4], others: []}, before)
        assert after.argmax(1).tolist() == [7, 4, 7, 5]
    for end_token in (None, -1, VOCABULARY, 2**40):  # none of the vocabulary's
        engine.finish(ends)
        engine.free = [ends]
        ends = engine.add(Request(), replace(bans, end_token=end_token))
        after, _ = engine.apply({ends: []}, before)
        assert int(after.argmax()) == 5
    assert engine.realizer.failed_requests == 0


def test_requests_enter(device: torch.device) -> None:
    """With what acts on them, with nothing, or to be ended."""
    acting = compile_specs((BannedTokensSpec((1,)),))
    realizer = DeviceRealizer(VOCABULARY, 3, device, lambda name: {"acts": acting, "": None}[name])
    assert realizer.enter(0, "acts", [], [], STOP)
    assert not realizer.enter(1, "", [], [], STOP)
    for failed in (1, 2):  # an engine may leave a request in its slot until another one comes
        assert realizer.enter(2, "unknown", [], [], STOP)  # to be ended
        assert realizer.failed_requests == failed
    assert not realizer.enter(2, "unknown", [], [])
    assert not realizer.enter(0, "", [], [], STOP)
    assert not len(realizer)


def test_a_device_that_does_nothing_for_us(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """Requests are ended; those that go on nevertheless do so without their specs."""
    slots = [engine.add(Request((spec,), [1, 5])) for spec in ONE_OF_EACH[:2]]
    before = random_logits(3, VOCABULARY, 0, torch.float32)
    with monkeypatch.context() as context:
        context.setattr(edit_kernel.EditKernel, "launch", raises)
        for _ in range(2):
            after, _ = engine.apply({slot: [] for slot in slots}, before)
            assert after.argmax(1).tolist() == [STOP, STOP]
        after, _ = engine.apply({slot: [] for slot in slots}, before)
        assert torch.equal(after, before[:2])
    assert sum("cannot be realized" in record.getMessage() for record in caplog.records) == 2
    assert sum("without its specs" in record.getMessage() for record in caplog.records) == 2
    assert engine.realizer.failed_requests == 2
    assert not len(engine.realizer)
    free_run(engine, [engine.add(Request((spec,), [1, 5])) for spec in ONE_OF_EACH[:3]], 3)


def test_no_memory_for_notes(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """One kernel writes two arrays for the other. Both have room if memory is short for one."""
    slot = engine.add(Request((DrySpec(2.0, 1.5, 1),), [1, 5, 2, 1]))
    new_empty, failed = torch.Tensor.new_empty, list[int]()

    def no_memory(tensor: torch.Tensor, *size: Any, **keywords: Any) -> torch.Tensor:
        if size == (4 * MAX_MATCHES,) and not failed:  # two rows, and room for twice as many
            failed.append(1)
            raise torch.OutOfMemoryError
        return new_empty(tensor, *size, **keywords)

    monkeypatch.setattr(torch.Tensor, "new_empty", no_memory)
    engine.check({slot: [5]})
    assert failed
    engine.check({slot: [5, 5]})
    assert engine.realizer.failed_requests == 0


def test_a_device_without_memory(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests of the step are ended without tables; others come again when there is memory."""
    older, away = (engine.add(Request((spec,), [1, 5])) for spec in ONE_OF_EACH[:2])
    engine.check({older: [], away: []})
    gone = engine.add(Request(ONE_OF_EACH[:1], [1, 5], stop=None))
    slots = [engine.add(Request((spec,), [1, 5])) for spec in ONE_OF_EACH[:2]]
    before = random_logits(4, VOCABULARY, 0, torch.float32)
    with monkeypatch.context() as context:
        context.setattr(pool.DeviceArray, "write", raises)
        after, _ = engine.apply({slot: [] for slot in (gone, older, *slots)}, before)
    assert torch.equal(after[0], before[0])
    assert after[1:].argmax(1).tolist() == [STOP] * 3
    assert engine.realizer.failed_requests == 4
    after, _ = engine.apply({slot: [] for slot in (gone, older, *slots)}, before)
    for row, acting in enumerate(([], END, END, END)):
        assert_row(before[row], after[row], acting)
    free_run(engine, [away], 3)


@pytest.mark.parametrize(
    "broken", [(edit_kernel.EditKernel, "launch"), (pool.DeviceArray, "write")]
)
def test_an_engine_does_not_start_without_its_kernels(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, broken: tuple[type, str]
) -> None:
    monkeypatch.setattr(*broken, raises)
    with pytest.raises(BrokenError, match="on purpose"):
        DeviceRealizer.warm_up(VOCABULARY, engine.history, VOCABULARY)


def tensors_of(part: object) -> Iterator[torch.Tensor]:
    if isinstance(part, torch.Tensor):
        yield part
    elif isinstance(part, dict):
        for value in part.values():
            yield from tensors_of(value)
    elif type(part).__module__.startswith("logitport"):
        yield from tensors_of(getattr(part, "__dict__", {}))


class Configuration:
    """What is asked of vLLM's."""

    kv_transfer_config = None
    use_v2_model_runner = True
    model_config = SimpleNamespace(
        get_vocab_size=lambda: VOCABULARY, model="model", served_model_name=None
    )
    additional_config = None


@pytest.fixture
def processor(engine: Engine) -> Any:
    """As vLLM's V2 model runner makes it."""
    pytest.importorskip("vllm")
    from logitport.adapters.vllm import LogitportProcessor

    states: Any = SimpleNamespace(
        all_token_ids=SimpleNamespace(gpu=engine.token_ids),
        prompt_len=SimpleNamespace(gpu=engine.prompt_lengths),
        total_len=SimpleNamespace(gpu=engine.lengths),
        max_num_reqs=SLOTS,
        vocab_size=VOCABULARY,
        device=engine.device,
    )
    configuration: Any = Configuration()
    return LogitportProcessor(configuration, states)


@pytest.mark.slow
def test_an_engine_that_ends_takes_its_realizer_with_it(processor: Any) -> None:
    """Its memory on the device is not kept until Python looks for cycles."""
    gc.disable()
    try:
        instance = type(processor)(processor._vllm_config, processor._batch._states)
        realizer = weakref.ref(instance._batch.realizer)
        del instance
        assert realizer() is None
    finally:
        gc.enable()


def test_an_engine_that_sleeps_can_take_nothing_away(processor: Any) -> None:
    """vLLM discards at sleep level 2 what was allocated while it was loading."""
    realizer = processor._batch.realizer
    assert realizer.failed_requests == 0
    on_device = list(tensors_of(realizer))
    assert len(on_device) > 10
    assert not any(tensor.untyped_storage().nbytes() for tensor in on_device)


def test_nothing_to_do(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch without specs launches nothing, although a slot that is not in it has some."""
    free, other = engine.add(Request()), engine.add(Request(ONE_OF_EACH[:1]))
    engine.apply({other: []}, torch.zeros(1, VOCABULARY))
    monkeypatch.setattr(engine.realizer, "_step", raises)
    before = random_logits(1, VOCABULARY, 0, torch.float32)
    after, _ = engine.apply({free: []}, before)
    assert torch.equal(after, before)


@pytest.mark.gpu
def test_never_waits_for_the_device(engine: Engine) -> None:
    if engine.device.type != "cuda":
        pytest.skip("needs a GPU")
    engine = Engine(engine.device, slots=len(ONE_OF_EACH))
    slots = [engine.add(Request((spec,), [1, 5, 2, 1])) for spec in ONE_OF_EACH]
    engine.check({slot: [1, 2] for slot in slots})
    numbers = np.array(slots)
    rows = torch.tensor(slots, dtype=torch.int32, device=engine.device)
    logits = torch.zeros(len(slots), VOCABULARY, device=engine.device)
    torch.cuda.set_sync_debug_mode("error")
    try:
        program = compile_specs((ONE_OF_EACH[3], ONE_OF_EACH[-1]))
        engine.realizer.add(slots[0], program, [1, 5], [], STOP)  # tables are uploaded
        engine.realizer.upload(engine.history)
        step = LogitsLayout(rows, torch.zeros_like(rows), rows)
        engine.realizer.apply(logits, engine.history, step, numbers, LONGEST)
    finally:
        torch.cuda.set_sync_debug_mode("default")
