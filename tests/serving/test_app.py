import asyncio
import json
import math
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import numpy as np
import pytest
from fastapi import FastAPI

from data.errors import InputError
from models.bundle import Bundle
from models.guard.skill import Onset, SkillGate
from models.guard.tripwire import BLOCK_TICKS
from serving.app import create_app
from serving.clock import ManualClock
from serving.controller.rules import Rules
from serving.forecast.tally import Outcomes
from serving.service import Service
from serving.settings import Settings

EPOCH_US = 1_700_000_000_000_000
RULES = Rules(capacity_tokens=100_000)


@pytest.fixture(scope="session")
def advisory(bundle_folder: Callable[[float | None], Path]) -> Bundle:
    return Bundle.load(bundle_folder(None))


@pytest.fixture(scope="session")
def active(bundle_folder: Callable[[float | None], Path]) -> Bundle:
    return Bundle.load(bundle_folder(-100.0))


class Client:
    """Calls the app in process, without its own tick loop: time and ticks are the test's."""

    def __init__(self, bundle: Bundle, settings: Settings | None = None) -> None:
        self.clock = ManualClock(EPOCH_US)
        self.app: FastAPI = create_app(bundle, settings or Settings(rules=RULES), self.clock)
        self.service: Service = self.app.state.service

    def call(self, method: str, path: str, **more: object) -> httpx.Response:
        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                return await client.request(method, path, **more)  # type: ignore[arg-type]

        return asyncio.run(send())

    def admit(self, **row: object) -> httpx.Response:
        return self.call("POST", "/v1/admit", json={"prompt_tokens": 1_000, **row})

    def settle(self, **row: object) -> httpx.Response:
        return self.call("POST", "/v1/settle", json={"outcome": "served", "output_tokens": 100, **row})

    def telemetry(self, rows: object) -> dict:
        answer = self.call("POST", "/v1/telemetry", json=rows)
        assert answer.status_code == 200
        return answer.json()

    def get(self, path: str) -> dict:
        answer = self.call("GET", path)
        assert answer.status_code == 200
        return answer.json()

    def metric(self, name: str) -> float | None:
        lines = self.call("GET", "/metrics").text.splitlines()
        found = [line.rsplit(" ", 1)[1] for line in lines if line.rsplit(" ", 1)[0] == name]
        return float(found[0]) if found else None


@pytest.fixture
def client(advisory: Bundle) -> Client:
    return Client(advisory)


def test_an_admitted_request_holds_tokens_until_it_is_settled_once(client: Client) -> None:
    answer = client.admit(
        tenant="acme", lane="premium", model="m", session="s", request_id="q", log_type="chat"
    )
    assert answer.status_code == 200
    body = answer.json()
    assert body == {
        "admitted": True,
        "reservation_id": body["reservation_id"],
        "lane": "premium",
        "expected_output_tokens": 512,
        "tightening": 0.0,
        "backpressure": 0.0,
        "lease_s": 120.0,
        "degraded": None,
    }
    assert client.metric("tidegate_held_tokens") == 1_512
    settlements = [client.settle(reservation_id=body["reservation_id"]).json() for _ in range(2)]
    assert settlements == [{"settled": True}, {"settled": False}]
    assert client.metric("tidegate_held_tokens") == 0
    assert client.metric('tidegate_admitted_total{lane="premium"}') == 1


def test_an_overloaded_engine_clamps_an_answer_and_its_rest_is_the_same_request(client: Client) -> None:
    client.telemetry([{"queue_depth": 0, "gpu_util": 0.95}])
    assert client.metric("tidegate_degradation_step") == 1
    first = client.admit(tenant="acme", lane="batch", max_tokens=1_500).json()
    handle = first["degraded"].pop("continuation")
    assert first["degraded"] == {"step": 1, "clamp_output_tokens": 1_024, "model": None, "pool": None}
    assert client.metric("tidegate_open_continuations") == 1

    rest = client.admit(tenant="acme", prompt_tokens=2_024, max_tokens=1_500, continuation=handle).json()
    assert (rest["lane"], rest["degraded"]["clamp_output_tokens"]) == ("batch", 476)
    again = client.admit(tenant="acme", continuation=handle).json()
    assert again["lane"] == "standard"
    assert client.metric("tidegate_unknown_continuations") == 1


