from pathlib import Path

import pytest

from data.errors import InputError
from data.readers import sniff


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "is empty"),
        (b"\n  \r\n\n", "is empty"),
        (b"\x1f\x8b\x08\x00", "compressed with gzip"),
        (b"PAR1 cut", "can't be read as Parquet"),
        (b"{not json", "starts like JSON but isn't"),
        (b"a,b,c\n1,2,3\n", "its first line is 'a,b,c'. Known formats: Azure LLM CSV: TIMESTAMP"),
        (b"x" * 300, "x...'. Known formats"),
        (
            b"TIMESTAMP,ContextTokens\n",
            "looks like Azure LLM CSV but has no column 'GeneratedTokens'",
        ),
        (b"TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n", "unknown column 'NumImages'"),
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
