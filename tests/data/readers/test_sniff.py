import gzip
from pathlib import Path

import pytest

from data.errors import InputError
from data.readers import sniff


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "is empty"),
        (b"\n  \r\n\n", "is empty"),
        (b"\x1f\x8b\x08\x00", "is not whole: its gzip stream stops after 4 bytes"),
        (b"\x1f\x8b no gzip", "is not whole: its gzip stream is damaged"),
        (gzip.compress(b"", mtime=0), "is empty"),
        (gzip.compress(b"PAR1", mtime=0), "is a Parquet file compressed with gzip"),
        (b"PK\x03\x04...", "is a zip archive; give it as UTF-8 text"),
        ("request_id,".encode("utf-16"), "is UTF-16 text"),
        (b'a,b"c",\x00"\n', "Known formats"),
        (b"PAR1 cut", "can't be read as Parquet"),
        (b"{not json", "starts like JSON but isn't"),
        (b"a,b,c\n1,2,3\n", "its first line is 'a,b,c'. Known formats: Azure LLM CSV: TIMESTAMP"),
        (b"x" * 300, "x...'. Known formats"),
        (
            b"TIMESTAMP,ContextTokens\n",
            "looks like Azure LLM CSV but has no column 'GeneratedTokens'",
        ),
        (b"TIMESTAMP,Images,ContextTokens,GeneratedTokens\n", "the nearest known column is 'NumImages'"),
        (
            b"request_id,arrived_at,prompt_tokens,promt_tokens\n",
            "unknown column 'promt_tokens'; the nearest known column is 'prompt_tokens'",
        ),
        (b"request_id,arrived_at,prompt_tokens,lane,lane\n", "has the column 'lane' twice"),
    ],
)
def test_what_cannot_be_read_is_said(tmp_path: Path, text: bytes, message: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(text)
    with pytest.raises(InputError) as error:
        sniff(path)
    assert message in str(error.value)
    assert str(path) in str(error.value)


def test_a_directory_and_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a file"):
        sniff(tmp_path)
    with pytest.raises(InputError, match="doesn't exist"):
        sniff(tmp_path / "none.csv")
    with pytest.raises(InputError, match="can't be read: File name too long"):
        sniff(tmp_path / ("x" * 5_000))


def test_a_broken_first_line_does_not_hide_the_format(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b'{"cut\n{"request_id": "a", "arrived_at": 1, "prompt_tokens": 5}\n')
    assert sniff(path).name == "tidegate"
