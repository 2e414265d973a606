import asyncio
import logging
import shutil
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from data.lake import Lake
from data.writer import LakeWriter
from models.bundle import Bundle
from serving.app import create_app
from serving.clock import ManualClock
from serving.controller.rules import Rules
from serving.http.messages import AdmitRequest, SettleRequest
from serving.service import Service
from serving.settings import Settings
from serving.telemetry.recording import MOST_ROWS, RARELY_S, Rarely

NOW = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
RULES = Rules(capacity_tokens=100_000)


@pytest.fixture(scope="session")
def advisory(bundle_folder: Callable[[float | None], Path]) -> Bundle:
    return Bundle.load(bundle_folder(None))


def service_on(bundle: Bundle, lake: Path) -> tuple[Service, ManualClock]:
    clock = ManualClock(round(NOW.timestamp() * 1e6))
    return Service(bundle, Settings(lake=str(lake), source="gate", rules=RULES), clock), clock


def stored(lake: Path, sql: str) -> list[tuple[Any, ...]]:
    with Lake(str(lake)) as opened:
        return opened.query(sql).rows()


def lost(service: Service, table: str) -> float:
    return service.metrics.registry.get_sample_value("tidegate_lake_rows_lost_total", {"table": table}) or 0.0


def test_every_request_its_decision_and_its_end_are_recorded(advisory: Bundle, tmp_path: Path) -> None:
    service, clock = service_on(advisory, tmp_path)
    first = service.admit(
        AdmitRequest(
            prompt_tokens=1_000,
            tenant="acme",
            model="m",
            session="s",
            lane="premium",
            request_id="q",
            max_tokens=5,
            max_completion_tokens=10**30,
        )
    )
    clock.advance(1.0)
    refused = service.admit(AdmitRequest(prompt_tokens=90_000, request_id="q"))
    nameless = service.admit(AdmitRequest(prompt_tokens=10))
    clock.advance(1.0)
    assert service.settle(
        SettleRequest(reservation_id=first.reservation_id, output_tokens=7, cached_tokens=3, outcome="served")
    )
    assert not service.settle(SettleRequest(reservation_id=first.reservation_id, outcome="failed"))
    clock.advance(RULES.lease_s)
    service.tick()
    service.close()
    requests = stored(
        tmp_path,
        "SELECT source, request_id, arrived_at, tenant, lane, model, session, prompt_tokens, max_tokens, "
        "outcome, finished_at, retry_of FROM lake.requests ORDER BY arrived_at, prompt_tokens DESC",
    )
    own = requests[1][1]
    second = NOW + timedelta(seconds=1)
    assert requests == [
        ("gate", "q", NOW, "acme", "premium", "m", "s", 1_000, 2**63 - 1, None, None, None),
        ("gate", own, second, None, "standard", None, None, 90_000, None, "shed", second, "q"),
        (
            "gate",
            nameless.reservation_id,
            second,
            None,
            "standard",
            None,
            None,
            10,
            None,
            None,
            None,
            None,
        ),
    ]
    assert own not in ("q", nameless.reservation_id)
    decisions = stored(
        tmp_path,
        "SELECT request_id, admitted, reason, retry_after_ms, tightening, tightened, expected_output_tokens "
        'FROM lake.decisions ORDER BY "at", admitted',
    )
    assert decisions == [
        ("q", True, None, None, 0.0, False, first.expected_output_tokens),
        (own, False, "too_large", None, 0.0, False, refused.expected_output_tokens),
        (nameless.reservation_id, True, None, None, 0.0, False, nameless.expected_output_tokens),
    ]
    outcomes = (
        "SELECT request_id, output_tokens, cached_tokens, outcome FROM lake.outcomes ORDER BY finished_at"
    )
    assert stored(tmp_path, outcomes) == [
        ("q", 7, 3, "served"),
        (nameless.reservation_id, None, None, "aborted"),  # nobody said how it ended
    ]


def test_a_retry_names_the_refused_attempt_that_it_repeats(advisory: Bundle, tmp_path: Path) -> None:
    service, clock = service_on(advisory, tmp_path)
    first = {"prompt_tokens": 90_000, "tenant": "acme", "request_id": "a"}
    for attempt in (
        {"retry_count": 0},
        {"retry_count": 1, "request_id": "b"},
        {"retry_count": 1, "request_id": "c"},  # of another client: its first attempt was not seen here
        {"retry_count": 2, "request_id": "d"},
        {"retry_of": "told", "request_id": "e"},
    ):
        service.admit(AdmitRequest.model_validate(first | attempt))
        clock.advance(1.0)
    service.close()
    requests = stored(tmp_path, "SELECT request_id, retry_of FROM lake.requests ORDER BY arrived_at")
    assert requests == [("a", None), ("b", "a"), ("c", None), ("d", "c"), ("e", "told")]
    retries = service.metrics.registry.get_sample_value("tidegate_retries_total", {"lane": "standard"})
    assert retries == 4


