"""A toy engine with what matters of a real one: rows that move, chunked prefill, late starts.

It knows nothing of logitport, only that somebody may want to edit logits.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

Model = Callable[[Sequence[int]], torch.Tensor]
"""From a history of token ids to the logits of the next token, ``[vocabulary]``."""


@dataclass(eq=False)
class Running:
    """A request while it runs.

    Attributes:
        prompt_ids: the prompt's token ids.
        output_ids: what is out; another worker may have begun.
        max_tokens: of the output.
        extra: what the client sends along.
        prefilled: how many tokens the model has seen.
        scores: the logits from which the first token was chosen.
    """

    prompt_ids: list[int]
    output_ids: list[int]
    max_tokens: int
    extra: dict[str, Any] = field(default_factory=dict[str, Any])
    prefilled: int = 0
    scores: torch.Tensor | None = None


class Editor(Protocol):
    """What may edit logits."""

    def admit(self, extra: dict[str, Any]) -> None:
        """Look at a request before it is taken; raises what refuses it."""
        ...

    def enter(self, row: int, running: Running) -> None:
        """A request has got a row."""
        ...

    def leave(self, row: int) -> None:
        """The request in a row has ended."""
        ...

    def move(self, source: int, destination: int) -> None:
        """A request has got another row, which was empty."""
        ...

    def edit(self, logits: torch.Tensor) -> None:
        """Change the logits, ``[rows, vocabulary]``, in place."""
        ...


class Engine:
    """Runs requests in a batch, the likeliest token at each step.

    Args:
        model: makes the logits.
        eos_token_id: ends an output.
        editor: asked at each step, also for rows whose prompts are not yet done.
        slots: rows of the batch.
        chunk: tokens of a prompt that are prefilled in a step.
        dtype: of the logits.
    """

    def __init__(
        self,
        model: Model,
        eos_token_id: int,
        editor: Editor,
        slots: int = 4,
        chunk: int = 16,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self._model, self._eos, self._editor = model, eos_token_id, editor
        self._slots, self._chunk, self._dtype = slots, chunk, dtype

    def run(self, sequences: Sequence[Running]) -> None:
        """Run requests until all have their outputs."""
        for sequence in sequences:
            self._editor.admit(sequence.extra)
        waiting, rows = list(sequences), list[Running]()
        while waiting or rows:
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
        logits = torch.stack(
            [
                self._model(history[: sequence.prefilled])
                for sequence, history in zip(rows, histories, strict=True)
            ]
        ).to(self._dtype)
        self._editor.edit(logits)
        for row, (sequence, history) in enumerate(zip(rows, histories, strict=True)):
            if sequence.prefilled == len(history):  # what a chunk samples is thrown away
                if sequence.scores is None:
                    sequence.scores = logits[row].clone()
                sequence.output_ids.append(int(logits[row].argmax()))

    def _is_done(self, sequence: Running) -> bool:
        out = sequence.output_ids
        return len(out) >= sequence.max_tokens or out[-1:] == [self._eos]
