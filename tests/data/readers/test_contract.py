"""One contract for every reader: the same facts hold whatever the format."""

import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pytest

from data.config import Mapping
from data.errors import InputError
from data.readers import FORMATS, POLARS_QUARANTINE, Trace, load_trace, read_batches
from data.readers.sniff import inspect
from data.schema import POLARS_REQUESTS


@dataclass(frozen=True)
class Sample:
    """A small file of one format: rows out of order in time, and one row that breaks a rule.

    `row` writes a row of an arrival, such as `time`, and of prompt tokens, as they are.
    """

    name: str
    header: str | None
    rows: tuple[str, ...]
    bad: str
    bad_reason: str
    row: Callable[[str, str], str]
    time: str = "5"
    own_ids: bool = False
    mapping: Mapping | None = None

    def load(self, path: Path, source: str | None = None) -> Trace:
        return load_trace(path, source=source, mapping=self.mapping)

    def text(self, rows: tuple[str, ...] | None = None, end: str = "\n") -> str:
        lines = ([self.header] if self.header else []) + list(self.rows if rows is None else rows)
        return end.join(lines)

    def line_of(self, row: int) -> int:
        return row + 1 + (self.header is not None)


def mooncake(timestamp: object, prompt: object = 600, output: object = 5, ids: object = (1, 2)) -> str:
    return json.dumps(
        {"timestamp": timestamp, "input_length": prompt, "output_length": output, "hash_ids": ids}
    )


def bailian(chat: int, parent: int, timestamp: float, prompt: object = 521) -> str:
    row = {"chat_id": chat, "parent_chat_id": parent, "timestamp": timestamp, "input_length": prompt}
    return json.dumps(row | {"output_length": 132, "type": "text", "turn": 1, "hash_ids": [1089, 1090]})


