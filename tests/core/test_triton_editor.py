"""The Triton kernel edits as ``TensorEditor`` does: in Triton's interpreter, and on a GPU."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from logitport import spec as s
from logitport.adapters.core import AutomatonBuilder, Edit, Program, Realizer, compile_specs
from logitport.adapters.core.host.tensor_editors import HostTensorEditor, TensorEditor
from logitport.adapters.core.kinds.simple import ADDING
from logitport.adapters.core.parts import Acting
from logitport.adapters.core.tensors import highest_logit
from logitport.spec import LogitsProcessorSpec

from tests.support.host_driver import Host
from tests.support.lives import lead
from tests.support.seeds import seeds

pytest.importorskip("triton")
from logitport.adapters.core.device import edit_kernel, pool
from logitport.adapters.core.host import triton_editor

pytestmark = pytest.mark.device

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
BLOCK = edit_kernel.BLOCK_SIZE
VOCABULARY = 2 * BLOCK + 100


class Pair:
    """Two realizers of the same requests: one with each editor."""

    def __init__(self, device: torch.device, vocabulary: int = VOCABULARY) -> None:
        self.device, self.vocabulary = device, vocabulary
        self.outputs: dict[int, list[int]] = {}
        self.plain, self.triton = Realizer(vocabulary), Realizer(vocabulary)
        self.plain._editor = TensorEditor()
        self.editor = triton_editor.TritonEditor(device)
        self.triton._editor = self.editor

    def add(self, row: int, *specs: LogitsProcessorSpec, program: Program | None = None) -> None:
        self.outputs[row] = []
        for realizer in (self.plain, self.triton):
            realizer.add(row, program or compile_specs(specs), [1, 2, 3], self.outputs[row])

    def remove(self, row: int) -> None:
        del self.outputs[row]
        self.plain.remove(row)
        self.triton.remove(row)

    def swap(self, a: int, b: int) -> None:
        self.plain.swap(a, b)
        self.triton.swap(a, b)
        outputs = {a: self.outputs.pop(b, None), b: self.outputs.pop(a, None)}
        self.outputs |= {row: ids for row, ids in outputs.items() if ids is not None}

    def step(self, logits: torch.Tensor, rounding: float = 0) -> torch.Tensor:
        """Apply both to the logits, on the CPU; returns them as edited and compared."""
        expected = logits.clone()
        self.plain.apply(expected)
        actual = _like(logits, self.device)
        self.triton.apply(actual)
        torch.testing.assert_close(actual.cpu(), expected, rtol=rounding, atol=0)
        assert self.editor._kernel is None or not self.editor._kernel._progress.any()
        return expected

    def choose(self, logits: torch.Tensor) -> None:
        """Each request goes on with the likeliest token."""
        for row, ids in self.outputs.items():
            ids.append(int(logits[row].argmax()))


def _like(logits: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A copy on a device with the same distances in memory, which ``to`` would not keep."""
    copy = torch.empty_strided(logits.shape, logits.stride(), dtype=logits.dtype, device=device)
    return copy.copy_(logits)


def random_logits(
    rng: np.random.Generator, rows: int, columns: int, dtype: torch.dtype
) -> torch.Tensor:
    """Halves, so that sums of a few are exact in any type; some cells and one row are masked."""
    logits = torch.from_numpy(rng.integers(-8, 9, (rows, columns)) / 2).to(dtype)
    logits[torch.from_numpy(rng.random((rows, columns)) < 0.1)] = -torch.inf
    logits[int(rng.integers(rows))] = -torch.inf
    return logits


class Triton(Host):
    """Its logits are edited by the kernel."""

    arrays = False

    def _new(self) -> Any:
        core = super()._new()
        core._editor = triton_editor.TritonEditor(torch.device(self.device))
        return core


