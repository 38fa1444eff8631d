"""What a step's kernels read of the engine: the requests' tokens, and the layout of the logits."""

from dataclasses import dataclass
from typing import Any

import torch

from ..automaton.history import check_continued

ROW_POINTERS = ["requests_ptr", "drafts_ptr", "row_tokens_ptr"]
"""Arguments that may be slices of the engine's tensors, and so start at any address."""


@dataclass(frozen=True, slots=True)
class History:
    """The tokens of all requests, as the engine keeps them for the device.

    They may be in host memory that the device reads (as in vLLM's V2 runner, except if it looks
    drafts up by n-grams).

    Attributes:
        token_ids: ``[requests, longest]`` int32, prompt and output.
        prompt_lengths: ``[requests]`` int32.
        lengths: ``[requests]`` int32, of prompt and output.
    """

    token_ids: torch.Tensor
    prompt_lengths: torch.Tensor
    lengths: torch.Tensor

    @property
    def arguments(self) -> tuple[Any, ...]:
        """What kernels take: the tokens, the distance from row to row, and the lengths."""
        return self.token_ids, self.token_ids.stride(0), self.lengths

    def read(self, request: int, count: int = 0) -> tuple[list[int], list[int]]:
        """Return a request's prompt and output, which the prompt's last ``count`` tokens begin.

        This waits for the device.

        Raises:
            SpecError: as ``check_continued`` does.
        """
        length, prompt = int(self.lengths[request]), int(self.prompt_lengths[request])
        check_continued(count, prompt)
        token_ids, seam = self.token_ids[request, :length].tolist(), prompt - count
        return token_ids[:seam], token_ids[seam:]


@dataclass(frozen=True, slots=True)
class LogitsLayout:
    """The layout of one step's logits. The rows of a request are adjacent.

    Attributes:
        requests: ``[rows]`` int32 or int64, the request of each row.
        drafts: ``[rows]`` int32, the number of draft tokens before the row's token.
        token_ids: ``[rows]`` int32, the token before the row's token: a draft if ``drafts`` is
            above 0, else not read.
    """

    requests: torch.Tensor
    drafts: torch.Tensor
    token_ids: torch.Tensor

    def __len__(self) -> int:
        return len(self.requests)

    @property
    def arguments(self) -> tuple[torch.Tensor, ...]:
        """What kernels take, in the order of ``ROW_POINTERS``."""
        return self.requests, self.drafts, self.token_ids
