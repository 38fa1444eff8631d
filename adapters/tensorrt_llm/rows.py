"""The rows of a request's logits, and the beams that are in them."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress

import torch
from cachetools import LRUCache

from ...spec import Stage
from .. import program_of
from ..core import Realizer, log_failure
from .backend import BACKEND

KNOWN_REQUESTS = 1 << 16
"""The number of newest requests that are remembered; far more than run at a time."""


class BeamRows:
    """Applies the specs of a request, as JSON text, to its beams, a row each."""

    def __init__(self, payload: str) -> None:
        self._payload = payload
        self._realizer: Realizer | None = None

    def apply(
        self,
        logits: torch.Tensor,
        beams: Sequence[Sequence[int]],
        prompt_length: int,
        stop_token_id: int | None,
    ) -> None:
        """Edit the logits of the next tokens, ``[beams, vocabulary]``, in place.

        Args:
            logits: of each beam.
            beams: the tokens of each beam, prompt and output so far.
            prompt_length: the number of the prompt's tokens.
            stop_token_id: a token that makes the engine end the request, if there is one.
        """
        columns = logits.shape[1]
        if (realizer := self._realizer) is None:
            realizer = self._realizer = Realizer(
                columns,  # ``attach`` has gated the payload by stage
                lambda payload: program_of(BACKEND, columns, Stage.AGGREGATED, payload),
            )
        for row, token_ids in enumerate(beams):
            output_ids = list(token_ids[prompt_length:])
            if not realizer.sync(row, self._payload, output_ids):
                prompt_ids = token_ids[:prompt_length]
                realizer.enter(row, self._payload, prompt_ids, output_ids, stop_token_id)
        realizer.truncate(len(beams))
        realizer.apply(logits)


class Unfollowed:
    """Ends requests whose tokens cannot be followed, and logs each of them once."""

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
        """Allow only the stop token; without one, the request goes on without its specs."""
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
    """Work on the engine's CUDA stream, which is the current one if it passes none."""
    if stream_ptr is None or device.type != "cuda":
        return nullcontext()
    return torch.cuda.stream(torch.cuda.ExternalStream(stream_ptr, device))
