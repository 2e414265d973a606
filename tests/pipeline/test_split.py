import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.errors import InputError
from pipeline.split import Span, Split, days, split, walk_forward

HOUR_S = 3600
LENGTHS = st.integers(0, 12 * HOUR_S) | st.integers(0, 10 * 24 * HOUR_S)
FRACTIONS = st.sampled_from([0.0, 0.3, 0.35, 0.9]) | st.floats(0.001, 0.9)


def split_or_none(seconds: int, fraction: float) -> Split | None:
    """The spans; None for a trace that is told to be too short."""
    try:
        return split(seconds, fraction)
    except InputError as error:
        if "too short to train, calibrate and test apart" not in str(error):
            raise
        return None


@given(LENGTHS, FRACTIONS)
def test_spans_follow_in_time_with_gaps_between_them(seconds: int, fraction: float) -> None:
    spans = split_or_none(seconds, fraction)
    if spans is None:
        return
    assert spans.warmup_s <= spans.train.start_s < spans.train.end_s
    assert spans.train.end_s + spans.gap_s <= spans.calibrate.start_s < spans.calibrate.end_s
    assert spans.test.end_s == seconds
    if fraction:
        assert spans.calibrate.end_s + spans.gap_s <= spans.test.start_s < seconds
        assert abs((seconds - spans.test.start_s) - fraction * seconds) <= 6
    else:
        assert spans.calibrate.end_s == spans.test.start_s == seconds


@given(LENGTHS, FRACTIONS)
def test_no_tick_is_in_two_spans_and_none_is_tested_without_a_fraction(seconds: int, fraction: float) -> None:
    spans = split_or_none(seconds, fraction)
    if spans is None:
        return
    t_s = np.arange(0, seconds, 5, dtype=np.int64)
    held = [span.holds(t_s) for span in (spans.train, spans.calibrate, spans.test)]
    assert np.sum(held, axis=0).max() <= 1
    assert held[0].sum() >= 20
    assert held[1].any()
    assert held[2].any() == (fraction > 0)


@pytest.mark.parametrize(
    ("seconds", "gap_s", "warmup_s"),
    [
        (3 * HOUR_S // 2, 600 + 10 + 60, 600),
        (2 * HOUR_S - 1, 600 + 10 + 60, 600),
        (10 * HOUR_S, 3600 + 10 + 60, 3600),
    ],
)
def test_short_traces_use_the_short_gap_and_warm_up(seconds: int, gap_s: int, warmup_s: int) -> None:
    spans = split(seconds, 0.3)
    assert (spans.gap_s, spans.warmup_s, spans.train.start_s) == (gap_s, warmup_s, warmup_s)


def test_two_hours_are_no_short_trace() -> None:
    with pytest.raises(InputError, match=r"7,200 s, too short .* warm-up takes 3,600 s and each gap 3,670 s"):
        split(2 * HOUR_S, 0.3)


@pytest.mark.parametrize("fraction", [-0.01, 0.91, 1.0, math.nan, math.inf])
def test_a_fraction_out_of_range_is_told_in_a_sentence(fraction: float) -> None:
    with pytest.raises(InputError, match=f"Test fraction must be from 0 to 0.9; got {fraction}"):
        split(100 * HOUR_S, fraction)


def test_a_span_holds_its_start_and_not_its_end() -> None:
    t_s = np.array([0, 5, 10, 15], dtype=np.int64)
    assert Span(5, 15).holds(t_s).tolist() == [False, True, True, False]


@given(st.integers(2 * 24 * HOUR_S, 15 * 24 * HOUR_S))
def test_a_walk_tests_every_day_but_the_first_on_what_came_before(seconds: int) -> None:
    walk = walk_forward(seconds)
    assert len(walk) == days(seconds) - 1
    assert (walk[0].test.start_s, walk[-1].test.end_s) == (24 * HOUR_S, seconds)
    for before, after in pairwise(walk):
        assert before.test.end_s == after.test.start_s
        assert before.train.end_s < after.train.end_s
    for spans in walk:
        assert spans.train.start_s == spans.warmup_s == HOUR_S
        assert spans.train.end_s + spans.gap_s <= spans.calibrate.start_s < spans.calibrate.end_s
        assert spans.calibrate.end_s + spans.gap_s == spans.test.start_s
        assert 12 * HOUR_S <= spans.test.end_s - spans.test.start_s < 36 * HOUR_S


def test_one_day_cannot_be_walked() -> None:
    with pytest.raises(InputError, match=r"two days or more; got 100,000 s\. Test on its last part instead"):
        walk_forward(100_000)
