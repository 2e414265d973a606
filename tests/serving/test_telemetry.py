import json
from datetime import UTC, datetime

import pytest

from serving.messages import Arrived, EngineSample
from serving.offered import AHEAD_S, BEHIND_S, OfferedLoad
from serving.telemetry import Elsewhere, Fault, parse, rows

NOW_US = 1_700_000_000_000_000


def iso(at_us: int) -> str:
    return datetime.fromtimestamp(at_us / 1e6, UTC).isoformat()


def arrived(name: str, at_us: int | None = None, prompt_tokens: int = 100) -> Arrived:
    row = {"event": "arrived", "request_id": name, "prompt_tokens": prompt_tokens}
    event = parse(row if at_us is None else {**row, "at": iso(at_us)})
    assert isinstance(event, Arrived)
    return event


def finished(name: str, **more: object):
    return parse({"event": "finished", "request_id": name, "outcome": "served", "output_tokens": 50, **more})


def test_lists_lines_and_single_objects_are_rows() -> None:
    row = {"queue_depth": 3}
    text = json.dumps(row).encode()
    assert list(rows(b" [" + text + b"," + text + b"]")) == [row, row]
    assert list(rows(text + b"\r\n\n" + text)) == [row, row]
    assert list(rows(b"")) == []


def test_a_broken_line_spoils_itself_alone_and_a_broken_list_everything() -> None:
    found = list(rows(b'{"queue_depth": 1}\n{"queue_\n{"queue_depth": 2}\n\xff\xfe\n'))
    assert [type(row) for row in found] == [dict, Fault, dict, Fault]
    with pytest.raises(ValueError, match="Expecting"):
        rows(b'[{"queue_depth": 1}')
    with pytest.raises(RecursionError):
        rows(b"[" * 100_000)


@pytest.mark.parametrize(
    ("row", "names"),
    [
        ({"kv_cache_usage": -0.39}, "kv_cache_usage"),
        ({"kv_cache_usage": 39.0}, "kv_cache_usage"),
        ({"queue_depth": float("inf")}, "queue_depth"),
        ({"queue_depth": float("nan")}, "queue_depth"),
        ({"queue_capacity": 0}, "queue_capacity"),
        ({"queue_deep": 1}, "queue_deep"),
        ({"queue_depth": 1, "at": 1_700_000_000}, "at"),
        ({"queue_depth": 1, "at": "2026-01-31T12:00:00"}, "at"),
        ({"event": "arrived", "request_id": "a", "prompt_tokens": -1}, "prompt_tokens"),
        ({"event": "arrived", "request_id": "a", "prompt_tokens": 10**9}, "prompt_tokens"),
        ({"event": "arrived", "request_id": "a", "prompt_tokens": True}, "prompt_tokens"),
        ({"event": "arrived", "request_id": "", "prompt_tokens": 1}, "request_id"),
        ({"event": "vanished", "request_id": "a"}, "vanished"),
        ({"event": "finished", "request_id": "a", "outcome": "lost"}, "outcome"),
        ([1, 2], "object"),
        (None, "object"),
    ],
)
def test_a_row_out_of_range_is_refused_and_the_field_is_named(row: object, names: str) -> None:
    fault = parse(row)
    assert isinstance(fault, Fault)
    assert fault.kind == "invalid"
    assert names in fault.reason


def test_what_a_sample_leaves_out_is_unknown() -> None:
    sample = parse({"queue_depth": 4})
    assert isinstance(sample, EngineSample)
    assert sample.queue_depth == 4
    assert sample.kv_cache_hit_rate is None


def test_events_feed_offered_load_and_its_outputs() -> None:
    offered = OfferedLoad()
    elsewhere = Elsewhere(offered, most=10)
    assert elsewhere.take(arrived("a", NOW_US - 8_000_000), NOW_US, 0.0) is None
    assert elsewhere.take(arrived("b", NOW_US - 5_500_000), NOW_US, 0.0) is None
    assert elsewhere.take(finished("a", cached_tokens=30), NOW_US, 0.0) is None
    assert offered.work.bins(0, 4).work.tolist() == [120, 0, 100, 0]
    offered.features(8)
    assert offered.live.late == 0


def test_unknown_repeated_and_impossible_events_are_refused_with_a_reason() -> None:
    elsewhere = Elsewhere(OfferedLoad(), most=10)
    kinds = [
        elsewhere.take(event, NOW_US, 0.0)
        for event in (
            finished("a"),
            arrived("a"),
            arrived("a"),
            finished("a", cached_tokens=101),
            finished("a"),
        )
    ]
    assert [fault and fault.kind for fault in kinds] == [
        "unknown_request",
        None,
        "duplicate",
        "invalid",
        None,
    ]


def test_skew_is_refused_with_the_offset_that_was_measured() -> None:
    elsewhere = Elsewhere(OfferedLoad(), most=10)
    fault = elsewhere.take(arrived("a", NOW_US + 60_000_000), NOW_US, 0.0)
    assert fault is not None
    assert fault.kind == "ahead"
    assert "60.0 s" in fault.reason
    assert elsewhere.take(arrived("b", NOW_US + AHEAD_S * 1_000_000), NOW_US, 0.0) is None


def test_a_slightly_late_arrival_counts_in_the_open_second_and_a_later_one_is_refused() -> None:
    offered = OfferedLoad()
    elsewhere = Elsewhere(offered, most=10)
    elsewhere.take(arrived("first", NOW_US - 100_000_000), NOW_US, 0.0)
    offered.features(100)
    assert elsewhere.take(arrived("a", NOW_US - BEHIND_S * 1_000_000), NOW_US, 0.0) is None
    assert offered.work.bins(100, 101).work.tolist() == [100]
    fault = elsewhere.take(arrived("b", NOW_US - (BEHIND_S + 1) * 1_000_000), NOW_US, 0.0)
    assert fault is not None
    assert fault.kind == "late"
    assert offered.live.late == 0
    # An end is news whenever it comes.
    assert elsewhere.take(finished("first", at=iso(NOW_US - 90_000_000)), NOW_US, 0.0) is None
    assert offered.live.late == 0


def test_history_has_a_bound() -> None:
    fault = Elsewhere(OfferedLoad(), 10).take(arrived("a", 0), NOW_US, 0.0)
    assert fault is not None
    assert "days" in fault.reason


def test_open_requests_are_bounded_and_the_oldest_is_forgotten() -> None:
    elsewhere = Elsewhere(OfferedLoad(), most=2)
    for name in "abc":
        elsewhere.take(arrived(name), NOW_US, 0.0)
    assert elsewhere.forgotten == 1
    fault = elsewhere.take(finished("a"), NOW_US, 0.0)
    assert fault is not None
    assert elsewhere.take(finished("c"), NOW_US, 0.0) is None
