"""What is known of a pool of clients: a renewal process a window, and lengths."""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

WINDOW_S = 600
P95_SIGMAS, P99_SIGMAS = 1.645, 2.326
"""Standard deviations from the median of a normal distribution to these percentiles."""
TAIL = 4
"""Fitted lengths go up to so many times the 99th percentile: a fit says nothing of what lies beyond."""


@dataclass(frozen=True, slots=True)
class Window:
    """Arrivals of a client in one window: their rate, and the shape of the gaps' Gamma or Weibull family.

    The scale of the family is not kept: the rate that was measured implies it, and wins over a fit that
    implies another one.
    """

    rate_per_s: float
    family: str
    shape: float


@dataclass(frozen=True, slots=True)
class LogNormal:
    """Lengths by their mean and percentiles: the spread is fitted to the percentiles, the level to the mean.

    >>> LogNormal(mean=130.0, p50=100.0, p95=300.0, p99=500.0).sigma
    0.68...
    """

    mean: float
    p50: float
    p95: float
    p99: float

    @property
    def sigma(self) -> float:
        """Standard deviation of the logarithm."""
        p95, p99 = (np.log(max(value / self.p50, 1.0)) for value in (self.p95, self.p99))
        return float((P95_SIGMAS * p95 + P99_SIGMAS * p99) / (P95_SIGMAS**2 + P99_SIGMAS**2))

    def draw(self, random: np.random.Generator, size: int) -> NDArray[np.int64]:
        """That many lengths in tokens."""
        sigma = self.sigma
        tokens = self.mean * np.exp(sigma * random.standard_normal(size) - sigma**2 / 2)
        return np.clip(np.rint(tokens), 1, max(TAIL * self.p99, 1)).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Empirical:
    """Lengths as they were counted: tokens, and the share of the requests that had at most so many."""

    tokens: NDArray[np.int64]
    cumulative: NDArray[np.float64]

    def draw(self, random: np.random.Generator, size: int) -> NDArray[np.int64]:
        """That many lengths in tokens."""
        found = np.searchsorted(self.cumulative, random.random(size), side="right")
        return self.tokens[np.minimum(found, len(self.tokens) - 1)]


Lengths = LogNormal | Empirical


@dataclass(frozen=True, slots=True)
class Client:
    """A client: its windows by their start in seconds, idle ones left out, and its lengths by theirs.

    Lengths are (prompt, output); `number` keeps its random stream apart from the others'.
    """

    number: int
    windows: Mapping[int, Window]
    lengths: Mapping[int, tuple[Lengths, Lengths]]

    def lengths_at(self, start_s: int) -> tuple[Lengths, Lengths]:
        """The lengths that were measured last before the end of a window, or else the first ones."""
        starts = sorted(self.lengths)
        return self.lengths[starts[max(bisect_right(starts, start_s) - 1, 0)]]


@dataclass(frozen=True, slots=True)
class Pool:
    """Clients of one model, and the seconds that their windows cover.

    `borrowers` are the numbers of clients whose lengths nobody published, and that have another client's.
    """

    name: str
    clients: tuple[Client, ...]
    span_s: int
    borrowers: tuple[int, ...] = ()

    def requests(self, span_s: int) -> float:
        """How many requests the windows of the first `span_s` seconds describe, on average."""
        rates = (w.rate_per_s for c in self.clients for start_s, w in c.windows.items() if start_s < span_s)
        return WINDOW_S * sum(rates)
