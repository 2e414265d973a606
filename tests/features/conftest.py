"""Small random traffic with schedules, fan-outs and missing marks, made for feature tests."""

from collections.abc import Callable

import numpy as np
import polars as pl
import pytest

from data.schema import POLARS_REQUESTS


@pytest.fixture(scope="session")
def traffic() -> Callable[..., pl.DataFrame]:
    return make_traffic


def make_traffic(seed: int, seconds: int, rate_per_s: float = 1.0) -> pl.DataFrame:
    """Requests in the schema of the lake, sorted by arrival."""
    random = np.random.default_rng(seed)
    steady = np.sort(random.uniform(0, seconds, random.poisson(rate_per_s * seconds)))
    scheduled = [
        start + random.uniform(0, 5, 6) for start in np.arange(120, seconds, 300) + random.normal(0, 2)
    ]
    arrived_s = np.concatenate([steady, *scheduled])
    is_job = np.arange(len(arrived_s)) >= len(steady)
    count = len(arrived_s)
    tenant = np.where(is_job, "job", random.choice(["a", "b", "c"], count))
    prompt = random.lognormal(6.5, np.where(is_job, 0.2, 1.2), count).astype(np.int64)
    output = random.lognormal(5.0, 1.0, count).astype(np.int64)
    finished_s = arrived_s + random.uniform(0.2, 60.0, count)
    arrived_us = (arrived_s * 1e6).astype(np.int64)
    finished_us = (finished_s * 1e6).astype(np.int64)
    frame = pl.DataFrame(
        {
            "source": ["test"] * count,
            "request_id": [str(i) for i in range(count)],
            "arrived_at": pl.Series(arrived_us + 1_700_000_000_000_000).cast(pl.Datetime("us", "UTC")),
            "tenant": [
                None if none else name for name, none in zip(tenant, random.random(count) < 0.1, strict=True)
            ],
            "lane": np.where(is_job, "batch", random.choice(["premium", "standard"], count)).tolist(),
            "model": ["m"] * count,
            "prompt_tokens": prompt,
            "cached_tokens": (prompt * random.random(count)).astype(np.int64),
            "output_tokens": output,
            "finished_at": pl.Series(finished_us + 1_700_000_000_000_000).cast(pl.Datetime("us", "UTC")),
            "outcome": random.choice(["served", "served", "failed", "shed"], count).tolist(),
        }
    )
    missing = [
        pl.lit(None, dtype=kind).alias(name)
        for name, kind in POLARS_REQUESTS.items()
        if name not in frame.columns
    ]
    return frame.with_columns(missing).select(list(POLARS_REQUESTS)).sort("arrived_at", maintain_order=True)
