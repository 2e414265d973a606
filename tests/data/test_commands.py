"""`tidegate ingest` and `tidegate traces`, as a user runs them."""

import subprocess
import sys
from pathlib import Path


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


def test_one_source_for_two_numbered_files_is_refused(tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:04.0,10,2\n")
    done = tidegate(
        "ingest", tmp_path / "a.csv", tmp_path / "b.csv", "--source", "s", "--lake", tmp_path / "lake"
    )
    assert done.returncode == 2
    assert "--source must name one file" in done.stderr
    assert not (tmp_path / "lake").exists()


def test_traces(tmp_path: Path) -> None:
    listed = tidegate("traces", "list")
    assert listed.returncode == 0
    assert "mooncake-toolagent" in listed.stdout
    unknown = tidegate("traces", "fetch", "azure", "--to", tmp_path / "traces")
    assert unknown.returncode == 2
    assert "trace must be one of azure-2023-code" in unknown.stderr
