import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from features.bursts import Events
from features.ticks import Ticks, label_ticks
from tests.features import reference


def to_events(pairs: list[tuple[int, int]]) -> Events:
    return Events(*np.array(pairs, dtype=np.int64).reshape(-1, 2).T)


def labels(ticks: Ticks) -> list[str | None]:
    """One word a tick; fails where a tick has two labels or is labelled without being eligible."""
    marks = np.stack([ticks.positive, ticks.late, ticks.negative])
    assert (marks.sum(axis=0) == ticks.eligible).all()
    names = np.array(["positive", "late", "negative"], dtype=object)
    return [names[column].tolist()[0] if column.any() else None for column in marks.T]


@st.composite
def traces(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]], list[tuple[int, int]]]:
    """Seconds, events in order and apart from each other, and gaps in any order."""
    seconds = draw(st.integers(0, 3_000) | st.integers(7_150, 7_800))
    found, start = [], 0
    for quiet, length in draw(st.lists(st.tuples(st.integers(31, 700), st.integers(5, 90)), max_size=12)):
        first = start + quiet
        if first + length > seconds:
            break
        found.append((first, first + length - 1))
        start = first + length
    gaps = draw(st.lists(st.tuples(st.integers(0, 8_000), st.integers(0, 30)), max_size=1))
    return seconds, found, [(first, first + length) for first, length in gaps]


@given(traces())
@settings(max_examples=100, deadline=None)
def test_labels_equal_the_plain_definition(trace):
    seconds, found, gaps = trace
    ticks = label_ticks(seconds, to_events(found), gaps)
    assert ticks.t_s.tolist() == list(range(0, seconds, 5))
    assert labels(ticks) == [reference.label(t, seconds, found, gaps) for t in range(0, seconds, 5)]
    onsets = [next((first for first, _ in found if first > t), -1) for t in range(0, seconds, 5)]
    assert ticks.next_onset_s.tolist() == onsets


@pytest.mark.parametrize(
    ("ahead_s", "label"), [(1, "late"), (30, "late"), (31, "positive"), (60, "positive"), (61, "negative")]
)
def test_horizon_is_open_on_the_left_and_closed_on_the_right(ahead_s: int, label: str):
    ticks = label_ticks(2_000, to_events([(1_000 + ahead_s, 1_000 + ahead_s + 9)]))
    assert labels(ticks)[1_000 // 5] == label


def test_ticks_in_an_event_and_sixty_seconds_after_do_not_count():
    ticks = label_ticks(2_000, to_events([(1_000, 1_050)]))
    outside = ticks.t_s[~ticks.eligible & (ticks.t_s >= 600) & (ticks.t_s < 1_940)]
    assert (outside.min(), outside.max()) == (1_000, 1_110)


@pytest.mark.parametrize(("seconds", "first_s"), [(7_199, 600), (7_200, 3_600)])
def test_warm_up_is_an_hour_or_ten_minutes_in_a_short_trace(seconds: int, first_s: int):
    ticks = label_ticks(seconds, to_events([]))
    assert ticks.t_s[ticks.eligible].min() == first_s


@pytest.mark.parametrize(("seconds", "last_s"), [(1_060, 995), (1_061, 1_000)])
def test_a_tick_counts_when_its_whole_horizon_was_seen(seconds: int, last_s: int):
    ticks = label_ticks(seconds, to_events([]))
    assert ticks.t_s[ticks.eligible].max() == last_s


def test_a_gap_in_sight_of_a_tick_makes_it_ineligible():
    ticks = label_ticks(7_000, to_events([]), [(2_000, 2_100)])
    lost = ticks.t_s[~ticks.eligible & (ticks.t_s >= 600) & (ticks.t_s < 6_900)]
    assert (lost.min(), lost.max()) == (1_940, 2_700)


def test_select_keeps_the_labels():
    ticks = label_ticks(3_000, to_events([(1_000, 1_010), (2_000, 2_010)]))
    chosen = ticks.select(ticks.positive)
    assert len(chosen) == 12
    assert chosen.positive.all()
    assert set(chosen.next_onset_s.tolist()) == {1_000, 2_000}
