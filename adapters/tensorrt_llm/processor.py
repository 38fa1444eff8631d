"""The processor that a request of TensorRT-LLM carries to the worker."""

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

KEPT_ROWS = 256
"""The number of requests whose states are kept. Other requests restart from their tokens."""


class LogitportProcessor:
    """``SamplingParams.logits_processor`` of a request with specs; ``attach`` makes it.

    It holds text and numbers. All other state is made in the worker, for each request, so requests
    that share their ``SamplingParams`` may share a processor.

    Args:
        payload: the specs, as ``encode`` writes them.
        prompt_length: the number of the prompt's tokens; ``None`` stands for all tokens of the
            first call, except for ``handed_over`` tokens.
        handed_over: the number of output tokens that another worker chose before the first call.
        stop_token_id: a token that makes the engine end the request if its specs fail.
    """

    def __init__(
        self,
        payload: str,
        prompt_length: int | None = None,
        handed_over: int = 0,
        stop_token_id: int | None = None,
    ) -> None:
        self.payload = payload
        self.prompt_length = prompt_length
        self.handed_over = handed_over
        self.stop_token_id = stop_token_id
        self._prompt_lengths: LRUCache[int, int] = LRUCache(KNOWN_REQUESTS)
        self._realizers: LRUCache[int, Realizer] = LRUCache(KEPT_ROWS)
        self._failed: LRUCache[int, None] = LRUCache(KNOWN_REQUESTS)

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        state = (self.payload, self.prompt_length, self.handed_over, self.stop_token_id)
        return type(self), state

    def __call__(
        self,
        req_id: int,
        logits: torch.Tensor,
        token_ids: Sequence[Sequence[int]],
        stream_ptr: int | None,
        client_id: int | None,
    ) -> None:
        """Edit a request's logits in place; ``LogitsProcessor`` in ``sampling_params.py``.

        This never raises: a failure ends the request.

        Args:
            req_id: the engine's number of the request.
            logits: ``[beams, 1, vocabulary]``, of the next tokens.
            token_ids: prompt and output so far, of each beam.
            stream_ptr: the CUDA stream of the logits; ``None`` if it is the current one.
            client_id: not used; the PyTorch backend passes none.
        """
        try:
            flat = logits.view(-1, logits.shape[-1])
            prompt_length = self._prompt_length(req_id, len(token_ids[0]))
            with on_stream(stream_ptr, logits.device):
                self._apply(req_id, flat, token_ids[: len(flat)], prompt_length)
        except Exception as error:
            self._end(req_id, error, logits, stream_ptr)

    def _apply(
        self, req_id: int, logits: torch.Tensor, beams: Sequence[Sequence[int]], prompt_length: int
    ) -> None:
        """Edit the logits of a request's beams, ``[beams, vocabulary]``, in place."""
        columns = logits.shape[1]
        if (realizer := self._realizers.get(req_id)) is None:
            realizer = self._realizers[req_id] = Realizer(
                columns,  # ``attach`` has gated the payload by stage
                lambda payload: program_of(BACKEND, columns, Stage.AGGREGATED, payload),
            )
        for row, token_ids in enumerate(beams):
            output_ids = list(token_ids[prompt_length:])
            if not realizer.sync(row, self.payload, output_ids):
                prompt_ids = token_ids[:prompt_length]
                realizer.enter(row, self.payload, prompt_ids, output_ids, self.stop_token_id)
        realizer.truncate(len(beams))
        realizer.apply(logits)

    def _prompt_length(self, req_id: int, known: int) -> int:
        """Return where a request's prompt ends: where it ended at the first call.

        Raises:
            ValueError: if the request is shorter than ``prompt_length``.
        """
        if self.prompt_length is None:
            return self._prompt_lengths.setdefault(req_id, max(0, known - self.handed_over))
        if self.prompt_length > known:
            raise ValueError(f"prompt_length is {self.prompt_length}, and there are {known} tokens")
        return self.prompt_length

    def _end(
        self, req_id: int, error: Exception, logits: torch.Tensor, stream_ptr: int | None
    ) -> None:
        """Allow only the stop token, and log each failed request once.

        Without a stop token, the request goes on without its specs.
        """
        ended = False
        if self.stop_token_id is not None:
            with suppress(Exception), on_stream(stream_ptr, logits.device):  # odd logits
                stop = logits[..., self.stop_token_id]
                logits.fill_(-torch.inf)
                stop.zero_()
                ended = True
        if req_id not in self._failed:
            self._failed[req_id] = None
            log_failure(f"request {req_id}", error, ends=ended)


def on_stream(stream_ptr: int | None, device: torch.device) -> AbstractContextManager[object]:
    """Work on the engine's CUDA stream, which is the current one if it passes none."""
    if stream_ptr is None or device.type != "cuda":
        return nullcontext()
    return torch.cuda.stream(torch.cuda.ExternalStream(stream_ptr, device))
