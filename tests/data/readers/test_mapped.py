from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest

from data.config import Mapping
from data.errors import InputError
from data.readers import load_trace
from data.readers.mapped import mapped_format

TWO = {"arrived_at": "ts", "prompt_tokens": "in"}


def load(tmp_path: Path, text: str, **mapping: object) -> pl.DataFrame:
    path = tmp_path / "ours.csv"
    path.write_text(text)
    return load_trace(path, mapping=Mapping.model_validate({"columns": TWO} | mapping)).requests


@pytest.mark.parametrize(
    ("columns", "constants", "message"),
    [
        (TWO | {"prompt_token": "x"}, {}, "got 'prompt_token', the nearest is 'prompt_tokens'"),
        (TWO, {"lanes": "batch"}, "got 'lanes', the nearest is 'lane'"),
        (TWO | {"source": "x"}, {}, "a mapping can't set source: --source names the rows"),
        ({"arrived_at": "ts"}, {}, "must say which column holds prompt_tokens"),
        (TWO | {"lane": "l"}, {"lane": "batch"}, "must take lane from a column or a constant; got both"),
        (TWO, {"request_id": "r"}, "must differ from row to row"),
        (TWO, {"lane": "gold"}, "the constant lane must be one of premium, standard, batch; got 'gold'"),
        (
            TWO,
            {"max_tokens": "-1"},
            "the constant max_tokens must be a whole number from 0 to 10000000; got '-1'",
        ),
        (TWO, {"tenant": ""}, "the constant tenant must be a text; got ''"),
        (TWO, {"finished_at": "soon"}, "the constant finished_at must be a time"),
    ],
)
def test_what_is_wrong_with_a_mapping_is_said(
    columns: dict[str, str], constants: dict[str, str], message: str
) -> None:
    with pytest.raises(InputError) as error:
        mapped_format(Mapping(columns=columns, constants=constants))
    assert message in str(error.value)


def test_a_zone_that_does_not_exist() -> None:
    with pytest.raises(InputError, match="time_zone must be a zone such as Europe/Berlin; got 'Berlin'"):
        mapped_format(Mapping(columns=TWO, time_zone="Berlin"))


@pytest.mark.parametrize("end", ["csv", "jsonl", "parquet"])
def test_a_column_that_the_file_lacks_is_named_with_the_nearest(tmp_path: Path, end: str) -> None:
    path, frame = tmp_path / f"ours.{end}", pl.DataFrame({"tsx": [1.5], "in": [5]})
    {"csv": frame.write_csv, "jsonl": frame.write_ndjson, "parquet": frame.write_parquet}[end](path)
    with pytest.raises(
        InputError, match="must have the column 'ts', which the mapping reads as arrived_at; the"
    ):
        load_trace(path, mapping=Mapping(columns=TWO))


def test_columns_constants_and_what_is_left_out(tmp_path: Path) -> None:
    text = 'ts,in,line,other,again\n1.5,10,x,"a, b",1\n'
    columns = TWO | {"tenant": "line", "session": "line"}
    row = load(
        tmp_path, text, columns=columns, constants={"lane": "batch", "block_tokens": "16", "max_tokens": "9"}
    ).row(0, named=True)
    assert (row["tenant"], row["session"], row["lane"]) == ("x", "x", "batch")
    assert (row["block_tokens"], row["max_tokens"], row["prompt_tokens"]) == (16, 9, 10)
    assert (row["request_id"], row["output_tokens"]) == ("ours:1", None)


def test_parquet_and_a_key_that_only_later_rows_have(tmp_path: Path) -> None:
    mapping = Mapping(columns=TWO | {"tenant": "who"})
    pl.DataFrame({"in": [7], "ts": [1.5], "who": ["a"], "odd": [{"x": 1}]}).write_parquet(
        tmp_path / "a.parquet"
    )
    assert load_trace(tmp_path / "a.parquet", mapping=mapping).requests["tenant"].to_list() == ["a"]
    (tmp_path / "a.jsonl").write_text('{"ts": 1, "in": 7}\n{"ts": 2, "in": 7, "who": "b", "odd": {}}\n')
    assert load_trace(tmp_path / "a.jsonl", mapping=mapping).requests["tenant"].to_list() == [None, "b"]