def test_every_tick_and_every_judged_tick_is_recorded(advisory: Bundle, tmp_path: Path) -> None:
    service, clock = service_on(advisory, tmp_path)
    for _ in range(300 // 5):
        service.admit(AdmitRequest(prompt_tokens=100))
        clock.advance(5.0)
        service.tick()
    service.close()
    forecasts = stored(
        tmp_path,
        "SELECT tick_at, bundle, state, p_onset IS NULL, alarm, tightening_target FROM lake.forecasts "
        "ORDER BY tick_at",
    )
    assert [row[0] for row in forecasts] == [NOW + timedelta(seconds=5 * n) for n in range(1, 61)]
    assert {row[1:3] for row in forecasts} == {(advisory.version, "warming up")}
    assert forecasts[0][3]  # less than a minute of history: unknown, not 0
    assert not forecasts[-1][3]
    assert {row[4:] for row in forecasts} == {(False, 0.0)}
    ledger = stored(tmp_path, "SELECT tick_at, eligible, alarm, onset_at FROM lake.ledger ORDER BY tick_at")
    assert ledger == [(NOW + timedelta(seconds=5 * n), False, False, None) for n in range(1, len(ledger) + 1)]
    assert len(ledger) == (300 - 120) // 5


def test_without_its_lake_the_service_decides_counts_what_is_lost_and_recovers(
    advisory: Bundle, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lake = tmp_path / "lake"
    catalog = lake / "catalog.sqlite"
    catalog.mkdir(parents=True)  # no catalog can be opened there
    service, clock = service_on(advisory, lake)
    service.writer.max_wait_s = 0.0  # type: ignore[union-attr]
    recording = service.recording
    assert recording is not None
    asyncio.run(service.remember())
    for _ in range(3):
        assert service.admit(AdmitRequest(prompt_tokens=100)).admitted
        written = recording.flush()
        assert written is not None
        assert written.exception(60) is not None
        clock.advance(1.0)
    while lost(service, "requests") < 3:  # counted just after the writer has told us
        time.sleep(0.01)
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert [record.message for record in errors] == [
        "lake not read at the start",
        "rows lost: the lake can't be written",
    ]
    assert service.ready().ready
    assert service.ready().lake not in (None, "ok")
    assert (lost(service, "requests"), lost(service, "decisions"), lost(service, "ledger")) == (3, 3, 0)
    shutil.rmtree(lake)
    service.admit(AdmitRequest(prompt_tokens=100))
    written = recording.flush()
    assert written is not None
    written.result(60)
    assert service.ready().lake == "ok"
    service.close()
    assert stored(lake, "SELECT count(*) FROM lake.requests") == [(1,)]


def test_a_writer_that_is_busy_gets_the_rows_later_and_a_full_memory_loses_the_newest(
    advisory: Bundle, tmp_path: Path
) -> None:
    service, _ = service_on(advisory, tmp_path)
    recording = service.recording
    assert recording is not None
    writer = recording.writer
    with LakeWriter(str(tmp_path)) as closed:
        pass
    recording.writer = closed  # takes nothing
    for number in range(MOST_ROWS + 2):
        recording.ended(f"{number}", 0, None, None, "served")
    assert recording.flush() is None
    assert lost(service, "outcomes") == 2
    recording.writer = writer
    service.close()
    assert stored(tmp_path, "SELECT count(*), max(request_id::BIGINT) FROM lake.outcomes") == [
        (MOST_ROWS, MOST_ROWS - 1)
    ]


def test_the_app_writes_by_itself_each_second(advisory: Bundle, tmp_path: Path) -> None:
    clock = ManualClock(round(NOW.timestamp() * 1e6))
    app = create_app(advisory, Settings(lake=str(tmp_path), rules=RULES), clock)

    async def live() -> None:
        async with app.router.lifespan_context(app):
            service: Service = app.state.service
            service.admit(AdmitRequest(prompt_tokens=100))
            for _ in range(2_000):
                clock.advance(0.5)
                await asyncio.sleep(0.01)
                if service.writer.state().written:  # type: ignore[union-attr]
                    break
            assert service.writer.state().written["requests"] == 1  # type: ignore[union-attr]

    asyncio.run(live())


def test_errors_that_come_all_the_time_are_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    rarely = Rarely("lost", clock)
    for _ in range(3):
        rarely.log(OSError("No space left on device"))
    clock.advance(RARELY_S)
    rarely.log(OSError("No space left on device"))
    fields = [record.__dict__["fields"] for record in caplog.records]
    assert [each["since_last"] for each in fields] == [0, 2]
    assert {each["reason"] for each in fields} == {"No space left on device"}
