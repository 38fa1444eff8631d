"""A toy engine with the hard parts of a real engine: moving rows, chunked prefill, late starts.

It does not depend on logitport. It has one interface, ``Editor``, for code that edits logits.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

Model = Callable[[Sequence[int]], np.ndarray]
"""A function from a history of token ids to the logits of the next token, ``[vocabulary]``."""


@dataclass(eq=False)
class Running:
    """A running request.

    Attributes:
        prompt_ids: the prompt's token ids.
        output_ids: the output's token ids so far; another worker may have begun the output.
        max_tokens: the limit on the output.
        extra: the client's extra fields.
        prefilled: the number of tokens that the model has processed.
        scores: the logits from which the first token was chosen.
    """

    prompt_ids: list[int]
    output_ids: list[int]
    max_tokens: int
    extra: dict[str, Any] = field(default_factory=dict[str, Any])
    prefilled: int = 0
    scores: Any = None


class Editor(Protocol):
    """The interface of code that edits logits."""

    def admit(self, extra: dict[str, Any]) -> None:
        """Check a request before the engine takes it; raise an error to refuse it."""
        ...

    def enter(self, row: int, running: Running) -> None:
        """Enter a request that has got a row."""
        ...

    def leave(self, row: int) -> None:
        """Remove the request in a row, which has ended."""
        ...

    def move(self, source: int, destination: int) -> None:
        """Move a request to another row, which was empty."""
        ...

    def edit(self, logits: Any) -> None:
        """Change the logits, ``[rows, vocabulary]``, in place."""
        ...


class Engine:
    """An engine that runs requests in a batch and chooses the likeliest token at each step.

    Args:
        model: computes the logits.
        eos_token_id: the token that ends an output.
        editor: called at each step, also for rows with unfinished prompts.
        slots: the number of rows of the batch.
        chunk: the number of prompt tokens that are prefilled in a step.
        stack: makes the logits of a batch of its rows: an array or a tensor.
    """

    def __init__(
        self,
        model: Model,
        eos_token_id: int,
        editor: Editor,
        slots: int = 4,
        chunk: int = 16,
        stack: Callable[[list[np.ndarray]], Any] = np.stack,
    ) -> None:
        self._model, self._eos, self._editor = model, eos_token_id, editor
        self._slots, self._chunk, self._stack = slots, chunk, stack

    def run(self, sequences: Sequence[Running]) -> None:
        """Run requests until all outputs are complete."""
        for sequence in sequences:
            self._editor.admit(sequence.extra)
        waiting, rows = list(sequences), list[Running]()
        lengths = (len(each.prompt_ids) + each.max_tokens for each in sequences)
        steps = iter(range(sum(lengths)))
        while waiting or rows:
            if next(steps, None) is None:
                raise RuntimeError("The engine has made more steps than its requests can have")
            while waiting and len(rows) < self._slots:
                rows.append(waiting.pop(0))
                self._editor.enter(len(rows) - 1, rows[-1])
            self._step(rows)
            for row in reversed(range(len(rows))):
                if self._is_done(rows[row]):
                    self._editor.leave(row)
                    last = rows.pop()  # the batch has no gaps
                    if row < len(rows):
                        self._editor.move(len(rows), row)
                        rows[row] = last

    def _step(self, rows: list[Running]) -> None:
        histories = [sequence.prompt_ids + sequence.output_ids for sequence in rows]
        for sequence, history in zip(rows, histories, strict=True):
            sequence.prefilled = min(len(history), sequence.prefilled + self._chunk)
        logits = self._stack(
            [
                self._model(history[: sequence.prefilled])
                for sequence, history in zip(rows, histories, strict=True)
            ]
        )
        self._editor.edit(logits)
        for row, (sequence, history) in enumerate(zip(rows, histories, strict=True)):
            if sequence.prefilled == len(history):  # a token sampled after a chunk is dropped
                if sequence.scores is None:
                    sequence.scores = logits[row] + 0
                sequence.output_ids.append(int(logits[row].argmax()))

    def _is_done(self, sequence: Running) -> bool:
        out = sequence.output_ids
        return len(out) >= sequence.max_tokens or out[-1:] == [self._eos]