SAMPLES = (
    Sample(
        "azure",
        "TIMESTAMP,ContextTokens,GeneratedTokens",
        ("2023-11-16 18:17:04.0000000,10,2", "2023-11-16 18:17:03.9799600,4808,10"),
        "2023-11-16 18:17:05.0000000,-4,2",
        "ContextTokens must be a whole number from 0 to 10000000; got '-4'",
        "{},{},2".format,
        "2023-11-16 18:17:05",
    ),
    Sample(
        "azure",
        "TIMESTAMP,ContextTokens,GeneratedTokens",
        ("2024-05-12 00:00:00+00:00,10,2", "2024-05-11 23:59:59.001163+00:00,4808,10"),
        "2024-05-12 00:00:00+25:00,4,2",
        "TIMESTAMP must be a time since 1970 such as 2023-11-16 18:17:03.979960; "
        "got '2024-05-12 00:00:00+25:00'",
        "{},{},2".format,
        "2024-05-12 00:00:00+00:00",
    ),
    Sample(
        "azure",
        "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens",
        ("2024-10-15T12:00:00.269Z,1,10,2", "2024-10-15T12:00:00Z,0,4808,10"),
        "2024-10-15T12:00:01.000Z,-1,4,2",
        "NumImages must be a whole number from 0 to 10000; got '-1'",
        "{},1,{},2".format,
        "2024-10-15T12:00:00Z",
    ),
    Sample(
        "burstgpt",
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type",
        ("45,GPT-4,472,18,490,Conversation log", "5.0,ChatGPT,1087,0,1087,API log"),
        "6,ChatGPT,20000001,1,2,API log",
        "Request tokens must be a whole number from 0 to 10000000; got '20000001'",
        "{},GPT-4,{},1,2,API log".format,
    ),
    Sample(
        "burstgpt",
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type",
        ("45,7,2.5,GPT-4,472,18,490,Conversation log", "5,,1.25,ChatGPT,1087,0,1087,API log"),
        "nan,7,1,ChatGPT,2,1,3,API log",
        "Timestamp must be a number of seconds from 0 to the year 2200; got 'nan'",
        "{},7,1,GPT-4,{},1,2,API log".format,
    ),
    Sample(
        "mooncake",
        None,
        (mooncake(3000), mooncake(0)),
        mooncake(6000, ids=[1, "x"]),
        """hash_ids must be a list of whole numbers; got '[1, "x"]'""",
        '{{"timestamp": {}, "input_length": {}, "output_length": 5, "hash_ids": []}}'.format,
    ),
    Sample(
        "bailian",
        None,
        (bailian(1, -1, 61.114), bailian(2, 1, 5)),
        bailian(3, 2, 7, prompt=2.5),
        "input_length must be a whole number from 0 to 10000000; got '2.5'",
        (
            '{{"chat_id": 1, "parent_chat_id": -1, "timestamp": {}, "input_length": {}, "output_length": 5, '
            '"type": "text", "turn": 1, "hash_ids": []}}'
        ).format,
    ),
    Sample(
        "tidegate",
        "request_id,arrived_at,prompt_tokens,lane",
        ("b,2026-01-02T00:00:00Z,10,batch", "a,2026-01-01 00:00:00,20,"),
        "c,2026-01-03,30,gold",
        "arrived_at must be a time since 1970 such as 2023-11-16 18:17:03.979960 or a number of seconds; "
        "got '2026-01-03'",
        "c,{},{},batch".format,
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
        '{{"request_id": "c", "arrived_at": {}, "prompt_tokens": {}}}'.format,
        own_ids=True,
    ),
    Sample(
        "mapped",
        "when,other,in",
        ("2026-03-29 01:59:59,x,10", "2026-03-29 01:59:58,y,20"),
        "2026-03-29 02:30:00,x,10",
        "when must be one time; the clocks of Europe/Berlin show '2026-03-29 02:30:00' never: "
        "write it with its offset, such as +00:00",
        "{},x,{}".format,
        mapping=Mapping(columns={"arrived_at": "when", "prompt_tokens": "in"}, time_zone="Europe/Berlin"),
    ),
    Sample(
        "mapped",
        None,
        ('{"id": "b", "ms": 12500, "in": 10}', '{"id": "a", "ms": 3, "in": 20, "more": [1]}'),
        '{"id": "", "ms": 3, "in": 20}',
        "id must be a text; the row has none",
        '{{"id": "c", "ms": {}, "in": {}}}'.format,
        own_ids=True,
        mapping=Mapping(
            columns={"request_id": "id", "arrived_at": "ms", "prompt_tokens": "in"}, time_unit="ms"
        ),
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
    assert inspect(path, sample.mapping).form.name == sample.name
    trace = sample.load(path, "s")
    assert dict(trace.requests.schema) == POLARS_REQUESTS
    assert dict(trace.quarantined.schema) == POLARS_QUARANTINE
    assert trace.requests["arrived_at"].is_sorted()
    assert trace.requests["source"].to_list() == ["s", "s"]
    assert trace.requests["request_id"].to_list() == (
        ["a", "b"] if sample.own_ids else ["s/any name:2", "s/any name:1"]
    )
    assert trace.requests.select("request_id", "arrived_at", "prompt_tokens").null_count().row(0) == (0, 0, 0)


def test_the_source_is_the_file_name_by_default(sample: Sample, write: Callable[..., Path]) -> None:
    assert sample.load(write(sample.text())).requests["source"].to_list() == ["any name"] * 2


@pytest.mark.parametrize(
    ("mark", "end", "tail"),
    [(b"", "\r\n", b""), (b"", "\r\n", b"\r\n"), (b"\xef\xbb\xbf", "\n", b"\n\n"), (b"", "\n", b"\n")],
    ids=["CRLF without end", "CRLF", "BOM and blank lines", "LF"],
)
def test_line_ends_and_marks_change_nothing(
    sample: Sample, write: Callable[..., Path], mark: bytes, end: str, tail: bytes
) -> None:
    plain = sample.load(write(sample.text()))
    marked = sample.load(write(mark + sample.text(end=end).encode() + tail))
    assert marked.requests.equals(plain.requests)
    assert marked.quarantined.height == 0


def test_a_bad_row_goes_to_quarantine(sample: Sample, write: Callable[..., Path]) -> None:
    rows = (sample.rows[0], sample.bad, "", sample.rows[1])
    trace = sample.load(write(sample.text(rows, end="\r\n")), "s")
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
    trace = sample.load(write(text.encode(errors="surrogateescape")))
    assert trace.requests.height == 2
    assert trace.quarantined["line"].to_list() == [sample.line_of(1), sample.line_of(2)]
    assert trace.quarantined["raw"].to_list() == [cut, "\ufffd"]


def test_every_row_bad_is_an_error(sample: Sample, write: Callable[..., Path]) -> None:
    path = write(sample.text((sample.bad, sample.bad)))
    if sample.header is None:  # the first line decides the format, and this one is whole
        assert inspect(path, sample.mapping).form.name == sample.name
    with pytest.raises(InputError, match="has no row that can be read") as error:
        sample.load(path)
    assert f"line {sample.line_of(0)}: {sample.bad_reason}" in str(error.value)


def test_a_missing_column_is_named(sample: Sample, write: Callable[..., Path]) -> None:
    if sample.header:
        path = write(sample.header.rpartition(",")[0].replace(",prompt_tokens", ",output_tokens") + "\n1,2\n")
    else:
        row = json.loads(sample.rows[0])
        del row[next(name for name in ("hash_ids", "prompt_tokens", "in") if name in row)]
        path = write(json.dumps(row))
    sentence = (
        r"must have the column 'in', which the mapping reads as prompt_tokens; the nearest that it has is '"
        if sample.mapping
        else r"has no column '(GeneratedTokens|Log Type|hash_ids|prompt_tokens)'"
    )
    with pytest.raises(InputError, match=sentence):
        inspect(path, sample.mapping)


def test_every_format_has_a_sample() -> None:
    assert {sample.name for sample in SAMPLES} == {form.name for form in FORMATS} | {"mapped"}


def test_a_header_alone_is_an_error(sample: Sample, write: Callable[..., Path]) -> None:
    if sample.header:
        with pytest.raises(InputError, match="a header but no rows"):
            sample.load(write(sample.header))


@pytest.mark.parametrize(
    "tokens", ["-1", "10000001", "9999999999999999999", "1.5", "NaN", "Infinity", "true"]
)
def test_token_counts_that_cannot_be(sample: Sample, write: Callable[..., Path], tokens: str) -> None:
    trace = sample.load(write(sample.text((sample.rows[0], sample.row(sample.time, tokens)))))
    assert trace.requests.height == 1
    reason = f"must be a whole number from 0 to 10000000; got '{tokens}'"
    assert reason in trace.quarantined["reason"].item()


@pytest.mark.parametrize("time", ["NaN", "Infinity", "-Infinity", "-5", "1e30", "true"])
def test_times_that_cannot_be(sample: Sample, write: Callable[..., Path], time: str) -> None:
    trace = sample.load(write(sample.text((sample.row(time, "7"), sample.rows[0]))))
    assert trace.requests.height == 1
    assert " must be a " in trace.quarantined["reason"].item()


def test_gzip_changes_nothing(sample: Sample, write: Callable[..., Path]) -> None:
    text = sample.text((sample.rows[0], sample.bad, sample.rows[1])).encode()
    plain = sample.load(write(text))
    for packed in (
        gzip.compress(text),
        gzip.compress(text[:20])
        + gzip.compress(text[20:])
        + b"\0" * 512,  # two members, and a tape's padding
    ):
        unpacked = sample.load(write(packed))
        assert unpacked.requests.equals(plain.requests)
        assert unpacked.quarantined.equals(plain.quarantined)


def test_rows_before_the_cut_of_a_gzip_file_are_read_and_the_cut_is_said(
    sample: Sample, write: Callable[..., Path]
) -> None:
    packed = gzip.compress(sample.text(sample.rows * 2_000).encode())
    path = write(packed[: len(packed) // 2])
    batches = read_batches(path, mapping=sample.mapping)
    first = next(batches)
    assert 0 < first.requests.height < 4_000
    assert first.quarantine.is_empty()  # the row that is cut is no row
    line = first.requests.height + 1 + (sample.header is not None)
    stop = f"stops after {len(packed) // 2:,} bytes without an end, in line {line:,}; fetch or copy it again"
    with pytest.raises(InputError) as error:
        next(batches)
    assert str(error.value) == f"{path} is not whole: its gzip stream {stop}"


def test_a_line_that_is_too_long_is_set_aside_and_clipped(
    sample: Sample, write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("data.readers.blocks.LINE_BYTES", 400)
    monkeypatch.setattr("data.readers.blocks.RAW_BYTES", 50)
    long = sample.bad + "x" * 10_000
    path = write(sample.text((sample.rows[0], long, sample.rows[1], long)))
    expected = None
    for block_bytes in (64, 400, 12_000, 1 << 20):
        monkeypatch.setattr("data.readers.BLOCK_BYTES", block_bytes)
        trace = sample.load(path)
        assert trace.requests.height == 2
        assert trace.quarantined["line"].to_list() == [sample.line_of(1), sample.line_of(3)]
        assert set(trace.quarantined["reason"]) == {"the line is longer than 400 bytes"}
        clipped = f"{long[:50]}... (cut here; the row has {len(long):,} bytes)"
        assert set(trace.quarantined["raw"]) == {clipped}
        assert expected is None or trace.requests.equals(expected)
        expected = trace.requests


def test_rows_in_are_rows_out_and_quarantine_over_blocks(
    sample: Sample, write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = (sample.rows[0], sample.rows[1], sample.bad) * 20
    path = write(sample.text(rows))
    whole = sample.load(path)
    monkeypatch.setattr("data.readers.BLOCK_BYTES", 64)
    batches = list(read_batches(path, mapping=sample.mapping))
    assert len(batches) > 10
    assert sum(batch.rows for batch in batches) == len(rows) == 60
    assert pl.concat([b.quarantine for b in batches]).equals(whole.quarantined)
    blocked = pl.concat([b.requests for b in batches]).sort("arrived_at", maintain_order=True)
    assert blocked.equals(whole.requests)
