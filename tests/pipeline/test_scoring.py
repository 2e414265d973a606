import math

import numpy as np
import polars as pl
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from data.errors import InputError
from features.ticks import Ticks as Labels
from pipeline import scoring
from pipeline.scoring import Ticks

# A plain reading of the definitions: loops over ticks, straight from the words.


def next_onset(t: int, onsets: list[int]) -> int:
    return min((x for x in onsets if x > t), default=-1)


def plain_kind(t: int, onsets: list[int]) -> str:
    x = next_onset(t, onsets)
    if x > 0 and t < x <= t + 30:
        return "late"
    if x > 0 and t + 30 < x <= t + 60:
        return "positive"
    return "negative"


def plain_anticipated(x: int, alarm_at: dict[int, bool]) -> bool:
    early = [t for t in alarm_at if x - 60 <= t <= x - 30]
    last = [t for t in alarm_at if x - 10 < t <= x]
    return any(alarm_at[t] for t in early) and all(alarm_at[t] for t in last)


def plain_scores(ticks: Ticks, onsets: list[int]) -> dict[str, object]:
    t_s = ticks.t_s.tolist()
    alarm_at = dict(zip(t_s, ticks.alarm.tolist(), strict=True))
    eligible = [t for t, counts in zip(t_s, ticks.eligible, strict=True) if counts]
    kind = {t: plain_kind(t, onsets) for t in eligible}
    count = {name: list(kind.values()).count(name) for name in ("positive", "late", "negative")}

    def rate(*names: str) -> float | None:
        among = [t for t in eligible if kind[t] in names]
        return sum(alarm_at[t] for t in among) / len(among) if among else None

    scored = [x for x in sorted(set(onsets)) if t_s[0] <= x - 60 and x <= t_s[-1]]
    hit = [x for x in scored if plain_anticipated(x, alarm_at)]
    leads = []
    for x in hit:
        start = x - x % 5
        while alarm_at.get(start - 5, False):
            start -= 5
        leads.append(x - start)
    starts = [t for t in t_s if alarm_at[t] and not alarm_at.get(t - 5, False)]
    counted = [t for t in starts if t in kind]
    right = [t for t in counted if any(t < x <= t + 75 for x in onsets)]
    return {
        "false_alarm_rate": rate("negative"),
        "strict_false_alarm_rate": rate("negative", "late"),
        "event_recall": len(hit) / len(scored) if scored else None,
        "episode_precision": len(right) / len(counted) if counted else None,
        "leads": leads,
        "onsets": len(scored),
        "ticks": len(t_s),
        "eligible": len(eligible),
        **count,
        "base_rate": count["positive"] / len(eligible) if eligible else None,
        "episodes_per_hour": len(starts) / (len(t_s) * 5 / 3600),
        "alarm_share": rate("positive", "late", "negative"),
        "random_recall": plain_random_recall(ticks, scored),
    }


def plain_random_recall(ticks: Ticks, scored: list[int]) -> float | None:
    """Move the alarms round to every place in turn; an onset looks back round the corner as well."""
    if not scored:
        return None
    n, first = len(ticks.t_s), int(ticks.t_s[0])
    hits = 0
    for offset in range(n):
        at = {first + 5 * i: bool(ticks.alarm[(i - offset) % n]) for i in range(n)}
        hits += sum(plain_anticipated(x, at) for x in scored)
    return hits / (n * len(scored))


@st.composite
def spans(draw: st.DrawFn, longest: int = 120) -> tuple[Ticks, list[int]]:
    """A span with alarms in runs, some ticks that don't count, and onsets in and around it."""
    n = draw(st.integers(1, longest))
    first = 5 * draw(st.integers(0, 50))
    t_s = np.arange(first, first + 5 * n, 5, dtype=np.int64)
    onsets = draw(st.lists(st.integers(first - 20, first + 5 * n + 80), max_size=6))
    flips = st.lists(st.integers(0, n), max_size=12)
    alarm, busy = np.zeros(n, dtype=bool), np.zeros(n, dtype=bool)
    for flags, places in ((alarm, draw(flips)), (busy, draw(flips))):
        for place in places:
            flags[place:] = ~flags[place:]
    following = np.array([next_onset(t, onsets) for t in t_s.tolist()], dtype=np.int64)
    return Ticks(t_s, alarm, ~busy, following), onsets


