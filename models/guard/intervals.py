"""How sure a rate is: 90 % intervals by block bootstrap, the same for a backtest and for live operation."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

INTERVAL = (0.05, 0.95)
"""Quantiles of the bootstrap that bound a 90 % interval."""
MIN_BLOCKS = 5
"""Fewer blocks than this say too little about the spread between blocks: no interval, and no claim."""
BLOCK_S = 3_600
"""Ticks depend on each other, hours much less."""
RESAMPLES = 1_000

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A share and its 90 % interval; None where unknown."""

    value: float | None
    low: float | None
    high: float | None


class Blocks:
    """Blocks of a span and how often each resample draws each of them, (resamples, blocks).

    Whole blocks are drawn with replacement, and the ratio is taken of the drawn sums. There is no interval
    where fewer than `MIN_BLOCKS` blocks hold anything to count. Where all blocks agree (no false alarm at
    all, say) the bootstrap sees no spread and the interval has no width.

    >>> t_s = np.arange(0, 36_000, 5)  # ten hours, in alarm 0, 1, ... 9 tenths of the time
    >>> alarm = t_s % 3_600 < t_s // 3_600 * 360
    >>> found = Blocks(t_s, seed=0).ratio_of(t_s, alarm, np.full(7_200, True))
    >>> round(found.value, 2), round(found.low, 2), round(found.high, 2)
    (0.45, 0.31, 0.6)

    Args:
        t_s: seconds of all ticks of the span, in order, (n,), not empty.
        blocks_s: length of a block, in seconds from the first tick.
        resamples: number of resamples.
        seed: of the draws; the same one gives the same intervals.

    """

    def __init__(self, t_s: Ints, blocks_s: int = BLOCK_S, resamples: int = RESAMPLES, *, seed: int) -> None:
        self._first_s, self._blocks_s = int(t_s[0]), blocks_s
        self._count = int(t_s[-1] - t_s[0]) // blocks_s + 1
        even = np.full(self._count, 1.0 / self._count)
        self._draws = np.random.default_rng(seed).multinomial(self._count, even, resamples)

    def ratio_of(self, at_s: Ints, part: ArrayLike, whole: NDArray[np.bool_]) -> Estimate:
        """Sum of ``part`` where ``whole`` / count of ``whole``; each item lies in the block of ``at_s``."""
        block = (at_s - self._first_s) // self._blocks_s
        parts = np.bincount(block, np.where(whole, part, 0), self._count)
        wholes = np.bincount(block, whole, self._count)
        if not wholes.any():
            return Estimate(None, None, None)
        value = float(parts.sum() / wholes.sum())
        if np.count_nonzero(wholes) < MIN_BLOCKS:
            return Estimate(value, None, None)
        drawn, drawn_whole = self._draws @ parts, self._draws @ wholes
        counts = drawn_whole > 0
        low, high = np.quantile(drawn[counts] / drawn_whole[counts], INTERVAL)
        return Estimate(value, float(low), float(high))