def test_a_very_large_request_is_told_to_come_back_in_calm(client: Client) -> None:
    client.telemetry([{"gpu_util": 0.95}])
    refused = client.admit(prompt_tokens=32_000)
    assert (refused.status_code, refused.headers["x-tidegate-reason"]) == (429, "degraded")
    assert int(refused.headers["retry-after"]) >= 29


def test_preemptions_that_an_engine_tells_shrink_what_may_be_held(client: Client) -> None:
    client.telemetry([{"preemptions_per_s": 0.5, "kv_allocation_failures": 0}])
    assert client.metric("tidegate_usable_tokens") == 90_000
    assert client.metric("tidegate_capacity_tokens") == 100_000


def test_the_larger_limit_counts_and_each_answer_of_n(client: Client) -> None:
    assert client.admit(max_tokens=1, max_completion_tokens=50).json()["expected_output_tokens"] == 50
    assert client.admit(max_tokens=50, n=4).json()["expected_output_tokens"] == 200


def test_a_cancelled_request_gives_its_tokens_back_once(client: Client) -> None:
    reservation = {"reservation_id": client.admit().json()["reservation_id"]}
    answers = [client.call("POST", "/v1/cancel", json=reservation) for _ in range(2)]
    assert [answer.json() for answer in answers] == [{"settled": True}, {"settled": False}]
    assert client.metric("tidegate_held_tokens") == 0


def test_an_unknown_reservation_is_not_settled_and_no_error(client: Client) -> None:
    answer = client.settle(reservation_id="r-of-another-process")
    assert (answer.status_code, answer.json()) == (200, {"settled": False})
    assert client.metric("tidegate_settle_unknown_total") == 1


def test_a_refusal_is_what_openai_clients_and_gateways_read(client: Client) -> None:
    while (answer := client.admit(lane="batch", prompt_tokens=9_000)).status_code == 200:
        pass
    assert answer.status_code == 429
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["param"], error["code"]) == ("tokens", None, "rate_limit_exceeded")
    assert "Tidegate" in error["message"]
    headers = answer.headers
    assert headers["x-should-retry"] == "true"
    assert headers["x-llm-d-request-dropped-reason"] == "rejected-saturated"
    assert headers["x-tidegate-reason"] == "lane_budget"
    assert headers["x-tidegate-tightened"] == "false"
    assert int(headers["retry-after"]) == math.ceil(int(headers["retry-after-ms"]) / 1_000)
    assert 1 <= int(headers["retry-after"]) <= 30
    assert client.metric('tidegate_refused_total{lane="batch",reason="lane_budget"}') == 1


def test_a_request_that_can_never_pass_is_told_not_to_come_back(client: Client) -> None:
    answer = client.admit(prompt_tokens=90_000)
    assert answer.status_code == 429
    assert answer.headers["x-should-retry"] == "false"
    assert answer.headers["x-tidegate-reason"] == "too_large"
    assert "retry-after" not in answer.headers
    deadline = client.admit(prompt_tokens=20_000, deadline_ms=10.0)
    assert deadline.headers["x-tidegate-reason"] == "deadline"


def test_refused_requests_are_offered_load_too(client: Client) -> None:
    client.admit(prompt_tokens=90_000)
    client.admit(prompt_tokens=1_000)
    assert client.service.offered.work.bins(0, 1).work.tolist() == [91_000]


@pytest.mark.parametrize(
    ("row", "names"),
    [
        ({"prompt_tokens": -1}, "prompt_tokens"),
        ({"prompt_tokens": 10**12}, "prompt_tokens"),
        ({"prompt_tokens": "many"}, "prompt_tokens"),
        ({"lane": "vip"}, "lane"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"tenant": "x" * 300}, "tenant"),
        ({"prompt_token": 3}, "prompt_token"),
    ],
)
def test_a_request_out_of_range_is_a_problem_that_names_the_field(
    client: Client, row: dict, names: str
) -> None:
    answer = client.admit(**row)
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert f"{names}: " in answer.json()["detail"]
    assert client.service.offered.origin_us is None


