import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST, generate_latest

from data.live.exposition import MOST_SERIES, Exposition, ScrapeError, Series, parse

NAMES = {"up", "rate_total"}


def values(text: str, content_type: str = "text/plain; version=0.0.4") -> list[tuple[str, float]]:
    return [(series.name, series.value) for series in parse(text.encode(), content_type, NAMES).series]


def test_only_whole_names_match():
    assert values("up 1\nupper 2\nup_by_reason 3\nrate 4\nrate_total 5\nrate_total_created 6\n") == [
        ("up", 1.0),
        ("rate_total", 5.0),
    ]


def test_a_label_value_may_hold_commas_braces_and_quotes():
    (series,) = parse(rb'up{a="x, y",b="{\"z\"}"} 3' + b"\n", "", NAMES).series
    assert series.labels == {"a": "x, y", "b": '{"z"}'}


def test_types_and_comments_change_no_name():
    assert values("# TYPE up counter\n# HELP up a counter in name only\nup 1\n") == [("up", 1.0)]


def test_nan_and_infinities_come_through_to_be_judged():
    read = [value for _, value in values('up NaN\nup{a="b"} +Inf\nup{a="c"} -Inf\n')]
    assert math.isnan(read[0])
    assert read[1:] == [math.inf, -math.inf]


def test_a_malformed_line_is_named_and_the_others_stand():
    exposition = parse(b'up{a="b} 1\nup 1_000\nup\nup 2\n', "", NAMES)
    assert [series.value for series in exposition.series] == [2.0]
    assert exposition.malformed == ("up: its line can't be read",) * 3


def test_a_label_longer_than_any_name_is_malformed_and_a_nul_is_replaced():
    exposition = parse(b'up{a="' + b"x" * 2000 + b'"} 1\nup{a="b\x00"} 2\n', "", NAMES)
    assert (len(exposition.malformed), exposition.series[0].labels) == (1, {"a": "b\ufffd"})


def test_a_malformed_line_that_nobody_asked_for_is_not_read():
    assert parse(b'other{a="b} 1\n', "", NAMES) == Exposition(())


def test_an_answer_cut_within_a_number_is_refused():
    with pytest.raises(ScrapeError, match="cut off"):
        parse(b"up 1\nrate_total 12", "text/plain", NAMES)


def test_openmetrics_has_seconds_exemplars_and_an_end():
    kind = "application/openmetrics-text; version=1.0.0; charset=utf-8"
    body = b'rate_total{a="b"} 5 1700000000.25 # {trace_id="x"} 1.0 1699999999\nup NaN\n# EOF\n'
    rate, up = parse(body, kind, NAMES).series
    assert rate == Series("rate_total", {"a": "b"}, 5.0, 1_700_000_000.25)
    assert math.isnan(up.value)
    with pytest.raises(ScrapeError, match="EOF"):
        parse(b"up 1\n", kind, NAMES)


def test_openmetrics_of_prometheus_client_is_understood():
    registry = CollectorRegistry()
    Counter("rate", "A rate.", registry=registry).inc(5, exemplar={"trace_id": "x"})
    text = generate_latest(registry)
    assert b"rate_created" in text
    assert values(text.decode(), CONTENT_TYPE_LATEST) == [("rate_total", 5.0)]


def test_a_series_that_comes_twice_is_named():
    exposition = parse(b'up{a="1",b="2"} 1\nup{b="2",a="1"} 7\n', "", NAMES)
    assert [series.value for series in exposition.series] == [1.0]
    assert exposition.malformed == ("up: exported twice with the same labels",)


def test_lines_and_series_without_end_are_refused():
    assert parse(b'up{a="' + b'\\"' * 100_000 + b'"} 1\n', "", NAMES).malformed
    with pytest.raises(ScrapeError, match="over 20000 series"):
        parse("".join(f'up{{a="{n}"}} 1\n' for n in range(MOST_SERIES + 1)).encode(), "", NAMES)


def test_plain_text_has_milliseconds():
    assert parse(b"up 5 1700000000250\n", "text/plain", NAMES).series[0].at_s == 1_700_000_000.25


@given(st.binary(max_size=60), st.sampled_from(["", "application/openmetrics-text"]))
def test_any_bytes_give_series_or_a_reason(garbage: bytes, content_type: str):
    for body in (garbage, b"up" + garbage + b"\n", b"up{" + garbage + b"} 1\n", b"up 1" + garbage + b"\n"):
        try:
            exposition = parse(body, content_type, NAMES)
        except ScrapeError:
            continue
        assert {series.name for series in exposition.series} <= NAMES
