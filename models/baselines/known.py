"""Load as it was known at the time, and what every score reads from it."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from features.bursts import baseline


@dataclass(frozen=True, slots=True)
class KnownLoad:
    """Expected work by second, as it was known when the second ended (features.flows).

    Attributes:
        origin_us: arrival of the first request, microseconds since the Unix epoch.
        work: tokens, int64, (seconds,).

    """

    origin_us: int
    work: NDArray[np.int64]


Score = Callable[[KnownLoad, NDArray[np.int64]], NDArray[np.float64]]
"""Score of the ticks t_s (n,): what was known before each, nothing later."""


def before(values: NDArray[np.float64], t_s: NDArray[np.int64]) -> NDArray[np.float64]:
    """The value of the last second before each tick."""
    return values[np.maximum(t_s - 1, 0)]


def mean(work: NDArray[np.int64], t_s: NDArray[np.int64], window_s: int) -> NDArray[np.float64]:
    """Mean of the seconds [t - window_s, t), fewer at the start."""
    total = np.concatenate([[0], np.cumsum(work)])
    end = np.clip(t_s, 0, len(work))
    start = np.maximum(end - window_s, 0)
    return np.asarray((total[end] - total[start]) / np.maximum(end - start, 1))


def level(known: KnownLoad, t_s: NDArray[np.int64]) -> NDArray[np.float64]:
    """Baseline known at each tick + 1 token/s, so that ratios stay finite in silence."""
    return np.nan_to_num(before(baseline(known.work), t_s), nan=0.0) + 1.0
