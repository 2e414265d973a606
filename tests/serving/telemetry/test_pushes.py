import asyncio
import gzip
import json
import resource
import secrets
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from data.lake import Lake
from models.bundle import Bundle
from serving.app import create_app
from serving.clock import ManualClock
from serving.service import Service
from serving.settings import Settings
from serving.telemetry import rows as telemetry

NOW = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
NOW_US = round(NOW.timestamp() * 1e6)


@pytest.fixture(scope="session")
def advisory(bundle_folder: Callable[[float | None], Path]) -> Bundle:
    return Bundle.load(bundle_folder(None))


class Client:
    """Calls the app in process, on a clock that stands still."""

    def __init__(self, http: httpx.AsyncClient, service: Service, clock: ManualClock) -> None:
        self.http, self.service, self.clock = http, service, clock

    async def push(self, rows: list[Any], **headers: str) -> httpx.Response:
        body = "\n".join(json.dumps(row) for row in rows).encode()
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.http.post("/v1/telemetry", content=body, headers=names)

    async def told(self, rows: list[Any], **headers: str) -> dict[str, Any]:
        answer = await self.push(rows, **headers)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def metric(self, name: str) -> float:
        lines = (await self.http.get("/metrics")).text.splitlines()
        return float(next(line for line in lines if line.startswith(name)).rsplit(" ", 1)[1])


@asynccontextmanager
async def serving(bundle: Bundle, lake: Path | None = None, **more: Any) -> AsyncIterator[Client]:
    clock = ManualClock(NOW_US)
    app = create_app(bundle, Settings(lake=None if lake is None else str(lake), **more), clock)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://test", timeout=60) as http,
    ):
        yield Client(http, app.state.service, clock)


def whole(name: str, ago_s: float = 10.0, took_s: float = 2.0, **more: object) -> dict[str, object]:
    at = NOW - timedelta(seconds=ago_s)
    return {
        "event": "request",
        "request_id": name,
        "prompt_tokens": 100,
        "output_tokens": 50,
        "at": at.isoformat(),
        "finished_at": (at + timedelta(seconds=took_s)).isoformat(),
        "outcome": "served",
        **more,
    }


def stored(lake: Path, sql: str) -> list[tuple[Any, ...]]:
    with Lake(str(lake)) as opened:
        return opened.query(sql).rows()


