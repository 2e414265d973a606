"""A workload on disk: the trace, and the truth about its causes beside it."""

from pathlib import Path

import polars as pl

from data.errors import InputError
from data.workload.generate import Workload

SUFFIXES = (".csv", ".jsonl", ".parquet")
TIME = "%Y-%m-%dT%H:%M:%S%.6fZ"


def truth_path(trace: Path) -> Path:
    """Where the causes of a trace are written.

    >>> truth_path(Path("day.parquet")).name
    'day.truth.csv'
    """
    return trace.with_name(f"{trace.stem}.truth.csv")


def write(workload: Workload, path: Path | str) -> Path:
    """Write the trace as CSV, JSONL or Parquet, by the ending of its name; return the path of the truth file.

    Columns are those of the request schema. CSV has no lists, and a workload has no block hashes: their two
    columns are left out of it.

    Raises:
        InputError: when the ending is another one, or the file can't be written there.

    """
    path = Path(path)
    check_path(path)
    requests = workload.requests
    times = pl.col("arrived_at", "finished_at").dt.strftime(TIME)
    try:
        if path.suffix.lower() == ".parquet":
            requests.write_parquet(path)
        elif path.suffix.lower() == ".csv":
            requests.drop("block_hashes", "block_tokens").with_columns(times).write_csv(path)
        else:
            requests.with_columns(times).write_ndjson(path)
        workload.causes.with_columns(pl.col("at").dt.strftime(TIME)).write_csv(truth_path(path))
    except OSError as error:
        raise InputError(f"The workload can't be written to {path}: {error}") from error
    return truth_path(path)


def check_path(path: Path) -> None:
    """Raise InputError unless a workload can be written under that name."""
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"The trace's name must end in one of {', '.join(SUFFIXES)}; got {path.name!r}.")
    if not path.parent.is_dir():
        raise InputError(f"The folder {path.parent} does not exist; make it or choose another.")


def read_truth(trace: Path) -> pl.DataFrame | None:
    """Causes of a written workload; None where no truth file lies beside the trace.

    Columns are those of `Workload.causes`, and from the detail: work_tokens (null where a cause has no calls
    of its own) and lasts_s, how long a ramp or storm rises and holds (0 for the others).

    Raises:
        InputError: when the file beside the trace is no truth file.

    """
    path = truth_path(trace)
    if not path.is_file():
        return None
    try:
        return pl.read_csv(path, infer_schema=False, glob=False).select(
            pl.col("at").str.to_datetime(TIME, time_zone="UTC", time_unit="us"),
            pl.col("t_s").cast(pl.Float64),
            "cause",
            "tenant",
            "detail",
            _figure("work_tokens").alias("work_tokens"),
            (_figure("rise_s").fill_null(0.0) + _figure("hold_s").fill_null(0.0)).alias("lasts_s"),
        )
    except pl.exceptions.PolarsError as error:
        what = str(error).partition("\n")[0]
        raise InputError(f"{path} is not a truth file as `tidegate synth` writes it: {what}") from error


def _figure(name: str) -> pl.Expr:
    return pl.col("detail").str.extract(rf"\b{name}=([0-9.]+)").cast(pl.Float64)