@given(spans())
@settings(max_examples=200, deadline=None)
def test_scores_equal_the_plain_definitions(span):
    ticks, onsets = span
    scores = scoring.score(ticks, onsets, resamples=20, seed=1)
    plain = plain_scores(ticks, onsets)
    for name in ("false_alarm_rate", "strict_false_alarm_rate", "event_recall", "episode_precision"):
        assert getattr(scores, name).value == plain[name], name
    for name in ("onsets", "ticks", "eligible", "positive", "late", "negative", "base_rate", "alarm_share"):
        assert getattr(scores, name) == plain[name], name
    assert scores.episodes_per_hour == pytest.approx(plain["episodes_per_hour"])
    assert scores.random_recall == pytest.approx(plain["random_recall"])
    assert scoring.lead_times(ticks, onsets).tolist() == plain["leads"]
    assert scores.lead_time_s.n == len(plain["leads"])


def span_with(alarm_at: list[int], onset: int) -> Ticks:
    """Ticks 1000, 1005, ... 1200, all eligible, with alarms at those times and one onset ahead."""
    t_s = np.arange(1000, 1205, 5, dtype=np.int64)
    following = np.where(t_s < onset, onset, -1)
    return Ticks(t_s, np.isin(t_s, alarm_at), np.ones(len(t_s), dtype=bool), following)


@pytest.mark.parametrize(
    ("onset", "early_at", "hit"),
    [
        *[(1150, 1085, False), (1150, 1090, True), (1150, 1120, True), (1150, 1125, False)],
        *[(1152, 1090, False), (1152, 1095, True), (1152, 1120, True), (1152, 1125, False)],
    ],
)
def test_an_alarm_counts_from_sixty_to_thirty_seconds_ahead(onset: int, early_at: int, hit: bool):
    ticks = span_with([early_at, 1145, 1150], onset)
    assert scoring.anticipated(ticks, [onset]).tolist() == [hit]


@pytest.mark.parametrize(
    ("standing", "hit"), [([1145, 1150], True), ([1140, 1145], False), ([1150], False), ([1145], False)]
)
def test_an_alarm_must_stand_when_the_burst_begins(standing: list[int], hit: bool):
    ticks = span_with([1100, *standing], 1150)
    assert scoring.anticipated(ticks, [1150]).tolist() == [hit]


def test_an_onset_counts_when_the_span_holds_its_last_minute():
    ticks = span_with([], 1100)
    assert scoring.scorable(ticks, [1059, 1060, 1200, 1201]).tolist() == [1060, 1200]


@pytest.mark.parametrize(("onset", "precision"), [(1101, 1.0), (1175, 1.0), (1176, 0.0), (1100, 0.0)])
def test_an_episode_was_right_when_an_onset_follows_within_75_seconds(onset: int, precision: float):
    assert scoring.score(span_with([1100], onset), [onset], seed=0).episode_precision.value == precision


@given(spans(), st.data())
@settings(max_examples=150, deadline=None)
def test_hindsight_is_the_best_threshold_within_the_budget(span, data):
    ticks, onsets = span
    n = len(ticks.t_s)
    raw = data.draw(st.lists(st.integers(-3, 3) | st.just(math.nan), min_size=n, max_size=n))
    values = np.array(raw, dtype=float)
    rate = data.draw(st.sampled_from([0.0, 0.05, 0.2, 0.5]))
    found = scoring.hindsight(values, ticks, onsets, rate)
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
    points = scoring.curve(values, ticks, onsets, points=31)
    found = scoring.hindsight(values, ticks, onsets, rate=0.3)
    if found is None or found.recall is None:
        assert points == []
        return
    rates, recalls = zip(*points, strict=True)
    assert list(rates) == sorted(set(rates))
    assert list(recalls) == sorted(recalls)
    assert points[-1] == pytest.approx((found.false_alarm_rate, found.recall))


