import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.errors import InputError
from data.schema import POLARS_REQUESTS
from features.bins import bin_work, seconds_since, trailing_sum
from tests.features import reference

TOKENS = st.integers(0, 50_000)
ROWS = st.lists(
    st.tuples(st.integers(-5_000_000, 90_000_000), TOKENS, st.none() | TOKENS, st.none() | TOKENS),
    min_size=1,
    max_size=30,
)


def frame(rows: list[tuple[int, int, int | None, int | None]]) -> pl.DataFrame:
    names = ["arrived_at", "prompt_tokens", "cached_tokens", "output_tokens"]
    return pl.DataFrame(rows, schema={name: POLARS_REQUESTS[name] for name in names}, orient="row")


@given(ROWS)
@settings(max_examples=100, deadline=None)
def test_work_equals_the_plain_sum_in_any_order(rows: list[tuple[int, int, int | None, int | None]]):
    bins = bin_work(frame(rows))
    assert bins.origin_us == min(arrived_us for arrived_us, *_ in rows)
    assert bins.work.tolist() == reference.work_by_second(rows)
    each = [prompt - (cached or 0) + (output or 0) for _, prompt, cached, output in rows]
    assert bins.mean_work == pytest.approx(sum(each) / len(each))
    assert bins.mean_square_work == pytest.approx(sum(work * work for work in each) / len(each))


def test_work_is_uncached_prompt_and_output_by_second_of_arrival():
    rows = [(1_500_000, 100, 40, 25), (2_499_999, 10, None, None), (2_500_000, 7, 0, 1), (5_500_000, 1, 1, 0)]
    bins = bin_work(frame(rows))
    assert bins.work.tolist() == [95, 8, 0, 0, 0]
    assert bins.work.dtype == np.int64
    assert bins.mean_work == (85 + 10 + 8 + 0) / 4


def test_requests_without_work_are_bins_of_zero():
    bins = bin_work(frame([(0, 8, 8, None), (2_000_000, 0, None, 0)]))
    assert bins.work.tolist() == [0, 0, 0]
    assert (bins.mean_work, bins.mean_square_work) == (0.0, 0.0)


def test_seconds_before_the_origin_round_down():
    arrivals = pl.DataFrame({"arrived_at": pl.Series([-1, 0]).cast(pl.Datetime("us", "UTC"))})
    assert arrivals.select(seconds_since(0)).to_series().to_list() == [-1, 0]


def test_a_trace_without_requests_is_refused():
    with pytest.raises(InputError, match="no requests"):
        bin_work(frame([]))


@given(st.lists(st.integers(-(10**12), 10**12), max_size=50), st.integers(1, 60))
@settings(max_examples=100, deadline=None)
def test_trailing_sum_equals_the_plain_sum(values: list[int], window_s: int):
    plain = [sum(values[max(0, s - window_s + 1) : s + 1]) for s in range(len(values))]
    assert trailing_sum(np.array(values, dtype=np.int64), window_s).tolist() == plain
