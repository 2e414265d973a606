import math

import numpy as np
import polars as pl
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from data.errors import InputError
from models.guard.intervals import Estimate
from pipeline import scoring, yardsticks
from pipeline.scoring import Ticks
from tests.pipeline.sample_spans import span_of_hours, spans


@given(spans(), st.data())
@settings(max_examples=150, deadline=None)
def test_hindsight_is_the_best_threshold_within_the_budget(span, data):
    ticks, onsets = span
    n = len(ticks.t_s)
    raw = data.draw(st.lists(st.integers(-3, 3) | st.just(math.nan), min_size=n, max_size=n))
    values = np.array(raw, dtype=float)
    rate = data.draw(st.sampled_from([0.0, 0.05, 0.2, 0.5]))
    found = yardsticks.hindsight(values, ticks, onsets, rate)
    negative = ticks.labels.negative
    assume(negative.any() and not np.isnan(values).all())
    assert found is not None
    # Every threshold there is, tried one after the other.
    tried = []
    for threshold in (-9.0, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 9.0):
        alarm = np.array([v >= threshold for v in raw])
        scores = scoring.score(
            Ticks(ticks.t_s, alarm, ticks.eligible, ticks.next_onset_s), onsets, resamples=1, seed=0
        )
        tried.append((scores.false_alarm_rate.value, scores.event_recall.value))
    assert found.false_alarm_rate == max(far for far, _ in tried if far <= rate)
    assert found.recall == max((r for far, r in tried if far <= rate and r is not None), default=None)
    again = Ticks(ticks.t_s, values >= found.threshold, ticks.eligible, ticks.next_onset_s)
    scores = scoring.score(again, onsets, resamples=1, seed=0)
    assert (scores.event_recall.value, scores.false_alarm_rate.value) == (
        found.recall,
        found.false_alarm_rate,
    )


@given(spans(), st.integers(0, 2**32 - 1))
@settings(max_examples=100, deadline=None)
def test_curve_rises_and_passes_through_hindsight(span, seed):
    ticks, onsets = span
    values = np.random.default_rng(seed).normal(size=len(ticks.t_s)).round(1)
    points = yardsticks.curve(values, ticks, onsets, points=31)
    found = yardsticks.hindsight(values, ticks, onsets, rate=0.3)
    if found is None or found.recall is None:
        assert points == []
        return
    rates, recalls = zip(*points, strict=True)
    assert list(rates) == sorted(set(rates))
    assert list(recalls) == sorted(recalls)
    assert points[-1] == pytest.approx((found.false_alarm_rate, found.recall))


def test_a_share_of_nothing_is_unknown():
    nothing = np.zeros(30, dtype=bool)
    ticks = Ticks(np.arange(0, 150, 5), nothing, nothing, np.full(30, -1))
    scores = scoring.score(ticks, [], seed=0)
    unknown = Estimate(None, None, None)
    assert scores.false_alarm_rate == scores.event_recall == scores.episode_precision == unknown
    assert (scores.base_rate, scores.alarm_share, scores.random_recall) == (None, None, None)
    assert scores.lead_time_s == scoring.LeadTime(None, None, None, 0)
    assert scores.episodes_per_hour == 0.0
    assert yardsticks.hindsight(np.zeros(30), ticks, []) is None


@pytest.mark.parametrize("seed", range(20))
def test_equal_alarms_are_no_difference_on_every_seed(seed: int):
    ticks, onsets = span_of_hours(24, (np.random.default_rng(seed).random(24) < 0.5).tolist())
    found = yardsticks.difference(ticks, ticks, onsets, seed=seed)
    assert found == yardsticks.Difference(Estimate(0.0, 0.0, 0.0), "no difference")


def test_difference_is_paired_and_turns_with_its_sides():
    # Recall varies much between hours; that the one is a little better is seen only hour by hour.
    good = [hour % 2 == 0 or hour % 10 == 1 for hour in range(60)]
    poor = [hour % 2 == 0 for hour in range(60)]
    (a, onsets), (b, _) = span_of_hours(60, good), span_of_hours(60, poor)
    forth, back = yardsticks.difference(a, b, onsets, seed=5), yardsticks.difference(b, a, onsets, seed=5)
    assert (forth.claim, back.claim) == ("better", "worse")
    assert forth.recall.value == pytest.approx(0.1)
    assert (forth.recall.low, forth.recall.high) == (-back.recall.high, -back.recall.low)


