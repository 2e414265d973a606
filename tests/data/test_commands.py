"""`tidegate ingest` and `tidegate traces`, as a user runs them."""

import json
import subprocess
import sys
from pathlib import Path

import polars as pl

from data.catalogue import TRACES
from data.lake import Lake


def tidegate(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pipeline.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_ingest_prints_where_the_rows_went(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.csv", tmp_path / "bad.csv"
    good.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:04.0,10,2\n2023-11-16,1,1\n")
    bad.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\nx,1,1\n")
    done = tidegate("ingest", good, bad, "--lake", tmp_path / "lake")
    assert done.returncode == 2
    row = next(line for line in done.stdout.splitlines() if "good.csv" in line)
    assert row.split("│")[1:-1] == [" good.csv ", " 2    ", " 1      ", " 1           ", " 0          "]
    assert "bad.csv has no row that can be read; line 2: TIMESTAMP must be a time" in done.stderr
    assert "Traceback" not in done.stderr


def rows_of(lake: Path) -> pl.DataFrame:
    with Lake(lake) as opened:
        return opened.requests()


def test_one_source_for_two_numbered_files_loses_no_row(tmp_path: Path) -> None:
    for name, prompt in (("a.csv", 10), ("b.csv", 20)):
        rows = f"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:04.0,{prompt},2\n"
        (tmp_path / name).write_text(rows)
    lake = tmp_path / "lake"
    done = tidegate("ingest", tmp_path / "a.csv", tmp_path / "b.csv", "--source", "s", "--lake", lake)
    assert done.returncode == 0
    assert rows_of(lake)["request_id"].to_list() == ["s/a:1", "s/b:1"]


def test_a_mapping_of_the_configuration(tmp_path: Path) -> None:
    config, trace, lake = tmp_path / "tidegate.yaml", tmp_path / "ours.csv", tmp_path / "lake"
    config.write_text(
        f"telemetry: {{lake: {lake}, mappings: {{ours: {{columns: {{arrived_at: ts, prompt_tokens: in}}}}}}}}"
    )
    trace.write_text("ts,in,extra\n1.5,10,x\n")
    done = tidegate("ingest", trace, "--config", config, "--mapping", "ours")
    assert (done.returncode, done.stderr) == (0, "")
    assert rows_of(lake)["prompt_tokens"].to_list() == [10]
    unknown = tidegate("ingest", trace, "--config", config, "--mapping", "our")
    assert unknown.returncode == 2
    assert "--mapping must be one of those in the configuration (ours); got 'our'" in unknown.stderr


def test_a_drawn_trace_is_called_semi_synthetic(tmp_path: Path) -> None:
    pool = tmp_path / "m-tiny"
    pool.mkdir()
    (pool / "chunk-0-trace.csv").write_text("0,0.5,1,Gamma,1,2\n600,0,0,,0,0\n1200,0.5,1,Weibull,0.8,2\n")
    lengths = {"0": {"input_tokens": "{100: 0.5, 200: 0.5}", "output_tokens": "{50: 1}"}}
    (pool / "chunk-0-dataset.json").write_text(json.dumps(lengths))
    trace = tmp_path / "t.parquet"
    drawn = tidegate("servegen", pool, "--days", 1800 / 86400, "--out", trace)
    assert "semi-synthetic" in drawn.stdout
    done = tidegate("ingest", trace, "--lake", tmp_path / "lake")
    assert "t.parquet (semi-synthetic)" in done.stdout
    with Lake(tmp_path / "lake") as lake:
        assert lake.query("SELECT semi_synthetic FROM lake.ingests").item() is True
    refused = tidegate("servegen", pool, "--days", 1, "--out", trace)
    assert refused.returncode == 2
    assert "days must be from 0.00694 to 0.0208333" in refused.stderr


def test_a_near_empty_head_is_warned_of(tmp_path: Path) -> None:
    trace = tmp_path / "head.csv"
    seconds = [*range(0, 7200, 60), *(7200 + n / 4 for n in range(4 * 1800))]
    rows = "".join(f"{n},{at},1\n" for n, at in enumerate(seconds))
    trace.write_text("request_id,arrived_at,prompt_tokens\n" + rows)
    done = tidegate("ingest", trace, "--lake", tmp_path / "lake")
    assert "head.csv: the first 7,200 s run at 1/240 of the later rate" in done.stdout


def test_traces(tmp_path: Path) -> None:
    listed = tidegate("traces", "list")
    assert listed.returncode == 0
    assert all(trace.name in listed.stdout and trace.citation in listed.stdout for trace in TRACES)
    unknown = tidegate("traces", "fetch", "azure", "--to", tmp_path / "traces")
    assert unknown.returncode == 2
    assert "trace must be one of azure-2023-code" in unknown.stderr
