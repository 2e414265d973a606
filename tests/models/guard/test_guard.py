import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.errors import InputError
from features.ticks import TICK_S
from models.guard.guard import AIM, HOLD, RAISE, RATE, RESERVE, Guard, Verdict
from models.guard.ledger import Ledger

SMALL = ((1_000, 0.05), (300, 0.15))
"""Short windows, so that a small example earns and spends a budget."""
OUTCOME_S = 60
"""A tick's outcome is known a minute later."""

SCORES = st.none() | st.just(math.nan) | st.floats(-8.0, 8.0) | st.sampled_from([1.0, math.inf, -math.inf])


def calm_until(t_s: int, threshold: float | None = 1.0, ticks: int = 2 * RESERVE * 20) -> Guard:
    """A guard whose ledger has seen this many calm ticks before ``t_s``; by default the budget is ample."""
    guard = Guard(threshold)
    for past_s in range(t_s - ticks * TICK_S, t_s, TICK_S):
        guard.settle(past_s, negative=True)
    return guard


def play(guard: Guard, stream: list[tuple[float | None, bool | None]], first: int = 0) -> list[Verdict]:
    """Decide tick after tick; each learns the outcome of the tick a minute ago, where there is one."""
    verdicts = []
    for index in range(first, len(stream)):
        if (past := index - OUTCOME_S // TICK_S) >= 0 and (outcome := stream[past][1]) is not None:
            guard.settle(past * TICK_S, outcome)
        verdicts.append(guard.decide(index * TICK_S, stream[index][0]))
    return verdicts


def exchangeable(seed: int, ticks: int) -> list[tuple[float | None, bool | None]]:
    return [(score, True) for score in np.random.default_rng(seed).standard_normal(ticks).tolist()]


def test_the_aim_lies_within_the_budget():
    assert 0.5 * RATE < AIM <= RATE


@given(st.lists(st.tuples(SCORES, st.booleans()), max_size=60))
@settings(max_examples=50, deadline=None)
def test_without_a_threshold_it_never_alarms(stream: list[tuple[float | None, bool | None]]):
    guard = Guard(None)
    assert guard.advisory
    assert set(play(guard, stream)) <= {Verdict(False, None, False)}
    assert guard.advisory


@pytest.mark.parametrize("score", [None, math.nan])
def test_an_unknown_score_never_alarms_and_teaches_nothing(score: float | None):
    guard = calm_until(3_600)
    assert guard.decide(3_600, score) == Verdict(False, 1.0, False)
    guard.settle(3_600, negative=True)
    assert guard.threshold == 1.0
    assert guard.ledger.charges == 0


def test_only_a_score_over_the_threshold_alarms():
    guard = calm_until(3_600)
    assert guard.decide(3_600, 1.0) == Verdict(False, 1.0, False)  # strictly over: ties add no alarm
    assert guard.decide(3_605, 1.1) == Verdict(True, 1.0, False, True)
    assert guard.decide(3_610, math.inf).alarm
    assert not guard.decide(3_615, -math.inf).alarm


@pytest.mark.parametrize("restart", [False, True])
def test_a_standing_alarm_holds_a_little_under_the_threshold(restart: bool):
    guard = calm_until(3_600)
    just_under = 1.0 - HOLD / 2.0
    assert not guard.decide(3_600, just_under).alarm  # nothing stands yet
    assert guard.decide(3_605, 1.1).alarm
    if restart:
        guard = Guard.from_dict(json.loads(json.dumps(guard.to_dict())))
    assert guard.decide(3_610, just_under) == Verdict(True, 1.0 - HOLD, False, True)
    assert not guard.decide(3_615, 1.0 - HOLD - 0.01).alarm
    assert not guard.decide(3_620, just_under).alarm  # released
    assert guard.decide(3_625, 1.1).alarm
    assert not guard.decide(3_630, None).alarm
    assert not guard.decide(3_635, just_under).alarm  # an unknown score releases too


def test_a_new_alarm_must_be_surer_when_the_budget_runs_low():
    guard = calm_until(3_600, ticks=20 * RESERVE)
    assert guard.decide(3_600, 1.1) == Verdict(True, 1.0, False, True)
    low = calm_until(3_600, ticks=20 * RESERVE // 2)
    raised = 1.0 + RAISE / 2.0
    assert low.decide(3_600, raised - 0.01) == Verdict(False, raised, False)
    assert low.decide(3_605, raised + 0.01) == Verdict(True, raised, False, True)
    assert low.decide(3_610, 1.0 - HOLD / 2.0).alarm  # what stands may stand on


def test_a_fresh_guard_has_no_budget_and_says_so():
    assert Guard(1.0).decide(0, 5.0) == Verdict(False, 1.0 + RAISE, True)


@pytest.mark.parametrize(("score", "rises"), [(2.0, True), (0.0, False)])
def test_a_calm_tick_moves_the_threshold_away_from_its_mistake(score: float, rises: bool):
    guard = calm_until(3_600)
    guard.decide(3_600, score)
    assert guard.threshold == 1.0
    guard.settle(3_600, negative=True)
    assert guard.threshold is not None
    assert (guard.threshold > 1.0) is rises
    assert guard.threshold != 1.0


def test_what_was_no_calm_tick_leaves_the_threshold():
    guard = calm_until(3_600)
    guard.decide(3_600, 2.0)
    guard.settle(3_600, negative=False)
    guard.settle(3_605, negative=True)  # never decided
    assert guard.threshold == 1.0


def test_an_outcome_counts_once():
    guard = calm_until(3_600)
    guard.decide(3_600, 2.0)
    guard.settle(3_600, negative=True)
    once = guard.to_dict()
    guard.settle(3_600, negative=True)
    assert guard.to_dict() == once


@pytest.mark.parametrize("start", [-1.0, 1.7, 4.0])
def test_the_threshold_finds_the_aimed_share_of_an_exchangeable_stream(start: float):
    verdicts = play(Guard(start), exchangeable(0, 24_000))[12_000:]
    over = np.mean([verdict.alarm or verdict.denied for verdict in verdicts])
    assert over == pytest.approx(AIM, abs=0.006)
    assert verdicts[-1].threshold == pytest.approx(1.7, abs=0.25)  # the normal quantile of 1 - AIM
    assert np.mean([verdict.alarm for verdict in verdicts]) > 0.6 * AIM  # the budget is spent


def test_the_scale_sets_the_pace():
    far = [abs(play_threshold(Guard(8.0, scale), exchangeable(1, 500)) - 1.7) for scale in (0.5, 2.0)]
    assert far[1] < far[0] < 8.0 - 1.7


def play_threshold(guard: Guard, stream: list[tuple[float | None, bool | None]]) -> float:
    play(guard, stream)
    assert guard.threshold is not None
    return guard.threshold


@pytest.mark.parametrize("scores", ["rising", "always", "by turns"])
def test_the_ledger_holds_the_rate_whatever_the_scores(scores: str):
    ticks = 20_000
    guard = Guard(0.0)
    alarms = 0
    for index in range(ticks):
        if index >= 12:
            guard.settle((index - 12) * TICK_S, negative=True)
        assert guard.threshold is not None
        score = {
            "rising": float(index),
            "always": guard.threshold + 1e-6,
            "by turns": guard.threshold + (1.0 if index // 500 % 2 else -1.0),
        }[scores]
        alarms += guard.decide(index * TICK_S, score).alarm
    assert 0.5 * RATE * ticks < alarms <= RATE * ticks


streams = st.lists(
    st.tuples(SCORES, st.sampled_from([True, True, True, False, None])), min_size=1, max_size=120
)


@given(streams, st.integers(0, 60))
@settings(max_examples=60, deadline=None)
def test_no_window_that_ends_in_an_alarm_is_over_budget(
    stream: list[tuple[float | None, bool | None]], calm: int
):
    guard = Guard(0.0, 1.0, Ledger(SMALL))
    history: list[tuple[float | None, bool | None]] = [(-9.0, True)] * calm
    stream = history + stream
    verdicts = play(guard, stream)
    alarms = [i for i, verdict in enumerate(verdicts) if verdict.alarm]
    for end in alarms:
        for length_s, share in SMALL:
            window = range(max(0, end - length_s // TICK_S + 1), end + 1)
            negatives = sum(stream[i][1] is True for i in window)
            assert sum(stream[i][1] is True for i in alarms if i in window) <= share * negatives + 1e-9


@given(streams, st.integers(0, 120), st.sampled_from([None, -1.0, 0.5]))
@settings(max_examples=80, deadline=None)
def test_a_restart_changes_nothing(
    stream: list[tuple[float | None, bool | None]], at: int, threshold: float | None
):
    calm: list[tuple[float | None, bool | None]] = [(-9.0, True)] * 40
    stream = calm + stream
    at = min(40 + at, len(stream))
    unbroken, stopped = Guard(threshold, 2.0, Ledger(SMALL)), Guard(threshold, 2.0, Ledger(SMALL))
    play(unbroken, stream[:at])
    play(stopped, stream[:at])
    state = stopped.to_dict()
    restarted = Guard.from_dict(json.loads(json.dumps(state, allow_nan=False)))
    assert restarted.to_dict() == state
    assert play(restarted, stream, at) == play(unbroken, stream, at)
    assert restarted.to_dict() == unbroken.to_dict()


def test_outcomes_that_are_left_out_leave_nothing_behind():
    guard = Guard(1.0)
    for index in range(200):
        guard.decide(index * TICK_S, 0.0)
    guard.settle(150 * TICK_S, negative=True)
    assert len(guard.to_dict()["unsettled"]) == 49


def test_a_feed_of_outcomes_that_stopped_does_not_fill_the_memory():
    guard = Guard(1.0)
    for index in range(40_000):
        guard.decide(index * TICK_S, 0.0)
    assert len(guard.to_dict()["unsettled"]) <= 86_400 // TICK_S


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("version", 99),
        ("version", None),
        ("threshold", "high"),
        ("threshold", math.nan),
        ("threshold", math.inf),
        ("scale", None),
        ("scale", math.nan),
        ("scale", math.inf),
        ("scale", 0.0),
        ("scale", -1.0),
        ("unsettled", None),
        ("unsettled", [[3_600]]),
        ("unsettled", [["now", True]]),
        ("ledger", None),
        ("ledger", {}),
    ],
)
def test_damaged_state_is_refused(name: str, value: object):
    guard = calm_until(3_600)
    guard.decide(3_600, 2.0)
    state = guard.to_dict()
    Guard.from_dict(state)
    with pytest.raises(InputError, match=r"(Guard|Ledger) state"):
        Guard.from_dict(state | {name: value})
    with pytest.raises(InputError, match="Guard state"):
        Guard.from_dict({key: kept for key, kept in state.items() if key != name})


@pytest.mark.parametrize("state", [None, [], "guard", {}])
def test_what_is_no_state_at_all_is_refused(state: object):
    with pytest.raises(InputError, match="Guard state"):
        Guard.from_dict(state)  # type: ignore[arg-type]
