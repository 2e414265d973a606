from collections.abc import Iterator

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from features.batch import batch_features
from features.bins import bin_work
from features.bursts import burst_line
from features.flows import known_at_us
from features.online import OnlineFeatures
from features.ticks import TICK_S
from features.windows import NAMES
from tests.features.frames import random_frame


def replay(requests: pl.DataFrame, t_s: range) -> Iterator[np.ndarray]:
    """Features at each tick, from arrivals and finishes in the order in which they happened."""
    online = OnlineFeatures()
    marks = ("tenant", "lane", "model", "log_type", "session")
    rows = requests.select(
        *("prompt_tokens", "cached_tokens", "output_tokens", "outcome", *marks),
        arrived_us=pl.col("arrived_at").to_physical(),
        known_us=known_at_us(),
    )
    origin = rows["arrived_us"][0]
    arrivals = iter(rows.iter_rows(named=True))
    finishes: list[tuple[int, int, dict]] = []
    upcoming = next(arrivals, None)
    for tick in t_s:
        until = origin + tick * 1_000_000
        while upcoming is not None and upcoming["arrived_us"] < until:
            flow = online.arrive(
                upcoming["arrived_us"], upcoming["prompt_tokens"], **{mark: upcoming[mark] for mark in marks}
            )
            finishes.append((upcoming["known_us"], flow, upcoming))
            upcoming = next(arrivals, None)
        due = [finish for finish in finishes if finish[0] < until]
        finishes = [finish for finish in finishes if finish[0] >= until]
        for at_us, flow, row in due:
            online.finish(
                at_us,
                flow,
                row["prompt_tokens"],
                row["cached_tokens"] or 0,
                row["output_tokens"] or 0,
                refused=row["outcome"] in ("shed", "failed"),
                session=row["session"],
            )
        yield online.features(tick)
    assert online.late == 0


@pytest.mark.parametrize(("seed", "seconds", "rate"), [(0, 5_000, 1.0), (1, 2_000, 5.0), (2, 900, 0.05)])
def test_online_equals_batch_to_the_last_bit(traffic, seed: int, seconds: int, rate: float) -> None:
    requests = traffic(seed, seconds, rate)
    ticks = range(0, len(bin_work(requests).work), TICK_S)
    batch = batch_features(requests)
    online = np.stack(list(replay(requests, ticks)))
    assert batch.shape == (len(ticks), len(NAMES))
    differing = [NAMES[i] for i in np.flatnonzero((batch.view("u4") != online.view("u4")).any(axis=0))]
    assert differing == []


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), seconds=st.integers(5, 400), count=st.integers(1, 120))
def test_online_equals_batch_on_traffic_with_gaps_in_what_is_known(
    seed: int, seconds: int, count: int
) -> None:
    requests = random_frame(seed, seconds, count)
    batch = batch_features(requests)
    online = np.stack(list(replay(requests, range(0, TICK_S * len(batch), TICK_S))))
    differing = [NAMES[i] for i in np.flatnonzero((batch.view("u4") != online.view("u4")).any(axis=0))]
    assert differing == []


def test_a_schedule_is_seen_coming(traffic) -> None:
    requests = traffic(3, 5_000, 0.5)
    # Jobs start every 300 s from second 120 on; 40 s before the 14th, its load is due in 40 s.
    scheduled = batch_features(requests)[:, NAMES.index("scheduled_40_s")]
    assert scheduled[(120 + 13 * 300 - 35) // TICK_S] > 1.0
    assert scheduled[(120 + 13 * 300 - 150) // TICK_S] < 0.2


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1_000), cut=st.integers(200, 800))
def test_no_feature_knows_the_future(traffic, seed: int, cut: int) -> None:
    """What arrives or finishes from a tick on may change in any way; the tick's features stay the same."""
    requests = traffic(seed, 1_000, 0.5)
    tick = cut // TICK_S * TICK_S
    now = requests["arrived_at"][0] + pl.duration(seconds=tick)
    random = np.random.default_rng(seed)
    later = pl.Series(random.integers(1, 100_000, len(requests)))
    changed = requests.with_columns(
        pl.when(pl.col("arrived_at") >= now).then(later).otherwise("prompt_tokens").alias("prompt_tokens"),
        pl.when(pl.col("finished_at") >= now).then(later).otherwise("output_tokens").alias("output_tokens"),
        pl.when(pl.col("finished_at") >= now)
        .then(pl.lit(0))
        .otherwise("cached_tokens")
        .alias("cached_tokens"),
        pl.when(pl.col("finished_at") >= now).then(pl.lit("shed")).otherwise("outcome").alias("outcome"),
    )
    at = tick // TICK_S
    np.testing.assert_array_equal(batch_features(requests)[at], batch_features(changed)[at])


def test_rows_over_a_minute_behind_are_counted_not_used() -> None:
    online = OnlineFeatures()
    flow = online.arrive(0, 100)
    for second in range(200):
        online.arrive(second * 1_000_000, 100)
    before = online.features(200)
    online.arrive(139_000_000, 50_000)
    online.finish(139_000_000, flow, 100, 0, 10)
    assert online.late == 2
    np.testing.assert_array_equal(online.features(200), before)
    online.arrive(140_000_000, 50_000)
    assert online.late == 2
    assert (online.features(200) != before).any()


def test_rows_from_before_the_first_arrival_told_are_counted_not_used() -> None:
    online = OnlineFeatures()
    online.finish(0, 0, 100, 0, 10)
    flow = online.arrive(1_000_000, 100)
    online.arrive(999_999, 100)
    online.finish(999_999, flow, 100, 0, 10)
    assert online.late == 3


def test_flows_keep_their_number_whatever_is_told_late() -> None:
    online = OnlineFeatures()
    flow = online.arrive(0, 100, tenant="a")
    online.features(100)
    assert online.arrive(50_000_000, 100, tenant="b") == flow + 1
    online.features(100)
    assert online.arrive(100_000_000, 100, tenant="a") == flow


def test_an_idle_hour_gives_finite_features() -> None:
    online = OnlineFeatures()
    online.arrive(0, 100)
    assert np.isfinite(online.features(3_700)).all()
    assert np.isnan(online.features(3_700)).sum() == 0


def test_features_are_unknown_before_a_minute_of_history() -> None:
    online = OnlineFeatures()
    online.arrive(0, 100)
    assert np.isnan(online.features(65)).all()
    assert np.isfinite(online.features(70)).all()


def test_the_line_rests_on_the_last_day_of_ends() -> None:
    online = OnlineFeatures()
    sizes = {100: 50_000, 4_000: 700, 89_000: 300}
    for at_s, tokens in sizes.items():
        flow = online.arrive(at_s * 1_000_000, tokens)
        online.finish((at_s + 1) * 1_000_000, flow, tokens, 0, 100)
    for t_s, known in ((5_000, [50_100, 800]), (89_900, [50_100, 800, 400]), (90_200, [800, 400])):
        online.features(t_s)
        found = online._known(t_s)
        work = np.array(known, dtype=np.float64)
        np.testing.assert_array_equal(
            found.line, burst_line(found.level[0], work.mean(), np.square(work).mean())
        )