def test_no_claim_from_few_hours_or_from_an_interval_that_holds_zero():
    (a, onsets), (b, _) = span_of_hours(4, [True] * 4), span_of_hours(4, [False] * 4)
    assert yardsticks.difference(a, b, onsets, seed=0).claim == "no difference"
    mixed = [hour % 2 == 0 for hour in range(40)]
    (a, onsets), (b, _) = span_of_hours(40, mixed), span_of_hours(40, [not hit for hit in mixed])
    assert yardsticks.difference(a, b, onsets, seed=0).claim == "no difference"


def test_recall_by_cause_takes_the_latest_cause_in_reach():
    ticks, onsets = span_of_hours(5, [True, False, True, True, False])
    causes = pl.DataFrame(
        {
            "t_s": [1710.0, 1740.5, 5310.0, 9005.0, 12_605.1, 16_109.9],
            "cause": ["ramp", "cron", "cron", "cron", "cron", "cron"],
        }
    )
    # Reach is [x-90, x+5]: 5310 and 9005 are its ends, 12605.1 and 16109.9 just outside.
    assert yardsticks.recall_by_cause(ticks, onsets, causes) == [
        {"cause": "cron", "onsets": 3, "missed": 1, "recall": pytest.approx(2 / 3)},
        {"cause": "unexplained", "onsets": 2, "missed": 1, "recall": 0.5},
    ]


def test_recall_by_cause_without_causes_or_onsets():
    ticks, onsets = span_of_hours(1, [True])
    causes = pl.DataFrame({"t_s": [], "cause": []}, schema={"t_s": pl.Int64, "cause": pl.String})
    assert yardsticks.recall_by_cause(ticks, onsets, causes) == [
        {"cause": "unexplained", "onsets": 1, "missed": 0, "recall": 1.0}
    ]
    assert yardsticks.recall_by_cause(ticks, [], causes) == []


def test_reliability_of_a_calibrated_forecast_lies_on_the_diagonal():
    ticks, _ = span_of_hours(50, [False] * 50)
    soon = ticks.labels.onset_within(0, 60)
    random = np.random.default_rng(0)
    p = np.where(soon, random.beta(2, 8, len(soon)), random.beta(1, 60, len(soon)))
    p[:10] = np.nan
    rows = yardsticks.reliability(p, ticks)
    assert sum(row["ticks"] for row in rows) == len(soon) - 10
    expected = sum(row["observed"] * row["ticks"] for row in rows)
    assert expected == pytest.approx(soon[10:].sum())
    assert all(row["p_low"] <= row["predicted"] <= row["p_high"] for row in rows)
    assert yardsticks.reliability(np.full(len(soon), 0.02), ticks) == [
        {
            "p_low": 0.02,
            "p_high": 0.02,
            "predicted": pytest.approx(0.02),
            "observed": pytest.approx(soon.mean()),
            "ticks": len(soon),
        }
    ]


def test_hindsight_of_a_score_that_is_seldom_known_stays_among_its_values():
    ticks, onsets = span_of_hours(1, [True])
    values = np.full(720, np.nan)
    values[[10, 20]] = 0.25, 0.75
    found = yardsticks.hindsight(values, ticks, onsets)
    assert found == yardsticks.Hindsight(0.25, 0.0, 2 / int(ticks.labels.negative.sum()))


def test_scores_and_spans_that_do_not_fit_are_refused():
    ticks, onsets = span_of_hours(1, [True])
    other, _ = span_of_hours(2, [True, True])
    with pytest.raises(InputError, match="one score a tick"):
        yardsticks.hindsight([1.0, 2.0], ticks, onsets)
    with pytest.raises(InputError, match="Rate must be"):
        yardsticks.hindsight(np.zeros(720), ticks, onsets, rate=1.0)
    with pytest.raises(InputError, match="same ticks"):
        yardsticks.difference(ticks, other, onsets, seed=0)