@pytest.mark.parametrize("seed", seeds(2, 6))
def test_any_lives(device: torch.device, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(Host, "device", device.type)
    lead(Triton, seed, 40)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_lists_of_any_length(device: torch.device, dtype: torch.dtype) -> None:
    rng = np.random.default_rng(0)
    pair = Pair(device)
    sizes = (1, 1023, 1024, 1025, BLOCK, VOCABULARY - 1, VOCABULARY)
    shuffled = [rng.permutation(VOCABULARY)[:size].tolist() for size in sizes]
    for i, tokens in enumerate(shuffled):
        pair.add(4 * i, s.BannedTokensSpec(tokens))
        pair.add(4 * i + 1, s.LogitBiasSpec(dict.fromkeys(tokens, 3.0)))
        pair.add(4 * i + 2, s.AllowedTokensSpec(tokens))
        pair.add(
            4 * i + 3, s.AllowedTokensSpec(tokens), s.LogitBiasSpec(dict.fromkeys(tokens, -2.0))
        )
    builder = AutomatonBuilder()
    builder.add(builder.token_set(()))
    pair.add(4 * len(sizes), program=Program((Acting(builder.build()),)))
    pair.step(random_logits(rng, 4 * len(sizes) + 2, VOCABULARY + 50, dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bans_of_all_other_tokens(device: torch.device, dtype: torch.dtype) -> None:
    """Beside every other edit, before and after it, over several blocks of columns."""
    rng = np.random.default_rng(0)
    kept = np.sort(rng.permutation(VOCABULARY)[: VOCABULARY // 3]).tolist()
    ban, last = np.array([Edit.BAN_OTHERS], np.int8), VOCABULARY - 1
    bans = ADDING.of_tokens(kept, edit=ban), ADDING.of_tokens([*kept[5:], last], edit=ban)
    tokens = (*kept[:50], *range(9, VOCABULARY, 7))
    beside: tuple[tuple[LogitsProcessorSpec, ...], ...] = (
        (),
        (s.AllowedTokensSpec(tokens),),
        (s.AllowedTokensSpec(tokens), s.AllowedTokensSpec(tokens[9:])),
        (s.BannedTokensSpec(tokens), s.LogitBiasSpec(dict.fromkeys(kept, 2.0))),
        (s.ForcedTokenSequenceSpec((last,)), s.BannedTokensSpec((last,))),
    )
    pair = Pair(device)
    for row, specs in enumerate(beside):
        automata = compile_specs(specs).automata
        for i, parts in enumerate(((bans[0], *automata), (*automata, bans[0]), (*bans, *automata))):
            pair.add(3 * row + i, program=Program(tuple(map(Acting, parts))))
    rounding = 0 if dtype == torch.float32 else 2 * torch.finfo(dtype).eps
    pair.step(random_logits(rng, 3 * len(beside), VOCABULARY, dtype), rounding)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("blocks", [1, 3])
def test_texts_at_the_end(device: torch.device, dtype: torch.dtype, blocks: int) -> None:
    """The ends are in other blocks of columns than the token that gets their mass."""
    vocabulary = blocks * BLOCK
    last, many = vocabulary - 1, tuple(range(9, vocabulary, vocabulary // 60))
    kept = (0, 3, last)
    one, two, most = ((last,), 1.0), ((3, last), 0.7), (many, 0.0)
    beside: tuple[tuple[LogitsProcessorSpec, ...], ...] = (
        (),
        (s.AllowedTokensSpec(kept),),
        (s.AllowedTokensSpec((0, 5)),),
        (s.AllowedTokensSpec(kept), s.AllowedTokensSpec((3,))),
        (s.BannedTokensSpec((3,)), s.LogitBiasSpec({last: 2.0})),
        (s.ForcedTokenSequenceSpec((last,)),),
        (s.ForcedTokenSequenceSpec((last,)), s.AllowedTokensSpec(kept)),
        (s.ForcedTokenSequenceSpec((6,)), s.AllowedTokensSpec(kept)),
    )
    specs = [(*specs, s.AtEndSpec((5, 7), *ends)) for specs in beside for ends in (one, two, most)]
    pair = Pair(device, vocabulary)
    for row, each in enumerate(specs):
        pair.add(row, *each)
    bans = ADDING.of_tokens(range(vocabulary - 2), edit=np.array([Edit.BAN_OTHERS], np.int8))
    ends = compile_specs((s.AtEndSpec((5, 7), *two),)).automata
    pair.add(len(specs), program=Program((Acting(ends[0]), Acting(bans))))
    pair.add(len(specs) + 1, s.AtEndSpec((5, 7), *two))
    logits = random_logits(np.random.default_rng(0), len(specs) + 2, vocabulary, dtype)
    logits[-1, [3, last]] = -torch.inf
    edited = pair.step(logits, 2 * torch.finfo(dtype).eps)
    assert torch.isneginf(edited[:, last]).sum() >= 2 * len(beside)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("blocks", [1, 3])
def test_contradictions(device: torch.device, dtype: torch.dtype, blocks: int) -> None:
    """What wins, row by row, and how often it does."""
    vocabulary = blocks * BLOCK
    last = vocabulary - 1
    rows: Sequence[tuple[LogitsProcessorSpec, ...]] = (
        (s.ForcedTokenSequenceSpec((last,)), s.BannedTokensSpec((last,))),
        (s.ForcedTokenSequenceSpec((last,)), s.AllowedTokensSpec((0, 3))),
        (s.ForcedTokenSequenceSpec((last,)), s.ForcedTokenSequenceSpec((0,))),
        (
            s.ForcedTokenSequenceSpec((5,)),
            s.BannedTokensSpec((6,)),
            s.ForcedTokenSequenceSpec((6,)),
        ),
        (s.AllowedTokensSpec((0, 3, last)), s.AllowedTokensSpec((3, 4))),
        (s.AllowedTokensSpec((0, last)), s.AllowedTokensSpec((3, 4))),
        (s.AllowedTokensSpec((0, last)), s.BannedTokensSpec((0, last))),
        (s.AllowedTokensSpec((0, last)), s.AllowedTokensSpec((0,)), s.AllowedTokensSpec((last,))),
        (s.AllowedTokensSpec((2, last)), s.BannedTokensSpec((2,))),
        # Everything that is allowed is masked by the engine, below.
        (s.AllowedTokensSpec((2, last)),),
        (s.AllowedTokensSpec((2, last)), s.ForcedTokenSequenceSpec((last,))),
        (s.AllowedTokensSpec((2, last)), s.ForcedTokenSequenceSpec((7,))),
    )
    logits = torch.from_numpy(
        np.random.default_rng(0).integers(-8, 9, (len(rows), vocabulary)) / 2
    ).to(dtype)
    logits[-3:, [2, last]] = -torch.inf
    pair = Pair(device, vocabulary)
    for row, specs in enumerate(rows):
        pair.add(row, *specs)
    edited = pair.step(logits)
    banned = torch.tensor([-highest_logit(dtype)] * 2, dtype=dtype)
    assert edited[-3, [2, last]].equal(banned)
    assert edited[-2:].argmax(1).tolist() == [last, 7]


@pytest.mark.parametrize("layout", ["strided", "transposed", "one column more", "shifted"])
def test_layouts(device: torch.device, layout: str) -> None:
    rng = np.random.default_rng(0)
    values = random_logits(rng, 4, VOCABULARY, torch.float32)
    room = torch.full((4, VOCABULARY + 7), 3.0)
    logits = {
        "strided": room[:, :VOCABULARY],
        "transposed": torch.empty(VOCABULARY, 4).T,
        "one column more": room[:, : VOCABULARY + 1],
        "shifted": room[:, 3 : VOCABULARY + 3],
    }[layout]
    logits[:, :VOCABULARY] = values
    pair = Pair(device)
    pair.add(0, s.AllowedTokensSpec((1, VOCABULARY - 1)))
    pair.add(1, s.BannedTokensSpec(tuple(range(VOCABULARY))))
    pair.add(3, s.ForcedTokenSequenceSpec((VOCABULARY - 1, 2)), s.NoRepeatNgramSpec(1, None, ()))
    pair.step(logits)


def test_nothing_is_written_between_rows(device: torch.device) -> None:
    room = torch.full((3, 64), 3.0, device=device)
    pair = Pair(device, 50)
    pair.add(0, s.AllowedTokensSpec((1, 2)))
    pair.add(1, s.BannedTokensSpec(tuple(range(50))))
    pair.triton.apply(room[:, :50])
    assert (room[:, 50:] == 3).all()
    assert (room[2] == 3).all()


def test_state_that_means_something_else_after_a_move(device: torch.device) -> None:
    pair = Pair(device)
    for spec in (s.BannedTokensSpec((1,)), s.AllowedTokensSpec(tuple(range(VOCABULARY - 5)))):
        pair.add(0, spec)
        pair.step(torch.zeros(1, VOCABULARY))
        assert pair.triton._automata.states[0, 0] == 1


def test_uploads_only_what_is_new(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    write = pool.DeviceArray.write

    def watch(self: Any, values: Any, start: int = 0) -> None:
        sent.append(len(values))
        write(self, values, start)

    monkeypatch.setattr(pool.DeviceArray, "write", watch)
    pair = Pair(device, 50)

    def uploads() -> list[int]:
        sent.clear()
        pair.choose(pair.step(torch.zeros(4, 50)))
        return sorted(sent)

    pair.add(0, s.ForcedTokenSequenceSpec((5, 6, 7)))
    pair.add(1, s.BannedTokensSpec((1, 2, 3)))
    uploads()
    assert uploads() == [2]  # the states
    assert uploads() == [2]
    uploads()
    assert uploads() == []  # the sequence is over: nothing changes from here on
    pair.add(2, s.AllowedTokensSpec((8, 9)))
    # a state's edit and argument, a set's two ends, two tokens and values; rows, starts, states
    assert uploads() == [1, 1, 2, 2, 2, 3, 3, 4]
    pair.remove(0)
    assert uploads() == [2, 2, 3]  # rows, states, starts
    assert uploads() == []


@pytest.mark.parametrize("times", [1, 1000])
def test_a_kernel_that_fails(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """Nobody is ended: where it fails again, torch's operations do it from then on."""
    launch, calls = edit_kernel.EditKernel.launch, 0

    def broken(*arguments: Any, **keywords: Any) -> None:
        nonlocal calls
        calls += 1
        if calls <= times:
            raise RuntimeError("no kernel")
        launch(*arguments, **keywords)

    monkeypatch.setattr(edit_kernel.EditKernel, "launch", broken)
    rng, pair = np.random.default_rng(0), Pair(device, 50)
    pair.add(0, s.AllowedTokensSpec((1, 2)), s.NoRepeatNgramSpec(1))
    pair.add(1, s.ForcedTokenSequenceSpec((3, 4), 0), s.BannedTokensSpec((3,)))
    for _ in range(3):
        pair.choose(pair.step(random_logits(rng, 3, 50, torch.float32)))
    assert pair.triton.failed_requests == 0
    assert calls == (4 if times == 1 else 2)


def test_realizer_chooses_the_editor(device: torch.device) -> None:
    realizer = Realizer(50)
    realizer.add(0, compile_specs([s.BannedTokensSpec((1,))]), [], [])
    logits = torch.zeros(1, 50, device=device)
    realizer.apply(logits)
    expected = triton_editor.TritonEditor if device.type == "cuda" else HostTensorEditor
    assert isinstance(realizer._editor, expected)
    assert logits[0, 1] < -1e8
