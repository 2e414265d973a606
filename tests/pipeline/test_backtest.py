import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from data.errors import InputError
from data.readers import Trace
from models.bundle import Bundle
from pipeline.backtest import BUNDLE_FOLDER, TICKS_FILE
from pipeline.report import HTML_FILE, JSON_FILE, validate
from tests.features import reference
from tests.pipeline.conftest import SEED, Backtest, Run

COLUMNS = [
    "t_s",
    "p_onset",
    "score",
    "threshold",
    "alarm",
    "tightening",
    "eligible",
    "next_onset_s",
    "load",
    "baseline",
]


@pytest.fixture(scope="module")
def again(trace: Trace, folder: Path, run: Run, small_backtest: Backtest) -> Run:
    """The same backtest once more."""
    return small_backtest(trace, folder / "again")


def test_everything_is_written_and_the_report_has_its_form(run: Run) -> None:
    names = {path.relative_to(run.out).as_posix() for path in run.out.rglob("*") if path.is_file()}
    assert names == {JSON_FILE, HTML_FILE, TICKS_FILE, "bundle/model.onnx", "bundle/bundle.json"}
    assert run.result.report_path == run.out / HTML_FILE
    report = json.loads((run.out / JSON_FILE).read_text())
    validate(report)
    assert report == json.loads(json.dumps(run.result.report))


def test_a_row_a_test_tick_in_the_columns_that_scorers_read(run: Run) -> None:
    ticks = pl.read_parquet(run.out / TICKS_FILE)
    assert ticks.columns == COLUMNS
    assert_frame_equal(ticks, run.result.ticks)
    span = run.result.report["split"]["test"]
    first, end = span["start_s"], span["end_s"]
    assert ticks["t_s"].to_list() == list(range(first, end, 5))
    assert not any(
        ticks[name].is_nan().any() for name in ("p_onset", "score", "threshold", "tightening", "baseline")
    )
    assert set(ticks["alarm"].unique()) <= {0, 1}


def test_labels_agree_with_the_plain_reading_of_the_definitions(run: Run) -> None:
    rows = run.trace.requests.select(
        pl.col("arrived_at").dt.epoch("us"), "prompt_tokens", "cached_tokens", "output_tokens"
    ).rows()
    work = reference.work_by_second(rows)
    each = [prompt - (cached or 0) + (output or 0) for _, prompt, cached, output in rows]
    bursts = reference.burst_seconds(work, sum(each) / len(each), sum(one * one for one in each) / len(each))
    events = reference.events(bursts)
    ticks = run.result.ticks
    for t, eligible, following in ticks.select("t_s", "eligible", "next_onset_s").iter_rows():
        assert eligible == (reference.label(t, len(work), events) is not None)
        assert following == min((first for first, _ in events if first > t), default=None)
    assert len(events) == run.result.report["trace"]["onsets"]
    before = ticks["t_s"].to_numpy() - 1
    np.testing.assert_allclose(ticks["load"], np.array(reference.load(work))[before])
    np.testing.assert_allclose(ticks["baseline"], np.array(reference.baseline(work))[before])


def test_the_false_alarm_rate_counts_from_the_ticks_and_keeps_the_budget(run: Run) -> None:
    negatives = false_alarms = 0
    for t, alarm, eligible, onset in run.result.ticks.select(
        "t_s", "alarm", "eligible", "next_onset_s"
    ).iter_rows():
        if eligible and (onset is None or onset - t > 60):
            negatives += 1
            false_alarms += alarm
    told = run.result.report["contenders"][0]["scores"]
    assert told["negative"] == negatives > 500
    assert told["false_alarm_rate"]["value"] == pytest.approx(false_alarms / negatives, abs=1e-12)
    assert 0 < false_alarms <= 0.05 * negatives


def test_an_alarm_stands_over_the_threshold_and_tightens(run: Run) -> None:
    alarms = run.result.ticks.filter(pl.col("alarm") == 1)
    calm = run.result.ticks.filter(pl.col("alarm") == 0)
    assert alarms.height > 10
    assert (alarms["score"] > alarms["threshold"]).all()
    ahead = alarms.filter(pl.col("load") < 1.5 * pl.col("baseline"))
    assert ahead.height > 5
    assert ahead["tightening"].is_between(0.3, 1.0).all()
    begun = alarms.filter(pl.col("tightening") == 0.0)
    assert begun.height > 0
    assert (begun["load"] > begun["baseline"]).all()
    assert (calm["tightening"] == 0.0).all()


