"""Marked texts: what vLLM's mark "gumbel" draws of a model with random logits."""

import numpy as np
from logitport.adapters.detection.philox import uniforms

VOCAB = 1000


def marked(key: int, count: int, *, width: int = 4, seed: int = 0) -> list[int]:
    """Return tokens, each the largest logit plus the noise of the key and of the tokens before."""
    generator, every, tokens = np.random.default_rng(seed), np.arange(VOCAB), [-1] * width
    for _ in range(count):
        contexts = np.tile(tokens[-width:], (VOCAB, 1))
        noise = -np.log(-np.log(uniforms(key, contexts, every).astype(np.float64)))
        tokens.append(int((generator.normal(size=VOCAB) + noise).argmax()))
    return tokens[width:]


def unmarked(count: int, seed: int = 0) -> list[int]:
    """Return random tokens."""
    return np.random.default_rng(seed).integers(VOCAB, size=count).tolist()
