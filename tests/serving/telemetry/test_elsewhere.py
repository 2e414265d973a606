from datetime import UTC, datetime

import polars as pl

from serving.forecast.offered import AHEAD_S, BEHIND_S, US, OfferedLoad
from serving.http.messages import Arrived, Finished
from serving.telemetry.elsewhere import Batch, Elsewhere
from serving.telemetry.rows import as_frame, parse

NOW_US = 1_700_000_000_000_000


class Teller:
    """Tells one source's requests and gives the kinds of fault that come back, None for none."""

    def __init__(self, most: int = 10, *, stores: bool = False) -> None:
        self.offered = OfferedLoad()
        self.elsewhere = Elsewhere(self.offered, most, 100, stores=stores)
        self.batch = Batch()

    def arrived(self, name: str, at_us: int = NOW_US) -> str | None:
        event = parse({"event": "arrived", "request_id": name, "prompt_tokens": 100})
        assert isinstance(event, Arrived)
        self.elsewhere.arrived(event, at_us, 0, self.batch, "s", NOW_US, 0.0)
        return self.fault()

    def finished(self, name: str, at_us: int = NOW_US, **more: object) -> str | None:
        row = {"event": "finished", "request_id": name, "outcome": "served", "output_tokens": 50, **more}
        event = parse(row)
        assert isinstance(event, Finished)
        self.elsewhere.finished(event, at_us, 0, self.batch, "s", NOW_US)
        return self.fault()

    def whole(self, name: str, at_us: int, end_us: int, **more: object) -> str | None:
        row = {"event": "request", "request_id": name, "prompt_tokens": 100, "output_tokens": 50}
        event = parse({**row, "at": iso(at_us), "finished_at": iso(end_us), "outcome": "served", **more})
        frame = as_frame([(0, event)]).with_columns(source=pl.lit("s"))  # type: ignore[list-item]
        self.elsewhere.completed(frame, self.batch, NOW_US, 0.0)
        return self.fault()

    def fault(self) -> str | None:
        faults, self.batch.faults = self.batch.faults, []
        return faults[0][1].kind if faults else None

    def told(self) -> tuple[int, int]:
        return self.batch.accepted, self.batch.duplicates

    def work(self, first: int, end: int) -> list[int]:
        return self.offered.work.bins(first, end).work.tolist()


def iso(at_us: int) -> str:
    return datetime.fromtimestamp(at_us / 1e6, UTC).isoformat()


def test_events_feed_offered_load_and_its_outputs() -> None:
    teller = Teller()
    assert teller.arrived("a", NOW_US - 8_000_000) is None
    assert teller.arrived("b", NOW_US - 5_500_000) is None
    assert teller.finished("a", cached_tokens=30) is None
    assert teller.work(0, 4) == [120, 0, 100, 0]
    teller.offered.features(8)
    assert teller.offered.live.late == 0


def test_a_whole_request_counts_like_its_arrival_and_its_end() -> None:
    parts, whole = Teller(), Teller()
    for number in range(20):
        at_us, end_us = NOW_US - (100 - number) * US, NOW_US - (95 - 2 * number) * US
        outcome = "failed" if number % 5 == 0 else "served"
        parts.arrived(f"{number}", at_us)
        parts.finished(f"{number}", end_us, outcome=outcome, output_tokens=number)
        whole.whole(f"{number}", at_us, end_us, outcome=outcome, output_tokens=number)
    assert parts.work(0, 100) == whole.work(0, 100)
    ticks = [(parts.offered.features(t_s), whole.offered.features(t_s)) for t_s in range(5, 105, 5)]
    assert all(left.tobytes() == right.tobytes() for left, right in ticks)


def test_unknown_and_impossible_ends_are_refused_and_repeats_are_duplicates() -> None:
    teller = Teller()
    assert teller.finished("a") == "unknown_request"
    assert teller.arrived("a") is None
    assert teller.arrived("a") is None
    assert teller.finished("a", cached_tokens=101) == "invalid"
    assert teller.finished("a") is None
    assert teller.finished("a") is None
    assert teller.told() == (2, 2)
    assert teller.whole("a", NOW_US - US, NOW_US) is None
    assert teller.told() == (2, 3)
    assert teller.work(0, 1) == [150]


def test_a_request_told_in_two_ways_at_once_is_refused() -> None:
    teller = Teller()
    teller.arrived("a")
    assert teller.whole("a", NOW_US - US, NOW_US) == "invalid"
    assert teller.finished("a") is None


def test_skew_is_refused_with_the_offset_that_was_measured() -> None:
    teller = Teller()
    event = parse({"event": "arrived", "request_id": "a", "prompt_tokens": 1})
    assert isinstance(event, Arrived)
    teller.elsewhere.arrived(event, NOW_US + 60 * US, 0, teller.batch, "s", NOW_US, 0.0)
    assert "60.0 s ahead" in teller.batch.faults[0][1].reason
    assert teller.fault() == "ahead"
    assert teller.whole("c", NOW_US, NOW_US + 60 * US) == "ahead"
    assert teller.arrived("b", NOW_US + AHEAD_S * US) is None


def test_an_arrival_up_to_a_minute_late_counts_in_its_second_and_a_later_one_is_refused() -> None:
    teller = Teller()
    teller.arrived("first", NOW_US - 100 * US)
    before = teller.offered.features(100)
    assert teller.arrived("a", NOW_US - BEHIND_S * US) is None
    assert teller.work(40, 41) == [100]
    assert (teller.offered.features(100) != before).any()
    assert teller.arrived("b", NOW_US - (BEHIND_S + 1) * US) == "late"
    assert teller.offered.live.late == 0


