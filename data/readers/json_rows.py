"""JSON Lines files as rows of text. Blank lines are not rows."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from data.readers.blocks import blocks
from data.readers.format import Rows, text_frame


def json_rows(path: Path, columns: Sequence[str], block_bytes: int, *, extra: bool = False) -> Iterator[Rows]:
    """JSON rows, one object a line; keys outside `columns` break the row unless `extra` ones are allowed."""
    known = set(columns)
    for block in blocks(path, block_bytes):
        good: list[Sequence[str | int | None]] = []
        broken = block.too_long()
        for number, line in block.numbered():
            row = read_object(line)
            if isinstance(row, str):
                broken.append((number, row))
            elif not extra and (unknown := row.keys() - known):
                broken.append((number, f"unknown key '{min(unknown)[:100]}'"))
            else:
                good.append([*(_json_text(row.get(name)) for name in columns), number])
        yield Rows(text_frame(good, columns), broken, block.raw, block.size_bytes)


def read_object(line: bytes) -> dict[str, object] | str:
    """The JSON object of a line, or the reason why there is none."""
    try:
        row = json.loads(line)
        if b"\\ud" in line.lower():
            json.dumps(row, ensure_ascii=False).encode()  # half of a surrogate pair is no text
    except UnicodeEncodeError:
        return "the line has half of a surrogate pair, which is no character"
    except UnicodeDecodeError:
        return "the line is not UTF-8"
    except (ValueError, RecursionError) as error:
        return f"the line is not JSON: {error}"
    return row if isinstance(row, dict) else f"the line is not a JSON object but {type(row).__name__}"


def _json_text(value: object) -> str | None:
    """A JSON value as text; null stays unknown."""
    return value if value is None or isinstance(value, str) else json.dumps(value)
