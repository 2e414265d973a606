"""What is particular to each format, and the public traces themselves."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.readers import load_trace
from data.readers.blocks import Block
from data.readers.csv_rows import _careful_csv, _plain_csv
from data.readers.format import LINE
from data.schema import POLARS_REQUESTS

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def test_azure_conv(real_trace: Callable[[str], Path]) -> None:
    trace = load_trace(real_trace("azure_llm_2023_conv.csv"))
    assert trace.sha256 == "2f1e5b666d4e3055fdbba98598ce2ec307767b9064e03e2fa46676dbcc7d0bf8"
    assert (trace.requests.height, trace.quarantined.height) == (19_366, 0)
    assert trace.requests["arrived_at"][0] == datetime(2023, 11, 16, 18, 15, 46, 680590, tzinfo=UTC)
    assert trace.requests["outcome"].unique().to_list() == ["served"]
    assert trace.requests["finished_at"].null_count() == 19_366


def test_mooncake_conversation(real_trace: Callable[[str], Path]) -> None:
    trace = load_trace(real_trace("mooncake_conversation.jsonl"))
    requests = trace.requests
    assert (requests.height, trace.quarantined.height) == (12_031, 0)
    assert requests["block_tokens"].unique().to_list() == [512]
    blocks = (requests["prompt_tokens"] + 511) // 512
    assert (requests["block_hashes"].list.len() == blocks).all()
    assert requests["arrived_at"].n_unique() == 1_180


def test_burstgpt_outcomes_and_finish(tmp_path: Path) -> None:
    path = tmp_path / "b.csv"
    path.write_text(
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5.0,12,1.25,ChatGPT,472,18,490,Conversation log\n"
        "45,,,GPT-4,1087,0,1087,API log\n"
    )
    served, failed = load_trace(path).requests.to_dicts()
    assert served["arrived_at"] == EPOCH + timedelta(seconds=5)
    assert served["finished_at"] == EPOCH + timedelta(seconds=6.25)
    assert (served["outcome"], served["session"], served["log_type"]) == (
        "served",
        "b:12",
        "Conversation log",
    )
    assert (failed["outcome"], failed["session"], failed["finished_at"]) == ("failed", None, None)
    assert failed["output_tokens"] == 0
    assert failed["model"] == "GPT-4"


def test_burstgpt_bad_elapsed_time(tmp_path: Path) -> None:
    path = tmp_path / "b.csv"
    path.write_text(
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,1,1,ChatGPT,1,1,2,API log\n6,1,-1,ChatGPT,1,1,2,API log\n"
    )
    reason = load_trace(path).quarantined["reason"].item()
    assert reason == "Elapsed time must be a number of seconds, 0 or more; got '-1'"


def requests_frame() -> pl.DataFrame:
    """Two rows with every column of the schema filled, then one with the bare minimum."""
    full = {
        "source": "elsewhere",
        "request_id": "r1",
        "arrived_at": EPOCH + timedelta(microseconds=1_700_158_623_979_961),
        "tenant": "Bäckerei, Köln",
        "lane": "premium",
        "model": "m",
        "session": "s",
        "log_type": "a \"quoted\" 'mark'",
        "prompt_tokens": 100,
        "cached_tokens": 40,
        "max_tokens": 500,
        "output_tokens": 25,
        "finished_at": EPOCH + timedelta(microseconds=1_700_158_630_000_001),
        "outcome": "served",
        "retry_of": "r0",
        "block_hashes": [3, 1, 2],
        "block_tokens": 16,
        "images": 2,
    }
    bare = dict.fromkeys(full) | {"request_id": "r2", "arrived_at": full["arrived_at"], "prompt_tokens": 0}
    return pl.DataFrame([full, full | {"request_id": "r3", "block_hashes": []}, bare], schema=POLARS_REQUESTS)


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_our_own_form_comes_back_as_it_was(tmp_path: Path, kind: str) -> None:
    frame = requests_frame()
    path = tmp_path / f"own.{kind}"
    if kind == "csv":
        hashes = pl.format("[{}]", pl.col("block_hashes").cast(pl.List(pl.String)).list.join(", "))
        frame.with_columns(hashes.alias("block_hashes")).write_csv(path)
    elif kind == "jsonl":
        frame.write_ndjson(path)
    else:
        frame.write_parquet(path)
    trace = load_trace(path, source="own")
    assert trace.requests.equals(frame.with_columns(source=pl.lit("own")))
    assert trace.quarantined.height == 0


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("r,5,10,11,", "cached_tokens must be a whole number from 0 to prompt_tokens; got '11'"),
        ("r,5,10,,4", "and not before arrived_at; got '4'"),
        (",5,10,,", "request_id must be a text; the row has none"),
        ('r,5,10,"1', "the line is not CSV"),
        ("r,5,10", "the line has 3 fields, the header has 5"),
    ],
)
def test_rows_of_our_own_form_that_contradict_themselves(tmp_path: Path, row: str, reason: str) -> None:
    path = tmp_path / "own.csv"
    path.write_text(f"request_id,arrived_at,prompt_tokens,cached_tokens,finished_at\nok,5,10,10,5\n{row}\n")
    trace = load_trace(path)
    assert trace.requests["request_id"].to_list() == ["ok"]
    assert reason in trace.quarantined["reason"].item()
    assert trace.quarantined["raw"].item() == row


def test_a_bad_parquet_row_names_its_row(tmp_path: Path) -> None:
    path = tmp_path / "own.parquet"
    frame = pl.DataFrame({"request_id": ["a", "b"], "arrived_at": [1.5, 2.0], "prompt_tokens": [5, -5]})
    frame.write_parquet(path)
    row = load_trace(path).quarantined.row(0, named=True)
    assert row["line"] == 2
    assert row["raw"] == '{"request_id":"b","arrived_at":"2.0","prompt_tokens":"-5"}'


def test_an_unknown_key_on_a_later_line_is_not_lost(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text(
        '{"request_id": "a", "arrived_at": 1, "prompt_tokens": 5}\n'
        '{"request_id": "b", "arrived_at": 1, "prompt_tokens": 5, "tenent": "x"}\n'
        "[1, 2]\n"
    )
    reasons = load_trace(path).quarantined["reason"].to_list()
    assert reasons == ["unknown key 'tenent'", "the line is not a JSON object but list"]


text = st.text("ab1.-'\t; #\x00", max_size=3)


@settings(max_examples=80)
@given(st.lists(st.tuples(text, text, text), min_size=1, max_size=6))
def test_the_fast_and_the_careful_parser_agree(rows: list[tuple[str, str, str]]) -> None:
    header = ("x", "y", "z")
    block = Block(7, "\r\n".join(",".join(row) for row in rows).encode())
    fast, careful = _plain_csv(block, header), _careful_csv(block, header)
    assert fast is not None
    assert fast.values.equals(careful.values)
    assert careful.values.drop(LINE).rows() == [tuple(field or None for field in row) for row in rows]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_lone_carriage_return_is_no_line_break_whichever_parser_reads_it(tmp_path: Path, end: str) -> None:
    path = tmp_path / "own.csv"
    for quoted in ("b", '"b"'):
        rows = ("request_id,arrived_at,prompt_tokens,tenant", "a,1,5,x\ry", f"{quoted},2,5,z", "")
        path.write_bytes(end.join(rows).encode())
        trace = load_trace(path)
        assert trace.requests["request_id"].to_list() == ["b"]
        assert "new-line character" in trace.quarantined["reason"].item()


def test_spaces_after_commas_are_dropped_where_the_header_has_them(tmp_path: Path) -> None:
    path = tmp_path / "spaced.csv"
    path.write_text('request_id, arrived_at, prompt_tokens, tenant\na, 1.5, 10, "x, y"\n')
    row = load_trace(path).requests.row(0, named=True)
    assert (row["request_id"], row["prompt_tokens"], row["tenant"]) == ("a", 10, "x, y")
    path.write_text("request_id,arrived_at,prompt_tokens,tenant\na,1.5,10, x\n")
    assert load_trace(path).requests["tenant"].item() == " x"


@pytest.mark.parametrize("line", ["", "a,b", "a,b,c,d", "a", ",,,"])
def test_a_line_that_is_no_row_is_never_taken_for_one(line: str) -> None:
    block = Block(1, f"1,2,3\n{line}\n4,5,\n".encode())
    rows = _plain_csv(block, ("x", "y", "z")) or _careful_csv(block, ("x", "y", "z"))
    assert rows.values.rows() == [("1", "2", "3", 1), ("4", "5", None, 3)]
    assert [number for number, _ in rows.broken] == ([2] if line else [])


@pytest.mark.parametrize(
    "start", [b"x^", b"x\x01", b"\x1f\x8b", b"x\x9c", b"(\xb5/\xfd", b"x\xda", b"BZh9", b"\xfd7zXZ"]
)
def test_a_block_that_starts_like_packed_data_is_text_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: bytes
) -> None:
    monkeypatch.setattr("data.readers.BLOCK_BYTES", 8)
    path = tmp_path / "own.csv"
    path.write_bytes(b"request_id,arrived_at,prompt_tokens\n" + start + b"1,5,10\nb,6,20\n")
    trace = load_trace(path)
    assert trace.requests.height + trace.quarantined.height == 2
    assert trace.requests["prompt_tokens"].to_list()[-1] == 20