def test_rows_are_in_the_lake_when_the_answer_comes(advisory: Bundle, tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(advisory, tmp_path) as client:
            told = await client.told(
                [
                    whole("w", tenant="acme", retry_of="v"),
                    {"event": "arrived", "request_id": "a", "prompt_tokens": 7},
                    {"event": "finished", "request_id": "a", "outcome": "aborted"},
                    {"queue_depth": 4, "kv_cache_hit_rate": 0.25},
                    whole("own", source="other", took_s=3.0),
                    whole("bad", prompt_tokens=-1),
                    "no row",
                ],
                x_tidegate_source="edge",
            )
            assert (told["accepted"], told["duplicates"], told["refused"]) == (5, 0, 2)
            assert told["stored"]
            assert [row["row"] for row in told["refused_rows"]] == [5, 6]
            requests = stored(
                tmp_path,
                "SELECT source, request_id, tenant, retry_of, output_tokens, outcome, "
                "epoch(finished_at - arrived_at) FROM lake.requests ORDER BY ALL",
            )
            assert requests == [
                ("edge", "a", None, None, None, None, None),
                ("edge", "w", "acme", "v", 50, "served", 2.0),
                ("other", "own", None, None, 50, "served", 3.0),
            ]
            assert stored(
                tmp_path, "SELECT source, request_id, output_tokens, outcome FROM lake.outcomes"
            ) == [("edge", "a", None, "aborted")]
            sample = 'SELECT source, "at", state, waiting, prefix_hit_rate, running FROM lake.engine_samples'
            assert stored(tmp_path, sample) == [("edge", NOW, "ok", 4, 0.25, None)]
            quarantine = stored(tmp_path, "SELECT line, reason, raw FROM lake.quarantine ORDER BY line")
            assert [(line, raw[:9]) for line, _, raw in quarantine] == [(6, '{"event":'), (7, '"no row"')]
            assert "prompt_tokens" in quarantine[0][1]

    asyncio.run(run())


@pytest.mark.parametrize("kept", [True, False])
def test_a_batch_sent_twice_changes_nothing(advisory: Bundle, tmp_path: Path, kept: bool) -> None:
    batch = [
        whole("w"),
        whole("w"),
        {"event": "arrived", "request_id": "a", "prompt_tokens": 7, "at": NOW.isoformat()},
        {"event": "finished", "request_id": "a", "outcome": "served", "output_tokens": 3},
        {"queue_depth": 4, "at": NOW.isoformat()},
        {"queue_depth": -4},
    ]
    tables = ("requests", "outcomes", "engine_samples", "quarantine")

    async def run() -> None:
        async with serving(advisory, tmp_path if kept else None) as client:
            first = await client.told(batch)
            assert (first["accepted"], first["duplicates"], first["refused"]) == (4, 1, 1)
            work = client.service.offered.work.bins(0, 20).work.tolist()
            second = await client.told(batch)
            assert (second["accepted"], second["duplicates"], second["refused"]) == (0, 5, 1)
            assert client.service.offered.work.bins(0, 20).work.tolist() == work
            assert await client.metric("tidegate_telemetry_rows_duplicate_total") == 6
            if kept:
                counts = [stored(tmp_path, f"SELECT count(*) FROM lake.{table}")[0][0] for table in tables]
                assert counts == [2, 1, 1, 1]
        if not kept:
            return
        async with serving(advisory, tmp_path) as client:  # a new process knows what the lake has
            third = await client.told(batch)
            assert (third["accepted"], third["duplicates"]) == (1, 4)  # the sample is news to its engine
            assert sum(client.service.offered.work.bins(0, 20).work.tolist()) == sum(work)
        assert stored(tmp_path, "SELECT count(*) FROM lake.requests") == [(2,)]
        assert stored(tmp_path, "SELECT count(*) FROM lake.outcomes") == [(1,)]

    asyncio.run(run())


def test_a_lake_that_fails_is_told_and_the_same_rows_again_are_stored_once(
    advisory: Bundle, tmp_path: Path
) -> None:
    lake, kept = tmp_path / "lake", tmp_path / "kept"

    async def run() -> None:
        async with serving(advisory, lake) as client:
            assert (await client.told([whole("before")]))["stored"]
            shutil.move(lake, kept)
            (lake / "catalog.sqlite").mkdir(parents=True)  # no catalog can be opened there
            client.service.writer.max_wait_s = 0.0  # type: ignore[union-attr]
            answer = await client.push([whole("lost"), {"queue_depth": -1}])
            assert answer.status_code == 503
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.headers["retry-after"] == "10"
            assert "Send the same body again in 10 s" in answer.json()["detail"]
            ready = (await client.http.get("/readyz")).json()
            assert ready["ready"]
            assert ready["lake"] not in (None, "ok")
            assert (await client.http.post("/v1/admit", json={"prompt_tokens": 5})).status_code == 200
            work = sum(client.service.offered.work.bins(0, 10).work.tolist())
            client.service.recording.flush().exception(60)  # type: ignore[union-attr]
            shutil.rmtree(lake)
            shutil.move(kept, lake)
            again = await client.told([whole("lost"), {"queue_depth": -1}])
            assert (again["accepted"], again["refused"]) == (1, 1)
            assert sum(client.service.offered.work.bins(0, 10).work.tolist()) == work
            assert (await client.http.get("/readyz")).json()["lake"] == "ok"
        assert stored(lake, "SELECT request_id FROM lake.requests ORDER BY ALL") == [("before",), ("lost",)]
        assert stored(lake, "SELECT count(*) FROM lake.quarantine") == [(1,)]

    asyncio.run(run())


def test_a_number_that_the_lake_can_not_hold_is_refused_in_its_row_and_the_others_are_stored(
    advisory: Bundle, tmp_path: Path
) -> None:
    async def run() -> None:
        async with serving(advisory, tmp_path) as client:
            told = await client.told([{"queue_depth": 1e308}, whole("good"), {"queue_depth": 1e12}])
            assert (told["accepted"], told["refused"], told["stored"]) == (2, 1, True)
            assert "queue_depth: Input should be less than or equal to" in told["refused_rows"][0]["reason"]
        assert stored(tmp_path, "SELECT waiting FROM lake.engine_samples") == [(10**12,)]

    asyncio.run(run())


def test_an_answer_names_the_first_thousand_refused_rows_and_counts_all(advisory: Bundle) -> None:
    async def run() -> None:
        async with serving(advisory) as client:
            answer = await client.push([{}] * 3_000)
            told = answer.json()
            assert (told["refused"], len(told["refused_rows"])) == (3_000, 1_000)
            assert told["refused_rows"][-1]["row"] == 999

    asyncio.run(run())


def test_a_full_disk_is_507_and_the_service_decides_on(advisory: Bundle, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    rows = [whole(secrets.token_hex(16)) for _ in range(10_000)]

    async def run() -> None:
        async with serving(advisory, tmp_path) as client:
            await client.told([whole("before")])
            resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))  # no file may grow over this
            try:
                full = await client.push(rows)
                decided = await client.http.post("/v1/admit", json={"prompt_tokens": 5})
                ready = (await client.http.get("/readyz")).json()
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            assert full.status_code == 507, full.text
            assert "full" in full.json()["detail"]
            assert decided.status_code == 200
            assert (ready["ready"], ready["lake"] == "ok") == (True, False)
            assert (await client.told(rows))["accepted"] == 10_000
        assert stored(tmp_path, "SELECT count(*) FROM lake.requests WHERE source = 'telemetry'") == [
            (10_001,)
        ]

    asyncio.run(run())


