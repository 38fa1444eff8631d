"""The rows of one call's logits, and the beams that are in them."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import NamedTuple

import torch
from cachetools import LRUCache

from ...spec import Stage
from ..core import Program, Realizer, log_failure, program_of
from .backend import BACKEND

KNOWN_REQUESTS = 1 << 16
"""Of how many requests something is remembered, the latest; far more than run at a time."""


class Beam(NamedTuple):
    """What a row of logits is of.

    Attributes:
        request_id: whose it is.
        payload: the request's specs, as JSON text.
        token_ids: prompt and output so far.
        prompt_length: how many of them are the prompt's.
        stop_token_id: a token that makes the engine end the request, if there is one.
    """

    request_id: int
    payload: str
    token_ids: Sequence[int]
    prompt_length: int
    stop_token_id: int | None


class Rows:
    """Lets specs act on rows whose beams are said anew at each call."""

    def __init__(self) -> None:
        self._realizer: Realizer | None = None

    def apply(self, logits: torch.Tensor, beams: Sequence[Beam]) -> None:
        """Edit the logits of the next tokens in place.

        Args:
            logits: ``[rows, vocabulary]``.
            beams: by row.
        """
        if (realizer := self._realizer) is None:
            realizer = self._realizer = Realizer(
                logits.shape[1], partial(_program_of, logits.shape[1])
            )
        for row, beam in enumerate(beams):
            request, prompt = (beam.request_id, beam.payload), beam.prompt_length
            output_ids = list(beam.token_ids[prompt:])
            if not realizer.sync(row, request, output_ids):
                prompt_ids = beam.token_ids[:prompt]
                realizer.enter(row, request, prompt_ids, output_ids, beam.stop_token_id)
        realizer.truncate(len(beams))
        realizer.apply(logits)


def _program_of(vocab_size: int, request: tuple[int, str]) -> Program | None:
    return program_of(BACKEND, vocab_size, Stage.AGGREGATED, request[1])  # gated by ``attach``


class Unfollowed:
    """Requests whose tokens cannot be followed: each is ended, where it can be, and said once."""

    def __init__(self) -> None:
        self._known: LRUCache[int, None] = LRUCache(KNOWN_REQUESTS)

    def end(
        self,
        request_id: int,
        error: Exception,
        logits: torch.Tensor,
        stop_token_id: int | None,
        stream_ptr: int | None,
    ) -> None:
        """Let only the stop token be chosen; without one, the request goes on without its specs."""
        ended = False
        if stop_token_id is not None:
            with suppress(Exception), on_stream(stream_ptr, logits.device):  # odd logits
                stop = logits[..., stop_token_id]
                logits.fill_(-torch.inf)
                stop.zero_()
                ended = True
        if request_id not in self._known:
            self._known[request_id] = None
            log_failure(f"request {request_id}", error, ends=ended)


def on_stream(stream_ptr: int | None, device: torch.device) -> AbstractContextManager[object]:
    """Work on the engine's own CUDA stream, where it says one; otherwise the current one is it."""
    if stream_ptr is None or device.type != "cuda":
        return nullcontext()
    return torch.cuda.stream(torch.cuda.ExternalStream(stream_ptr, device))
