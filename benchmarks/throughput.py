"""What a real engine makes of its time."""

import statistics
from dataclasses import dataclass, field

from .timing import Times


@dataclass(frozen=True, slots=True)
class Throughput:
    """A way to run requests, compared with no processor loaded.

    Attributes:
        requests: how many at once.
        name: the processor.
        tokens_per_second: of all runs.
        ratios: tokens per second over those of the run without a processor in the same round.
        shares: part of a run's time that was spent in the processor.
    """

    requests: int
    name: str
    tokens_per_second: list[float] = field(default_factory=list[float])
    ratios: list[float] = field(default_factory=list[float])
    shares: list[float] = field(default_factory=list[float])

    @property
    def ratio(self) -> Times:
        """Quartiles of ``ratios``."""
        return Times.of(self.ratios)

    @property
    def share(self) -> float:
        """Median of ``shares``."""
        return statistics.median(self.shares)
