"""The processor that a request of TensorRT-LLM carries to the worker."""

from collections.abc import Sequence

import torch
from cachetools import LRUCache

from .rows import KNOWN_REQUESTS, Beam, Rows, Unfollowed, on_stream

KEPT_ROWS = 256
"""Of how many requests the states are kept. A further one is begun again from its tokens."""


class LogitportProcessor:
    """``SamplingParams.logits_processor`` of a request with specs; ``attach`` makes it.

    It holds text and numbers. What it needs to act it makes in the worker, when it is first called,
    and for each request: requests that share their ``SamplingParams`` may share one.

    Args:
        payload: the specs, as ``encode`` writes them.
        prompt_length: number of the prompt's tokens; ``None`` takes all tokens of the first call,
            but for the ``handed_over``.
        handed_over: how many output tokens another worker has chosen before the first call.
        stop_token_id: a token that makes the engine end the request, for when its specs fail.
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
        self._rows: LRUCache[int, Rows] = LRUCache(KEPT_ROWS)
        self._unfollowed = Unfollowed()

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

        It never raises: what fails ends this request.

        Args:
            req_id: the engine's number of the request.
            logits: ``[beams, 1, vocabulary]``, of the next tokens.
            token_ids: prompt and output so far, of each beam.
            stream_ptr: the CUDA stream of the logits; ``None`` if it is the current one.
            client_id: not used; the PyTorch back end gives none.
        """
        try:
            if (rows := self._rows.get(req_id)) is None:
                rows = self._rows[req_id] = Rows()
            with on_stream(stream_ptr, logits.device):
                beams = self.beams(req_id, token_ids)
                flat = logits.view(-1, logits.shape[-1])
                rows.apply(flat, beams[: len(flat)])
        except Exception as error:
            self._unfollowed.end(req_id, error, logits, self.stop_token_id, stream_ptr)

    def beams(self, req_id: int, token_ids: Sequence[Sequence[int]]) -> list[Beam]:
        """The beams of a request, whose prompt ends where it ended at the first call.

        Raises:
            ValueError: if the request is shorter than its prompt is said to be.
        """
        length, known = self.prompt_length, len(token_ids[0])
        if length is None:
            length = self._prompt_lengths.setdefault(req_id, max(0, known - self.handed_over))
        elif length > known:
            raise ValueError(f"prompt_length is {length}, and there are {known} tokens")
        return [Beam(req_id, self.payload, ids, length, self.stop_token_id) for ids in token_ids]