def span_of_hours(hours: int, hit: list[bool]) -> tuple[Ticks, np.ndarray]:
    """One onset in the middle of each hour, anticipated by an alarm of a minute where told so."""
    t_s = np.arange(0, 3600 * hours, 5, dtype=np.int64)
    onsets = np.arange(hours) * 3600 + 1800
    alarm = np.zeros(len(t_s), dtype=bool)
    for x, anticipated in zip(onsets.tolist(), hit, strict=True):
        alarm |= anticipated & (t_s >= x - 60) & (t_s <= x)
    following = np.append(onsets, -1)[np.searchsorted(onsets, t_s, side="right")]
    return Ticks(t_s, alarm, np.ones(len(t_s), dtype=bool), following), onsets


def test_interval_is_the_spread_of_resampled_hours():
    ticks, onsets = span_of_hours(100, [hour % 4 == 0 for hour in range(100)])
    recall = scoring.score(ticks, onsets, resamples=4000, seed=3).event_recall
    # One onset an hour: the share of hits in 100 draws is binomial, standard deviation 0.0433.
    assert recall.value == 0.25
    assert recall.low == pytest.approx(0.25 - 1.645 * 0.0433, abs=0.01)
    assert recall.high == pytest.approx(0.25 + 1.645 * 0.0433, abs=0.01)


def test_few_hours_give_a_value_without_interval():
    ticks, onsets = span_of_hours(4, [True, False, True, True])
    scores = scoring.score(ticks, onsets, seed=0)
    assert scores.event_recall == scoring.Estimate(0.75, None, None)


def test_a_share_of_nothing_is_unknown():
    nothing = np.zeros(30, dtype=bool)
    ticks = Ticks(np.arange(0, 150, 5), nothing, nothing, np.full(30, -1))
    scores = scoring.score(ticks, [], seed=0)
    unknown = scoring.Estimate(None, None, None)
    assert scores.false_alarm_rate == scores.event_recall == scores.episode_precision == unknown
    assert (scores.base_rate, scores.alarm_share, scores.random_recall) == (None, None, None)
    assert scores.lead_time_s == scoring.LeadTime(None, None, None, 0)
    assert scores.episodes_per_hour == 0.0
    assert scoring.hindsight(np.zeros(30), ticks, []) is None


@pytest.mark.parametrize("seed", range(20))
def test_equal_alarms_are_no_difference_on_every_seed(seed: int):
    ticks, onsets = span_of_hours(24, (np.random.default_rng(seed).random(24) < 0.5).tolist())
    found = scoring.difference(ticks, ticks, onsets, seed=seed)
    assert found == scoring.Difference(scoring.Estimate(0.0, 0.0, 0.0), "no difference")


def test_difference_is_paired_and_turns_with_its_sides():
    # Recall varies much between hours; that the one is a little better is seen only hour by hour.
    good = [hour % 2 == 0 or hour % 10 == 1 for hour in range(60)]
    poor = [hour % 2 == 0 for hour in range(60)]
    (a, onsets), (b, _) = span_of_hours(60, good), span_of_hours(60, poor)
    forth, back = scoring.difference(a, b, onsets, seed=5), scoring.difference(b, a, onsets, seed=5)
    assert (forth.claim, back.claim) == ("better", "worse")
    assert forth.recall.value == pytest.approx(0.1)
    assert (forth.recall.low, forth.recall.high) == (-back.recall.high, -back.recall.low)


def test_no_claim_from_few_hours_or_from_an_interval_that_holds_zero():
    (a, onsets), (b, _) = span_of_hours(4, [True] * 4), span_of_hours(4, [False] * 4)
    assert scoring.difference(a, b, onsets, seed=0).claim == "no difference"
    mixed = [hour % 2 == 0 for hour in range(40)]
    (a, onsets), (b, _) = span_of_hours(40, mixed), span_of_hours(40, [not hit for hit in mixed])
    assert scoring.difference(a, b, onsets, seed=0).claim == "no difference"


