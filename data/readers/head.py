"""Traces that open almost empty: a public trace may run for hours at a hundredth of its later rate.

Over such a head every policy looks alike, so whoever replays the trace should know where it ends.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import polars as pl

BIN_S = 60
TIMES = 20
"""The later rate is at least so many times that of the head."""
HEAD_S = 600
SHARE_OF_SPAN = 0.01
SHARE_OF_REQUESTS = 0.1
"""The head lasts at least HEAD_S and SHARE_OF_SPAN of the trace, and has at most SHARE_OF_REQUESTS of it."""


@dataclass(frozen=True, slots=True)
class QuietHead:
    """The first `offset_s` seconds of a trace, counted from the minute of its first arrival."""

    offset_s: int
    rate_per_s: float
    later_rate_per_s: float

    def __str__(self) -> str:
        times = self.later_rate_per_s / self.rate_per_s
        return (
            f"the first {self.offset_s:,} s run at 1/{times:.0f} of the later rate ({self.rate_per_s:.2g} "
            f"against {self.later_rate_per_s:.3g} requests/s); start at an offset of {self.offset_s:,} s "
            "where a result must not rest on them"
        )


def arrivals_by_minute(requests: pl.DataFrame) -> pl.DataFrame:
    """Requests of each minute that has any: minute (since the epoch), requests."""
    minute = (pl.col("arrived_at").dt.epoch("s") // BIN_S).alias("minute")
    return requests.group_by(minute).agg(pl.len().cast(pl.Int64).alias("requests"))


def quiet_head(parts: Iterable[pl.DataFrame]) -> QuietHead | None:
    """The near-empty head of a trace, or None where it has none; `parts` are from `arrivals_by_minute`.

    The end of the head is where two constant rates explain the arrivals best (the likelihood of a Poisson
    process with one change).
    """
    counted = pl.concat(parts).group_by("minute").agg(pl.col("requests").sum()).sort("minute")
    if counted.height < 2:
        return None
    minutes, requests = counted["minute"].to_numpy(), counted["requests"].to_numpy()
    # A head may end wherever a minute with requests begins.
    before = np.cumsum(requests)[:-1].astype(np.float64)
    after = requests.sum() - before
    span_s = float(minutes[-1] + 1 - minutes[0]) * BIN_S
    head_s = (minutes[1:] - minutes[0]).astype(np.float64) * BIN_S
    rate, later_rate = before / head_s, after / (span_s - head_s)
    fits = (
        (later_rate >= TIMES * rate)
        & (head_s >= max(HEAD_S, SHARE_OF_SPAN * span_s))
        & (before <= SHARE_OF_REQUESTS * requests.sum())
    )
    if not fits.any():
        return None
    likelihood = before * np.log(rate) + after * np.log(later_rate)
    best = int(np.argmax(np.where(fits, likelihood, -np.inf)))
    return QuietHead(int(head_s[best]), float(rate[best]), float(later_rate[best]))
