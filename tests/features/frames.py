"""Frames of requests from a few columns, the rest of the lake's schema unknown."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from data.schema import POLARS_REQUESTS

ORIGIN_US = 1_700_000_000_000_000


def frame(arrived_s: Sequence[float], columns: Mapping[str, Any]) -> pl.DataFrame:
    """Requests in the lake's schema, sorted by arrival; ``finished_s`` counts from the same origin."""
    rows = pl.DataFrame(
        {"arrived_at": in_us(arrived_s)}
        | {name: list(values) for name, values in columns.items() if name != "finished_s"}
        | ({"finished_at": in_us(columns["finished_s"])} if "finished_s" in columns else {}),
        schema_overrides={
            name: kind for name, kind in POLARS_REQUESTS.items() if name in {"arrived_at", *columns}
        },
    )
    missing = [
        pl.lit(None, kind).alias(name) for name, kind in POLARS_REQUESTS.items() if name not in rows.columns
    ]
    return rows.with_columns(missing).select(list(POLARS_REQUESTS)).sort("arrived_at", maintain_order=True)


def in_us(seconds: Sequence[float | None]) -> pl.Series:
    times = [None if s is None else ORIGIN_US + round(s * 1e6) for s in seconds]
    return pl.Series(times, dtype=pl.Int64).cast(pl.Datetime("us", "UTC"))


def random_frame(seed: int, seconds: int, count: int) -> pl.DataFrame:
    """Traffic that spares no corner: unknown marks, outputs, caches and finishes, idle spells and crowds."""
    random = np.random.default_rng(seed)
    crowd = np.floor(random.uniform(0, seconds))
    arrived_s = np.where(
        random.random(count) < 0.3, crowd + random.random(count), random.uniform(0, seconds, count)
    )

    def some(values: np.ndarray, share: float = 0.7) -> list[Any]:
        return [
            value if there else None
            for value, there in zip(values.tolist(), random.random(count) < share, strict=True)
        ]

    prompt = random.choice([0, 1, 512, 513, 2_048, 9_000, 20_000], count)
    return frame(
        arrived_s.tolist(),
        {
            "tenant": some(random.choice(["a", "b", "c"], count)),
            "lane": some(random.choice(["premium", "standard", "batch"], count)),
            "model": some(random.choice(["m", "n"], count)),
            "session": some(random.choice(["s", "t", "u", "v"], count), 0.6),
            "log_type": some(random.choice(["chat", "api"], count), 0.3),
            "prompt_tokens": prompt.tolist(),
            "cached_tokens": some((prompt * random.random(count)).astype(np.int64)),
            "output_tokens": some(random.integers(0, 2_000, count)),
            "finished_s": some(arrived_s + random.uniform(0, 60, count)),
            "outcome": some(random.choice(["served", "failed", "shed", "aborted"], count)),
        },
    )