def test_a_body_over_the_limit_is_413(advisory: Bundle) -> None:
    client = Client(advisory, Settings(max_body_bytes=100))
    answer = client.call("POST", "/v1/telemetry", content=b"[" + b" " * 200 + b"]")
    assert answer.status_code == 413
    assert answer.headers["content-type"] == "application/problem+json"


def test_engine_samples_move_backpressure_and_grow_stale(client: Client) -> None:
    told = client.telemetry(
        [{"queue_depth": 64, "queue_capacity": 64, "kv_cache_hit_rate": 0.0, "gpu_util": 0.5}]
    )
    assert told == {
        "accepted": 1,
        "duplicates": 0,
        "refused": 0,
        "refused_rows": [],
        "stored": False,
        "clock_ahead_s": None,
    }
    assert client.metric("tidegate_backpressure") == pytest.approx(0.6)
    assert client.metric("tidegate_gpu_util") == 0.5
    client.clock.advance(RULES.engine_stale_s + 0.1)
    assert client.metric("tidegate_backpressure") == 0.0
    assert client.metric("tidegate_gpu_util") is None


def test_good_rows_count_though_others_are_refused(client: Client) -> None:
    told = client.telemetry(
        [
            {"queue_depth": 5},
            {"kv_cache_usage": 39.0},
            {"event": "arrived", "request_id": "a", "prompt_tokens": 70},
            {},
            {"queue_depth": 5, "at": "2023-11-14T22:13:00Z"},
            "row",
        ]
    )
    assert (told["accepted"], told["refused"]) == (2, 4)
    assert [row["row"] for row in told["refused_rows"]] == [1, 3, 4, 5]
    assert client.metric('tidegate_telemetry_rows_refused_total{reason="invalid"}') == 3
    assert client.metric('tidegate_telemetry_rows_refused_total{reason="late"}') == 1
    assert client.service.offered.work.bins(0, 1).work.tolist() == [70]


def test_lines_are_rows_and_a_broken_list_is_a_problem(client: Client) -> None:
    lines = client.call("POST", "/v1/telemetry", content=b'{"queue_depth": 1}\n{"queue_depth": 2}\n')
    assert lines.json()["accepted"] == 2
    broken = client.call("POST", "/v1/telemetry", content=b'[{"queue_depth": 1}')
    assert (broken.status_code, broken.headers["content-type"]) == (400, "application/problem+json")


def test_before_anything_arrived_everything_is_unknown_and_the_rules_are_ready(client: Client) -> None:
    client.service.tick()
    forecast = client.get("/v1/forecast")
    unknown = ("tick_at", "p_onset", "peak_load_tokens_per_s", "baseline_tokens_per_s", "score", "threshold")
    assert [forecast[name] for name in unknown] == [None] * len(unknown)
    assert (forecast["state"], forecast["tightening"]) == ("warming up", 0.0)
    report = client.get("/v1/report")
    assert [report[name] for name in ("false_alarm_rate", "recall", "precision", "lead_s")] == [None] * 4
    rates = ("false_alarm_rate", "strict_false_alarm_rate", "recall", "precision")
    assert report["intervals"] == dict.fromkeys(rates)
    assert (
        report["rests_on"]
        == "recall on 0 onsets, precision on 0 alarm episodes, false-alarm rate on 0 calm ticks"
    )
    assert report["ledger"]["share_by_window"] == {"86400 s": None, "3600 s": None}
    assert report["ledger"]["limit_by_window"] == {"86400 s": 0.05, "3600 s": 0.15}
    ready = client.get("/readyz")
    assert (ready["ready"], ready["deciding_by"], ready["predictor"]) == (True, "rules", "warming up")
    assert ready["providers"] == client.service.bundle.providers
    assert "CPUExecutionProvider" in ready["providers"]
    assert len(ready["bundle"]) == 12
    assert client.get("/healthz") == {"alive": True}


