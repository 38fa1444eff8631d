"""What a request without its specs gets, and the stream on which its logits are edited."""

from contextlib import AbstractContextManager, nullcontext, suppress

import torch
from cachetools import LRUCache

from ..core import log_failure

KNOWN_REQUESTS = 1 << 16
"""The number of newest requests that are remembered; far more than run at a time."""


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
