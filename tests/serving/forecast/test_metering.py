from collections.abc import Callable

import numpy as np
import pytest

from features.bins import WorkBins
from features.bursts import find_events
from features.ticks import TICK_S, WARMUP_S, label_ticks
from pipeline.scoring import Ticks, score
from serving.forecast.live_work import LiveWork
from serving.forecast.metering import MATURE_S, Matured, Meter
from serving.forecast.tally import SEED

HOURS_S = 12_000


def burst_trace(seed: int, seconds: int = HOURS_S) -> tuple[np.ndarray, np.ndarray]:
    """Second and work of each request: steady traffic with bursts of 40 s at random."""
    random = np.random.default_rng(seed)
    rate = np.full(seconds, 2.0)
    for start in random.integers(600, seconds - 100, seconds // 600):
        rate[start : start + 40] = 12.0
    second = np.repeat(np.arange(seconds), random.poisson(rate))
    second[0] = 0
    return second, random.integers(200, 1_200, len(second))


def live(
    second: np.ndarray,
    tokens: np.ndarray,
    alarm: Callable[[int], bool],
    every_s: int = 60,
    seconds: int = HOURS_S,
) -> tuple[Meter, list[Matured]]:
    """Meter the trace, each output known at once; ticks are judged ``every_s`` seconds."""
    meter, work, matured = Meter(), LiveWork(), []
    begins = np.searchsorted(second, np.arange(0, seconds + 1, TICK_S))
    for index, t_s in enumerate(range(0, seconds, TICK_S)):
        if t_s % every_s == 0:
            matured += meter.mature(t_s, work)
        meter.tick(t_s, alarm(t_s))
        for at, size in zip(
            second[begins[index] : begins[index + 1]].tolist(),
            tokens[begins[index] : begins[index + 1]].tolist(),
            strict=True,
        ):
            work.finish(at, 0, work.arrive(at, 0, size), size, 0)
    return meter, matured


def offline(second: np.ndarray, tokens: np.ndarray, seconds: int = HOURS_S):
    work = np.bincount(second, weights=tokens, minlength=seconds).astype(np.int64)
    found = find_events(WorkBins(0, work, tokens.mean(), np.square(tokens).mean()))
    return found, label_ticks(seconds, found)


@pytest.mark.parametrize(("seed", "every_s"), [(0, TICK_S), (1, 60)])
def test_live_labels_agree_with_the_labels_of_the_trace(seed: int, every_s: int) -> None:
    """They may differ where the day so far and the whole trace disagree on a request's mean work: rarely."""
    second, tokens = burst_trace(seed)
    _, matured = live(second, tokens, lambda t_s: False, every_s)
    found, labels = offline(second, tokens)
    assert [tick.t_s for tick in matured] == list(range(0, matured[-1].t_s + 1, TICK_S))
    assert HOURS_S - MATURE_S - matured[-1].t_s <= every_s
    past = [tick for tick in matured if tick.t_s >= WARMUP_S]
    index = np.array([tick.t_s for tick in past]) // TICK_S
    for kind in ("negative", "late", "positive"):
        online = np.array([getattr(tick, kind) for tick in past])
        assert np.mean(online == getattr(labels, kind)[index]) > 0.995, kind
    assert sum(tick.positive for tick in past) > 20
    assert len(found) > 5


def test_an_oracle_gets_full_marks() -> None:
    second, tokens = burst_trace(2)
    found, _ = offline(second, tokens)
    ahead = {t for x in found.onset_s.tolist() for t in range(x - 45, x + 1)}
    meter, _ = live(second, tokens, lambda t_s: t_s in ahead)
    tally = meter.tally()
    assert tally.onsets >= 5
    assert tally.recall.value == 1.0
    assert tally.precision.value == 1.0
    assert tally.false_alarm_rate.value == 0.0
    assert tally.lead_s() is not None
    assert 40 <= tally.lead_s()["p50"] <= 45


def test_live_numbers_and_intervals_are_those_of_an_offline_report() -> None:
    """The report's own scorer, over the same ticks and onsets, with alarms that are now right, now wrong."""
    hours = 14
    second, tokens = burst_trace(5, hours * 3_600)
    found, _ = offline(second, tokens, hours * 3_600)
    hits = {t for x in found.onset_s.tolist()[:-1:2] for t in range(x - 50, x + 1)}
    random = np.random.default_rng(5)
    early_s = hours * 3_600 - 600  # an episode of the last minutes has not been judged yet
    false = {t + step for t in random.integers(0, early_s, 60).tolist() for step in range(20)}
    meter, matured = live(second, tokens, lambda t_s: t_s in hits | false, seconds=hours * 3_600)
    tally = meter.tally()
    t_s, onset_s = np.array([tick.t_s for tick in matured]), np.array(meter._onsets)
    ticks = Ticks(
        t_s,
        np.array([tick.alarm for tick in matured]),
        np.array([tick.eligible for tick in matured]),
        np.append(onset_s, -1)[np.searchsorted(onset_s, t_s, "right")],
    )
    scores = score(ticks, onset_s, seed=SEED)
    assert tally.onsets == scores.onsets > 10
    for live_rate, offline_rate in (
        (tally.recall, scores.event_recall),
        (tally.precision, scores.episode_precision),
        (tally.false_alarm_rate, scores.false_alarm_rate),
        (tally.strict_false_alarm_rate, scores.strict_false_alarm_rate),
    ):
        assert live_rate == offline_rate
        assert live_rate.low is not None
        assert 0.0 < live_rate.low < live_rate.value < live_rate.high < 1.0
    assert tally.base_rate == scores.base_rate
    assert tally.alarm_share == scores.alarm_share
    assert tally.lead_s() == {
        "p10": scores.lead_time_s.p10,
        "p50": scores.lead_time_s.p50,
        "p90": scores.lead_time_s.p90,
    }
    assert tally.random_recall == pytest.approx(scores.random_recall, abs=0.02)


def test_counts_are_kept_until_more_has_matured() -> None:
    second, tokens = burst_trace(6)
    meter, matured = live(second, tokens, lambda t_s: False)
    tally = meter.tally()
    assert meter.tally() is tally
    assert tally.ticks == len(matured)
    meter.mature(matured[-1].t_s + MATURE_S + TICK_S, LiveWork())
    assert meter.tally().ticks == tally.ticks + 1


def test_an_alarm_that_never_ends_is_false_all_the_time() -> None:
    second, tokens = burst_trace(3)
    meter, matured = live(second, tokens, lambda t_s: True)
    tally = meter.tally()
    assert tally.false_alarm_rate.value == 1.0
    assert tally.strict_false_alarm_rate.value == 1.0
    assert tally.recall.value == 1.0
    assert tally.negatives == sum(tick.negative for tick in matured)


def test_an_alarm_that_is_dropped_before_the_onset_did_not_anticipate_it() -> None:
    second, tokens = burst_trace(4)
    found, _ = offline(second, tokens)
    early = {t for x in found.onset_s.tolist() for t in range(x - 60, x - 29)}
    tally = live(second, tokens, lambda t_s: t_s in early)[0].tally()
    assert tally.recall.value == 0.0
    assert tally.lead_s() is None


def test_nothing_matured_is_unknown_not_zero() -> None:
    meter = Meter()
    meter.tick(0, True)
    assert meter.mature(MATURE_S - 1, LiveWork()) == []
    tally = meter.tally()
    assert tally.ticks == 0
    assert [tally.false_alarm_rate.value, tally.recall.value, tally.precision.value, tally.lead_s()] == [
        None
    ] * 4


def test_ticks_of_the_first_hour_and_around_a_hole_do_not_count() -> None:
    second, tokens = np.arange(HOURS_S), np.full(HOURS_S, 100)
    meter, work, matured = Meter(), LiveWork(), []
    meter.hole(5_000, 5_030)
    for t_s in range(0, 10_000, TICK_S):
        matured += meter.mature(t_s, work)
        meter.tick(t_s, False)
        for at in range(t_s, t_s + TICK_S):
            work.arrive(int(second[at]), 0, int(tokens[at]))
    eligible = [tick.t_s for tick in matured if tick.eligible]
    assert eligible[0] == WARMUP_S
    assert [t for t in eligible if 4_940 <= t <= 5_030 + WARMUP_S] == []
    assert 4_935 in eligible
    assert 8_645 in eligible
