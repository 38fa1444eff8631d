"""The schemes of marks: which random number each token had, and what its score says.

Each is what the engine's own source defines, without the engine and without torch.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import numpy as np

from ...spec.base import spec_error
from ...spec.errors import SpecError
from . import murmur, philox
from .profiles import (
    Profile,
    Scores,
    Share,
    Width,
    contexts_before,
    first_of_each,
    many_keys,
    ngrams_of,
    one_key,
)
from .tails import log_binomial_tail, log_gamma_tail, log_normal_tail
from .torch_random import Shuffles, permutation, words


class GammaScores(Profile, frozen=True, kw_only=True):
    """A mark whose scores are ``-ln`` of a random number: without a mark, Gamma variables."""

    def log_tail(self, values: np.ndarray) -> float:
        return log_gamma_tail(math.fsum(values), len(values))

    @property
    def log_mgf(self) -> float:
        return -math.log(1 - self.THETA)


class VllmGumbel(GammaScores, frozen=True, kw_only=True, tag="vllm-gumbel"):
    """The mark "gumbel" of vLLM: the token with the highest ``logit + noise`` comes.

    Source: vllm/v1/watermarking/gumbel.py and detector.py.

    Attributes:
        hash: the version of the random function.
        width: vLLM's "context_width". The tokens of the output alone count.
        deduplicate: vLLM's "deduplicate_contexts". With ``all``, the first ``width`` tokens and
            those with a context of the prompt have no mark, so they are not scored; vLLM's
            detector scores them. With ``none``, a context that comes again is marked again, but
            is no new evidence: it is not scored.
    """

    hash: Literal["philox4x32-10-v1"] = "philox4x32-10-v1"
    width: Width = 4
    deduplicate: Literal["none", "single_turn", "all"] = "single_turn"

    def scores(self, keys: Sequence[int], token_ids: np.ndarray, prompt: np.ndarray) -> Scores:
        is_all = self.deduplicate == "all"
        before = prompt if is_all else prompt[:0]
        tokens = np.concatenate([before, token_ids])
        contexts = contexts_before(tokens, self.width, -1)
        at = first_of_each(contexts)
        at = at[at >= len(before) + (self.width if is_all else 0)]
        return Scores(at - len(before), self.of_keys(keys, contexts[at], tokens[at]))

    def of_keys(self, keys: Sequence[int], contexts: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Return the score of each token."""
        uniforms = philox.uniforms(keys[0], contexts, targets)
        return -np.log1p(-uniforms.astype(np.float64))


class VllmDualGumbel(VllmGumbel, frozen=True, kw_only=True, tag="vllm-dual-gumbel"):
    """The mark "dual_key_gumbel" of vLLM: drafts and targets have a key each.

    The p-value is vLLM's, of a Gamma variable with the mean and variance of the score. The true
    chance is higher: by a fiftieth at 0.01, by a fifth at 1e-5, and more than three times as high
    at 1e-17 (200 tokens, an ``alpha`` of 0.2).

    Attributes:
        alpha: the share of key B: 0.1, or 0.2 in vLLM 0.30.
    """

    alpha: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.1

    def of_keys(self, keys: Sequence[int], contexts: np.ndarray, targets: np.ndarray) -> np.ndarray:
        a, b = (
            super(VllmDualGumbel, self).of_keys([derived(keys[0], name)], contexts, targets)
            for name in (b"key_a", b"key_b")
        )
        return (1 - self.alpha) * a + self.alpha * b

    def log_tail(self, values: np.ndarray) -> float:
        variance = (1 - self.alpha) ** 2 + self.alpha**2
        return log_gamma_tail(math.fsum(values) / variance, len(values) / variance)

    @property
    def log_mgf(self) -> float:
        parts = 1 - self.alpha, self.alpha
        return -sum(math.log(1 - self.THETA * part) for part in parts)


def derived(key: int, domain: bytes) -> int:
    """Return one of the two keys of "dual_key_gumbel"."""
    digest = hashlib.sha256(domain + key.to_bytes(8, "big")).digest()
    return int.from_bytes(digest[:8], "big")


