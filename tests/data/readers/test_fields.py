from datetime import UTC, datetime

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.readers.fields import Field, integers, since_epoch, timestamp, tokens


def read(field: Field, *texts: str | None) -> list[object]:
    return (
        pl.DataFrame({field.raw: texts}, schema={field.raw: pl.String})
        .select(field.value)
        .to_series()
        .to_list()
    )


def test_tokens_are_whole_numbers_in_range() -> None:
    field = tokens("prompt_tokens", "n")
    assert read(field, "0", " 7", "12.0", "10000000", "+5") == [0, 7, 12, 10_000_000, 5]
    assert read(field, "-1", "1.5", "nan", "inf", "1e3", "10000001", "", None, "9" * 30) == [None] * 9


def test_an_optional_field_may_be_empty_but_not_wrong() -> None:
    field = tokens("max_tokens", "n", required=False)
    frame = pl.DataFrame({"n": ["5", "", None, "five"]})
    assert frame.select(field.bad).to_series().to_list() == [False, False, False, True]


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
    assert isinstance(value, datetime)
    assert value.tzinfo is not None
    assert (value - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1e6 == pytest.approx(micros, abs=0.5)


@given(st.integers(0, 7_258_118_399_999_999).filter(lambda micros: micros < 2**52))
def test_seconds_with_six_digits_come_back_exactly(micros: int) -> None:
    text = f"{micros // 10**6}.{micros % 10**6:06d}"
    frame = pl.DataFrame({"t": [text]}).select(since_epoch("t").dt.epoch("us"))
    assert frame.item() == micros


def test_a_fraction_never_reaches_the_next_second() -> None:
    frame = pl.DataFrame({"t": ["1.9999999", "-1", "nan", "inf", "1e18"]})
    assert frame.select(since_epoch("t").dt.epoch("us")).to_series().to_list() == [1_999_999] + [None] * 4


def test_lists_of_integers() -> None:
    assert read(integers("block_hashes", "h"), "[0, 1]", "[]", "[7]", " [1,2] ") == [[0, 1], [], [7], [1, 2]]
    assert read(integers("block_hashes", "h"), "0, 1", "[1, x]", "[1,,2]", "", None, "[1.5]") == [None] * 6
