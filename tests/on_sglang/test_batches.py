"""Who is in which row, told by nothing but who comes along. There is no engine in it."""

import random
import weakref
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from logitport.adapters.sglang import KEY, processor, worker
from logitport.spec import BannedTokensSpec, ForcedTokenSequenceSpec, Stage, encode

VOCABULARY = 8
FREE, FORCED = 0, 7
TEXT = encode(ForcedTokenSequenceSpec((FORCED,) * 200))


class Req:
    """What a processor sees of a request of SGLang."""

    def __init__(self, payload: str | None = TEXT, **custom: Any):
        self.rid = "a request"
        self.origin_input_ids_unpadded = [1]
        self.output_ids: list[int] = []
        self.input_embeds = self.to_finish = self.tokenizer = None
        self.sampling_params = SimpleNamespace(ignore_eos=True)
        own = {} if payload is None else {KEY: payload}
        self.params: Any = {"__req__": weakref.proxy(self), **own, **custom}
        self.expected = FREE if payload is None else FORCED
        self.has_ended = False

    def finished(self) -> bool:
        return self.has_ended


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch) -> processor.LogitportProcessor:
    monkeypatch.setattr(processor, "stage", lambda: Stage.AGGREGATED)
    monkeypatch.setattr(worker, "tokens_come_late", lambda: False)
    monkeypatch.setenv("SGLANG_ENABLE_DELAY_SAMPLE", "")  # put back as it was
    return processor.LogitportProcessor()


def step(
    ours: processor.LogitportProcessor, reqs: Sequence[Req | None], is_chunk: bool = False
) -> None:
    """One forward pass of a batch; ``None`` is a request without ``custom_params``.

    What the pass of a chunk of a prompt chooses is thrown away.
    """
    logits = torch.zeros(len(reqs), VOCABULARY)
    logits[:, FREE] = 1
    ours(logits, [req and req.params for req in reqs])
    chosen = logits.argmax(1).tolist()
    assert chosen == [FREE if req is None else req.expected for req in reqs]
    for req, token in zip(reqs, chosen, strict=True):
        if req is not None and not is_chunk:
            req.output_ids.append(token)


@pytest.mark.parametrize("seed", range(20))
def test_any_life(ours: processor.LogitportProcessor, seed: int):
    """Requests are prefilled, in chunks or not, join, are put back, end; their memory is reused."""
    chance = random.Random(seed)
    running: list[Req | None] = []
    waiting: list[Req | None] = []
    for _ in range(100):
        event = chance.random()
        if event < 0.3 or not running:
            new = waiting[: chance.randint(0, 2)]
            del waiting[: len(new)]
            new += [
                chance.choice([Req, lambda: Req(None, mine=1), lambda: None])()
                for _ in range(chance.randint(1, 3))
            ]
            for is_chunk in (*(True,) * chance.randint(0, 2), False):
                step(ours, new, is_chunk)
            running += new
        elif event < 0.5:
            for req in chance.sample(running, chance.randint(1, len(running))):
                running.remove(req)
                if req is not None and chance.random() < 0.3:
                    waiting.append(req)  # retracted
                elif req is not None:
                    req.has_ended = True
        req = new = None  # what has ended is gone
        if running:
            step(ours, running)


@pytest.mark.parametrize("payload", [TEXT, None], ids=["with specs", "without"])
def test_an_id_that_is_used_again(ours: processor.LogitportProcessor, payload: str | None):
    """Nobody takes the place of a request that is gone for having its memory."""
    gone, new = Req(payload), Req()
    step(ours, [gone])
    key = id(gone.params)
    gone.has_ended = True
    del gone
    # One of these is where the other was, if it can be.
    copies = [dict(new.params) for _ in range(10_000)]
    new.params = next((copy for copy in copies if id(copy) == key), copies[0])
    step(ours, [new])


def test_shared_out_and_back(ours: processor.LogitportProcessor):
    a, b, c = Req(), Req(), Req()
    for reqs in ([a, b], [c], [a, c], [a, b], [b, c, a], [c, b, a]):
        step(ours, reqs)


def test_draft_tokens_end_the_request(ours: processor.LogitportProcessor):
    a, b = Req(), Req()
    ours(torch.zeros(3, VOCABULARY), [a.params, a.params, b.params])
    assert "draft" in a.to_finish.message
    assert b.to_finish is None


def test_a_failure_of_ours_ends_those_with_specs(
    ours: processor.LogitportProcessor, monkeypatch: pytest.MonkeyPatch
):
    a, other = Req(), Req(None)
    monkeypatch.setattr(processor.Batch, "compose", lambda *arguments: 1 / 0)
    ours(torch.zeros(2, VOCABULARY), [a.params, other.params])
    assert a.to_finish is not None
    assert other.to_finish is None


def test_what_fails_later_is_ended_whatever_it_ignores(ours: processor.LogitportProcessor):
    req = Req(encode(BannedTokensSpec((1,))))
    req.expected = FREE
    step(ours, [req])
    (batch,) = ours._batches
    batch.realizer.fail(0, RuntimeError("a plugin"), req.output_ids, None)
    assert "a plugin" in req.to_finish.message