class SglangGumbel(GammaScores, frozen=True, kw_only=True, tag="sglang-gumbel"):
    """SGLang's mark: the token with the highest ``ln(u) / p``; the prompt's end is context, too.

    Without the prompt, the first ``width`` tokens do not count.

    Source: sglang/srt/sampling/watermarking/README.md and detector.py.

    Attributes:
        hash: the version of the random function.
        width: SGLang's "context_window".
        max_contexts: the contexts after which no token is marked.
    """

    hash: Literal["murmur3-x86-32"] = "murmur3-x86-32"
    width: Width = 4
    max_contexts: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 4096

    def keys(self) -> tuple[int, ...]:
        return (one_key(self.key.read(), 64, 16),)

    def scores(self, keys: Sequence[int], token_ids: np.ndarray, prompt: np.ndarray) -> Scores:
        before = prompt[-self.width :]
        tokens = np.concatenate([before, token_ids])
        contexts = contexts_before(tokens, self.width, -1)
        first = len(before) if len(before) else min(self.width, len(tokens))
        at = first + first_of_each(contexts[first:])[: self.max_contexts]
        lengths = np.minimum(at, self.width)
        hashes = np.zeros(len(at), np.uint64)
        for length in np.unique(lengths):
            rows = lengths == length
            hashes[rows] = murmur.murmur([*contexts[at[rows], self.width - length :].T])
        return Scores(at - len(before), self.of_keys(keys, hashes, tokens[at]))

    def of_keys(self, keys: Sequence[int], hashes: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Return the score of each token."""
        found = murmur.murmur((*murmur.words_of(keys[0]), hashes, targets))
        return -np.log1p(-(found.astype(np.float64) + 0.5) / 2**32)


class SglangDual(SglangGumbel, frozen=True, kw_only=True, tag="sglang-dual"):
    """SGLang's mark with two keys, of which a coin of the context chooses one.

    The key's text has both.

    Attributes:
        mix: SGLang's "mixing_probability", the share of the first key.
    """

    mix: Share = 0.5

    def keys(self) -> tuple[int, ...]:
        if len(keys := many_keys(self.key.read(), 16)) != 2:
            raise ValueError(f"Expected two keys, got {len(keys)}")
        return keys

    def of_keys(self, keys: Sequence[int], hashes: np.ndarray, targets: np.ndarray) -> np.ndarray:
        both = [super(SglangDual, self).of_keys([key], hashes, targets) for key in keys]
        words = (*murmur.words_of(keys[0]), *murmur.words_of(keys[1]), hashes)
        return np.where(murmur.murmur(words) < int(self.mix * 2**32), *both)


class OnDevice(Profile, frozen=True, kw_only=True):
    """A mark of transformers, whose random numbers are those of the row's device.

    Attributes:
        device: where the rows were. Only ``cpu`` is known here.

    Raises:
        SpecError: for ``cuda``.
    """

    device: Literal["cpu", "cuda"] = "cpu"

    def __post_init__(self) -> None:
        if self.device == "cuda":
            what = "Expected `cpu`: marks that transformers made on a GPU have other random numbers"
            raise SpecError(what, "device")


TABLE = 1_000_003
"""The size of the table of ``selfhash``."""


class Kgw(OnDevice, frozen=True, kw_only=True, tag="kgw"):
    """The green lists of transformers: "WatermarkingConfig", of Kirchenbauer et al.

    Source: transformers/generation/watermarking.py; https://arxiv.org/abs/2306.04634.

    Attributes:
        vocab_size: the model's ``vocab_size``, of which lists are made.
        ratio: "greenlist_ratio".
        seeding: "seeding_scheme".
        width: "context_width". With ``selfhash``, the token itself is one of them.
        deduplicate: whether tokens with the same list count once, as chance needs it. By default,
            the detector of transformers counts each; with "ignore_repeated_ngrams", it counts
            n-grams, of which several may have the same list.
    """

    THETA: ClassVar = 1.0
    MOST: ClassVar = 1 << 16
    COST: ClassVar = 64  # a list for each token, which takes 0.14 ms

    vocab_size: Annotated[int, msgspec.Meta(ge=1, le=1 << 24)]
    ratio: Share = 0.25
    seeding: Literal["lefthash", "selfhash"] = "lefthash"
    width: Width = 1
    deduplicate: bool = True

    def scores(self, keys: Sequence[int], token_ids: np.ndarray, prompt: np.ndarray) -> Scores:
        length = self.width + (self.seeding == "lefthash")
        ngrams = ngrams_of(token_ids, length)
        pairs = np.stack([self._seeds(keys[0], ngrams), ngrams[:, -1]], axis=1)
        pairs, first, pair = np.unique(pairs, axis=0, return_index=True, return_inverse=True)
        shuffles, greens = Shuffles(self.vocab_size, self._size), list[bool]()
        for seed, group in groupby(pairs.tolist(), lambda pair: pair[0]):
            greens += shuffles.are_first(seed, [token for _, token in group])
        at = np.sort(first) if self.deduplicate else np.arange(len(ngrams))
        return Scores(at + length - 1, np.array(greens, np.float64)[pair.reshape(-1)[at]])

    def _seeds(self, key: int, ngrams: np.ndarray) -> np.ndarray:
        """Return the low 32 bits of each list's seed, which are all that a shuffle reads."""
        if self.seeding == "lefthash":
            tokens = ngrams[:, -2].tolist()
            return np.array([key * each % (2**64 - 1) & 0xFFFFFFFF for each in tokens], np.int64)
        table = _table(key)[ngrams % TABLE] + 1
        products = (table * table[:, -1:]).astype(np.uint64) * np.uint64(key)
        seeds = products.view(np.int64).min(axis=1)
        return seeds - (seeds < 0) & 0xFFFFFFFF  # modulo 2^64 - 1

    @property
    def _size(self) -> int:
        return int(self.vocab_size * self.ratio)

    def log_tail(self, values: np.ndarray) -> float:
        return log_binomial_tail(round(values.sum()), len(values), self._size / self.vocab_size)

    @property
    def log_mgf(self) -> float:
        share = self._size / self.vocab_size
        return math.log(1 - share + share * math.exp(self.THETA))


@lru_cache(4)
def _table(key: int) -> np.ndarray:
    return permutation(key, TABLE)


class SynthId(OnDevice, frozen=True, kw_only=True, tag="synthid"):
    """The tournaments of transformers and of the package synthid-text.

    The key's text has a number for each depth. DeepMind's repository, vLLM and SGLang give the name
    to other hashes.

    Source: transformers/generation/logits_process.py, "SynthIDTextWatermarkLogitsProcessor";
    synthid_text/detector_mean.py, the weighted mean.

    Attributes:
        hash: the version of the random function.
        ngram: "ngram_len". The first ``ngram - 1`` tokens do not count.
        table_size: "sampling_table_size".
        table_seed: "sampling_table_seed".
    """

    THETA: ClassVar = 0.5

    hash: Literal["lcg-table"] = "lcg-table"
    ngram: Annotated[int, msgspec.Meta(ge=2, le=64)] = 5
    table_size: Annotated[int, msgspec.Meta(ge=1024, le=1 << 24)] = 65536
    table_seed: int = 0

    def keys(self) -> tuple[int, ...]:
        return many_keys(self.key.read())

    def scores(self, keys: Sequence[int], token_ids: np.ndarray, prompt: np.ndarray) -> Scores:
        ngrams = ngrams_of(token_ids, self.ngram)
        at = first_of_each(ngrams[:, :-1])
        state = np.ones(len(at), np.uint64)
        for column in ngrams[at].T:
            state = _lcg(state, column.astype(np.uint64))
        share, weights, sums = self._share, np.linspace(10, 1, len(keys)), np.zeros(len(at))
        bits = self._bits - share
        for key, weight in zip(keys, weights, strict=True):
            sums += weight * bits[_lcg(state, np.uint64(key)).view(np.int64) % self.table_size]
        # Keys with the same place in the table have the same bits.
        same = np.unique([key % self.table_size for key in keys], return_inverse=True)[1]
        variance = (np.bincount(same, weights) ** 2).sum() * share * (1 - share)
        return Scores(at + self.ngram - 1, sums / math.sqrt(variance))

    def log_tail(self, values: np.ndarray) -> float:
        return log_normal_tail(values.sum() / math.sqrt(len(values)))

    @property
    def log_mgf(self) -> float:
        return self.THETA**2 / (8 * self._share * (1 - self._share))  # or less: Hoeffding's lemma

    @property
    def _bits(self) -> np.ndarray:
        return _bits(self.table_seed, self.table_size)

    @property
    def _share(self) -> float:
        return float(self._bits.mean())


def _lcg(state: np.ndarray, words: Any) -> np.ndarray:
    return (state + words) * np.uint64(6364136223846793005) + np.uint64(1)


@lru_cache(4)
def _bits(seed: int, size: int) -> np.ndarray:
    return words(seed, size) % 2


Scheme = VllmGumbel | VllmDualGumbel | SglangGumbel | SglangDual | Kgw | SynthId
"""Any profile; its ``scheme`` says which."""


def read_profiles(content: Any) -> dict[str, Profile]:
    """Make profiles of what a file holds: profiles by name, alone or as ``profiles``.

    Raises:
        SpecError: with the path of what is wrong.
    """
    within = isinstance(content, Mapping) and "profiles" in content
    profiles: dict[str, Profile] = {}
    named = content["profiles"] if within else content
    if not isinstance(named, Mapping) or not named:
        raise SpecError("Expected profiles by name", *(["profiles"] if within else []))
    for name, fields in named.items():
        path = ("profiles", str(name)) if within else (str(name),)
        try:
            profiles[str(name)] = msgspec.convert(fields, Scheme)
        except msgspec.ValidationError as error:
            raise spec_error(error).at(*path) from None
    return profiles