def test_recall_by_cause_takes_the_latest_cause_in_reach():
    ticks, onsets = span_of_hours(5, [True, False, True, True, False])
    causes = pl.DataFrame(
        {
            "t_s": [1710.0, 1740.5, 5310.0, 9005.0, 12_605.1, 16_109.9],
            "cause": ["ramp", "cron", "cron", "cron", "cron", "cron"],
        }
    )
    # Reach is [x-90, x+5]: 5310 and 9005 are its ends, 12605.1 and 16109.9 just outside.
    assert scoring.recall_by_cause(ticks, onsets, causes) == [
        {"cause": "cron", "onsets": 3, "recall": pytest.approx(2 / 3)},
        {"cause": "unexplained", "onsets": 2, "recall": 0.5},
    ]


def test_recall_by_cause_without_causes_or_onsets():
    ticks, onsets = span_of_hours(1, [True])
    causes = pl.DataFrame({"t_s": [], "cause": []}, schema={"t_s": pl.Int64, "cause": pl.String})
    assert scoring.recall_by_cause(ticks, onsets, causes) == [
        {"cause": "unexplained", "onsets": 1, "recall": 1.0}
    ]
    assert scoring.recall_by_cause(ticks, [], causes) == []


def test_reliability_of_a_calibrated_forecast_lies_on_the_diagonal():
    ticks, _ = span_of_hours(50, [False] * 50)
    soon = ticks.labels.onset_within(0, 60)
    random = np.random.default_rng(0)
    p = np.where(soon, random.beta(2, 8, len(soon)), random.beta(1, 60, len(soon)))
    p[:10] = np.nan
    rows = scoring.reliability(p, ticks)
    assert sum(row["ticks"] for row in rows) == len(soon) - 10
    expected = sum(row["observed"] * row["ticks"] for row in rows)
    assert expected == pytest.approx(soon[10:].sum())
    assert all(row["p_low"] <= row["predicted"] <= row["p_high"] for row in rows)
    assert scoring.reliability(np.full(len(soon), 0.02), ticks) == [
        {
            "p_low": 0.02,
            "p_high": 0.02,
            "predicted": pytest.approx(0.02),
            "observed": pytest.approx(soon.mean()),
            "ticks": len(soon),
        }
    ]


@pytest.mark.parametrize(
    ("t_s", "message"),
    [([0, 5, 15], "without a gap"), ([1, 6, 11], "multiples of 5"), ([0, 5], "equally long"), ([], "empty")],
)
def test_ticks_that_do_not_cover_a_span_are_refused(t_s: list[int], message: str):
    flags = np.zeros(0 if not t_s else 3, dtype=bool)
    with pytest.raises(InputError, match=message):
        Ticks(np.array(t_s, dtype=np.int64), flags, flags, np.full(len(flags), -1))


def test_hindsight_of_a_score_that_is_seldom_known_stays_among_its_values():
    ticks, onsets = span_of_hours(1, [True])
    values = np.full(720, np.nan)
    values[[10, 20]] = 0.25, 0.75
    found = scoring.hindsight(values, ticks, onsets)
    assert found == scoring.Hindsight(0.25, 0.0, 2 / int(ticks.labels.negative.sum()))


def test_scores_and_spans_that_do_not_fit_are_refused():
    ticks, onsets = span_of_hours(1, [True])
    other, _ = span_of_hours(2, [True, True])
    with pytest.raises(InputError, match="one score a tick"):
        scoring.hindsight([1.0, 2.0], ticks, onsets)
    with pytest.raises(InputError, match="Rate must be"):
        scoring.hindsight(np.zeros(720), ticks, onsets, rate=1.0)
    with pytest.raises(InputError, match="same ticks"):
        scoring.difference(ticks, other, onsets, seed=0)


def test_kinds_are_those_of_the_labels():
    ticks, _ = span_of_hours(1, [False])
    assert isinstance(ticks.labels, Labels)
    assert int(ticks.labels.positive.sum()) == int(ticks.labels.late.sum()) == 6
