import json
import socket
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import polars as pl
import pytest

from data.errors import InputError
from data.schema import POLARS_REQUESTS
from pipeline.gate_watch import EACH, HELD_REQUESTS, RULES, START_S, shown, watch
from pipeline.replay import US, PlayedClock, Player, events, serving
from serving.settings import Settings
from tests.noise_bundle import noise_model, write_noise_bundle

START = datetime(2026, 1, 5, tzinfo=UTC)
START_US = round(START.timestamp()) * US


def trace(seconds: int) -> pl.DataFrame:
    """A request a second; every second one says how it ended, and none when."""
    rows = [
        {
            "request_id": str(second),
            "arrived_at": START + timedelta(seconds=second, microseconds=1),
            "prompt_tokens": 1_000,
            "output_tokens": 100 if second % 2 else None,
        }
        for second in range(seconds)
    ]
    return pl.DataFrame(rows, schema=POLARS_REQUESTS)


@pytest.fixture(scope="module")
def model() -> bytes:
    """A forecaster of noise."""
    return noise_model()


@pytest.fixture(scope="module")
def bundle(model: bytes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_noise_bundle(tmp_path_factory.mktemp("bundle"), model, None)


@pytest.fixture
def player(bundle: Path) -> Iterator[Player]:
    told = events(trace(900))
    clock = PlayedClock(int(told.at_us[0]) + 300 * US)
    with serving(bundle, Settings(rules=RULES), clock, 0) as client:
        yield Player(client, clock, told)


def test_events_are_in_order_of_time_and_only_known_ends_are_told() -> None:
    told = events(trace(10))
    rows = [json.loads(line) for line in told.lines]
    assert [row["event"] for row in rows].count("arrived") == 10
    assert {row["request_id"] for row in rows if row["event"] == "finished"} == {"1", "3", "5", "7", "9"}
    assert all(row["outcome"] == "served" for row in rows if row["event"] == "finished")
    assert told.at_us.tolist() == sorted(told.at_us.tolist())
    assert [datetime.fromisoformat(row["at"]).timestamp() * US for row in rows] == told.at_us.tolist()


def test_between_takes_the_start_and_leaves_the_end() -> None:
    told = events(trace(3).with_columns(output_tokens=pl.lit(None, pl.Int64)))
    assert len(told.between(int(told.at_us[0]), int(told.at_us[2]))) == 2


def test_the_service_hears_all_and_ticks_at_every_step(player: Player) -> None:
    shares: list[float] = []
    player.history(shares.append)
    assert shares[-1] == 1.0
    assert player.refused == 0
    for step in range(1, 20):
        at = datetime.fromisoformat(player.step(5.0)["tick_at"])
        assert at == START + timedelta(seconds=300 + 5 * step, microseconds=1)
    assert player.refused == 0
    assert player.accepted > 300 + 95


def test_rules_alone_admit_all_who_ask_around_an_onset(player: Player) -> None:
    player.history()
    asked = watch(player, player.clock.wall_us() - START_S * US)
    assert len(asked) >= 2 * EACH
    assert {(one.phase, one.reason, one.tightening, one.threshold) for one in asked} == {
        ("before", None, 0.0, None)
    }
    assert {one.lane for one in asked} == set(HELD_REQUESTS)
    text = player.client.get("/metrics").text
    assert "tidegate_held_tokens 0.0" in text  # what ran was settled


def test_an_alarm_refuses_standard_until_it_is_released(model: bytes, tmp_path: Path) -> None:
    told = events(trace(4_300))
    warm_s, earned_s = 3_600, 3_820  # the first alarm that calm ticks have paid for
    clock = PlayedClock(int(told.at_us[0]) + warm_s * US)
    with serving(write_noise_bundle(tmp_path, model, -20.0), Settings(rules=RULES), clock, 0) as client:
        player = Player(client, clock, told)
        player.history()
        asked = watch(player, int(told.at_us[0]) + earned_s * US)
    phases = [one.phase for one in asked]
    assert phases == sorted(phases, key=("before", "alarm", "after").index)
    assert phases.count("after") == EACH
    alarm = asked[phases.index("alarm")]
    assert (alarm.lane, alarm.reason, alarm.by_forecast) == ("standard", "backpressure", True)
    assert alarm.tightening >= 0.3
    assert alarm.retry_after_s is not None
    assert all(one.reason is None for one in asked if one.phase != "alarm")
    assert [one.phase for one in shown(asked)][:EACH] == ["before"] * EACH


def test_the_replica_is_filled_to_where_the_least_tightening_matters() -> None:
    tokens = {lane: requests * 250 for lane, requests in HELD_REQUESTS.items()}
    held = sum(tokens.values())
    pressure, least = held / RULES.capacity, 0.3
    assert RULES.hard_reject_above - RULES.hard_reject_cut * least < pressure < RULES.hard_reject_above
    assert tokens["standard"] + tokens["batch"] + 250 <= 0.6 * RULES.capacity
    assert held + 250 <= RULES.capacity


def test_the_service_stops_with_its_block_and_frees_its_port(bundle: Path) -> None:
    with serving(bundle, Settings(), PlayedClock(START_US), 0) as client:
        assert client.get("/healthz").json() == {"alive": True}
        url = client.base_url
    assert "service" not in [thread.name for thread in threading.enumerate()]
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/healthz")


def test_a_port_in_use_is_said(bundle: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(InputError, match=rf"127\.0\.0\.1:{port} can't be listened on"),
            serving(bundle, Settings(), PlayedClock(START_US), port),
        ):
            pass
