"""Runs in MLflow: parameters, figures and files of a backtest."""

import logging
from pathlib import Path

import mlflow

from pipeline.backtest import Result

EXPERIMENT = "tidegate-backtest"


def track(result: Result, folder: Path, uri: str) -> str:
    """Log a backtest and everything it wrote to an MLflow store; returns the run's id.

    Runs of a local store keep their files in the folder ``mlartifacts`` beside the database.
    """
    report = result.report
    # A new store tells of every table it makes.
    for chatty in ("mlflow.store.db.utils", "alembic"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    mlflow.set_tracking_uri(uri)
    if uri.startswith("sqlite:///"):
        database = Path(uri.removeprefix("sqlite:///"))
        database.parent.mkdir(parents=True, exist_ok=True)
        if mlflow.get_experiment_by_name(EXPERIMENT) is None:
            files = (database.parent / "mlartifacts").resolve()
            mlflow.create_experiment(EXPERIMENT, artifact_location=files.as_uri())
    mlflow.set_experiment(EXPERIMENT)
    with mlflow.start_run(run_name=report["trace"]["name"]) as run:
        mlflow.log_params(
            {
                "trace": report["trace"]["name"],
                "trace_sha256": report["trace"]["sha256"],
                "seed": report["settings"]["seed"],
                "test_fraction": report["settings"]["test_fraction"],
                "feature_spec_hash": report["settings"]["feature_spec_hash"],
                "skill": report["verdict"]["skill"],
            }
        )
        for contender in report["contenders"]:
            for number in ("false_alarm_rate", "event_recall", "episode_precision"):
                value = contender["scores"][number]["value"]
                if value is not None:
                    mlflow.log_metric(f"{contender['name']}.{number}", value)
        mlflow.log_artifacts(str(folder))
        run_id: str = run.info.run_id
    return run_id
