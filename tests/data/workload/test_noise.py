import numpy as np
import polars as pl

from data.schema import POLARS_REQUESTS
from data.workload.noise import poisson_noise


def test_noise_has_the_schema_and_the_rate_that_was_asked_for() -> None:
    frame = poisson_noise(0.5, 2.0, seed=1)
    assert dict(frame.schema) == POLARS_REQUESTS
    assert abs(frame.height - 86_400) < 5 * np.sqrt(86_400)
    assert frame["arrived_at"].is_sorted()
    assert frame["request_id"].is_unique().all()
    assert frame["prompt_tokens"].min() >= 1  # type: ignore[operator]


def test_arrivals_are_a_poisson_process() -> None:
    arrived_s = poisson_noise(0.5, 2.0, seed=2)["arrived_at"].dt.epoch("us").to_numpy() / 1e6
    gaps = np.diff(arrived_s)
    assert 0.98 < np.std(gaps) / np.mean(gaps) < 1.02
    counts = np.bincount((arrived_s - arrived_s[0]).astype(np.int64) // 10)
    assert 0.9 < counts.var() / counts.mean() < 1.1


def test_without_work_the_same_requests_have_no_tokens() -> None:
    with_work, without = (poisson_noise(0.1, 1.0, seed=3, work=work) for work in (True, False))
    tokens = pl.col("prompt_tokens", "output_tokens")
    assert without.select(tokens.sum()).row(0) == (0, 0)
    assert without.drop("prompt_tokens", "output_tokens").equals(
        with_work.drop("prompt_tokens", "output_tokens")
    )
