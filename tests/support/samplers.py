"""Samplers by their definitions, in float64: slow and plain, and nothing of the product.

Logits between steps are float32, so that ties are ties.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from logitport.spec import ChainStep

EPS = float(np.finfo(np.float32).eps)


@dataclass
class Shaped:
    """What steps leave of a row.

    Attributes:
        logits: ``[columns]``, -inf for tokens that are gone; what ``xtc`` excludes has its logit.
        excluded: ``[columns]``, what ``xtc`` excludes with its probability.
        probability: of ``xtc``.
        doubts: the steps where a value was so near a border that float32 decides.
    """

    logits: np.ndarray
    excluded: np.ndarray
    probability: float
    doubts: list[str]

    @property
    def left(self) -> np.ndarray:
        return np.isfinite(self.logits) & ~(self.excluded & (self.probability == 1))

    def chances(self, temperature: float = 1.0) -> np.ndarray:
        """How tokens are drawn, with the randomness of ``xtc``: a mixture of two softmaxes."""
        logits = self.logits / temperature
        without = np.where(self.excluded, -np.inf, logits)
        q = self.probability
        return (1 - q) * softmax(logits) + q * softmax(without)


def softmax(logits: np.ndarray) -> np.ndarray:
    masses = np.exp(logits - logits.max())
    return masses / masses.sum()


def shaped(row: Any, steps: Sequence[ChainStep]) -> Shaped | None:
    """Take steps; -inf and NaN are no tokens. ``None`` where there are none."""
    logits = np.asarray(row, np.float32).astype(np.float64)
    logits[np.isnan(logits)] = -np.inf
    if logits.max() == -np.inf:
        return None
    of = Shaped(logits, np.zeros(len(logits), np.bool_), 0.0, [])
    is_bent = False
    for step in steps:
        left = np.isfinite(of.logits)
        taken = _Row(of.logits[left], of.doubts, is_bent)
        kept = getattr(taken, step.name)(getattr(step, step.name))
        is_bent |= step.name == "smoothing"
        if step.name == "xtc":
            of.excluded[left], of.probability = kept, step.xtc.probability  # pyright: ignore
        elif step.name in ("temperature", "smoothing"):
            of.logits[left] = kept
        else:
            assert kept.any()
            of.logits[np.flatnonzero(left)[~kept]] = -np.inf
    return of


class _Row:
    """The logits that are left, and a method for each step."""

    def __init__(self, logits: np.ndarray, doubts: list[str], is_bent: bool) -> None:
        self.logits, self.doubts = logits, doubts
        self.top = logits.max()
        self.p = softmax(logits)
        self.log_p = logits - self.top + np.log(self.p.max())
        self.terms = np.where(self.p > 0, -self.p * self.log_p, 0)
        self.entropy = self.terms.sum()
        # Of a curve, the float32 terms are rounded, too.
        self.bent = 8 * EPS * (abs(self.top) + 40) if is_bent else 0.0

    def _doubt(self, name: str, gaps: Any, near: float, least: float = 0.0) -> None:
        """Values that are this far from a border. If that is one of them, it is no doubt."""
        gaps, near = np.abs(gaps), near + self.bent
        if ((gaps > least) & (gaps <= near)).any():
            self.doubts.append(name)

    def _above(self, name: str, border: float) -> np.ndarray:
        """Keep logits above a border that none of them is."""
        near = 2 * EPS * max(abs(border), abs(self.top))
        self._doubt(name, (self.logits - border)[self.logits < self.top], near, least=-1)
        return self.logits >= border

    def _likely(self, name: str, share: float) -> np.ndarray:
        """Keep what has this probability."""
        with np.errstate(divide="ignore"):
            border = self.top + np.log(share) - np.log(self.p.max())
        return self._above(name, border) | (self.logits == self.top)

    def temperature(self, value: float) -> np.ndarray:
        return (self.logits / np.float32(value)).astype(np.float32)

    def top_k(self, count: int) -> np.ndarray:
        border = sorted(self.logits)[-min(count, len(self.logits))]
        self._doubt("top_k", self.logits - border, 0)
        return self.logits >= border

    def _until(self, name: str, order: np.ndarray, share: float, rounding: float = 0) -> np.ndarray:
        """Keep the highest in an order that together have a share, and what is level with them."""
        kept = np.full(len(order), share == 1)
        for value in sorted({*order.tolist()}, reverse=True):
            before = self.p[order > value].sum()
            if kept.all() or (before >= share and kept.any()):
                break
            if before > 0:
                self._doubt(name, before - share, 64 * EPS)
            kept |= order == value
            if before + self.p[order == value].sum() >= share:
                self._doubt(name, order - value, rounding)
        return kept

    def top_p(self, share: float) -> np.ndarray:
        return self._until("top_p", self.logits, share)

    def typical(self, share: float) -> np.ndarray:
        farness, rounding = np.abs(-self.log_p - self.entropy), 4 * EPS * (abs(self.top) + 40)
        return self._until("typical", -farness, share, rounding) | (self.logits == self.top)

    def min_p(self, share: float) -> np.ndarray:
        return self._likely("min_p", share * self.p.max())

    def top_a(self, share: float) -> np.ndarray:
        return self._likely("top_a", share * self.p.max() ** 2)

    def epsilon(self, share: float) -> np.ndarray:
        return self._likely("epsilon", share)

    def eta(self, share: float) -> np.ndarray:
        return self._likely("eta", min(share, share**0.5 * np.exp(-self.entropy)))

    def p_less(self, _: bool) -> np.ndarray:
        return self._likely("p_less", (self.p**2).sum())

    def top_n_sigma(self, count: float) -> np.ndarray:
        border = self.top - count * self.logits.std()
        return self._above("top_n_sigma", border) | (self.logits == self.top)

    def top_h(self, share: float) -> np.ndarray:
        highest = np.sort(self.logits)[::-1][:100]
        p = softmax(highest)
        terms = [float(-each * np.log(each)) if each > 0 else 0.0 for each in p]
        total, count = sum(terms), 0
        for i in range(1, len(terms) + 1):
            self._doubt("top_h", (sum(terms[:i]) / total - share if total else 0), 1e-9)
            count += sum(terms[:i]) <= share * total
        border = highest[max(count, 1) - 1]
        self._doubt("top_h", self.logits - border, 0)
        return self.logits >= border

    def min_k(self, tau: float) -> np.ndarray:
        ordered = np.sort(self.logits)[::-1]
        extent = ordered[0] - ordered[-1]
        if extent == 0:
            return self.logits >= ordered[0]
        falls = (ordered[:-1] - ordered[1:]) / (extent * np.arange(1, len(ordered)))
        falls, enough = falls[:1024], tau / extent
        steepest = int(falls.argmax())
        self._doubt("min_k", (falls[steepest] - falls) * extent, 0)
        if 0.5 < enough < len(ordered):
            self._doubt("min_k", (enough - round(enough)) * extent / enough, 1e-12 * extent)
        count = max(steepest + 1, int(min(enough, len(ordered))))
        return self.logits >= ordered[count - 1]

    def smoothing(self, bend: Any) -> np.ndarray:
        d = self.logits - self.top
        k, s = (3 - bend.curve) / 2, (bend.curve - 1) / 2
        return (self.top - k * bend.factor * d**2 + s * bend.factor * d**3).astype(np.float32)

    def xtc(self, xtc: Any) -> np.ndarray:
        likely = self._above("xtc", self.top + np.log(xtc.threshold) - np.log(self.p.max()))
        if likely.any():
            least = np.flatnonzero(likely & (self.logits == self.logits[likely].min()))[-1]
            likely[least] = False
        return likely
