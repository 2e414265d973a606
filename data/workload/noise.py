"""Traffic in which there is nothing to find: what a forecaster must leave alone."""

from datetime import UTC, datetime

import numpy as np
import polars as pl

from data.schema import POLARS_REQUESTS, UTC_US
from data.workload.settings import DAY_S, stream

START = datetime(2026, 1, 5, tzinfo=UTC)
MEDIAN_TOKENS = (500.0, 150.0)
SIGMA = 0.8


def poisson_noise(days: float, requests_per_s: float, seed: int, *, work: bool = True) -> pl.DataFrame:
    """Independent requests at one rate, with log-normal lengths; the schema of requests, sorted by arrival.

    Without ``work`` every length is zero, as in a trace whose exporter lost the token counts.
    """
    random = stream(seed, "noise")
    span_s = days * DAY_S
    at_us = np.sort(random.integers(0, int(span_s * 1e6), random.poisson(requests_per_s * span_s)))
    tokens = [
        np.maximum(np.rint(median * np.exp(SIGMA * random.standard_normal(len(at_us)))), 1.0) * work
        for median in MEDIAN_TOKENS
    ]
    arrived_us = int(START.timestamp() * 1e6) + at_us
    known = pl.DataFrame(
        {
            "source": f"noise-{seed}",
            "request_id": pl.Series(np.arange(len(at_us))).cast(pl.String),
            "arrived_at": pl.Series(arrived_us).cast(UTC_US),
            "finished_at": pl.Series(arrived_us + 2_000_000).cast(UTC_US),
            "prompt_tokens": tokens[0],
            "output_tokens": tokens[1],
            "outcome": "served",
        }
    )
    nothing = [pl.lit(None).alias(name) for name in POLARS_REQUESTS if name not in known.columns]
    return known.with_columns(nothing).select(
        pl.col(name).cast(kind) for name, kind in POLARS_REQUESTS.items()
    )
