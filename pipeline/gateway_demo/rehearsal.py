"""Before the play: a forecaster trained on a day's past, and its guard run over the rest of that day."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from data.errors import InputError
from data.readers import Trace
from data.workload import Settings as WorkloadSettings
from data.workload import generate
from features.ticks import Ticks
from models.bundle import Bundle, write_bundle
from models.examples import prepare
from models.forecaster import Settings as ForecasterSettings
from models.guard.guard import Guard
from models.guard.replay import replay, warmed
from models.guard.score import sustained_scores
from pipeline.split import split
from pipeline.train import Progress, fit
from serving.forecast.guard_state import guard_state, save

MODEL = "sim"
TEST_FRACTION = 0.35
BUNDLE, RULES_BUNDLE, REQUESTS_FILE, TICKS_FILE = "bundle", "bundle-rules", "day.parquet", "ticks.parquet"


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """A day, a bundle trained on its past, and what its guard did on the rest.

    Attributes:
        requests: of the day, as a gateway sees them.
        ticks: t_s, score, alarm, eligible, next_onset_s, load and held_out: those of the held-out part, and
            those of the gap before it, in which the guard's budget warms up.
        bundle: folder of the bundle.

    """

    requests: pl.DataFrame
    ticks: pl.DataFrame
    bundle: Path


def workload(days: float, requests_per_s: float, seed: int) -> pl.DataFrame:
    """A synthetic workload as a gateway sees it: one model behind it, and no kind of call told."""
    made = generate(WorkloadSettings(days=days, requests_per_s=requests_per_s, seed=seed)).requests
    return made.with_columns(
        pl.col("tenant").fill_null("unnamed"),
        model=pl.lit(MODEL),
        log_type=pl.lit(None, made.schema["log_type"]),
    )


def rehearse(
    requests: pl.DataFrame, folder: Path, settings: ForecasterSettings, progress: Progress
) -> Rehearsal:
    """Train and calibrate on the first 65 % of a trace, and run the guard over the rest; files in ``folder``.

    Raises:
        InputError: when the trace is too short.

    """
    progress("bins, events and features", 0.0)
    prepared = prepare(requests)
    spans, ticks = split(len(prepared.bins.work), TEST_FRACTION), prepared.ticks
    trace = Trace("demo-gateway", "tidegate", "0" * 64, requests, requests.clear())
    fitted = fit(trace, prepared, spans, folder / BUNDLE, settings, progress)
    progress("guard the held-out part", 0.0)
    test = spans.test.holds(ticks.t_s)
    gap = (ticks.t_s >= spans.calibrate.end_s) & (ticks.t_s < spans.test.start_s)
    score, both = sustained_scores(fitted.p_slots), gap | test
    guard = Guard.start(fitted.bundle.manifest.guard, warmed(ticks.select(gap), spans.test.start_s))
    alarm = np.zeros(len(ticks), dtype=np.bool_)
    alarm[test] = replay(guard, score[test], ticks.select(test)).alarm
    table = pl.DataFrame(
        {
            "t_s": ticks.t_s[both],
            "score": score[both],
            "alarm": alarm[both],
            "eligible": ticks.eligible[both],
            "next_onset_s": ticks.next_onset_s[both],
            "load": prepared.load[both],
            "held_out": test[both],
        }
    ).with_columns(pl.col("score").fill_nan(None), pl.when(pl.col("next_onset_s") >= 0).then("next_onset_s"))
    requests.write_parquet(folder / REQUESTS_FILE)
    table.write_parquet(folder / TICKS_FILE)
    progress("guard the held-out part", 1.0)
    return Rehearsal(requests, table, folder / BUNDLE)


def recall(folder: Path) -> Rehearsal:
    """The rehearsal that lies in ``folder`` from a run before.

    Raises:
        InputError: when there is none.

    """
    try:
        requests, ticks = (pl.read_parquet(folder / name) for name in (REQUESTS_FILE, TICKS_FILE))
    except OSError as error:
        raise InputError(f"No run before can be used again: {error}. Leave --reuse out.") from error
    return Rehearsal(requests, ticks, folder / BUNDLE)


def without_forecast(bundle: Path, folder: Path) -> Path:
    """The same bundle without a threshold: it forecasts, is advisory, and the rules decide alone."""
    manifest = Bundle.load(bundle).manifest
    told = manifest.model_dump(exclude={"model_sha256", "feature_names", "feature_spec_hash"})
    told["guard"] |= {"threshold": None, "advisory_reason": "the demo's rules decide alone", "skill": ()}
    write_bundle(folder, (bundle / "model.onnx").read_bytes(), **told)
    return folder


def hand_over(played: Rehearsal, until_s: int, shift_s: int, path: Path) -> None:
    """Write the state of the guard at second ``until_s`` of the day, for a service that goes on from there.

    Without it a service's false-alarm budget is empty at its start, as nothing calm has earned any yet.

    Args:
        played: the rehearsal.
        until_s: second of the day at which the service starts.
        shift_s: seconds from the day's first request's place in Unix time to where the demo puts it.
        path: file that the service reads.

    """
    bundle = Bundle.load(played.bundle)
    gap, past = (
        played.ticks.filter(pl.col("t_s") < until_s, pl.col("held_out") == held_out)
        for held_out in (False, True)
    )
    begins_s = until_s if past.is_empty() else int(past["t_s"][0])
    guard = Guard.start(bundle.manifest.guard, warmed(_moved(gap, shift_s), begins_s + shift_s))
    replay(guard, past["score"].fill_null(float("nan")).to_numpy(), _moved(past, shift_s))
    save(path, guard_state(bundle.version, guard))


def _moved(ticks: pl.DataFrame, shift_s: int) -> Ticks:
    """Ticks in Unix seconds."""
    at_s = pl.col("t_s") + shift_s
    onset_s = (pl.col("next_onset_s") + shift_s).fill_null(-1)
    moved = ticks.select(at_s, "eligible", onset_s.cast(pl.Int64))
    return Ticks(*(column.to_numpy() for column in moved))
