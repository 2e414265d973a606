import numpy as np
import pytest

from features.ticks import WARMUP_S
from models.baselines import PLANNERS, SIMPLE
from models.guard.guard import Guard
from models.guard.replay import replay, warmed
from pipeline.contenders import FORECASTER, Contender
from tests.pipeline.conftest import Run

NAMES = [FORECASTER, "lightgbm", *SIMPLE, *PLANNERS, "random", "quiet", "told", "oracle"]


def named(run: Run, name: str) -> Contender:
    return next(one for one in run.contenders if one.name == name)


def test_who_competes_the_forecaster_first(run: Run) -> None:
    assert [one.name for one in run.contenders] == NAMES
    assert {one.name: one.kind for one in run.contenders} == {
        name: {FORECASTER: "forecaster", "told": "told", "oracle": "oracle"}.get(name, "baseline")
        for name in NAMES
    }
    assert len({one.title for one in run.contenders}) == len(NAMES)
    assert {len(one.guarded.alarm) for one in run.contenders} == {run.result.ticks.height}
    assert [row["name"] for row in run.result.report["contenders"]] == NAMES


def test_quiet_never_alarms(run: Run) -> None:
    assert not named(run, "quiet").guarded.alarm.any()


def test_the_oracle_anticipates_every_onset_that_counts_and_never_cries_wolf(run: Run) -> None:
    alarmed = dict(
        zip(run.result.ticks["t_s"].to_list(), named(run, "oracle").guarded.alarm.tolist(), strict=True)
    )
    first, last = min(alarmed), max(alarmed)
    counted = [x for x in run.prepared.events.onset_s.tolist() if x - 60 >= first and x <= last]
    assert len(counted) >= 10
    for x in counted:
        assert any(alarmed[t] for t in alarmed if x - 60 <= t <= x - 30)
        assert all(alarmed[t] for t in alarmed if x - 10 < t <= x)
    for t, eligible, onset in run.result.ticks.select("t_s", "eligible", "next_onset_s").iter_rows():
        calm = eligible and (onset is None or onset - t > 60)
        assert not (calm and alarmed[t])
    scores = run.result.report["contenders"][-1]["scores"]
    assert scores["event_recall"]["value"] == 1.0
    assert scores["false_alarm_rate"]["value"] == 0.0
    assert scores["onsets"] == len(counted)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("quiet", "oracle")])
def test_every_guarded_contender_keeps_the_budget(run: Run, name: str) -> None:
    alarm, ticks = named(run, name).guarded.alarm, run.result.ticks
    ahead_s = (ticks["next_onset_s"] - ticks["t_s"]).fill_null(10**6).to_numpy()
    negative = ticks["eligible"].to_numpy() & (ahead_s > 60)
    warm_up = WARMUP_S // 5  # calm ticks before the span that may have earned budget
    assert alarm[negative].sum() <= 0.05 * (negative.sum() + warm_up)


def test_contenders_do_alarm_so_that_the_budget_is_put_to_use(run: Run) -> None:
    alarming = {
        one.name
        for one in run.contenders
        if (one.guarded.alarm if one.guarded.would is None else one.guarded.would).any()
    }
    assert {FORECASTER, "random", "last_value", "oracle"} <= alarming


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("quiet", "oracle")])
def test_all_have_the_same_guard_from_their_own_calibration(run: Run, name: str) -> None:
    one = named(run, name)
    test = run.spans.test.holds(run.prepared.ticks.t_s)
    state = run.fitted.bundle.manifest.guard if name == FORECASTER else one.state
    gap = (run.prepared.ticks.t_s >= run.spans.calibrate.end_s) & (
        run.prepared.ticks.t_s < run.spans.test.start_s
    )
    ledger = warmed(run.prepared.ticks.select(gap), run.spans.test.start_s)
    guard = Guard.start(state, ledger) if name == FORECASTER else Guard(state.threshold, state.scale, ledger)
    fresh = replay(guard, one.score, run.prepared.ticks.select(test))
    assert fresh.alarm.tolist() == one.guarded.alarm.tolist()
    assert one.state == state


def test_where_too_little_is_calm_no_contender_but_the_oracle_alarms(hour_run: Run) -> None:
    for one in hour_run.contenders:
        if one.name not in ("oracle", "quiet"):
            assert one.state.threshold is None
            assert one.state.advisory_reason
        if one.name != "oracle":
            assert not one.guarded.alarm.any()


def test_scores_are_known_where_ticks_count(run: Run) -> None:
    eligible = run.result.ticks["eligible"].to_numpy()
    for one in run.contenders:
        assert np.isfinite(one.score[eligible]).all()
