"""Texts without a mark: p-values are uniform, and spans as rare as the threshold says.

The seeds are fixed, so these tests pass or fail for good.
"""

from functools import cache

import numpy as np
import pytest
from logitport.adapters.detection import Detection, detect
from logitport.adapters.detection.schemes import Kgw
from logitport.adapters.detection.tails import log_binomial_tail

from tests.support.marks import (
    DEPTHS,
    PROFILES,
    detection,
    find,
    kolmogorov_smirnov,
    marked,
    natural,
    profile,
)

DIFFERENT = [name for name in PROFILES if name != "wide-lefthash"]
"""The profiles that differ in texts without repetitions."""
TEXTS = 2000
LIMIT = 1.95
"""See ``kolmogorov_smirnov``."""


@cache
def random_texts(name: str) -> list[Detection]:
    """Detect random texts of 200 tokens; ``vllm-all`` with a prompt."""
    texts = np.random.default_rng(1).integers(0, 1000, (TEXTS, 200)).tolist()
    return [detection(PROFILES[name], text, text[:50]) for text in texts]


def p_values(name: str, found: list[Detection]) -> list[float]:
    """Return the p-values.

    A count of green tokens has steps: of the p-values that a step spans, a random one is taken,
    which makes an exact p-value uniform.
    """
    kind, rng = PROFILES[name], np.random.default_rng(2)
    values: list[float] = []
    for (finding,) in (each.findings for each in found):
        p = finding.p_value
        if isinstance(kind, Kgw):
            hits, share = round(finding.score), int(kind.vocab_size * kind.ratio) / kind.vocab_size
            below = np.exp(log_binomial_tail(hits + 1, finding.scored, share))
            below = below if hits < finding.scored else 0.0
            p = below + rng.random() * (p - below)
        values.append(p)
    return values


@pytest.mark.slow
@pytest.mark.parametrize("name", DIFFERENT)
def test_random_texts(name: str):
    assert max(kolmogorov_smirnov(p_values(name, random_texts(name)))) < LIMIT


@pytest.mark.slow
@pytest.mark.parametrize("name", PROFILES)
def test_texts_that_repeat_themselves(name: str):
    """Equal contexts are no new evidence: p-values are not too small."""
    texts = natural(np.random.default_rng(3), TEXTS // 2, 200).tolist()
    found = [detection(PROFILES[name], text) for text in texts]
    assert np.mean([each.findings[0].scored for each in found]) < 180
    too_small, _ = kolmogorov_smirnov(p_values(name, found))
    assert too_small < LIMIT
    assert np.mean([bool(each.findings[0].spans) for each in found]) <= 0.01


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 7])
def test_long_texts_of_synthid(seed: int):
    """The bits of a table are not balanced, and its places come again."""
    ours = profile(DEPTHS, scheme="synthid", table_seed=seed)
    texts = np.random.default_rng(4).integers(0, 1000, (100, 16_000)).tolist()
    p_values = [find(ours, text).p_value for text in texts]
    assert max(kolmogorov_smirnov(p_values)) < LIMIT


def test_keys_of_synthid_with_the_same_bits():
    ours = profile("1 2 3 65537 65538 65539", scheme="synthid")
    texts = np.random.default_rng(5).integers(0, 1000, (TEXTS, 60)).tolist()
    p_values = [find(ours, text).p_value for text in texts]
    assert max(kolmogorov_smirnov(p_values)) < LIMIT


@pytest.mark.slow
@pytest.mark.parametrize("name", DIFFERENT)
def test_spans_of_unmarked_texts_are_rare(name: str):
    assert np.mean([bool(each.findings[0].spans) for each in random_texts(name)]) <= 0.01


def with_passages(name: str, starts: list[int], seed: int) -> tuple[list[int], list[int]]:
    """Put marked passages of 150 tokens into 1,500 unmarked ones; return also where they are."""
    rng = np.random.default_rng(seed)
    rest, text, ends, last = rng.integers(0, 1000, 1500).tolist(), list[int](), list[int](), 0
    for start in starts:
        text += rest[last:start]
        ends += [len(text), len(text) + 150]
        text += marked(PROFILES[name], rng, text, 150)
        last = start
    return text + rest[last:], ends


@pytest.mark.slow
@pytest.mark.parametrize("name", PROFILES)
def test_marked_passages_are_found(name: str):
    """Each by itself, and most ends within 10 tokens; chance moves one in ten beyond 25."""
    off = list[int]()
    for seed, starts in enumerate([[0], [700], [1500], [300, 900], [100, 700, 1300], [500, 900]]):
        text, ends = with_passages(name, starts, seed)
        found = detection(PROFILES[name], text, (1, 2, 3, 4)).findings[0]
        off += [abs(span.start - end) for span, end in zip(found.spans, ends[::2], strict=True)]
        off += [abs(span.end - end) for span, end in zip(found.spans, ends[1::2], strict=True)]
        assert all(span.p_value <= 0.01 for span in found.spans)
    assert np.median(off) <= 10
    assert np.mean([each <= 25 for each in off]) >= 0.7


@pytest.mark.slow
@pytest.mark.parametrize("name", PROFILES)
def test_the_ends_of_a_span(name: str):
    """They are indices of the text, also if its first tokens have no score."""
    text = marked(PROFILES[name], np.random.default_rng(6), [], 60, of=24)
    scores = PROFILES[name].scores(PROFILES[name].keys(), np.array(text), np.array([], int))
    (span,) = find(PROFILES[name], text).spans
    high = scores.positions[scores.values > scores.values.mean() / 2]
    assert (span.start, span.end) == (high[0], high[-1] + 1)


def test_a_span_is_corrected_for_the_profiles():
    """As the p-value of the whole text is."""
    rng, ours = np.random.default_rng(6), PROFILES["vllm"]
    text = [*rng.integers(0, 1000, 500).tolist(), *marked(ours, rng, [], 60)]
    one = detection(ours, text).findings[0]
    many = detect(text, {str(i): ours for i in range(10)}).findings[0]
    assert many.p_value == pytest.approx(10 * one.p_value)
    assert many.spans[0].p_value == pytest.approx(10 * one.spans[0].p_value)
    last = detection(ours, text, threshold=one.spans[0].p_value * 1.001).findings[0]
    none = detection(ours, text, threshold=one.spans[0].p_value * 0.999).findings[0]
    assert (len(last.spans), len(none.spans)) == (1, 0)
