"""Token lengths of clients: how far apart clients lie, and how widely each one scatters.

The built-in figures are log-normal fits to the 147 clients of the pool m-large of ServeGen (Xiang et al.,
2025, https://github.com/alibaba/ServeGen, Apache-2.0), fitted to their mean, p50 and p95 per six hours:

    ln of a client's median        prompt 6.50 +- 1.07    output 4.18 +- 1.52    correlation 0.51
    ln of a client's own sigma     prompt -1.28 +- 0.91   output -0.85 +- 0.81
    mean over all requests         prompt 1,023 tokens    output 162 tokens
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from data.errors import InputError

LN_MEDIAN = np.array([6.50, 4.18])
LN_MEDIAN_SD = np.array([1.07, 1.52])
LN_MEDIAN_CORRELATION = 0.51
LN_SIGMA = np.array([-1.28, -0.85])
LN_SIGMA_SD = np.array([0.91, 0.81])
MEAN_TOKENS = np.array([1023.0, 162.0])
SIGMA_RANGE = (0.05, 1.3)
P95_SIGMAS = 1.645
"""Standard deviations from the median of a normal distribution to its 95th percentile."""
NEEDED = ("input_mean", "input_p50", "input_p95", "output_mean", "output_p50", "output_p95")


@dataclass(frozen=True, slots=True)
class Lengths:
    """Log-normal lengths of some clients; axis 1 is prompt, output.

    Attributes:
        ln_median: float64, shape (clients, 2).
        sigma: float64, shape (clients, 2).

    """

    ln_median: NDArray[np.float64]
    sigma: NDArray[np.float64]

    @property
    def mean_tokens(self) -> NDArray[np.float64]:
        """Mean length of each client, tokens, shape (clients, 2)."""
        return np.exp(self.ln_median + self.sigma**2 / 2)


def client_lengths(random: np.random.Generator, shares: NDArray[np.float64], path: Path | None) -> Lengths:
    """Draw a client for each share of the traffic, from a file of clients or from the built-in figures.

    All clients are then scaled by one factor per axis so that the mix has the mean length of its source:
    otherwise the draw of the largest tenant alone would set the level of the whole workload.

    Raises:
        InputError: when the file is missing, is no Parquet file, or lacks a column.

    """
    clients = len(shares)
    if path is None:
        shared, own = random.standard_normal((2, clients, 2))
        z = own
        z[:, 1] = LN_MEDIAN_CORRELATION * own[:, 0] + np.sqrt(1 - LN_MEDIAN_CORRELATION**2) * shared[:, 1]
        ln_median = LN_MEDIAN + LN_MEDIAN_SD * z
        sigma = np.exp(LN_SIGMA + LN_SIGMA_SD * random.standard_normal((clients, 2)))
        mean_tokens = MEAN_TOKENS
    else:
        known, mean_tokens = _read(path)
        pick = random.integers(0, len(known.sigma), clients)
        ln_median, sigma = known.ln_median[pick], known.sigma[pick]
    drawn = Lengths(ln_median, np.clip(sigma, *SIGMA_RANGE))
    mix = (shares[:, None] * drawn.mean_tokens).sum(axis=0) / shares.sum()
    return Lengths(drawn.ln_median + np.log(mean_tokens / mix), drawn.sigma)


def _read(path: Path) -> tuple[Lengths, NDArray[np.float64]]:
    if not path.is_file():
        raise InputError(f"The file of token lengths {path} does not exist; check the path.")
    try:
        frame = pl.read_parquet(path, glob=False)
    except pl.exceptions.PolarsError as error:
        raise InputError(f"The file of token lengths {path} is not a Parquet file: {error}") from error
    missing = [name for name in NEEDED if name not in frame.columns]
    if missing:
        raise InputError(f"The file of token lengths {path} lacks the column(s) {', '.join(missing)}.")
    by_client = [name for name in ("pool", "client") if name in frame.columns]
    frame = frame.filter(pl.col("input_p50") > 0, pl.col("output_p50") > 0)
    if by_client:
        frame = frame.group_by(by_client, maintain_order=True).agg(pl.col(NEEDED).mean()).sort(by_client)
    if frame.is_empty():
        raise InputError(f"The file of token lengths {path} has no client with a median above 0 tokens.")
    median = frame.select("input_p50", "output_p50").to_numpy().astype(np.float64)
    p95 = frame.select("input_p95", "output_p95").to_numpy().astype(np.float64)
    sigma = np.log(np.maximum(p95 / median, 1.0)) / P95_SIGMAS
    mean_tokens = frame.select("input_mean", "output_mean").to_numpy().astype(np.float64).mean(axis=0)
    return Lengths(np.log(median), sigma), mean_tokens


def draw_tokens(
    random: np.random.Generator,
    ln_median: NDArray[np.float64],
    sigma: NDArray[np.float64],
    largest: int,
) -> NDArray[np.int64]:
    """Log-normal lengths from 1 to ``largest`` tokens, one for each entry."""
    tokens = np.exp(ln_median + sigma * random.standard_normal(len(ln_median)))
    return np.clip(np.rint(tokens), 1, largest).astype(np.int64)
