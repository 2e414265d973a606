from datetime import UTC, datetime, timedelta

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.readers.fields import Field, integers, raw_name, seconds, since_epoch, timestamp, tokens


def read(field: Field, *texts: str | None) -> list[object]:
    """What the field makes of these texts, 'bad' where the row would go to quarantine."""
    frame = pl.DataFrame({field.raw: texts}, schema={field.raw: pl.String})
    frame = frame.select(field.value.alias(field.column), pl.col(field.raw).alias(raw_name(field.raw)))
    frame = frame.select(field.column, bad=field.bad)
    return ["bad" if bad else value for value, bad in frame.iter_rows()]


def test_tokens_are_whole_numbers_in_range() -> None:
    field = tokens("prompt_tokens", "n")
    assert read(field, "0", "7", "12.0", "10000000", "+5") == [0, 7, 12, 10_000_000, 5]
    assert set(read(field, "-1", "1.5", "nan", "inf", "1e3", "10000001", "", None, "9" * 30)) == {"bad"}


def test_an_optional_field_may_be_empty_but_not_wrong() -> None:
    field = tokens("max_tokens", "n", required=False)
    assert read(field, "5", "", None, "five", "-5") == [5, None, None, "bad", "bad"]


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        ("2023-11-16 18:17:03.9799600", 1_700_158_623_979_960),
        ("2023-11-16 18:17:03.9999999", 1_700_158_623_999_999),
        ("2024-05-12 00:00:00.001163+00:00", 1_715_472_000_001_163),
        ("2024-05-12 00:00:00+00:00", 1_715_472_000_000_000),
        ("2024-05-12T02:00:00.5+02:00", 1_715_472_000_500_000),
        ("2024-10-15T12:00:00.269Z", 1_728_993_600_269_000),
    ],
)
def test_stamps_are_utc_and_never_rounded_up(text: str, micros: int) -> None:
    (value,) = read(timestamp("arrived_at", "at"), text)
    assert value == datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)


@given(st.integers(0, 2**52))
def test_seconds_with_six_digits_come_back_exactly(micros: int) -> None:
    text = f"{micros // 10**6}.{micros % 10**6:06d}"
    frame = pl.DataFrame({"t": [text]}).select(since_epoch("t").dt.epoch("us"))
    assert frame.item() == micros


def test_times_since_the_epoch() -> None:
    field = seconds("arrived_at", "t")
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    assert read(field, "0", "2.5", "1.9999999") == [
        epoch,
        epoch + timedelta(seconds=2.5),
        epoch + timedelta(microseconds=1_999_999),
    ]
    assert set(read(field, "-1", "nan", "inf", "-inf", "1e18", "7258118401", "x", "", None)) == {"bad"}
    assert read(seconds("arrived_at", "t", per_second=1000), "1500") == [epoch + timedelta(seconds=1.5)]


def test_lists_of_integers() -> None:
    field = integers("block_hashes", "h")
    assert read(field, "[0, 1]", "[]", "[7]", " [1,2] ") == [[0, 1], [], [7], [1, 2]]
    assert set(map(str, read(field, "0, 1", "[1, x]", "[1,,2]", "", None, "[1.5]"))) == {"bad"}
