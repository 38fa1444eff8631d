"""Detection: whether a text is marked, by which profile, and in which spans."""

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from ...spec.errors import SpecError
from .profiles import Profile, Scores

MAX_TOKENS = 1 << 20
"""The tokens of a text that is examined."""


class Span(msgspec.Struct, frozen=True):
    """A part of a text that is marked.

    Attributes:
        start: the index of its first token.
        end: the index behind its last token.
        p_value: a bound on the chance that a text of this length without the mark has a part with
            such scores, times the number of profiles that were tried.
    """

    start: int
    end: int
    p_value: float


class Finding(msgspec.Struct, frozen=True):
    """What one profile says about a text.

    Attributes:
        profile: the name of the profile.
        scheme: its scheme.
        scored: the number of tokens that were scored. Most schemes score one for each context.
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
    token_ids: Sequence[int] | np.ndarray,
    profiles: Mapping[str, Profile],
    *,
    prompt_token_ids: Sequence[int] | np.ndarray = (),
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
        threshold: the highest p-value that counts as a mark: the share of the texts without a
            mark that are taken for marked.

    Raises:
        ValueError: for other token ids than integers of 32 bits, too many of them, no profile, a
            threshold that is no probability, and a key that is missing or wrong.
    """
    tokens = _checked(token_ids, "token_ids")
    prompt = _checked(prompt_token_ids, "prompt_token_ids")
    if not profiles:
        raise ValueError("Expected at least one profile")
    if not 0 < threshold < 1:
        raise ValueError(f"Expected a threshold between 0 and 1, got {threshold:g}")
    findings = list[Finding]()
    for name, profile in profiles.items():
        try:
            keys = profile.keys()
        except ValueError as error:
            raise ValueError(f"The profile {name}: {error}") from None
        if len(tokens) > profile.MOST:
            what = f"Expected at most {profile.MOST:,} tokens for {name}, got {len(tokens):,}"
            raise SpecError(what, "token_ids")
        scores = profile.scores(keys, tokens, prompt)
        findings.append(_find(name, profile, scores, len(profiles), threshold))
    findings.sort(key=lambda finding: finding.log10_p)
    marked = any(finding.is_watermarked for finding in findings)
    return Detection(marked, len(tokens), threshold, tuple(findings))


def _find(name: str, profile: Profile, scores: Scores, tried: int, threshold: float) -> Finding:
    if not len(scores.values):
        return Finding(name, profile.scheme, 0, 0.0, 1.0, 0.0, False)
    log_p = min(0.0, profile.log_tail(scores.values) + math.log(tried))
    return Finding(
        profile=name,
        scheme=profile.scheme,
        scored=len(scores.values),
        score=math.fsum(scores.values),
        p_value=math.exp(log_p),
        log10_p=log_p / math.log(10),
        is_watermarked=math.exp(log_p) <= threshold,
        spans=tuple(_spans(profile, scores, tried, threshold)),
    )


def _spans(profile: Profile, scores: Scores, tried: int, threshold: float) -> list[Span]:
    """Find marked parts of a text: those whose likelihood ratio is too high for chance.

    The product of ``exp(THETA * score) / mgf(THETA)`` over a part is a likelihood ratio: without a
    mark, its mean is 1, whatever its beginning and end. So the chance that it reaches ``x`` at any
    end is at most ``1 / x`` (Ville's inequality), and for any of ``n`` beginnings at most
    ``n / x``.
    """
    count = len(scores.values)
    sums = [0.0, *np.cumsum(profile.THETA * scores.values - profile.log_mgf).tolist()]
    needed = math.log(tried * count / threshold)
    found, start, peak = list[Span](), 0, 0
    for i, total in enumerate([*sums, -math.inf]):
        if total > sums[peak]:
            peak = i
        elif total <= sums[start] or sums[peak] - total >= needed:
            # What follows is as surely no part as the part is one; or there has been none.
            if (gain := sums[peak] - sums[start]) >= needed:
                first, last = scores.positions[start], scores.positions[peak - 1]
                p_value = tried * count * math.exp(-min(gain, 700.0))
                found.append(Span(int(first), int(last) + 1, p_value))
            start = peak = min(i, count)
    return found


def _checked(token_ids: Sequence[int] | np.ndarray, name: str) -> np.ndarray:
    if len(token_ids) > MAX_TOKENS:
        raise ValueError(f"Expected at most {MAX_TOKENS:,} `{name}`, got {len(token_ids):,}")
    try:
        tokens = np.asarray(token_ids)
    except ValueError:  # lists of several lengths
        tokens = np.array([None])
    if tokens.ndim != 1 or (tokens.size and tokens.dtype.kind not in "iu"):
        raise ValueError(f"Expected `{name}` as a list of integers")
    if tokens.size and not 0 <= tokens.min() <= tokens.max() < 1 << 32:
        raise ValueError(f"Expected `{name}` from 0 to 4,294,967,295")
    return tokens.astype(np.int64)
