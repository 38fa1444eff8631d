"""Who is in which row, told by nothing but who comes along. There is no engine in it."""

import weakref
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from logitport.adapters.sglang import KEY, processor, worker
from logitport.adapters.sglang.backend import END_TOKEN
from logitport.spec import BannedTokensSpec, ForcedTokenSequenceSpec, PromptBiasSpec, Stage, encode

from tests.support.lives import STOP, VOCABULARY, Driver, Life, lead
from tests.support.seeds import seeds

FREE, FORCED = 0, 7
TEXT = encode(ForcedTokenSequenceSpec((FORCED,) * 200))


class Req:
    """What a processor sees of a request of SGLang."""

    def __init__(self, payload: str | None = TEXT, **custom: Any):
        self.rid = "a request"
        self.origin_input_ids_unpadded = [1]
        self.output_ids: list[int] = []
        self.input_embeds: Any = None
        self.to_finish: Any = None
        self.tokenizer = None
        self.sampling_params = SimpleNamespace(ignore_eos=True)
        own = {} if payload is None else {KEY: payload}
        self.params: Any = {"__req__": weakref.proxy(self), **own, **custom}
        self.expected = FREE if payload is None else FORCED
        self.has_ended = False

    def finished(self) -> bool:
        return self.has_ended


def made(patch: pytest.MonkeyPatch) -> processor.LogitportProcessor:
    patch.setattr(processor, "stage", lambda: Stage.AGGREGATED)
    patch.setattr(worker, "output_ids_lag", lambda: False)
    patch.setenv("SGLANG_ENABLE_DELAY_SAMPLE", "")  # put back as it was
    return processor.LogitportProcessor()


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch) -> processor.LogitportProcessor:
    return made(monkeypatch)


def step(ours: processor.LogitportProcessor, reqs: Sequence[Req]) -> None:
    """One forward pass of a batch."""
    logits = torch.zeros(len(reqs), VOCABULARY)
    logits[:, FREE] = 1
    ours(logits, [req.params for req in reqs])
    chosen = logits.argmax(1).tolist()
    assert chosen == [req.expected for req in reqs]
    for req, token in zip(reqs, chosen, strict=True):
        req.output_ids.append(token)


class Sglang(Driver):
    """Batches are made of any requests, with others that have no specs."""

    def __init__(self, groups: Sequence[Sequence[Any]], patch: pytest.MonkeyPatch) -> None:
        self._ours = made(patch)
        self._payloads = [encode(tuple(specs)) for specs in groups]
        self._others = [None, Req(None, mine=1).params]

    def come(self, life: Life) -> None:
        if life.of_engine is None:
            life.of_engine = req = Req(self._payloads[life.group])
            req.sampling_params = SimpleNamespace(ignore_eos=False, stop_token_ids=[STOP])
            req.eos_token_ids = None
            req.origin_input_ids_unpadded = life.prompt
        else:  # it was retracted, and its output may be another object
            life.outputs[0] = [*life.outputs[0]]
        life.of_engine.output_ids = life.outputs[0]

    def go(self, life: Life) -> None:
        life.of_engine.has_ended = True
        life.of_engine = None

    def is_ended(self, life: Life, edited: torch.Tensor) -> bool:
        return life.of_engine.to_finish is not None  # by the engine, after the step

    def step(self, lives: Sequence[Life], logits: torch.Tensor) -> torch.Tensor:
        others = self._others[: len(lives) % 3]
        both = torch.cat([logits[:1], torch.zeros(len(others), VOCABULARY), logits[1:]])
        (first, *params) = (life.of_engine.params for life in lives)
        self._ours(both, [first, *others, *params])
        assert not both[1 : 1 + len(others)].any()
        return torch.cat([both[:1], both[1 + len(others) :]])


@pytest.mark.parametrize("seed", seeds(3, 12))
def test_any_lives(seed: int):
    lead(Sglang, seed)


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


def test_draft_tokens_end_the_request(ours: processor.LogitportProcessor):
    a, b = Req(), Req()
    ours(torch.zeros(3, VOCABULARY), [a.params, a.params, b.params])
    assert "draft" in a.to_finish.message
    assert b.to_finish is None


@pytest.mark.parametrize("end_token", ["7", 1.5, [7], {}, -1, VOCABULARY, 2**70, None])
def test_a_bad_end_token_ends_nobody(ours: processor.LogitportProcessor, end_token: Any):
    """Front ends in Rust pass on what clients send."""
    reqs = [Req(), Req(**{END_TOKEN: end_token}), Req(None)]
    step(ours, reqs)
    assert [req.to_finish for req in reqs] == [None] * 3


@pytest.mark.parametrize("times", [1, 2])
def test_a_failure_of_ours_ends_those_with_specs(
    ours: processor.LogitportProcessor, monkeypatch: pytest.MonkeyPatch, times: int
):
    """Not if it is one for a moment."""
    a, other, compose, left = Req(), Req(None), processor.Batch.compose, iter(range(times))

    def broken(*arguments: Any) -> None:
        if next(left, None) is not None:
            raise MemoryError
        compose(*arguments)

    step(ours, [a])
    monkeypatch.setattr(processor.Batch, "compose", broken)
    if times == 1:
        step(ours, [a, other])
    else:
        ours(torch.zeros(2, VOCABULARY), [a.params, other.params])
    assert (a.to_finish is None) == (times == 1)
    assert other.to_finish is None


def test_what_cannot_be_realized_here_is_ended(
    ours: processor.LogitportProcessor, caplog: pytest.LogCaptureFixture
):
    """A front end that checks nothing let it in."""
    of_embeddings, bad, other = Req(encode(PromptBiasSpec(1.0))), Req("{"), Req()
    of_embeddings.input_embeds = [[0.5]]
    of_embeddings.expected = bad.expected = FREE
    step(ours, [of_embeddings, bad, other])
    assert "has embeddings" in of_embeddings.to_finish.message
    assert "JSON" in bad.to_finish.message
    assert other.to_finish is None
    assert caplog.text.count("The specs of request a request cannot be realized") == 2
    assert caplog.text.count("It is ended") == 2


def test_what_fails_later_is_ended_whatever_it_ignores(ours: processor.LogitportProcessor):
    req = Req(encode(BannedTokensSpec((1,))))
    req.expected = FREE
    step(ours, [req])
    (batch,) = ours._batches
    batch.realizer.fail(0, RuntimeError("a plugin"), None)
    assert "a plugin" in req.to_finish.message
