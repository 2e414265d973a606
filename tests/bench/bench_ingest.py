"""Ingest against DuckDB alone: the same file, the same normalising, Parquet at the end.

    python tests/bench/bench_ingest.py [--rows N]

DuckDB alone reads the CSV and writes one Parquet file. `ingest` also hashes the file, checks every value,
keeps bad rows apart, looks for duplicates and commits to the lake. Taken in turns, best of three. The peak
memory is that of a process which does nothing but one ingest, at this size and at four times as many rows:
it must not grow with the file.

Numbering the rows keeps DuckDB to one thread for that step. So its time for the same SELECT without numbers,
ids being the time stamps, is written down too: it does less than `ingest` must, and has no target.
"""

import argparse
import json
import resource
import shutil
import sys
import tempfile
from pathlib import Path

import duckdb
import numpy as np
import polars as pl
from harness import Check, alternate, in_child, report, spread

from data.ingest import ingest
from data.lake import Lake

PACKAGES = ("polars", "duckdb", "duckdb-extension-ducklake", "numpy")
SPEED_TARGET = 0.8
MEMORY_TARGET_MIB = 1536
CHUNK_ROWS = 500_000

NUMBERED = "row_number() OVER ()"
NORMALISE = """
COPY (
    SELECT
        'burst' AS source,
        'burst:' || {ids} AS request_id,
        make_timestamptz((Timestamp * 1e6)::BIGINT) AS arrived_at,
        NULL::VARCHAR AS tenant,
        NULL::VARCHAR AS lane,
        Model AS model,
        NULL::VARCHAR AS session,
        "Log Type" AS log_type,
        "Request tokens"::BIGINT AS prompt_tokens,
        NULL::BIGINT AS cached_tokens,
        NULL::BIGINT AS max_tokens,
        "Response tokens"::BIGINT AS output_tokens,
        NULL::TIMESTAMPTZ AS finished_at,
        CASE WHEN "Response tokens" = 0 THEN 'failed' ELSE 'served' END AS outcome,
        NULL::VARCHAR AS retry_of,
        NULL::BIGINT[] AS block_hashes,
        NULL::INTEGER AS block_tokens,
        NULL::BIGINT AS images
    FROM read_csv('{trace}', header = true)
) TO '{parquet}' (FORMAT parquet)
"""


def make_trace(path: Path, rows: int, seed: int = 7) -> None:
    """A trace in BurstGPT's form of six columns: Poisson arrivals at 3 a second, log-normal lengths."""
    rng = np.random.default_rng(seed)
    now_s = 0.0
    with path.open("wb") as file:
        for start in range(0, rows, CHUNK_ROWS):
            size = min(CHUNK_ROWS, rows - start)
            arrivals_s = now_s + np.cumsum(rng.exponential(1 / 3, size))
            now_s = float(arrivals_s[-1])
            prompt = np.minimum(rng.lognormal(6, 1, size), 30_000).astype(np.int64) + 1
            output = np.minimum(rng.lognormal(5, 1, size), 4_000).astype(np.int64)
            output[rng.random(size) < 0.02] = 0
            chunk = pl.DataFrame(
                {
                    "Timestamp": np.floor(arrivals_s),
                    "Model": rng.choice(["ChatGPT", "GPT-4"], size, p=[0.9, 0.1]),
                    "Request tokens": prompt,
                    "Response tokens": output,
                    "Total tokens": prompt + output,
                    "Log Type": rng.choice(["Conversation log", "API log"], size),
                }
            )
            chunk.write_csv(file, include_header=start == 0)


def run_ingest(trace: Path, folder: Path, rows: int) -> None:
    """Ingest into a fresh lake."""
    shutil.rmtree(folder, ignore_errors=True)
    with Lake(folder) as lake:
        summary = ingest(trace, lake, source="burst")
    if (summary.rows, summary.stored) != (rows, rows):
        raise SystemExit(f"ingest stored {summary.stored} of {rows} rows")


def run_duckdb(trace: Path, parquet: Path, ids: str = NUMBERED) -> None:
    """DuckDB alone, with its defaults but for the order of rows, which Parquet does not need."""
    with duckdb.connect() as db:
        db.execute("SET preserve_insertion_order = false")
        db.execute(NORMALISE.format(trace=trace, parquet=parquet, ids=ids))


def peak_mib(trace: Path, rows: int) -> float:
    """Peak memory of a process that ingests a trace, MiB."""
    return float(in_child(__file__, "--rows", rows, "--child", trace)["peak_mib"])


def main() -> None:
    """Measure, print, write var/bench/ingest.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    rows = arguments.rows
    if arguments.child:
        run_ingest(arguments.child, arguments.child.with_name("lake-child"), rows)
        print(json.dumps({"peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        trace = folder / "burst.csv"
        make_trace(trace, rows)
        taken = alternate(
            {
                "ingest": lambda: run_ingest(trace, folder / "lake", rows),
                "duckdb": lambda: run_duckdb(trace, folder / "alone.parquet"),
                "duckdb, no numbers": lambda: run_duckdb(trace, folder / "alone.parquet", "Timestamp"),
            }
        )
        peaks_mib = {rows: peak_mib(trace, rows)}
        size_mib = trace.stat().st_size / 2**20
        make_trace(trace, 4 * rows)
        peaks_mib[4 * rows] = peak_mib(trace, 4 * rows)
    speed, alone = (rows / min(taken[name]) for name in ("ingest", "duckdb"))
    checks = [
        Check("ingest, rows/s, against DuckDB alone", speed, alone, speed / alone, SPEED_TARGET),
        *(
            Check(f"peak memory at {size:,} rows, MiB", peak, None, peak, MEMORY_TARGET_MIB, at_least=False)
            for size, peak in peaks_mib.items()
        ),
    ]
    facts = {"rows": rows, "file_mib": round(size_mib), "seconds": {k: spread(v) for k, v in taken.items()}}
    less = min(taken["duckdb, no numbers"])
    print(
        f"DuckDB alone without numbering the rows: {rows / less:,.0f} rows/s, ratio {speed * less / rows:.2f}"
    )
    path = report("ingest", checks, facts, PACKAGES)
    print(path)
    sys.exit(0 if all(check.holds for check in checks) else 1)


if __name__ == "__main__":
    main()
