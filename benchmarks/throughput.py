"""The throughput of a real engine."""

import statistics
from dataclasses import dataclass, field

from .timing import Times


@dataclass(frozen=True, slots=True)
class Throughput:
    """The throughput with a processor, compared with no processor.

    Attributes:
        requests: the number of requests at once.
        name: name of the processor.
        tokens_per_second: the throughput of each run.
        ratios: throughput over that of the run without a processor in the same round.
        shares: the processor's share of each run's time.
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