def test_a_repeat_waits_for_the_first_that_is_still_being_stored(advisory: Bundle, tmp_path: Path) -> None:
    lake = tmp_path / "lake"

    async def run() -> None:
        async with serving(advisory, lake) as client:
            (lake / "catalog.sqlite").unlink(missing_ok=True)
            shutil.rmtree(lake)
            (lake / "catalog.sqlite").mkdir(parents=True)
            answers = await asyncio.gather(*(client.push([whole("w")]) for _ in range(5)))
            # None may answer that it knows a row which is then lost.
            assert [answer.status_code for answer in answers] == [503] * 5

    asyncio.run(run())


def test_too_much_that_waits_for_the_lake_is_refused_with_advice(advisory: Bundle, tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(advisory, tmp_path, max_waiting_rows=50) as client:
            await client.told([whole("first")])
            client.service.writer.max_wait_s = 3600.0  # type: ignore[union-attr]
            waiting = asyncio.create_task(client.push([whole(f"w{n}") for n in range(5)]))
            while client.service.writer.state().buffered_rows != 5:  # type: ignore[union-attr]
                await asyncio.sleep(0.001)
            rows = [whole(f"x{n}") for n in range(46)]
            busy = await client.push(rows)
            assert (busy.status_code, busy.headers["retry-after"]) == (503, "5")
            client.service.writer.close()  # type: ignore[union-attr]
            assert (await waiting).json()["stored"]
        assert stored(tmp_path, "SELECT count(*) FROM lake.requests") == [(6,)]

    asyncio.run(run())


@pytest.mark.parametrize("off_s", [60.0, -60.0])
def test_a_clock_that_is_off_is_measured_and_corrected(
    advisory: Bundle, tmp_path: Path, off_s: float
) -> None:
    skew = timedelta(seconds=off_s)

    async def run() -> None:
        async with serving(advisory, tmp_path) as client:
            rows = [
                whole("a", ago_s=10.0 - off_s),
                {"event": "arrived", "request_id": "b", "prompt_tokens": 1, "at": (NOW + skew).isoformat()},
                {"queue_depth": 9, "at": (NOW + skew).isoformat()},
            ]
            sent_at = (NOW + skew).isoformat()
            told = await client.told(rows, x_tidegate_source="edge", x_tidegate_sent_at=sent_at)
            assert (told["accepted"], told["refused"], told["clock_ahead_s"]) == (3, 0, off_s)
            assert client.service.offered.origin_us is not None
            assert client.service.engine.reading("queue_depth", client.clock.wall_us()) == 9
            assert (await client.http.post("/v1/admit", json={"prompt_tokens": 5})).status_code == 200
        assert stored(
            tmp_path, "SELECT arrived_at FROM lake.requests WHERE source = 'edge' ORDER BY ALL"
        ) == [
            (NOW - timedelta(seconds=10),),
            (NOW,),
        ]

    asyncio.run(run())


def test_a_clock_that_is_off_and_not_told_is_refused_with_the_offset(advisory: Bundle) -> None:
    async def run() -> None:
        async with serving(advisory) as client:
            told = await client.told(
                [whole("a", ago_s=-60.0), {"queue_depth": 1, "at": "2026-01-31T11:59:00Z"}]
            )
            reasons = [row["reason"] for row in told["refused_rows"]]
            assert "62.0 s ahead" in reasons[0]  # its end
            assert "60.0 s old" in reasons[1]
            far = await client.push(
                [whole("a")], x_tidegate_source="edge", x_tidegate_sent_at="2026-01-31T12:05:00Z"
            )
            assert far.status_code == 422
            assert "'edge' is 300.0 s ahead of this service's" in far.json()["detail"]
            vague = await client.push([whole("a")], x_tidegate_sent_at="12:05")
            assert vague.status_code == 422
            assert (await client.http.post("/v1/admit", json={"prompt_tokens": 5})).status_code == 200

    asyncio.run(run())


def test_decisions_get_their_turn_between_slices(advisory: Bundle) -> None:
    """However many bodies come in at a time, at most one slice passes between two turns of the loop."""
    slices: list[int] = []
    breaths = 0

    async def run() -> None:
        nonlocal breaths
        async with serving(advisory) as client:
            take = client.service.pushes._take

            def counted(*arguments: Any) -> None:
                slices.append(breaths)
                take(*arguments)

            client.service.pushes._take = counted  # type: ignore[method-assign]
            size = 3 * telemetry.ROWS_AT_ONCE
            bodies = [[{"event": "x", "n": n}] * size for n in range(3)]
            texts = [
                json.dumps(bodies[0]).encode(),
                *("\n".join(map(json.dumps, b)).encode() for b in bodies[1:]),
            ]
            pushes = [asyncio.create_task(client.service.pushes.push(text)) for text in texts]
            while not all(push.done() for push in pushes):
                await asyncio.sleep(0)
                breaths += 1
            assert [push.result().refused for push in pushes] == [size] * 3

    asyncio.run(run())
    assert len(slices) == 9
    assert len(set(slices)) == 9


SPANS = {
    "resourceSpans": [
        {
            "scopeSpans": [
                {
                    "spans": [
                        {
                            "traceId": "5b8efff798038103d269b633813fc60c",
                            "spanId": f"eee19b7ec3c1b17{n}",
                            "name": "chat",
                            "kind": 3,
                            "startTimeUnixNano": str((NOW_US - ago_s * 1_000_000) * 1_000),
                            "endTimeUnixNano": str((NOW_US - (ago_s - 1) * 1_000_000) * 1_000),
                            "attributes": [
                                {"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}},
                                {"key": "gen_ai.request.model", "value": {"stringValue": "m"}},
                                {"key": "gen_ai.usage.input_tokens", "value": {"intValue": "100"}},
                                {"key": "gen_ai.usage.output_tokens", "value": {"intValue": "50"}},
                            ],
                        }
                        for n, ago_s in enumerate((5, 20 * 86_400))
                    ]
                }
            ]
        }
    ]
}


def test_spans_are_whole_requests(advisory: Bundle, tmp_path: Path) -> None:
    body = gzip.compress(json.dumps(SPANS).encode())
    headers = {"content-type": "application/json", "content-encoding": "gzip"}

    async def run() -> None:
        async with serving(advisory, tmp_path) as client:
            for _ in range(2):
                answer = await client.http.post("/v1/traces", content=body, headers=headers)
                assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
                partial = answer.json()["partialSuccess"]
                assert partial["rejectedSpans"] == "1"
                assert "15 days" in partial["errorMessage"]
            assert client.service.offered.work.bins(0, 1).work.tolist() == [150]
            assert stored(tmp_path, "SELECT source, output_tokens FROM lake.requests") == [("otlp", 50)]
            assert stored(tmp_path, "SELECT file, line FROM lake.quarantine") == [("POST /v1/traces", 2)]
            broken = await client.http.post(
                "/v1/traces", content=b"{", headers={"content-type": "application/json"}
            )
            assert broken.status_code == 400
            other = await client.http.post("/v1/traces", content=b"", headers={"content-type": "text/plain"})
            assert other.status_code == 415

    asyncio.run(run())
