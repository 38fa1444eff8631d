"""A request's own Python callable."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch


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
        if not callable(processor):
            raise TypeError(f"expected a callable, got {processor!r}")
        positional = [
            parameter
            for parameter in inspect.signature(processor).parameters.values()
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        ]
        required = [p for p in positional if p.default is inspect.Parameter.empty]
        if len(required) > 3 or len(positional) < 2:
            raise TypeError(
                f"{processor!r} takes {len(positional)} arguments; expected "
                "(output_ids, logits) or (prompt_ids, output_ids, logits)"
            )
        self._processor = processor
        self._takes_prompt = len(required) == 3

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
