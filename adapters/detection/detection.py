"""Detection: whether a text is marked, by which profile, and in which spans."""

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from .profiles import Profile, Scores

MAX_TOKENS = 1 << 20
"""The tokens of a text that is examined."""


class Span(msgspec.Struct, frozen=True):
    """A part of a text that is marked.

    Attributes:
        start: the index of its first token.
        end: the index behind its last token.
        p_value: the chance that a text of this length without the mark has a part with such scores.
    """

    start: int
    end: int
    p_value: float


class Finding(msgspec.Struct, frozen=True):
    """What one profile says about a text.

    Attributes:
        profile: the name of the profile.
        scheme: its scheme.
        scored: the tokens that were scored, with a context each that no token before had.
        score: the sum of their scores.
        p_value: the chance that a text without the mark scores as high, times the number of
            profiles that were tried.
        log10_p: its logarithm to the base of 10, which does not underflow.
        is_watermarked: whether ``p_value`` is at most the threshold.
        spans: the parts that are marked, each by itself with at most the threshold.
    """

    profile: str
    scheme: str
    scored: int
    score: float
    p_value: float
    log10_p: float
    is_watermarked: bool
    spans: tuple[Span, ...] = ()


class Detection(msgspec.Struct, frozen=True):
    """What all profiles say about a text.

    Attributes:
        is_watermarked: whether one of them finds a mark.
        num_tokens: the tokens of the text.
        threshold: the highest p-value of a mark.
        findings: what each profile says, the most certain first.
    """

    is_watermarked: bool
    num_tokens: int
    threshold: float
    findings: tuple[Finding, ...]


def detect(
    token_ids: Sequence[int],
    profiles: Mapping[str, Profile],
    *,
    prompt_token_ids: Sequence[int] = (),
    threshold: float = 0.01,
) -> Detection:
    """Return whether a text is marked.

    ::

        >>> profiles = {"news": VllmGumbel(key=KeySource(env="NEWS_KEY"))}
        >>> detect(reply_token_ids, profiles).is_watermarked
        True

    Args:
        token_ids: the text's tokens: of a reply, those that the engine has drawn.
        profiles: the profiles to try, by name. Each p-value is multiplied by their number.
        prompt_token_ids: the tokens before the text, if they are known. SGLang's scheme and
            ``deduplicate: all`` read them.
        threshold: the highest p-value that counts as a mark: of so many texts without a mark,
            one is taken for marked.

    Raises:
        ValueError: if a key is missing, or a token id is no number of 32 bits.
    """
    tokens, prompt = _checked(token_ids), _checked(prompt_token_ids)
    if not profiles:
        raise ValueError("Expected at least one profile")
    if not 0 < threshold < 1:
        raise ValueError(f"Expected a threshold between 0 and 1, got {threshold:g}")
    findings = [
        _find(name, profile, profile.scores(profile.keys(), tokens, prompt), profiles, threshold)
        for name, profile in profiles.items()
    ]
    findings.sort(key=lambda finding: finding.log10_p)
    marked = any(finding.is_watermarked for finding in findings)
    return Detection(marked, len(tokens), threshold, tuple(findings))


def _find(
    name: str, profile: Profile, scores: Scores, profiles: Mapping[str, Profile], threshold: float
) -> Finding:
    scheme = str(profile.__struct_config__.tag)
    if not len(scores.values):
        return Finding(name, scheme, 0, 0.0, 1.0, 0.0, False)
    log_p = min(0.0, profile.log_tail(scores.values) + math.log(len(profiles)))
    return Finding(
        profile=name,
        scheme=scheme,
        scored=len(scores.values),
        score=math.fsum(scores.values),
        p_value=math.exp(log_p),
        log10_p=log_p / math.log(10),
        is_watermarked=math.exp(log_p) <= threshold,
        spans=tuple(_spans(profile, scores, threshold / len(profiles))),
    )


def _spans(profile: Profile, scores: Scores, threshold: float) -> list[Span]:
    """Find marked parts of a text: those whose likelihood ratio is too high for chance.

    The product of ``exp(THETA * score) / mgf(THETA)`` over a part is a likelihood ratio: without a
    mark, its mean is 1 wherever the part begins. So the chance that it reaches ``x`` on any end is
    at most ``1 / x`` (Ville's inequality), and on any beginning, too, ``n / x``.
    """
    logs = profile.THETA * scores.values - profile.log_mgf
    count, found = len(logs), list[Span]()
    open_parts = [(0, count)]
    while open_parts:
        low, high = open_parts.pop()
        if low >= high:
            continue
        sums = np.concatenate([[0.0], np.cumsum(logs[low:high])])
        gains = sums - np.minimum.accumulate(sums)
        end = int(gains.argmax())
        p_value = count * math.exp(-min(float(gains[end]), 700.0))
        if p_value > threshold:
            continue
        start = int(sums[: end + 1].argmin())
        first, last = scores.positions[low + start], scores.positions[low + end - 1]
        found.append(Span(int(first), int(last) + 1, p_value))
        open_parts += [(low, low + start), (low + end, high)]
    return sorted(found, key=lambda span: span.start)


def _checked(token_ids: Sequence[int]) -> np.ndarray:
    if len(token_ids) > MAX_TOKENS:
        raise ValueError(f"Expected at most {MAX_TOKENS:,} tokens, got {len(token_ids):,}")
    tokens = np.asarray(token_ids)
    if tokens.size and (tokens.ndim != 1 or tokens.dtype.kind not in "iu"):
        raise ValueError("Expected token ids as a list of integers")
    if tokens.size and not 0 <= tokens.min() <= tokens.max() < 1 << 32:
        raise ValueError("Expected token ids from 0 to 4,294,967,295")
    return tokens.astype(np.int64).reshape(-1)
