import re
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from data.errors import InputError
from data.readers import load_trace
from data.schema import UTC_US
from data.workload import CAUSES, Settings, Workload, generate, read_truth, write


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_what_is_written_reads_back_the_same(workload: Workload, tmp_path: Path, suffix: str) -> None:
    short = Workload(workload.requests.head(20_000), workload.causes)
    path = tmp_path / f"day.{suffix}"
    assert write(short, path) == tmp_path / "day.truth.csv"
    trace = load_trace(path)
    assert trace.quarantined.is_empty()
    assert trace.format == "tidegate"
    assert_frame_equal(trace.requests.drop("source"), short.requests.drop("source"))


def test_the_truth_reads_back_the_same(workload: Workload, tmp_path: Path) -> None:
    truth = pl.read_csv(write(workload, tmp_path / "day.parquet"))
    again = truth.with_columns(
        pl.col("at").str.to_datetime("%Y-%m-%dT%H:%M:%S%.6fZ", time_unit="us", time_zone="UTC")
    )
    assert again.schema["at"] == UTC_US
    assert_frame_equal(again, workload.causes)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("day.xlsx", r"must end in one of \.csv, \.jsonl, \.parquet; got 'day\.xlsx'"),
        ("no/day.csv", "does not exist"),
    ],
)
def test_a_wrong_path_is_told_in_a_sentence(
    workload: Workload, tmp_path: Path, name: str, sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        write(workload, tmp_path / name)


def test_a_path_that_cannot_be_written_is_told_in_a_sentence(workload: Workload, tmp_path: Path) -> None:
    (tmp_path / "day.csv").mkdir()
    with pytest.raises(InputError, match="can't be written"):
        write(workload, tmp_path / "day.csv")


def test_read_truth_gives_the_causes_and_their_figures(tmp_path: Path) -> None:
    workload = generate(Settings(days=1.0, seed=1, requests_per_s=1.0))
    write(workload, tmp_path / "day.parquet")
    truth = read_truth(tmp_path / "day.parquet")
    assert truth is not None
    assert_frame_equal(truth.drop("work_tokens", "lasts_s"), workload.causes)
    assert set(truth["cause"]) == set(CAUSES)
    for cause, detail, work_tokens, lasts_s in truth.select(
        "cause", "detail", "work_tokens", "lasts_s"
    ).iter_rows():
        figures = dict(re.findall(r"(\w+)=(\S+)", detail))
        assert work_tokens == (float(figures["work_tokens"]) if "work_tokens" in figures else None)
        assert lasts_s == float(figures.get("rise_s", 0)) + float(figures.get("hold_s", 0))
        assert (lasts_s > 0) == (cause in ("ramp", "storm"))
        assert (work_tokens is None) <= (cause in ("ramp", "storm", "retry_echo"))


def test_a_trace_without_a_truth_beside_it_has_none(tmp_path: Path) -> None:
    assert read_truth(tmp_path / "day.csv") is None


HEADER = "at,t_s,cause,tenant,detail\n"
TIME = "2026-01-05T00:00:01.500000Z"


def test_a_truth_of_no_cause_and_of_no_figure_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "day.truth.csv").write_text(HEADER)
    none = read_truth(tmp_path / "day.csv")
    assert none is not None
    assert none.is_empty()
    (tmp_path / "[a]*.truth.csv").write_text(f"{HEADER}{TIME},1.5,cron,7,\n")
    bare = read_truth(tmp_path / "[a]*.csv")  # a name, not a pattern
    assert bare is not None
    assert bare.schema == none.schema
    assert bare.select("t_s", "tenant", "work_tokens", "lasts_s").row(0) == (1.5, "7", None, 0.0)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "empty"),
        ("\xff\x00\x01" * 9, "unable to find column"),
        (f"at,cause,tenant,detail\n{TIME},cron,a,\n", 'unable to find column "t_s"'),
        (f"at,t_s,tenant,detail\n{TIME},1.5,a,\n", 'unable to find column "cause"'),
        (f"{HEADER}yesterday,1.5,cron,a,\n", "'at'.*yesterday"),
        (f"{HEADER}{TIME},soon,cron,a,\n", "'t_s'.*soon"),
        (f"{HEADER}{TIME},1.5,cron,a,work_tokens=1.2.3\n", r"'detail'.*1\.2\.3"),
        (f"{HEADER}{TIME},1.5,cron,a,x,y\n", "more fields"),
    ],
)
def test_what_is_no_truth_file_is_told_in_a_sentence(tmp_path: Path, text: str, what: str) -> None:
    path = tmp_path / "day.truth.csv"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(
        InputError, match=rf"day\.truth\.csv is not a truth file as .* writes it: .*{what}"
    ) as e:
        read_truth(tmp_path / "day.csv")
    assert "\n" not in str(e.value)
