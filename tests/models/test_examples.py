import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from features.batch import batch_features
from features.bursts import baseline, load
from features.ticks import SLOT_S, SLOTS
from features.windows import NAMES
from models.examples import TraceExamples, peak_ahead, prepare
from models.forecaster import NONE
from tests.features.frames import frame

SECONDS = 4_000


def trace() -> pl.DataFrame:
    """Even traffic, and every quarter of an hour twenty seconds of ten times as much."""
    random = np.random.default_rng(0)
    crowds = [start + random.uniform(0, 20, 400) for start in range(850, SECONDS - 100, 900)]
    arrived_s = np.concatenate([[0.0], random.uniform(0, SECONDS, 2 * SECONDS), *crowds])
    count = len(arrived_s)
    return frame(
        arrived_s.tolist(),
        {
            "tenant": ["a"] * count,
            "prompt_tokens": random.integers(400, 600, count).tolist(),
            "output_tokens": random.integers(50, 150, count).tolist(),
            "finished_s": (arrived_s + 5.0).tolist(),
        },
    )


@pytest.fixture(scope="module")
def prepared() -> TraceExamples:
    return prepare(trace())


def test_there_is_a_row_for_every_tick(prepared: TraceExamples):
    n = len(prepared.ticks)
    assert n == -(-len(prepared.bins.work) // 5)
    assert prepared.examples.features.shape == (n, len(NAMES))
    assert prepared.examples.features.dtype == prepared.examples.peak_ratio.dtype == np.float32
    assert prepared.examples.slot.dtype == np.int64
    for column in (prepared.load, prepared.baseline, prepared.examples.slot, prepared.examples.peak_ratio):
        assert column.shape == (n,)


def test_every_crowd_is_an_onset(prepared: TraceExamples):
    starts_s = np.arange(850, SECONDS - 100, 900)
    assert len(prepared.events) == len(starts_s)
    assert (np.abs(prepared.events.onset_s - starts_s) <= 5).all()


def test_slots_agree_with_the_ticks(prepared: TraceExamples):
    ticks, slot = prepared.ticks, prepared.examples.slot
    assert set(slot.tolist()) == {*range(SLOTS), NONE}
    for t_s, onset_s, found in zip(
        ticks.t_s.tolist(), ticks.next_onset_s.tolist(), slot.tolist(), strict=True
    ):
        ahead_s = onset_s - t_s
        if onset_s < 0 or ahead_s > 60:
            assert found == NONE
        else:
            assert found * SLOT_S < ahead_s <= (found + 1) * SLOT_S
    assert (slot[ticks.positive] >= 3).all()
    assert (slot[ticks.positive] < NONE).all()
    assert (slot[ticks.late] < 3).all()
    assert (slot[ticks.negative] == NONE).all()


def test_features_and_known_load_are_those_of_the_trace(prepared: TraceExamples):
    requests = trace()
    np.testing.assert_array_equal(prepared.examples.features, batch_features(requests))
    assert prepared.known.work.shape == prepared.bins.work.shape
    assert prepared.known.origin_us == prepared.bins.origin_us
    # In sum, what was expected comes near what was realised.
    assert prepared.known.work.sum() == pytest.approx(prepared.bins.work.sum(), rel=0.02)
    assert not np.array_equal(prepared.known.work, prepared.bins.work)


def test_load_and_baseline_are_those_of_the_last_second(prepared: TraceExamples):
    level, base = load(prepared.bins.work), baseline(prepared.bins.work)
    for tick in (1, 20, 400, len(prepared.ticks) - 1):
        assert prepared.load[tick] == level[5 * tick - 1]
        np.testing.assert_equal(prepared.baseline[tick], base[5 * tick - 1])


def test_the_peak_ratio_is_the_peak_over_the_known_baseline(prepared: TraceExamples):
    level = load(prepared.bins.work)
    known = np.exp(prepared.examples.features[:, NAMES.index("baseline")])
    for tick in (20, 165, 400):
        peak = level[5 * tick + 1 : 5 * tick + 61].max()
        assert prepared.examples.peak_ratio[tick] == pytest.approx(peak / known[tick], rel=1e-5)
    assert np.nanmax(prepared.examples.peak_ratio) > 5.0


@given(st.lists(st.floats(0.0, 1e6), min_size=1, max_size=150))
@settings(max_examples=50, deadline=None)
def test_peak_ahead_equals_the_plain_loop(level: list[float]):
    t_s = np.arange(0, len(level), 5)
    plain = [max(level[t + 1 : t + 61], default=0.0) for t in t_s.tolist()]
    assert peak_ahead(np.array(level), t_s).tolist() == plain