def test_the_bundle_loads_and_says_what_the_ticks_say(run: Run) -> None:
    bundle = Bundle.load(run.out / BUNDLE_FOLDER)
    test = np.isin(run.prepared.ticks.t_s, run.result.ticks["t_s"].to_numpy())
    said = bundle.forecast(run.prepared.examples.features[test])
    np.testing.assert_allclose(said.p_onset, run.result.ticks["p_onset"], atol=1e-5)
    assert np.ptp(said.p_onset) > 0.01


def test_the_same_seed_gives_the_same_bytes(run: Run, again: Run) -> None:
    for name in (JSON_FILE, HTML_FILE, TICKS_FILE, "bundle/model.onnx", "bundle/bundle.json"):
        assert (run.out / name).read_bytes() == (again.out / name).read_bytes(), name


def test_another_seed_gives_another_forecast_of_the_same_ticks(
    hour: Trace, hour_run: Run, tmp_path: Path, small_backtest: Backtest
) -> None:
    other = small_backtest(hour, tmp_path / "out", seed=SEED + 1)
    unseeded = ["t_s", "eligible", "next_onset_s", "load", "baseline"]
    assert_frame_equal(hour_run.result.ticks.select(unseeded), other.result.ticks.select(unseeded))
    assert not hour_run.result.ticks["p_onset"].equals(other.result.ticks["p_onset"])
    assert other.result.report["settings"]["seed"] == SEED + 1
    assert (hour_run.out / JSON_FILE).read_bytes() != (other.out / JSON_FILE).read_bytes()


def test_what_cannot_be_calibrated_reports_and_does_not_tighten(hour_run: Run) -> None:
    report, ticks = hour_run.result.report, hour_run.result.ticks
    assert report["verdict"]["skill"] == "cannot be shown"
    assert report["verdict"]["advisory"]
    assert "skill can't be shown on this trace" in report["verdict"]["sentences"][-1]
    assert report["guard"]["advisory"]
    assert report["guard"]["reason"] in report["verdict"]["sentences"]
    assert ticks.height > 100
    assert ticks["alarm"].sum() == 0
    assert (ticks["tightening"] == 0.0).all()
    assert ticks["threshold"].null_count() == ticks.height
    assert ticks["p_onset"].null_count() == 0


def test_without_causes_there_is_no_recall_by_cause(hour_run: Run) -> None:
    assert hour_run.result.report["recall_by_cause"] == []


def test_recall_by_cause_covers_every_onset_that_counts(run: Run) -> None:
    found = run.result.report["recall_by_cause"]
    assert sum(cause["onsets"] for cause in found) == run.result.report["contenders"][0]["scores"]["onsets"]
    assert "cron" in {cause["cause"] for cause in found}


def test_progress_tells_every_step_in_order_to_its_end(run: Run) -> None:
    steps = list(dict.fromkeys(what for what, _ in run.told))
    assert steps == [
        "bins, events and features",
        "train the forecaster",
        "export and check",
        "contenders",
        "score and report",
    ]
    for step in ("train the forecaster", "contenders", "score and report"):
        shares = [share for what, share in run.told if what == step]
        assert shares == sorted(shares)
        assert shares[-1] == 1.0


@pytest.mark.parametrize(
    ("fraction", "sentence"),
    [
        (0.0, r"must leave ticks to test on; got 0\.0"),
        (1.5, r"must be from 0 to 0\.9; got 1\.5"),
        (0.85, "too short to train, calibrate and test apart"),
    ],
)
def test_a_fraction_that_leaves_a_span_empty_is_told_before_training(
    hour: Trace, tmp_path: Path, small_backtest: Backtest, fraction: float, sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        small_backtest(hour, tmp_path / "out", test_fraction=fraction)
    assert not (tmp_path / "out").exists()


def test_a_trace_without_requests_is_told_in_a_sentence(
    hour: Trace, tmp_path: Path, small_backtest: Backtest
) -> None:
    empty = Trace("empty", "tidegate", "0" * 64, hour.requests.clear(), hour.quarantined)
    with pytest.raises(InputError):
        small_backtest(empty, tmp_path / "out")
