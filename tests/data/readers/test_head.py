from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from data.readers import load_trace
from data.readers.head import QuietHead, arrivals_by_minute, quiet_head
from data.schema import UTC_US


def head_of(*seconds: np.ndarray, parts: int = 1) -> QuietHead | None:
    micros = (np.concatenate(seconds) * 1e6).astype(np.int64)
    frame = pl.DataFrame({"arrived_at": pl.Series(micros).cast(UTC_US)})
    return quiet_head(arrivals_by_minute(frame[n::parts]) for n in range(parts))


def poisson(rate_per_s: float, start_s: float, span_s: float) -> np.ndarray:
    random = np.random.default_rng(7)
    return start_s + np.sort(random.random(random.poisson(rate_per_s * span_s))) * span_s


@pytest.mark.parametrize("parts", [1, 3])
def test_twenty_hours_at_a_ninetieth_of_the_later_rate(parts: int) -> None:
    """BurstGPT opens so: https://github.com/HPMLL/BurstGPT/issues/11."""
    head = head_of(poisson(0.034, 0, 72_000), poisson(3.17, 72_000, 20_000), parts=parts)
    assert head is not None
    assert head.offset_s == 72_000
    assert 1 / 100 < head.rate_per_s / head.later_rate_per_s < 1 / 85
    assert "start at an offset of 72,000 s" in str(head)


@pytest.mark.parametrize(
    "seconds",
    [
        poisson(1.0, 0, 7_200),
        np.concatenate([poisson(0.5, 0, 3_600), poisson(5, 3_600, 3_600)]),  # a tenth is no empty head
        np.concatenate([poisson(0.01, 0, 300), poisson(1, 300, 7_200)]),  # five minutes may be quiet
        np.concatenate([poisson(0.2, 0, 72_000), poisson(20, 72_000, 60)]),  # a burst at the end
        np.array([5.0]),
        np.array([5.0, 5.0, 5.0]),
    ],
)
def test_a_trace_without_such_a_head(seconds: np.ndarray) -> None:
    assert head_of(seconds) is None


def test_one_row_with_a_date_long_before_the_others_is_told() -> None:
    head = head_of(np.array([0.0]), 1_700_000_000 + np.arange(600.0))
    assert head is not None
    assert datetime.fromtimestamp(0, UTC) + timedelta(seconds=head.offset_s) < datetime(
        2023, 11, 15, tzinfo=UTC
    )


@pytest.mark.parametrize("name", ["azure_llm_2023_conv.csv", "mooncake_conversation.jsonl"])
def test_public_traces_without_such_a_head(real_trace: Callable[[str], Path], name: str) -> None:
    assert quiet_head([arrivals_by_minute(load_trace(real_trace(name)).requests)]) is None
