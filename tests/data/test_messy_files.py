"""No row is lost: whatever a file holds, each of its rows is stored, in quarantine, or a duplicate."""

import gzip
import json
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.config import Mapping
from data.ingest import ingest
from data.lake import Lake
from data.readers import read_batches


@dataclass(frozen=True)
class Kind:
    """A format by its header, a row that is good, and what generates others."""

    header: bytes | None
    good: bytes
    rows: st.SearchStrategy[bytes]
    mapping: Mapping | None = None


NUMBERS = st.sampled_from(
    ["0", "7", "12.0", "-1", "nan", "inf", "1e30", "", " ", "99999999999999999999", "7,7", '"7"', "x", "2.5"]
)
IDS = st.sampled_from("abc")
TIMES = st.sampled_from(
    [
        "5",
        "4.25",
        "2024-05-12 00:00:00+00:00",
        "2024-05-11 00:00:00.001163+00:00",
        "2025-10-26 02:30:00",
        "1969-01-01 00:00:00",
        "9999-12-31 00:00:00",
        "soon",
        "",
    ]
)
VALUES = st.one_of(
    st.integers(-1, 3),
    st.sampled_from(
        [None, True, 2.5, 10**30, -(10**25), float("nan"), float("inf"), "7", "x", "\ud800", [1, 2], {}]
    ),
)


def csv_row(*fields: st.SearchStrategy[str]) -> st.SearchStrategy[bytes]:
    return st.tuples(*fields).map(lambda row: ",".join(row).encode())


def json_row(*keys: str) -> st.SearchStrategy[bytes]:
    required = dict.fromkeys(keys, VALUES)
    return st.fixed_dictionaries(required, optional={"odd": VALUES}).map(lambda row: json.dumps(row).encode())


def json_line(**row: object) -> bytes:
    return json.dumps(row).encode()


CHATS = {"parent_chat_id": -1, "type": "text", "turn": 1, "hash_ids": [1]}
KINDS = {
    "azure": Kind(
        b"TIMESTAMP,NumImages,ContextTokens,GeneratedTokens",
        b"2024-10-15T12:00:00Z,0,5,5",
        csv_row(TIMES, NUMBERS, NUMBERS, NUMBERS),
    ),
    "burstgpt": Kind(
        b"Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type",
        b"5,1,1,GPT-4,5,0,5,API log",
        csv_row(NUMBERS, IDS, NUMBERS, IDS, NUMBERS, NUMBERS, NUMBERS, IDS),
    ),
    "tidegate": Kind(
        b"request_id,arrived_at,prompt_tokens,tenant", b"z,5,5,t", csv_row(IDS, TIMES, NUMBERS, IDS)
    ),
    "mapped": Kind(
        b"who,when,count",
        b"z,5,5",
        csv_row(IDS, TIMES, NUMBERS),
        Mapping(
            columns={"request_id": "who", "arrived_at": "when", "prompt_tokens": "count"},
            time_zone="Europe/Berlin",
        ),
    ),
    "mooncake": Kind(
        None,
        json_line(timestamp=0, input_length=5, output_length=5, hash_ids=[1]),
        json_row("timestamp", "input_length", "output_length", "hash_ids"),
    ),
    "bailian": Kind(
        None,
        json_line(chat_id=1, timestamp=0.5, input_length=5, output_length=5, **CHATS),
        json_row("chat_id", "timestamp", "input_length", "output_length", *CHATS),
    ),
    "tidegate JSON": Kind(
        None,
        json_line(request_id="z", arrived_at=5, prompt_tokens=5),
        json_row("request_id", "arrived_at", "prompt_tokens"),
    ),
}
NOISE = st.one_of(
    st.binary(max_size=30).map(lambda line: line.replace(b"\n", b"")),
    st.sampled_from(
        [b"", b"  ", b",,,", b'"', b'a,"b\r', b"{", b"[1]", b"null", b"x" * 300, b"\xff\xfe", b"\x00"]
    ),
)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    with Lake(tmp_path_factory.mktemp("lake")) as lake:
        yield lake


@dataclass(frozen=True)
class Messy:
    """A file of some format: its bytes, and how many rows it has."""

    kind: Kind
    content: bytes
    rows: int
    block_bytes: int

    @contextmanager
    def written(self) -> Iterator[Path]:
        """The file, read in small blocks and with a low bound on lines."""
        with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
            patch.setattr("data.readers.BLOCK_BYTES", self.block_bytes)
            patch.setattr("data.readers.blocks.LINE_BYTES", 250)
            path = Path(folder) / "messy"
            path.write_bytes(self.content)
            yield path


@st.composite
def messy(draw: st.DrawFn, kind: Kind) -> Messy:
    rows = [kind.good, *draw(st.lists(st.one_of(kind.rows, kind.rows, NOISE), max_size=12))]
    end = draw(st.sampled_from([b"\n", b"\r\n"]))
    body = end.join(rows)
    text = draw(st.sampled_from([b"", b"\xef\xbb\xbf"])) + (kind.header + end if kind.header else b"") + body
    count = sum(bool(line.strip()) for line in body.split(b"\n"))
    packed = draw(st.booleans())
    return Messy(
        kind, gzip.compress(text) if packed else text, count, draw(st.sampled_from([40, 300, 1 << 20]))
    )


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_every_row_is_read_or_set_aside(name: str, data: st.DataObject) -> None:
    file = data.draw(messy(KINDS[name]))
    with file.written() as path:
        batches = list(read_batches(path, mapping=file.kind.mapping))
    assert sum(batch.rows for batch in batches) == file.rows
    requests = pl.concat(batch.requests for batch in batches)
    assert requests.select("arrived_at", "prompt_tokens").null_count().row(0) == (0, 0)
    assert requests["prompt_tokens"].is_between(0, 10_000_000).all()
    aside = pl.concat(batch.quarantine for batch in batches)
    assert aside["line"].is_unique().all()
    assert aside.null_count().sum_horizontal().item() == 0


@settings(max_examples=20, deadline=None)
@given(file=st.sampled_from(list(KINDS.values())).flatmap(messy))
def test_every_row_is_stored_or_in_quarantine_or_a_duplicate(lake: Lake, file: Messy) -> None:
    source = str(uuid.uuid4())  # the lake has seen examples that hypothesis comes back to
    with file.written() as path:
        summary = ingest(path, lake, source=source, mapping=file.kind.mapping)
    assert summary.rows == file.rows
    assert summary.rows == summary.stored + summary.quarantined + summary.duplicates
    kept = lake.requests(source)
    assert kept.height == summary.stored == kept["request_id"].n_unique()
    where = {"source": source}
    aside = lake.query("SELECT line FROM lake.quarantine WHERE source = $source", where)
    assert aside.height == summary.quarantined == aside["line"].n_unique()
