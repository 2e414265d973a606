import numpy as np
import pytest
from hypothesis import given, settings

from data.errors import InputError
from features.ticks import Ticks as Labels
from models.guard.intervals import Estimate
from pipeline import scoring
from pipeline.scoring import Ticks
from tests.pipeline.sample_spans import next_onset, span_of_hours, spans

# A plain reading of the definitions: loops over ticks, straight from the words.


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
    assert scores.event_recall == Estimate(0.75, None, None)


@pytest.mark.parametrize(
    ("t_s", "message"),
    [([0, 5, 15], "without a gap"), ([1, 6, 11], "multiples of 5"), ([0, 5], "equally long"), ([], "empty")],
)
def test_ticks_that_do_not_cover_a_span_are_refused(t_s: list[int], message: str):
    flags = np.zeros(0 if not t_s else 3, dtype=bool)
    with pytest.raises(InputError, match=message):
        Ticks(np.array(t_s, dtype=np.int64), flags, flags, np.full(len(flags), -1))


def test_kinds_are_those_of_the_labels():
    ticks, _ = span_of_hours(1, [False])
    assert isinstance(ticks.labels, Labels)
    assert int(ticks.labels.positive.sum()) == int(ticks.labels.late.sum()) == 6
