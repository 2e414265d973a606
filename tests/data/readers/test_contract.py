"""One contract for every reader: the same facts hold whatever the format."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pytest

from data.errors import InputError
from data.readers import POLARS_QUARANTINE, load_trace, read_batches, sniff
from data.schema import POLARS_REQUESTS


@dataclass(frozen=True)
class Sample:
    """A small file of one format: rows out of order in time, and one row that breaks a rule."""

    name: str
    header: str | None
    rows: tuple[str, ...]
    bad: str
    bad_reason: str
    own_ids: bool = False

    def text(self, rows: tuple[str, ...] | None = None, end: str = "\n") -> str:
        lines = ([self.header] if self.header else []) + list(self.rows if rows is None else rows)
        return end.join(lines)

    def line_of(self, row: int) -> int:
        return row + 1 + (self.header is not None)


def mooncake(timestamp: object, prompt: object = 600, output: object = 5, ids: object = (1, 2)) -> str:
    return json.dumps(
        {"timestamp": timestamp, "input_length": prompt, "output_length": output, "hash_ids": ids}
    )


SAMPLES = (
    Sample(
        "azure",
        "TIMESTAMP,ContextTokens,GeneratedTokens",
        ("2023-11-16 18:17:04.0000000,10,2", "2023-11-16 18:17:03.9799600,4808,10"),
        "2023-11-16 18:17:05.0000000,-4,2",
        "ContextTokens must be a whole number from 0 to 10000000; got '-4'",
    ),
    Sample(
        "burstgpt",
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type",
        ("45,GPT-4,472,18,490,Conversation log", "5.0,ChatGPT,1087,0,1087,API log"),
        "6,ChatGPT,20000001,1,2,API log",
        "Request tokens must be a whole number from 0 to 10000000; got '20000001'",
    ),
    Sample(
        "burstgpt",
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type",
        ("45,7,2.5,GPT-4,472,18,490,Conversation log", "5,,1.25,ChatGPT,1087,0,1087,API log"),
        "nan,7,1,ChatGPT,2,1,3,API log",
        "Timestamp must be a number of seconds from 0 to the year 2200; got 'nan'",
    ),
    Sample(
        "mooncake",
        None,
        (mooncake(3000), mooncake(0)),
        mooncake(6000, ids=[1, "x"]),
        """hash_ids must be a list of whole numbers; got '[1, "x"]'""",
    ),
    Sample(
        "tidegate",
        "request_id,arrived_at,prompt_tokens,lane",
        ("b,2026-01-02T00:00:00Z,10,batch", "a,2026-01-01 00:00:00,20,"),
        "c,2026-01-03,30,gold",
        "arrived_at must be a time since 1970 such as 2023-11-16 18:17:03.979960 or a number of seconds; "
        "got '2026-01-03'",
        own_ids=True,
    ),
    Sample(
        "tidegate",
        None,
        (
            '{"request_id": "b", "arrived_at": 12.5, "prompt_tokens": 10}',
            '{"request_id": "a", "arrived_at": 3, "prompt_tokens": 20, "lane": null}',
        ),
        '{"request_id": "c", "arrived_at": 13, "prompt_tokens": 20, "lane": "gold"}',
        "lane must be one of premium, standard, batch; got 'gold'",
        own_ids=True,
    ),
)


@pytest.fixture(params=SAMPLES, ids=lambda s: f"{s.name}-{'csv' if s.header else 'jsonl'}-{len(s.text())}")
def sample(request: pytest.FixtureRequest) -> Sample:
    return request.param


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str | bytes], Path]:
    def write(text: str | bytes) -> Path:
        path = tmp_path / "any name.txt"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    return write


def test_schema_order_and_ids(sample: Sample, write: Callable[..., Path]) -> None:
    path = write(sample.text())
    assert sniff(path).name == sample.name
    trace = load_trace(path, source="s")
    assert dict(trace.requests.schema) == POLARS_REQUESTS
    assert dict(trace.quarantined.schema) == POLARS_QUARANTINE
    assert trace.requests["arrived_at"].is_sorted()
    assert trace.requests["source"].to_list() == ["s", "s"]
    assert trace.requests["request_id"].to_list() == (
        ["a", "b"] if sample.own_ids else ["s/any name:2", "s/any name:1"]
    )
    assert trace.requests.select("request_id", "arrived_at", "prompt_tokens").null_count().row(0) == (0, 0, 0)


def test_the_source_is_the_file_name_by_default(sample: Sample, write: Callable[..., Path]) -> None:
    assert load_trace(write(sample.text())).requests["source"].to_list() == ["any name"] * 2


@pytest.mark.parametrize(
    ("mark", "end", "tail"),
    [(b"", "\r\n", b""), (b"", "\r\n", b"\r\n"), (b"\xef\xbb\xbf", "\n", b"\n\n"), (b"", "\n", b"\n")],
    ids=["CRLF without end", "CRLF", "BOM and blank lines", "LF"],
)
def test_line_ends_and_marks_change_nothing(
    sample: Sample, write: Callable[..., Path], mark: bytes, end: str, tail: bytes
) -> None:
    plain = load_trace(write(sample.text()))
    marked = load_trace(write(mark + sample.text(end=end).encode() + tail))
    assert marked.requests.equals(plain.requests)
    assert marked.quarantined.height == 0


def test_a_bad_row_goes_to_quarantine(sample: Sample, write: Callable[..., Path]) -> None:
    rows = (sample.rows[0], sample.bad, "", sample.rows[1])
    trace = load_trace(write(sample.text(rows, end="\r\n")), source="s")
    assert trace.requests.height == 2
    assert trace.quarantined.to_dicts() == [
        {
            "source": "s",
            "file": "any name.txt",
            "line": sample.line_of(1),
            "reason": sample.bad_reason,
            "raw": sample.bad,
        }
    ]
    if not sample.own_ids:
        assert sorted(trace.requests["request_id"]) == ["s/any name:1", "s/any name:4"]


def test_a_cut_row_and_bytes_that_are_no_text(sample: Sample, write: Callable[..., Path]) -> None:
    cut = sample.rows[0][: len(sample.rows[0]) // 3]
    text = sample.text((sample.rows[0], cut, "\udcff", sample.rows[1]))
    trace = load_trace(write(text.encode(errors="surrogateescape")))
    assert trace.requests.height == 2
    assert trace.quarantined["line"].to_list() == [sample.line_of(1), sample.line_of(2)]
    assert trace.quarantined["raw"].to_list() == [cut, "\ufffd"]


def test_every_row_bad_is_an_error(sample: Sample, write: Callable[..., Path]) -> None:
    path = write(sample.text((sample.bad, sample.bad)))
    if sample.header is None:  # the first line decides the format, and this one is whole
        assert sniff(path).name == sample.name
    with pytest.raises(InputError, match="has no row that can be read") as error:
        load_trace(path)
    assert f"line {sample.line_of(0)}: {sample.bad_reason}" in str(error.value)


def test_a_missing_column_is_named(sample: Sample, write: Callable[..., Path]) -> None:
    if sample.header:
        path = write(sample.header.rpartition(",")[0].replace(",prompt_tokens", ",output_tokens") + "\n1,2\n")
    else:
        row = json.loads(sample.rows[0])
        del row["hash_ids" if sample.name == "mooncake" else "prompt_tokens"]
        path = write(json.dumps(row))
    with pytest.raises(
        InputError, match=r"has no column '(GeneratedTokens|Log Type|hash_ids|prompt_tokens)'"
    ):
        sniff(path)


@pytest.mark.parametrize("header", sorted({s.header for s in SAMPLES if s.header}))
def test_a_header_alone_is_an_error(header: str, write: Callable[..., Path]) -> None:
    with pytest.raises(InputError, match="a header but no rows"):
        load_trace(write(header))


def test_rows_in_are_rows_out_and_quarantine_over_blocks(
    sample: Sample, write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = (sample.rows[0], sample.rows[1], sample.bad) * 20
    path = write(sample.text(rows))
    whole = load_trace(path)
    monkeypatch.setattr("data.readers.BLOCK_BYTES", 64)
    batches = list(read_batches(path))
    assert len(batches) > 10
    assert sum(batch.rows for batch in batches) == len(rows) == 60
    assert pl.concat([b.quarantine for b in batches]).equals(whole.quarantined)
    blocked = pl.concat([b.requests for b in batches]).sort("arrived_at", maintain_order=True)
    assert blocked.equals(whole.requests)