def test_a_report_tells_how_far_its_rates_can_be_relied_on(client: Client) -> None:
    t_s = np.arange(0, 36_000, 5)  # ten hours without a burst, in alarm 0, 1, ... 9 minutes of each
    no_onset, alarm = np.full(len(t_s), -1), t_s % 3_600 < t_s // 3_600 * 60
    client.service.meter._past = Outcomes(t_s, np.full(len(t_s), True), no_onset, alarm, alarm)
    report = client.get("/v1/report")
    assert report["false_alarm_rate"] == pytest.approx(0.075)
    interval = report["intervals"]["false_alarm_rate"]
    assert 0.0 < interval["low"] < report["false_alarm_rate"] < interval["high"] < 0.15
    assert client.metric("tidegate_false_alarm_rate_low") == interval["low"]
    assert client.metric("tidegate_false_alarm_rate_high") == interval["high"]
    assert report["intervals"]["recall"] is None
    assert report["rests_on"].endswith("false-alarm rate on 7200 calm ticks")


def replay_an_hour(client: Client, rows_per_s: int = 1) -> None:
    """History of 4,000 s with a request of 100 tokens each second, then ticks up to now."""
    now = datetime.fromtimestamp(EPOCH_US / 1e6, UTC)
    for first in range(0, 4_000, 1_000):
        client.telemetry(
            [
                {
                    "event": "arrived",
                    "request_id": f"h{second}-{copy}",
                    "prompt_tokens": 100,
                    "at": (now - timedelta(seconds=4_000 - second)).isoformat(),
                }
                for second in range(first, first + 1_000)
                for copy in range(rows_per_s)
            ]
        )
    while not client.service.tick():
        pass


def test_history_is_replayed_and_the_bundle_forecasts_at_once(client: Client) -> None:
    replay_an_hour(client)
    forecast = client.get("/v1/forecast")
    assert forecast["state"] == "advisory"
    assert forecast["reason"] == "trained on noise"
    assert 0.0 < forecast["p_onset"] < 1.0
    assert math.isfinite(forecast["score"])
    assert 0.0 <= forecast["peak_load_tokens_per_s"]["p50"] <= forecast["peak_load_tokens_per_s"]["p90"]
    assert forecast["baseline_tokens_per_s"] == pytest.approx(101.0)
    assert forecast["tick_at"] == "2023-11-14T22:13:20Z"
    assert (forecast["alarm"], forecast["tightening"]) == (False, 0.0)
    assert client.metric("tidegate_p_onset") == pytest.approx(forecast["p_onset"])
    assert client.get("/v1/report")["late_rows"] == 0


