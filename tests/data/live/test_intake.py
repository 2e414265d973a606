"""Facts out of foreign records: what is unknown stays unknown, what is wrong is named."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.live.intake import (
    MAX_AHEAD_S,
    MAX_RAW,
    RecordError,
    count,
    facts,
    micros,
    moment,
    take,
    text,
    whole,
)

NOW = datetime(2026, 3, 1, tzinfo=UTC)
ROW = {"request_id": "a", "arrived_at": NOW, "finished_at": NOW, "prompt_tokens": 5, "outcome": "served"}


def take_one(row: dict | None, raw: str = "raw"):
    return take([(1, row)], lambda row: row, lambda _: raw, source="edge", file="f", now=NOW)


@pytest.mark.parametrize("value", [None, ""])
def test_nothing_is_unknown_and_never_zero(value):
    assert count("n", value) is None
    assert text("n", value) is None
    assert moment("n", value) is None
    assert take_one(ROW | {"output_tokens": count("n", value)}).requests["output_tokens"].to_list() == [None]


@pytest.mark.parametrize(
    "value", [True, -1, 1.5, 10_000_001, "1e3", "९", "9" * 5000, 10**400, [], float("inf")]
)
def test_what_is_no_count_is_refused(value):
    with pytest.raises(RecordError, match="n must be a whole number from 0 to 10000000; got"):
        count("n", value)


@pytest.mark.parametrize("value", ["a\nb", "\ud800", "a\0", "x" * 257, 7, ["a"]])
def test_what_is_no_printable_text_is_refused(value):
    with pytest.raises(RecordError, match="n must be printable text of at most 256 characters; got"):
        text("n", value)


@pytest.mark.parametrize(
    "value", [True, -1, 1e300, 10**400, float("nan"), "yesterday", "0001-01-01T00:00:00+14:00", {}]
)
def test_what_is_no_time_is_refused(value):
    with pytest.raises(RecordError, match="n must be seconds since 1970 or an ISO 8601 time; got"):
        moment("n", value)


@pytest.mark.parametrize("value", [-1, 10**17, 10**400])
def test_a_number_of_microseconds_that_is_no_time_of_ours_is_refused(value):
    with pytest.raises(RecordError, match="n must be a time from 1970 to 2200"):
        micros("n", value)


@given(st.datetimes(datetime(1970, 1, 1), datetime(2199, 12, 31)))
def test_times_survive_as_text_and_as_microseconds(at):
    at = at.replace(tzinfo=UTC)
    assert moment("n", at.isoformat()) == at
    assert micros("n", (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)) == at


def test_whole_numbers_of_every_writing_are_the_same():
    assert whole(7) == whole("7") == whole(7.0) == 7


@pytest.mark.parametrize(
    ("ahead_s", "taken"), [(-86_400, 1), (MAX_AHEAD_S, 1), (MAX_AHEAD_S + 0.1, 0), (60, 0)]
)
def test_only_times_ahead_of_our_clock_by_more_than_the_bound_are_refused(ahead_s, taken):
    at = NOW + timedelta(seconds=ahead_s)
    intake = take_one(ROW | {"arrived_at": at, "finished_at": at})
    assert intake.requests.height == taken
    if not taken:
        assert f"arrived_at is {ahead_s:.1f} s ahead" in intake.rejected["reason"].item()


@pytest.mark.parametrize("name", ["request_id", "arrived_at", "finished_at", "prompt_tokens", "outcome"])
def test_a_request_lacks_none_of_these(name):
    assert take_one(ROW | {name: None}).rejected["reason"].item() == f"{name} is unknown: the record has none"


def test_what_the_quarantine_keeps_is_bounded_and_storable():
    raw = take_one(ROW | {"lane": "gold"}, raw="\ud800\0" + "x" * 10_000).rejected["raw"].item()
    assert raw == "?\N{REPLACEMENT CHARACTER}" + "x" * (MAX_RAW - 2)


def test_facts_keep_single_values_and_never_what_is_inside_others():
    kept = facts({"a": 1, "b": {"messages": "secret"}, "c": None, "d": "x", "e": ["secret"]})
    assert json.loads(kept) == {"a": 1, "b": "(dict)", "d": "x", "e": "(list)"}


def test_a_record_that_is_no_request_is_counted():
    assert take_one(None).ignored == take_one(None).records == 1
