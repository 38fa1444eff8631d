"""A request's own Python callable."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .plugins import takes_prompt


class LiveProcessor:
    """Calls a logits processor with the arguments that it takes.

    Args:
        processor: takes (output ids, logits) or (prompt ids, output ids, logits), and edits the
            logits, ``[columns]``, in place or returns a new tensor of the same shape. The same
            as vLLM's ``RequestLogitsProcessor`` and Dynamo's ``BaseLogitsProcessor``.

    Raises:
        TypeError: if it is not callable or takes something else.
    """

    def __init__(self, processor: Callable[..., Any]) -> None:
        self._takes_prompt = takes_prompt(processor)
        self._processor = processor

    def __call__(
        self, prompt_ids: Sequence[int], output_ids: Sequence[int], logits: torch.Tensor
    ) -> None:
        """Edit a row in place, or leave it as it was and raise.

        Raises:
            ValueError: if the result has another shape or leaves no token to choose.
        """
        row = logits.clone()
        if self._takes_prompt:
            returned = self._processor(prompt_ids, output_ids, row)
        else:
            returned = self._processor(output_ids, row)
        result = row if returned is None else returned
        if not isinstance(result, torch.Tensor) or result.shape != logits.shape:
            shape = tuple(getattr(result, "shape", ())) or type(result).__name__
            raise ValueError(
                f"{self._processor!r} returned {shape}, expected {tuple(logits.shape)}"
            )
        # The check waits for the device, which only host memory makes free.
        if result.device.type == "cpu" and not result.max() > -torch.inf:
            raise ValueError(f"{self._processor!r} left no finite logit")
        logits.copy_(result)
