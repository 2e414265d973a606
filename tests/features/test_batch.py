from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import features.batch
import features.flows
from features.batch import batch_features, channel_seconds
from features.flows import flow_seconds
from features.returns import LAST_AGE_S
from features.ticks import TICK_S
from features.windows import CHANNELS, NAMES
from tests.features.frames import frame, random_frame

CLOCK = np.array([name.startswith(("sin_", "cos_")) for name in NAMES])


@pytest.mark.parametrize("shift_s", [1, 7 * 3_600 + 13 * 60, 30 * 86_400])
def test_only_the_clock_tells_a_trace_from_itself_at_another_time(traffic, shift_s: int):
    requests = traffic(0, 2_000)
    later = requests.with_columns(pl.col("arrived_at", "finished_at") + pl.duration(seconds=shift_s))
    now, then = batch_features(requests), batch_features(later)
    np.testing.assert_array_equal(now[:, ~CLOCK], then[:, ~CLOCK])
    if shift_s == 30 * 86_400:
        np.testing.assert_allclose(now[:, CLOCK], then[:, CLOCK], atol=1e-4)
    else:
        assert not np.allclose(now[20:, CLOCK], then[20:, CLOCK], atol=1e-4)


@given(st.integers(0, 10**6), st.integers(80, 380))
@settings(max_examples=15, deadline=None)
def test_a_cut_trace_agrees_on_the_common_part(seed: int, cut_s: int):
    requests = random_frame(seed, 400, 150)
    first = requests["arrived_at"][0]
    cut = requests.filter(pl.col("arrived_at") < first + pl.duration(seconds=cut_s))
    whole, part = batch_features(requests), batch_features(cut)
    assert 0 < len(part) <= -(-cut_s // TICK_S)
    np.testing.assert_array_equal(part, whole[: len(part)])


def test_a_long_trace_agrees_with_its_beginning(traffic):
    requests = traffic(4, 6_000, 0.3)
    cut = requests.filter(pl.col("arrived_at") < requests["arrived_at"][0] + pl.duration(seconds=4_800))
    part = batch_features(cut)
    np.testing.assert_array_equal(part, batch_features(requests)[: len(part)])


def test_channels_sum_what_arrived():
    requests = frame(
        [0.0, 0.2, 1.5, 1.6],
        {
            "prompt_tokens": [100, 9_000, 50, 60],
            "lane": ["premium", "batch", None, "premium"],
            "finished_s": [0.9, 90.0, 1.8, None],
            "outcome": ["shed", "served", "failed", "served"],
            "output_tokens": [0, 5, 7, 8],
        },
    )
    channels = dict(zip(CHANNELS, channel_seconds(flow_seconds(requests)).tolist(), strict=True))
    assert channels == {
        "requests": [2, 2],
        "work": [9_100, 110],
        "prompt": [9_100, 110],
        "long_prompts": [1, 0],
        "premium_work": [100, 60],
        "standard_work": [0, 50],
        "batch_work": [9_000, 0],
        "refusals": [1, 1],
        "squares": [4, 4],
    }


@pytest.mark.parametrize("seed", range(3))
def test_slices_of_a_scanned_file_and_stretches_of_ticks_change_no_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
):
    requests = random_frame(seed, 1_500, 600)
    whole, waits = batch_features(requests), flow_seconds(requests).waits
    requests.write_parquet(tmp_path / "requests.parquet")
    monkeypatch.setattr(features.flows, "SLICE", 40)
    monkeypatch.setattr(features.batch, "STRETCH", 7)
    scanned = pl.scan_parquet(tmp_path / "requests.parquet")
    np.testing.assert_array_equal(batch_features(scanned), whole)
    # A session that was silent for long may have come back in another slice: that is no matter.
    cut = flow_seconds(scanned).waits
    for waited in (waits, cut):
        waited[1] = np.minimum(waited[1], waited[0] + LAST_AGE_S)
    np.testing.assert_array_equal(*(waited[:, np.lexsort(waited)] for waited in (waits, cut)))


def test_a_single_request_is_a_trace_of_one_unknown_tick():
    tick = batch_features(frame([3.0], {"prompt_tokens": [10]}))
    assert tick.shape == (1, len(NAMES))
    assert np.isnan(tick).all()


@given(st.integers(0, 10**6), st.integers(1, 60))
@settings(max_examples=15, deadline=None)
def test_the_order_of_requests_that_arrive_at_one_time_is_no_matter(seed: int, count: int):
    at_s = pl.col("arrived_at").dt.truncate("1s")
    requests = random_frame(seed, 200, count).with_columns(arrived_at=at_s)
    requests = requests.with_columns(
        pl.max_horizontal("finished_at", "arrived_at").alias("finished_at")
    ).sort("arrived_at")
    turned = requests.reverse().sort("arrived_at", maintain_order=True)
    np.testing.assert_array_equal(batch_features(requests), batch_features(turned))
