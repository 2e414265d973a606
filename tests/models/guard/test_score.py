import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from features.ticks import SLOTS
from models.guard.score import HOLD, next_score, sustained_scores

slots = st.lists(st.floats(0.0, 1.0), min_size=SLOTS + 1, max_size=SLOTS + 1).map(
    lambda weights: (np.array(weights) + 1e-9)[:SLOTS] / (sum(weights) + 1e-6)
)
streams = st.lists(slots, min_size=1, max_size=40).map(np.array)


def start(p: np.ndarray) -> float:
    return math.log(p[3:].sum() / (1 - p.sum()))


def hold(p: np.ndarray) -> float:
    return math.log(p[:3].sum() / (1 - p.sum()))


@given(streams, st.floats(-10.0, 10.0))
@settings(max_examples=200, deadline=None)
def test_over_a_threshold_exactly_when_an_alarm_started_and_was_held(p: np.ndarray, threshold: float) -> None:
    standing, expected = False, []
    for tick in p:
        standing = start(tick) > threshold or (standing and hold(tick) + HOLD > threshold)
        expected.append(standing)
    assert (sustained_scores(p) > threshold).tolist() == expected


@given(streams)
@settings(max_examples=50, deadline=None)
def test_one_tick_at_a_time_gives_the_same(p: np.ndarray) -> None:
    score, scores = None, []
    for tick in p:
        score = next_score(score, tick)
        scores.append(score)
    assert sustained_scores(p).tolist() == scores


def test_certainties_are_finite() -> None:
    for p in (np.zeros(SLOTS), np.eye(SLOTS)[0], np.eye(SLOTS)[5]):
        assert math.isfinite(next_score(None, p))


def test_an_unknown_tick_is_unknown_and_ends_what_stood() -> None:
    sure, none, unknown = np.eye(SLOTS)[5] * 0.9, np.zeros(SLOTS), np.full(SLOTS, np.nan)
    scores = sustained_scores(np.stack([sure, unknown, np.eye(SLOTS)[0] * 0.9]))
    assert np.isnan(scores).tolist() == [False, True, False]
    assert scores[2] == next_score(None, np.eye(SLOTS)[0] * 0.9) < scores[0]
    assert next_score(scores[0], none) < scores[0]


def test_an_onset_that_comes_too_soon_starts_no_alarm() -> None:
    assert next_score(None, np.eye(SLOTS)[0] * 0.9) == pytest.approx(math.log(1e-7 / 0.1))