def test_an_end_is_news_to_the_labels_whenever_it_comes_and_to_the_features_for_a_minute() -> None:
    teller = Teller()
    teller.arrived("first", NOW_US - 100 * US)
    teller.arrived("second", NOW_US - 100 * US)
    before = teller.offered.features(100)
    assert teller.finished("first", NOW_US - 61 * US) is None
    assert teller.work(0, 1) == [150 + 100]
    assert teller.offered.live.late == 1
    assert teller.offered.features(100).tobytes() == before.tobytes()
    assert teller.finished("second", NOW_US - 40 * US) is None
    assert teller.work(0, 1) == [150 + 150]
    assert teller.offered.live.late == 1


def test_what_happened_shortly_before_the_first_arrival_told_counts_in_the_first_second() -> None:
    teller = Teller()
    teller.arrived("first", NOW_US)
    assert teller.arrived("before", NOW_US - BEHIND_S * US) is None
    assert teller.whole("whole", NOW_US - 20 * US, NOW_US - 10 * US) is None
    assert teller.work(0, 1) == [100 + 100 + 150]
    teller.offered.features(100)
    assert teller.offered.live.late == 0


def test_a_long_request_told_at_its_end_counts_in_its_second_and_features_count_it_as_late() -> None:
    teller = Teller()
    teller.arrived("first", NOW_US - 100 * US)
    teller.offered.features(100)
    assert teller.whole("a", NOW_US - 80 * US, NOW_US - US) is None
    assert teller.work(20, 21) == [150]
    assert teller.offered.live.late == 1


def test_a_request_told_forty_seconds_after_its_end_counts_and_one_told_after_ninety_does_not() -> None:
    teller = Teller(stores=True)
    teller.arrived("first", NOW_US - 200 * US)
    before = teller.offered.features(200)
    assert teller.whole("outside", NOW_US - 91 * US, NOW_US - 90 * US) == "late"
    assert teller.offered.features(200).tobytes() == before.tobytes()
    assert teller.whole("inside", NOW_US - 41 * US, NOW_US - 40 * US) is None
    assert (teller.offered.features(200) != before).any()
    assert teller.offered.live.late == 0
    assert BEHIND_S == 60
    assert teller.work(100, 200) == [150 if second == 159 else 0 for second in range(100, 200)]
    assert teller.batch.tables()["requests"]["request_id"].to_list() == ["inside", "first"]


def test_the_reason_of_a_late_row_says_how_late_it_was_and_what_to_do() -> None:
    teller = Teller()
    teller.arrived("first", NOW_US - 200 * US)
    teller.offered.features(200)
    event = parse({"event": "arrived", "request_id": "a", "prompt_tokens": 1})
    teller.elsewhere.arrived(event, NOW_US - 70 * US, 0, teller.batch, "s", NOW_US, 0.0)  # type: ignore[arg-type]
    _, fault = teller.batch.faults[0]
    assert fault.reason == "at: is 70.0 s old, 60 s are let pass; report arrivals sooner"


def test_history_has_a_bound() -> None:
    assert Teller().arrived("a", 0) == "late"


def test_open_requests_are_bounded_and_the_oldest_is_forgotten() -> None:
    teller = Teller(most=2)
    for name in "abc":
        teller.arrived(name)
    assert teller.elsewhere.forgotten == 1
    assert teller.finished("c") is None
    assert teller.work(0, 1) == [350]
    assert teller.finished("a") is None  # known, and no longer counted
    assert teller.work(0, 1) == [350]
    assert teller.finished("d") == "unknown_request"


def test_what_could_not_be_stored_is_stored_when_told_again_and_counted_once() -> None:
    teller = Teller(stores=True)
    everything = {"requests": ["w", "a"], "outcomes": ["a"]}

    def tell() -> dict[str, list[str]]:
        teller.batch = Batch()
        teller.arrived("a")
        teller.finished("a")
        teller.whole("w", NOW_US - US, NOW_US)
        return {table: frame["request_id"].to_list() for table, frame in teller.batch.tables().items()}

    assert tell() == everything
    teller.elsewhere.unstored(teller.batch)
    assert tell() == everything
    assert teller.told() == (3, 0)
    assert tell() == {}
    assert teller.told() == (0, 3)
    assert teller.work(0, 1) == [150 + 150]


def test_after_a_restart_what_the_lake_has_is_counted_and_not_stored_again() -> None:
    teller = Teller(stores=True)
    teller.elsewhere.remember("s", "whole", ended=True)
    teller.elsewhere.remember("s", "open", ended=False)
    teller.whole("whole", NOW_US - US, NOW_US)
    teller.arrived("open", NOW_US)
    assert teller.told() == (0, 2)
    assert teller.work(0, 2) == [150, 100 + 50]
    assert teller.finished("open") is None
    assert {table: frame.height for table, frame in teller.batch.tables().items()} == {"outcomes": 1}


def test_names_of_sources_and_requests_do_not_run_into_each_other() -> None:
    teller = Teller()
    event = parse({"event": "arrived", "request_id": "bc", "prompt_tokens": 1})
    other = parse({"event": "arrived", "request_id": "c", "prompt_tokens": 1})
    for source, told in (("a", event), ("ab", other)):
        teller.elsewhere.arrived(told, NOW_US, 0, teller.batch, source, NOW_US, 0.0)  # type: ignore[arg-type]
    assert teller.told() == (2, 0)
