"""A real MLflow store on SQLite, made once."""

import os
from pathlib import Path
from urllib.parse import urlparse
from urllib.request import url2pathname

import mlflow
import pytest
from mlflow.entities import Run as TrackedRun

from pipeline.report import HTML_FILE, JSON_FILE
from pipeline.tracking import EXPERIMENT, track
from tests.pipeline.conftest import Run

# Of MLflow's own use of SQLAlchemy.
pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated")


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In a folder that is not there yet."""
    return tmp_path_factory.mktemp("tracking") / "new" / "mlflow.db"


@pytest.fixture(scope="module")
def tracked(run: Run, database: Path) -> TrackedRun:
    return mlflow.get_run(track(run.result, run.out, f"sqlite:///{database}"))


def artifacts(tracked: TrackedRun) -> Path:
    return Path(url2pathname(urlparse(tracked.info.artifact_uri).path))


def test_params_tell_what_was_run(tracked: TrackedRun, run: Run) -> None:
    report = run.result.report
    assert tracked.info.status == "FINISHED"
    assert tracked.info.run_name == "day"
    assert mlflow.get_experiment(tracked.info.experiment_id).name == EXPERIMENT
    assert tracked.data.params == {
        "trace": "day",
        "trace_sha256": run.trace.sha256,
        "seed": str(report["settings"]["seed"]),
        "test_fraction": str(report["settings"]["test_fraction"]),
        "feature_spec_hash": report["settings"]["feature_spec_hash"],
        "skill": report["verdict"]["skill"],
    }


def test_metrics_are_the_scores_and_what_is_unknown_is_left_out(tracked: TrackedRun, run: Run) -> None:
    scores = {
        f"{row['name']}.{number}": row["scores"][number]["value"]
        for row in run.result.report["contenders"]
        for number in ("false_alarm_rate", "event_recall", "episode_precision")
    }
    known = {name: value for name, value in scores.items() if value is not None}
    assert tracked.data.metrics == pytest.approx(known)
    assert scores["quiet.episode_precision"] is None
    assert tracked.data.metrics["oracle.event_recall"] == 1.0


def test_everything_that_was_written_lies_beside_the_database(
    tracked: TrackedRun, run: Run, database: Path
) -> None:
    assert database.is_file()
    folder = artifacts(tracked)
    assert folder.is_relative_to(database.parent / "mlartifacts")
    for name in (JSON_FILE, HTML_FILE, "ticks.parquet", "bundle/model.onnx", "bundle/bundle.json"):
        assert (folder / name).read_bytes() == (run.out / name).read_bytes(), name


def test_another_run_joins_the_same_experiment(
    tracked: TrackedRun, hour_run: Run, database: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)  # a store named by a relative path is the same store
    relative = os.path.relpath(database, tmp_path)
    again = mlflow.get_run(track(hour_run.result, hour_run.out, f"sqlite:///{relative}"))
    assert again.info.run_id != tracked.info.run_id
    assert again.info.experiment_id == tracked.info.experiment_id
    assert artifacts(again).is_relative_to(database.parent / "mlartifacts")
    assert not any(tmp_path.iterdir())
