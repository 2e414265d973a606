import gzip
import tempfile
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data.errors import InputError
from data.ingest import IngestSummary, ingest
from data.lake import Lake
from data.readers import load_trace

HEADER = "request_id,arrived_at,prompt_tokens\n"
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """One lake for the module: every test ingests under sources of its own."""
    with Lake(tmp_path_factory.mktemp("lake")) as lake:
        yield lake


def files(lake: Lake) -> set[Path]:
    return set(lake.data.rglob("*.parquet"))


def test_a_real_trace(lake: Lake, real_trace: Callable[[str], Path]) -> None:
    path = real_trace("azure_llm_2023_conv.csv")
    seen: list[int] = []
    assert ingest(path, lake, source="azure", progress=seen.append) == IngestSummary(19_366, 19_366, 0, 0)
    assert lake.requests("azure").equals(load_trace(path, source="azure").requests)
    assert sum(seen) == path.stat().st_size


def test_ties_keep_the_order_of_the_trace(lake: Lake, real_trace: Callable[[str], Path]) -> None:
    path = real_trace("mooncake_conversation.jsonl")
    ingest(path, lake, source="mooncake")
    assert lake.requests("mooncake").equals(load_trace(path, source="mooncake").requests)


def test_the_same_file_again_adds_nothing(lake: Lake, tmp_path: Path) -> None:
    path = tmp_path / "again.csv"
    path.write_text(AZURE + "2023-11-16 18:17:04.0000000,10,2\r\nbad,1,1\r\n")
    assert ingest(path, lake) == IngestSummary(2, 1, 1, 0)
    before = files(lake)
    assert ingest(path, lake) == IngestSummary(2, 0, 0, 2)
    assert ingest(path.rename(tmp_path / "renamed.csv"), lake, source="again") == IngestSummary(2, 0, 0, 2)
    assert files(lake) == before
    assert lake.requests("again").height == 1
    assert lake.query("FROM lake.quarantine WHERE source = 'again'")["line"].to_list() == [3]
    assert ingest(tmp_path / "renamed.csv", lake, source="another") == IngestSummary(2, 1, 1, 0)