@pytest.mark.parametrize(
    ("unit", "text"), [("s", "1764430000.25"), ("ms", "1764430000250"), ("us", "1764430000250000")]
)
def test_units_of_times_that_are_numbers(tmp_path: Path, unit: str, text: str) -> None:
    (at,) = load(tmp_path, f"ts,in\n{text},1\n", time_unit=unit)["arrived_at"]
    assert at == datetime(2025, 11, 29, 15, 26, 40, 250_000, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "hour", "minute"),
    [
        ("2025-10-26 01:59:59", 23, 59),  # before the hour that comes twice, in summer time
        ("2025-10-26 03:00:00", 2, 0),
        ("2025-10-26 02:30:00+02:00", 0, 30),  # the offset tells which of the two it is
        ("2025-10-26T02:30:00+01:00", 1, 30),
        ("2025-10-26T02:30:00Z", 2, 30),
        ("1761445800", 2, 30),  # a number is a moment in every zone
    ],
)
def test_the_repeated_hour(tmp_path: Path, text: str, hour: int, minute: int) -> None:
    (at,) = load(tmp_path, f"ts,in\n{text},1\n", time_zone="Europe/Berlin")["arrived_at"]
    assert (at.hour, at.minute) == (hour, minute)


@pytest.mark.parametrize(
    ("zone", "text", "word"),
    [
        ("Europe/Berlin", "2025-10-26 02:30:00", "twice"),
        ("Europe/Berlin", "2026-03-29 02:00:00.000", "never"),
        ("America/New_York", "2025-11-02T01:00:00", "twice"),
        ("Australia/Lord_Howe", "2025-10-05 02:15:00", "never"),  # half an hour
    ],
)
def test_a_time_that_the_clocks_show_twice_or_never_is_not_guessed(
    tmp_path: Path, zone: str, text: str, word: str
) -> None:
    path = tmp_path / "ours.csv"
    path.write_text(f"ts,in\n{text},1\n2025-06-01 00:00:00,1\nsoon,1\n")
    trace = load_trace(path, mapping=Mapping(columns=TWO, time_zone=zone))
    assert trace.requests.height == 1
    assert trace.quarantined["reason"].to_list() == [
        f"ts must be one time; the clocks of {zone} show '{text}' {word}: "
        "write it with its offset, such as +00:00",
        "ts must be a time since 1970 such as 2023-11-16 18:17:03.979960 or a number of seconds; got 'soon'",
    ]


def test_times_of_parquet_columns_with_and_without_a_zone(tmp_path: Path) -> None:
    path, at = tmp_path / "t.parquet", datetime(2026, 1, 1, 12)
    mapping = Mapping(columns=TWO, time_zone="Europe/Berlin")
    pl.DataFrame({"ts": [at], "in": [1]}).write_parquet(path)
    assert load_trace(path, mapping=mapping).requests["arrived_at"].item() == datetime(
        2026, 1, 1, 11, tzinfo=UTC
    )
    pl.DataFrame({"ts": [at.replace(tzinfo=UTC)], "in": [1]}).write_parquet(path)
    assert load_trace(path, mapping=mapping).requests["arrived_at"].item() == at.replace(tzinfo=UTC)


def test_rules_between_columns_name_the_columns_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "ours.csv"
    path.write_text("ts,in,hit,end\n5,10,10,5\n5,10,11,5\n5,10,1,4\n5,10,1,9e12\n")
    columns = TWO | {"cached_tokens": "hit", "finished_at": "end"}
    trace = load_trace(path, mapping=Mapping(columns=columns))
    first, second, third = trace.quarantined["reason"]
    assert first == "hit must be a whole number from 0 to in; got '11'"
    assert second.endswith("and not before ts; got '4'")
    assert third.endswith("got '9e12'")
