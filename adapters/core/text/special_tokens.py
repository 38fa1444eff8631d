"""Automata of texts that go on across special tokens."""

from dataclasses import replace

import numpy as np

from ..automaton import Automaton
from ..automaton.arrays import TOKEN
from .vocabulary import Vocabulary


def across_special_tokens(automaton: Automaton, vocabulary: Vocabulary) -> Automaton:
    """Let special tokens leave the automaton of a text in its state.

    By itself, a text begins anew after a special token. A reply's text leaves these tokens out, so
    a client could put one into the middle of a text that a guard forbids.
    """
    specials = np.flatnonzero(vocabulary.is_special)
    states = np.repeat(np.arange(automaton.states), len(specials))
    keys = states << 32 | np.tile(specials, automaton.states)
    others = ~np.isin(automaton.keys & TOKEN, specials)
    every = np.concatenate([automaton.keys[others], keys])
    targets = np.concatenate([automaton.targets[others], states.astype(np.int32)])
    order = every.argsort()
    branches = np.ones_like(automaton.branches)
    return replace(automaton, keys=every[order], targets=targets[order], branches=branches)
