import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from features.ticks import Ticks
from models.guard.guard import Guard, Verdict
from models.guard.replay import Guarded, joined, replay, warmed
from models.guard.skill import SkillGate
from models.guard.tripwire import TripWire

OUTCOME_S = 120
"""An outcome is known when the horizon of 60 s is over and the outputs of its requests are in."""


class Spy(Guard):
    """A guard that writes down what it is asked and told."""

    def __init__(self, threshold: float | None) -> None:
        super().__init__(threshold)
        self.heard: list[tuple[str, int, bool | None]] = []

    def decide(self, t_s: int, score: float | None) -> Verdict:
        self.heard.append(("decide", t_s, None))
        return super().decide(t_s, score)

    def settle(self, t_s: int, negative: bool, *, late: bool = False, onset_s: int | None = None) -> None:
        self.heard.append(("settle", t_s, negative))
        super().settle(t_s, negative, late=late, onset_s=onset_s)


def stream(seed: int, count: int) -> tuple[NDArray[np.float64], Ticks]:
    """Scores, some unknown, that rise ahead of some onsets, and their labelled ticks."""
    random = np.random.default_rng(seed)
    t_s = 5 * (random.integers(0, 50_000) + np.arange(count, dtype=np.int64))
    onsets = np.unique(random.integers(t_s[0], t_s[-1] + 1, count // 60 + 1))
    following = np.append(onsets, -1)[np.searchsorted(onsets, t_s, side="right")]
    ahead_s = np.where(following >= 0, following - t_s, 10**6)
    score = random.normal(size=count) + 2.0 * (ahead_s <= 60) * random.integers(0, 2, count)
    score[random.random(count) < 0.05] = math.nan
    return score, Ticks(t_s, random.random(count) < 0.9, following)


def test_outcomes_are_told_two_minutes_after_their_tick_and_no_later() -> None:
    score, ticks = stream(seed=0, count=400)
    spy = Spy(1.0)
    replay(spy, score, ticks)
    told: dict[int, bool | None] = {}
    waiting: list[int] = []
    for what, t_s, negative in spy.heard:
        if what == "settle":
            told[t_s] = negative
            waiting.append(t_s)
            continue
        assert all(t_s - past >= OUTCOME_S for past in waiting)
        assert set(told) == {past for past in ticks.t_s.tolist() if past + OUTCOME_S <= t_s}
        waiting = []
    assert not waiting
    assert told == dict(zip(ticks.t_s.tolist()[: len(told)], ticks.negative.tolist(), strict=False))
    assert [t_s for what, t_s, _ in spy.heard if what == "decide"] == ticks.t_s.tolist()


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6), st.integers(1, 700), st.none() | st.floats(-1.0, 3.0))
def test_it_equals_a_plain_loop_over_live_operation(seed: int, count: int, threshold: float | None) -> None:
    score, ticks = stream(seed, count)
    guard, guarded = Guard(threshold), replay(Guard(threshold), score, ticks)
    alarms, thresholds, denied = [], [], 0
    for now_s, value in zip(ticks.t_s.tolist(), score.tolist(), strict=True):
        due_s = now_s - OUTCOME_S
        if due_s >= ticks.t_s[0]:
            guard.settle(due_s, bool(ticks.negative[ticks.t_s == due_s][0]))
        verdict = guard.decide(now_s, value)
        alarms.append(verdict.alarm)
        thresholds.append(math.nan if verdict.threshold is None else verdict.threshold)
        denied += verdict.denied
    assert guarded.alarm.tolist() == alarms
    np.testing.assert_array_equal(guarded.threshold, thresholds)
    assert guarded.denied == denied


def test_alarms_stand_and_are_denied_in_the_stream_that_the_loop_is_compared_on() -> None:
    score, ticks = stream(seed=1, count=2_000)
    guarded = replay(Guard(0.5), score, ticks)
    assert guarded.alarm.sum() > 20
    assert guarded.denied > 20
    assert len(np.unique(guarded.threshold)) > 20
    assert guarded.alarm[ticks.negative].sum() <= 0.05 * ticks.negative.sum()


def test_an_unknown_score_never_alarms_and_ends_an_alarm() -> None:
    _, ticks = stream(seed=2, count=600)
    score = np.full(600, 9.0)
    known = replay(Guard(1.0), score, ticks)
    score[known.alarm.argmax() + 1 :: 2] = math.nan
    guarded = replay(Guard(1.0), score, ticks)
    assert guarded.alarm.any()
    assert not guarded.alarm[np.isnan(score)].any()
    assert not replay(Guard(-9.0), np.full(600, math.nan), ticks).alarm.any()


@pytest.mark.parametrize("count", [0, 1])
def test_an_advisory_guard_never_alarms_and_shows_no_threshold(count: int) -> None:
    score, ticks = stream(seed=3, count=600)
    few = ticks.select(np.arange(600) < count)
    for values, these in ((score[:count], few), (score, ticks)):
        guarded = replay(Guard(None), values, these)
        assert len(guarded.alarm) == len(these)
        assert not guarded.alarm.any()
        assert np.isnan(guarded.threshold).all()
        assert guarded.denied == 0


def test_a_closed_gate_raises_no_alarm_and_what_would_have_been_is_kept() -> None:
    score, ticks = stream(seed=4, count=3_000)
    bare = replay(Guard(0.5), score, ticks)
    closed = replay(Guard(0.5, skill=SkillGate(), wire=TripWire()), score, ticks)
    assert bare.alarm.any()
    assert closed.advisory is not None
    assert closed.advisory.all()
    assert not closed.alarm.any()
    assert closed.would is not None
    assert closed.would.tolist() == bare.alarm.tolist()
    assert (bare.reason, bare.advisory is not None and bare.advisory.any()) == (None, False)
    assert "random alarm" in str(closed.reason)


def test_spans_are_joined_and_the_last_reason_is_told() -> None:
    score, ticks = stream(seed=5, count=1_000)
    first, last = (replay(Guard(0.5, skill=gate), score, ticks) for gate in (None, SkillGate()))
    whole = joined([first, last])
    assert whole.alarm.tolist() == [*first.alarm.tolist(), *last.alarm.tolist()]
    assert whole.advisory is not None
    assert whole.advisory.tolist() == [False] * 1_000 + [True] * 1_000
    assert (whole.denied, whole.reason) == (first.denied + last.denied, last.reason)
    assert joined([first, Guarded(first.alarm, first.threshold, 0)]).would is None


def test_a_warm_ledger_has_earned_what_an_hour_of_calm_earns() -> None:
    t_s = np.arange(0, 3_600, 5)
    calm = Ticks(t_s, np.ones(720, dtype=np.bool_), np.full(720, -1))
    earned = 720 - 24  # outcomes of the last two minutes are not known yet
    assert warmed(calm, 3_600).remaining() == earned // 20
    assert warmed(calm.select(t_s < 1_200), 10_000).remaining() == 240 // 20
    bursts = Ticks(t_s, np.ones(720, dtype=np.bool_), (t_s // 60 + 1) * 60)
    assert warmed(bursts, 3_600).remaining() == 0
