"""One small backtest a session, which most tests of the jobs look at."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import lightgbm
import pytest

from data.readers import Trace
from data.workload import Settings, Workload, generate, read_truth, write
from models.examples import TraceExamples
from models.forecaster import Settings as ForecasterSettings
from models.trees import TreeSettings
from pipeline import contenders as field
from pipeline.backtest import Result, backtest
from pipeline.contenders import Contender, Field
from pipeline.split import Split
from pipeline.train import Fitted

TEST_FRACTION = 0.3
SEED = 5
EPOCHS = 12


@dataclass(frozen=True, slots=True)
class Run:
    """A backtest: what went in, what it made on the way, what it wrote."""

    trace: Trace
    out: Path
    result: Result
    prepared: TraceExamples
    spans: Split
    fitted: Fitted
    contenders: list[Contender]
    told: list[tuple[str, float]]


Backtest = Callable[..., Run]


@pytest.fixture(scope="session")
def small_settings() -> Iterator[Callable[..., ForecasterSettings]]:
    """A forecaster and a LightGBM that train in a moment, in every job of the session."""
    small = partial(ForecasterSettings, members=2, hidden=16, epochs=EPOCHS, trees=TreeSettings(rounds=60))
    boost = lightgbm.train

    def few_trees(
        settings: dict[str, Any], learn: lightgbm.Dataset, rounds: int, **rest: Any
    ) -> lightgbm.Booster:
        # One thread: two that wait for each other on a busy machine took 40 s in place of 3 s.
        return boost(settings | {"num_threads": 1}, learn, min(60, rounds), **rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lightgbm, "train", few_trees)
        patch.setattr("pipeline.backtest.ForecasterSettings", small)
        patch.setattr("pipeline.train.Settings", small)
        yield small


@pytest.fixture(scope="session")
def small_backtest(small_settings: Callable[..., ForecasterSettings]) -> Backtest:
    """Runs backtests with the small forecaster and keeps what they make on the way."""

    def run(trace: Trace, out: Path, *, seed: int = SEED, test_fraction: float = TEST_FRACTION) -> Run:
        made: list[tuple[TraceExamples, Split, Fitted, list[Contender]]] = []
        told: list[tuple[str, float]] = []

        def compete(known: Field, spans: Split, fitted: Fitted, *rest: object) -> list[Contender]:
            contenders = field.compete(known, spans, fitted, *rest)  # type: ignore[arg-type]
            made.append((known.prepared, spans, fitted, contenders))
            return contenders

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("pipeline.backtest.compete", compete)
            result = backtest(
                trace,
                out,
                test_fraction=test_fraction,
                seed=seed,
                causes=read_truth(out.parent / f"{trace.name}.csv"),
                progress=lambda what, share: told.append((what, share)),
            )
        return Run(trace, out, result, *made[0], told)

    return run


@pytest.fixture(scope="session")
def workload() -> Workload:
    """A day at 2.5 requests/s: fifteen bursts in the last 30 %."""
    return generate(Settings(days=1.0, seed=1, requests_per_s=2.5))


@pytest.fixture(scope="session")
def folder(workload: Workload, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the workload and the truth about it lie."""
    folder = tmp_path_factory.mktemp("backtest")
    write(workload, folder / "day.csv")
    return folder


@pytest.fixture(scope="session")
def trace(workload: Workload) -> Trace:
    return Trace("day", "tidegate", "0123456789abcdef" * 4, workload.requests, workload.requests.clear())


@pytest.fixture(scope="session")
def run(trace: Trace, folder: Path, small_backtest: Backtest) -> Run:
    return small_backtest(trace, folder / "first")


@pytest.fixture(scope="session")
def hour() -> Trace:
    """One hour of steady traffic: too short to calibrate on."""
    requests = generate(Settings(days=1 / 24, seed=2, requests_per_s=3.0)).requests
    return Trace("hour", "tidegate", "0" * 64, requests, requests.clear())


@pytest.fixture(scope="session")
def hour_run(hour: Trace, small_backtest: Backtest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return small_backtest(hour, tmp_path_factory.mktemp("hour") / "out")
