"""``prompt_bias``: an automaton that is made of the prompt when a request enters."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ....spec import PromptBiasSpec
from ..automaton import Automaton
from ..automaton.arrays import token_array
from ..parts import Part
from .base import Context, compile_spec
from .simple import adding


@compile_spec.register
def _compile(spec: PromptBiasSpec, _: Context) -> Iterable[Part]:
    yield spec


def bias_towards(
    specs: Sequence[PromptBiasSpec], prompt: npt.NDArray[np.int32], vocab_size: int
) -> Automaton:
    """Make the automaton of all biases towards a prompt's tokens; others, of images, have none."""
    is_there = _mark(prompt, vocab_size)
    values, is_biased = np.zeros(vocab_size, np.float32), np.zeros(vocab_size, np.bool_)
    for spec in specs:
        favours = is_there & ~_mark(token_array(spec.excluded_token_ids), vocab_size)
        values[favours] += np.float32(spec.bias)
        is_biased |= favours
    tokens = np.flatnonzero(is_biased)
    return adding(tokens, values[tokens])


def _mark(tokens: npt.NDArray[Any], vocab_size: int) -> npt.NDArray[np.bool_]:
    """Mark some tokens of the vocabulary, ``[vocab_size]``."""
    is_there = np.zeros(vocab_size, np.bool_)
    is_there[tokens[(tokens >= 0) & (tokens < vocab_size)]] = True
    return is_there
