"""The ``prompt_bias`` towards a prompt's tokens, which is fixed when a request starts."""

from collections.abc import Sequence

import numpy as np

from ....spec import PromptBiasSpec
from ..automaton import Ints
from ..logits import RowAdditions, Standing, mask
from .state_table import ROW, Request, StateTable


class PromptBiases(StateTable):
    """A table with one slot per request, whatever number of biases it has.

    Args:
        vocab_size: the number of tokens; prompts may have others, such as images' placeholders.
    """

    def __init__(self, vocab_size: int) -> None:
        super().__init__(columns=1)
        self._vocab_size = vocab_size
        self._additions: list[RowAdditions] = []

    def start(self, request: Request, specs: Sequence[PromptBiasSpec]) -> None:
        """Let biases act on a request."""
        self.new(request, _biases(specs, request.prompt_array(), self._vocab_size))

    def additions(self) -> list[RowAdditions]:
        """Return the additions to the rows, one object per row."""
        if self.changed:
            rows = self.values[ROW, : len(self)].tolist()
            standing = zip(self.entries, rows, strict=True)
            self._additions = [entry.what.on(row) for entry, row in standing if len(entry.what)]
            self.changed = False
        return self._additions


def _biases(specs: Sequence[PromptBiasSpec], prompt: Ints, vocab_size: int) -> Standing:
    tokens = np.flatnonzero(mask(prompt, vocab_size))
    values, is_favoured = np.zeros(len(tokens), np.float32), np.zeros(len(tokens), np.bool_)
    for spec in specs:
        favours = ~mask(spec.excluded_token_ids, vocab_size)[tokens]
        values[favours] += np.float32(spec.bias)
        is_favoured |= favours
    return Standing(tokens[is_favoured], values[is_favoured])