def earn(client: Client, seconds: int) -> None:
    for _ in range(seconds // 5):
        client.service.offered.arrive(
            client.clock.wall_us(),
            client.clock.monotonic_s(),
            500,
            tenant=None,
            lane=None,
            model=None,
            log_type=None,
        )
        client.clock.advance(5.0)
        client.service.tick()


def test_an_alarm_tightens_the_gate_and_says_so(active: Bundle) -> None:
    client = Client(active)
    replay_an_hour(client)
    # Every score is over this bundle's threshold: calm ticks pay for one alarm in twenty.
    earn(client, 900)
    assert client.get("/readyz")["deciding_by"] == "rules and forecast"
    ledger = client.get("/v1/report")["ledger"]
    assert ledger["charges"] >= 1
    assert ledger["denials"] > 10 * ledger["charges"]
    for _ in range(100):
        earn(client, 5)
        if client.get("/v1/forecast")["alarm"]:
            break
    forecast = client.get("/v1/forecast")
    assert forecast["alarm"]
    assert forecast["tightening_target"] >= 0.3
    client.clock.advance(2.0)
    assert client.get("/v1/forecast")["tightening"] > 0.0
    while (answer := client.admit(lane="batch", prompt_tokens=2_000)).status_code == 200:
        assert answer.json()["tightening"] > 0.0
    assert answer.headers["x-tidegate-tightened"] == "true"
    assert "forecast burst" in answer.json()["error"]["message"]
    counted = client.service.metrics.registry.get_sample_value
    assert counted("tidegate_refused_by_forecast_total", {"lane": "batch"}) == 1.0
    assert counted("tidegate_lane_breached", {"lane": "batch"}) == 0.0
    client.clock.advance(15.1)
    assert client.get("/v1/forecast")["state"] == "late"
    client.service.tick()
    client.clock.advance(5.0)
    assert client.get("/v1/forecast")["tightening"] == 0.0


def test_behind_a_closed_gate_alarms_are_told_and_tighten_nothing(active: Bundle) -> None:
    client = Client(active)
    replay_an_hour(client)
    client.service.predictor.guard.skill = SkillGate([Onset(None, False, 0.02)] * 9)
    earn(client, 900)
    would = 0
    for _ in range(100):
        earn(client, 5)
        forecast = client.get("/v1/forecast")
        assert (forecast["alarm"], forecast["tightening"], forecast["state"]) == (False, 0.0, "advisory")
        assert client.metric("tidegate_would_alarm") == float(forecast["would_alarm"])
        would += forecast["would_alarm"]
    assert would > 0
    report, ready = client.get("/v1/report"), client.get("/readyz")
    assert report["skill_gate"] == {
        "open": False,
        "onsets": 9,
        "anticipated_onsets": 0,
        "recall": 0.0,
        "random_recall": pytest.approx(0.02),
        "luck": 1.0,
        "reason": report["reason"],
    }
    assert report["ledger"]["charges"] == 0
    assert report["ledger"]["denials"] > 0
    assert "0 of the last 9 bursts" in ready["reason"]
    assert (ready["deciding_by"], ready["retrain"]) == ("rules", False)
    assert client.metric("tidegate_skill_gate_open") == 0.0


def test_a_crossed_trip_wire_mutes_raises_a_metric_and_asks_for_retraining_over_a_restart(
    active: Bundle, tmp_path: Path
) -> None:
    settings = Settings(rules=RULES, state_file=tmp_path / "guard.json")
    client = Client(active, settings)
    wire = client.service.predictor.guard.wire
    assert wire is not None
    assert client.metric("tidegate_guard_tripped") == 0.0
    for _ in range(5 * BLOCK_TICKS):
        wire.settle(True, negative=True, late=False, in_time=False)
    client.service.close()
    client = Client(active, settings)
    replay_an_hour(client)
    assert client.metric("tidegate_guard_tripped") == 1.0
    for path in ("/v1/forecast", "/v1/report", "/readyz"):
        told = client.get(path)
        assert told["retrain"]
        assert "trip wire is crossed" in told["reason"]
    wired = client.get("/v1/report")["trip_wire"]
    assert (wired["tripped"], wired["over_threshold_rate"]) == (True, 1.0)
    assert wired["evidence"] >= wired["trips_at"]


class Broken:
    """A bundle whose session fails, as one does when its device is lost."""

    def __init__(self, bundle: Bundle) -> None:
        self.version, self.manifest, self.providers = bundle.version, bundle.manifest, bundle.providers

    def forecast(self, features: object) -> None:
        raise RuntimeError("CUDA error 700")


def test_a_bundle_that_breaks_leaves_the_rules_deciding_within_a_tick(active: Bundle) -> None:
    client = Client(active)
    replay_an_hour(client)
    client.service.predictor.bundle = Broken(active)  # type: ignore[assignment]
    earn(client, 5)
    ready = client.get("/readyz")
    assert (ready["ready"], ready["deciding_by"], ready["predictor"]) == (True, "rules", "dead")
    assert "CUDA error 700" in ready["reason"]
    assert client.admit().status_code == 200
    assert client.get("/v1/forecast")["tightening_target"] == 0.0
    assert client.metric("tidegate_tick_failures_total") == 1
    client.service.predictor.bundle = active
    earn(client, 5)
    assert client.get("/readyz")["predictor"] == "active"


def test_forecasts_that_do_not_alarm_leave_decisions_as_the_rules_make_them(
    advisory: Bundle, active: Bundle, bundle_folder: Callable[[float | None], Path]
) -> None:
    """A real overload, with a forecaster that sees nothing, one that is advisory, and one that is dead."""
    blind = Client(Bundle.load(bundle_folder(100.0)))
    dead = Client(active)
    dead.service.predictor.bundle = Broken(active)  # type: ignore[assignment]
    decisions = []
    for client in (blind, Client(advisory), dead):
        replay_an_hour(client)
        made = []
        for step in range(300):
            row = {"lane": ("premium", "standard", "batch")[step % 3], "prompt_tokens": 100 * (step % 17)}
            answer = client.admit(**row)
            made.append(
                (
                    answer.status_code,
                    answer.headers.get("x-tidegate-reason"),
                    answer.headers.get("x-tidegate-tightened"),
                )
            )
            client.clock.advance(0.5)
            client.service.tick()
        decisions.append(made)
    assert {status for status, _, _ in decisions[0]} == {200, 429}
    assert decisions[0] == decisions[1] == decisions[2]
    assert {tightened for _, _, tightened in decisions[0]} == {None, "false"}


def test_unsettled_reservations_are_forgotten_with_their_lease(client: Client) -> None:
    body = client.admit().json()
    client.clock.advance(121.0)
    client.service.tick()
    assert client.settle(reservation_id=body["reservation_id"]).json() == {"settled": False}
    assert client.metric("tidegate_expired_reservations") == 1
    assert client.metric("tidegate_open_reservations") == 0
    assert not client.service._admitted


def test_a_served_request_corrects_its_work_and_teaches_the_next_one(client: Client) -> None:
    body = client.admit(tenant="a").json()
    client.settle(reservation_id=body["reservation_id"], output_tokens=300, cached_tokens=400)
    assert client.service.offered.work.bins(0, 1).work.tolist() == [900]
    body = client.admit(tenant="a").json()
    client.settle(reservation_id=body["reservation_id"], output_tokens=None, outcome="aborted")
    assert client.service.offered.work.bins(0, 1).work.tolist() == [900 + 1_300]


def test_the_home_page_links_to_pages_that_exist(client: Client) -> None:
    page = client.call("GET", "/")
    assert page.headers["content-type"].startswith("text/html")
    links = [part.split('"')[0] for part in page.text.split('href="')[1:]]
    assert len(links) >= 6
    for link in links:
        assert client.call("GET", f"/{link}").status_code == 200, link


def test_the_api_describes_itself(client: Client) -> None:
    schema = client.get("/openapi.json")
    for path, methods in schema["paths"].items():
        for method in methods.values():
            assert method.get("description"), path
    refused = schema["paths"]["/v1/admit"]["post"]["responses"]
    assert {"200", "413", "422", "429"} <= set(refused)
    assert "application/problem+json" in refused["422"]["content"]
    asked = schema["paths"]["/v1/admit"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert asked["examples"]
    assert "$ref" not in json.dumps(asked)


def test_a_damaged_guard_state_stops_the_start(advisory: Bundle, tmp_path: Path) -> None:
    path = tmp_path / "guard.json"
    path.write_text("{")
    with pytest.raises(InputError, match="damaged"):
        create_app(advisory, Settings(state_file=path), ManualClock())


def test_the_app_ticks_saves_and_stops_by_itself(advisory: Bundle, tmp_path: Path) -> None:
    path = tmp_path / "guard.json"
    clock = ManualClock(EPOCH_US)
    app = create_app(advisory, Settings(state_file=path, save_every_s=30.0), clock)
    service: Service = app.state.service

    async def live() -> None:
        async with app.router.lifespan_context(app):
            service.offered.arrive(EPOCH_US, 0.0, 100, tenant=None, lane=None, model=None, log_type=None)
            for _ in range(40):
                clock.advance(1.0)
                await asyncio.sleep(0.005)
            async with asyncio.timeout(60):  # the file comes while ticks may still be due
                while not (path.exists() and service.offered.ticked_s >= 35):
                    clock.advance(1.0)  # a clock at rest leaves a service asleep whose save took long
                    await asyncio.sleep(0.005)
            path.unlink()

    asyncio.run(live())
    assert json.loads(path.read_text())["bundle"] == advisory.version


def test_a_stop_while_the_state_is_being_saved_saves_after_it(
    advisory: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_end, now, together = threading.Event(), threading.Event(), [0], []

    def slow(path: Path, state: dict) -> None:
        now[0] += 1
        together.append(now[0])
        begun.set()
        may_end.wait(60)
        now[0] -= 1

    monkeypatch.setattr("serving.service.save", slow)
    clock = ManualClock(EPOCH_US)
    app = create_app(advisory, Settings(state_file=tmp_path / "guard.json", save_every_s=1.0), clock)

    async def stop() -> None:
        async with app.router.lifespan_context(app):
            clock.advance(2.0)
            await asyncio.to_thread(begun.wait, 60)
            asyncio.get_running_loop().call_later(0.1, may_end.set)

    asyncio.run(stop())
    assert together == [1, 1]