def test_two_ingests_of_one_file_at_once(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(AZURE + "2023-11-16 18:17:04.0000000,10,2\r\n" * 1_000)

    def run(_: int) -> IngestSummary:
        with Lake(tmp_path / "lake") as own:
            return ingest(path, own)

    with ThreadPoolExecutor(2) as threads:
        first, second = sorted(threads.map(run, range(2)), key=lambda summary: summary.duplicates)
    assert first == IngestSummary(1_000, 1_000, 0, 0)
    assert second == IngestSummary(1_000, 0, 0, 1_000)
    with Lake(tmp_path / "lake") as lake:
        assert lake.requests().height == 1_000


def test_a_file_that_grew_adds_its_new_rows(lake: Lake, tmp_path: Path) -> None:
    path = tmp_path / "grew.csv"
    path.write_text(AZURE + "2023-11-16 18:17:04.0000000,10,2\r\n")
    assert ingest(path, lake) == IngestSummary(1, 1, 0, 0)
    with path.open("a") as file:
        file.write("2023-11-16 18:17:05.0000000,20,2\r\n")
    assert ingest(path, lake) == IngestSummary(2, 1, 0, 1)
    assert lake.requests("grew")["prompt_tokens"].to_list() == [10, 20]


def test_another_file_of_the_same_name_is_refused(lake: Lake, tmp_path: Path) -> None:
    paths = [tmp_path / folder / "day.csv" for folder in ("monday", "tuesday")]
    for path, prompt in zip(paths, (10, 20), strict=True):
        path.parent.mkdir()
        path.write_text(AZURE + f"2023-11-16 18:17:04.0000000,{prompt},2\r\n")
    ingest(paths[0], lake, source="days")
    before = files(lake)
    with pytest.raises(InputError, match=r"must have a name of its own: .* days/day:1 is another request"):
        ingest(paths[1], lake, source="days")
    assert files(lake) == before
    assert ingest(paths[1].rename(tmp_path / "tuesday.csv"), lake, source="days") == IngestSummary(1, 1, 0, 0)
    assert lake.requests("days")["request_id"].to_list() == ["days/day:1", "days/tuesday:1"]


def test_a_cut_gzip_file_leaves_nothing(lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("data.ingest.FILE_ROWS", 1)
    monkeypatch.setattr("data.readers.BLOCK_BYTES", 60_000)
    path = tmp_path / "cut.csv.gz"
    packed = gzip.compress((AZURE + "2023-11-16 18:17:04.0000000,10,2\r\n" * 5_000).encode())
    path.write_bytes(packed[:-20])
    before = files(lake)
    with pytest.raises(InputError, match="is not whole"):
        ingest(path, lake)
    assert files(lake) == before
    assert lake.requests("cut").is_empty()
    path.write_bytes(packed)
    assert ingest(path, lake) == IngestSummary(5_000, 5_000, 0, 0)


def test_failed_requests_are_offered_and_not_served(lake: Lake, tmp_path: Path) -> None:
    path = tmp_path / "burst.csv"
    header = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    path.write_text(header + "5,ChatGPT,472,18,490,API log\n45,ChatGPT,1087,0,1087,API log\n")
    assert ingest(path, lake) == IngestSummary(2, 2, 0, 0)
    counts = lake.query(
        "SELECT outcome, count(*) FROM lake.requests WHERE source = 'burst' GROUP BY ALL ORDER BY ALL"
    )
    assert counts.rows() == [("failed", 1), ("served", 1)]


def test_a_quiet_head_is_a_warning_and_the_arrivals_are_recorded_ones(lake: Lake, tmp_path: Path) -> None:
    path = tmp_path / "quiet.csv"
    seconds = [*range(0, 72_000, 30), *(72_000 + n / 4 for n in range(40_080))]
    path.write_text(HEADER + "".join(f"{n},{at},1\n" for n, at in enumerate(seconds)))
    summary = ingest(path, lake)
    (warning,) = summary.warnings
    assert warning.startswith(
        "the first 72,000 s run at 1/120 of the later rate (0.033 against 4 requests/s)"
    )
    noted = lake.query("SELECT rows, semi_synthetic FROM lake.ingests WHERE source = 'quiet'")
    assert noted.rows() == [(42_480, False)]


def test_the_first_of_a_repeated_id_stays(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("data.ingest.FILE_ROWS", 1)  # the repeats then lie in different files
    monkeypatch.setattr("data.readers.BLOCK_BYTES", 8)
    path = tmp_path / "repeated.csv"
    path.write_text(HEADER + "a,5,1\nb,4,2\na,3,3\na,2,4\n")
    assert ingest(path, lake) == IngestSummary(4, 2, 0, 2)
    assert lake.requests("repeated").select("request_id", "prompt_tokens").rows() == [("b", 2), ("a", 1)]
    path.write_text(HEADER + "b,4,2\n")
    assert ingest(path, lake) == IngestSummary(1, 0, 0, 1)


def test_a_file_without_a_good_row_leaves_nothing(lake: Lake, tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(HEADER + "a,5,-1\n")
    before = files(lake)
    with pytest.raises(InputError, match="no row that can be read; line 2: prompt_tokens"):
        ingest(path, lake)
    assert files(lake) == before
    assert lake.query("FROM lake.quarantine WHERE source = 'bad'").height == 0


def test_a_failure_at_the_commit_leaves_nothing(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "halfway.csv"
    path.write_text(HEADER + "a,5,1\nb,5,-1\n")
    before = files(lake)
    insert = lake.insert

    def fail_at_the_note(table: str, frame: pl.DataFrame) -> None:
        if table == "ingests":
            raise OSError("disk full")
        insert(table, frame)

    monkeypatch.setattr(lake, "insert", fail_at_the_note)
    with pytest.raises(OSError, match="disk full"):
        ingest(path, lake)
    monkeypatch.undo()
    assert files(lake) == before
    assert lake.requests("halfway").height == 0
    assert lake.query("FROM lake.quarantine WHERE source = 'halfway'").height == 0
    assert ingest(path, lake) == IngestSummary(2, 1, 1, 0)


def test_an_interrupt_just_after_the_commit_keeps_what_was_committed(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "interrupted.csv"
    path.write_text(HEADER + "a,5,1\nb,5,-1\n")
    transact = lake.transact

    def interrupted(write: Callable[[], None]) -> None:
        transact(write)
        raise KeyboardInterrupt

    monkeypatch.setattr(lake, "transact", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ingest(path, lake)
    monkeypatch.undo()
    assert lake.requests("interrupted").height == 1
    assert ingest(path, lake) == IngestSummary(2, 0, 0, 2)


row = st.tuples(st.sampled_from("abcd"), st.sampled_from(["1", "2.5", "never"]), st.integers(-1, 3))


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(row, min_size=1, max_size=6), min_size=1, max_size=3))
def test_every_row_is_accounted_for(lake: Lake, traces: list[list[tuple[str, str, int]]]) -> None:
    source = str(uuid.uuid4())  # hypothesis comes back to examples, the lake has then seen them
    stored = quarantined = 0
    with tempfile.TemporaryDirectory() as folder:
        for n, rows in enumerate(traces):
            path = Path(folder) / f"{n}.csv"
            path.write_text(HEADER + "".join(f"{i},{at},{prompt}\n" for i, at, prompt in rows))
            if all(at == "never" or prompt < 0 for _, at, prompt in rows):
                with pytest.raises(InputError):
                    ingest(path, lake, source=source)
                continue
            summary = ingest(path, lake, source=source)
            assert summary.rows == len(rows)
            assert summary.rows == summary.stored + summary.quarantined + summary.duplicates
            stored += summary.stored
            quarantined += summary.quarantined
    kept = lake.requests(source)
    assert kept.height == stored == kept["request_id"].n_unique()
    where = {"source": source}
    assert lake.query("FROM lake.quarantine WHERE source = $source", where).height == quarantined
