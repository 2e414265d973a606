from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from features.ticks import TICK_S
from models.guard.intervals import MIN_BLOCKS, Estimate
from serving.forecast.tally import EPISODE_S, Outcomes, Tally, count

HOUR_S = 3_600


def outcomes(t_s: np.ndarray, onset_s: np.ndarray, alarm: np.ndarray, eligible: np.ndarray) -> Outcomes:
    following = np.append(onset_s, -1)[np.searchsorted(onset_s, t_s, "right")]
    near = (following >= 0) & (following - t_s <= 60)
    return Outcomes(t_s, eligible, np.where(near, following, -1), alarm, alarm)


@st.composite
def pasts(draw: st.DrawFn) -> tuple[Outcomes, np.ndarray]:
    """Up to half an hour of ticks, some of which were missed."""
    ticks = draw(st.lists(st.booleans(), min_size=2, max_size=350))
    t_s = np.flatnonzero([True, *ticks]).astype(np.int64) * TICK_S
    runs = st.lists(st.booleans(), min_size=12, max_size=40)
    alarm = np.resize(np.repeat(draw(runs), draw(st.integers(1, 9))), len(t_s))
    eligible = np.resize(np.repeat(draw(runs), draw(st.integers(1, 9))), len(t_s))
    onset_s = draw(st.lists(st.integers(0, int(t_s[-1]) + 60), unique=True, max_size=12).map(sorted))
    onsets = np.array(onset_s, dtype=np.int64)
    return outcomes(t_s, onsets, alarm, eligible), onsets


@given(pasts())
def test_counts_are_those_of_a_plain_reading_of_the_definitions(past: tuple[Outcomes, np.ndarray]) -> None:
    ticks, onset_s = past
    alarm_at = dict(zip(ticks.t_s.tolist(), ticks.alarm.tolist(), strict=True))
    eligible = {t for t, counts in zip(alarm_at, ticks.eligible.tolist(), strict=True) if counts}
    last_s = int(ticks.t_s[-1])
    counted = [x for x in onset_s.tolist() if x - 60 >= 0 and x <= last_s]
    starts = [t for t, alarm in alarm_at.items() if alarm and not alarm_at.get(t - TICK_S, False)]
    leads = []
    for x in counted:
        early = any(alarm for t, alarm in alarm_at.items() if x - 60 <= t <= x - 30)
        last = [alarm for t, alarm in alarm_at.items() if x - 10 < t <= x]
        if early and last and all(last):
            leads.append(x - max(t for t in starts if t <= x))
    ripe = [t for t in starts if t in eligible and t + EPISODE_S <= last_s + 60]
    calm = [t for t in eligible if not any(t < x <= t + 60 for x in onset_s.tolist())]
    found = count(ticks, onset_s, last_s + 60)
    assert (found.onsets, found.anticipated, list(found.leads_s)) == (len(counted), len(leads), leads)
    assert found.episodes == len(ripe)
    assert found.right_episodes == sum(any(t < x <= t + EPISODE_S for x in onset_s.tolist()) for t in ripe)
    assert (found.negatives, found.false_alarms) == (len(calm), sum(alarm_at[t] for t in calm))
    assert found.recall.value == (len(leads) / len(counted) if counted else None)
    assert found.false_alarm_rate.value == (found.false_alarms / len(calm) if calm else None)


def a_day(hours_with_onsets: int) -> tuple[Outcomes, np.ndarray]:
    """A day of ticks, all of which count, with an onset foreseen by every other hour's alarm."""
    t_s = np.arange(0, 24 * HOUR_S, TICK_S)
    onset_s = np.arange(hours_with_onsets) * HOUR_S + 1_800
    from_onset_s = (t_s + 1_795) % HOUR_S - 3_595  # -3,595 to 0
    alarm = (from_onset_s >= -50) & (t_s // HOUR_S % 2 == 0)
    return outcomes(t_s, onset_s, alarm, np.full(len(t_s), True)), onset_s


def test_an_interval_takes_five_hours_that_hold_something_to_count() -> None:
    few, enough = (count(*a_day(hours), 25 * HOUR_S) for hours in (MIN_BLOCKS - 1, MIN_BLOCKS))
    assert few.recall == Estimate(0.5, None, None)
    assert few.false_alarm_rate.low is not None  # calm ticks lie in all hours
    assert enough.recall.low is not None
    assert enough.recall.value is not None
    assert enough.recall.high is not None
    assert 0.0 <= enough.recall.low < enough.recall.value < enough.recall.high <= 1.0
    assert enough.rests_on.startswith(
        "recall on 5 onsets, precision on 12 alarm episodes, false-alarm rate on"
    )


def test_more_hours_make_a_narrower_interval() -> None:
    def width(hours: int) -> float:
        recall = count(*a_day(hours), 25 * HOUR_S).recall
        assert recall.low is not None
        assert recall.high is not None
        return recall.high - recall.low

    assert width(24) < 0.6 * width(6)


def test_nothing_matured_is_an_empty_tally() -> None:
    assert count(Outcomes.none(), np.array([], dtype=np.int64), 0) == Tally()


def test_what_matured_is_kept_in_order_and_forgotten_from_its_start() -> None:
    past, _ = a_day(0)
    earlier = replace(past, **{name: getattr(past, name)[:100] for name in past.__slots__})
    later = past.after(99 * TICK_S)
    whole = earlier.then(later)
    for name in past.__slots__:
        assert np.array_equal(getattr(whole, name), getattr(past, name))
    assert len(past.after(24 * HOUR_S).t_s) == 0
