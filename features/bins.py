"""One-second bins of offered work."""

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from data.errors import InputError
from data.schema import work_tokens


@dataclass(frozen=True, slots=True)
class WorkBins:
    """Offered work by second; second 0 starts at the first request.

    Attributes:
        origin_us: arrival of the first request, microseconds since the Unix epoch.
        work: tokens that arrived in each second, realised output included; int64, shape (seconds,).
        mean_work: mean work per request, tokens.
        mean_square_work: mean squared work per request, tokens^2.

    """

    origin_us: int
    work: NDArray[np.int64]
    mean_work: float
    mean_square_work: float


def seconds_since(origin_us: int, column: str = "arrived_at") -> pl.Expr:
    """Whole seconds from ``origin_us`` to a time column, rounded down, int64.

    >>> frame = pl.DataFrame({"arrived_at": pl.Series([0, 1_999_999]).cast(pl.Datetime("us", "UTC"))})
    >>> frame.select(seconds_since(0)).to_series().to_list()
    [0, 1]
    """
    return (pl.col(column).to_physical() - origin_us).floordiv(1_000_000)


def bin_work(requests: pl.DataFrame) -> WorkBins:
    """Sum the offered work of a frame of requests into seconds.

    Raises:
        InputError: when there is no request at all.

    """
    if requests.is_empty():
        raise InputError("The trace holds no requests, so there is no load to look at; check the file.")
    origin_us = int(requests["arrived_at"].to_physical().min())  # type: ignore[arg-type]
    work = requests.select(seconds_since(origin_us).alias("second"), work_tokens())
    sums = work.group_by("second").agg(pl.col("work_tokens").sum())
    bins = np.zeros(int(sums["second"].max()) + 1, dtype=np.int64)  # type: ignore[arg-type]
    bins[sums["second"].to_numpy()] = sums["work_tokens"].to_numpy()
    per_request = work["work_tokens"].to_numpy().astype(np.float64)
    return WorkBins(origin_us, bins, float(per_request.mean()), float(np.square(per_request).mean()))


def trailing_sum(values: NDArray[np.int64], window_s: int) -> NDArray[np.int64]:
    """Sum over the ``window_s`` bins that end at each bin, fewer at the start; exact, shape (n,).

    >>> trailing_sum(np.array([1, 2, 3, 4]), 2)
    array([1, 3, 5, 7])
    """
    total = np.cumsum(values, dtype=np.int64)
    total[window_s:] -= total[:-window_s].copy()
    return total
