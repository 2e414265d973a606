import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from data.errors import InputError
from data.lake import Lake
from serving.server import listen, serve
from serving.settings import Settings

FORBIDDEN = {"torch", "lightning", "mlflow", "sklearn", "pandas", "lightgbm", "onnx", "matplotlib", "scipy"}
BUNDLE = Callable[[float | None], Path]


def test_the_service_starts_without_the_training_stack() -> None:
    code = "import sys, serving.app, serving.server; print(*{name.split('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "serving" in loaded.split()
    assert FORBIDDEN & set(loaded.split()) == set()


def start(bundle: Path, state: Path, *options: str) -> tuple[subprocess.Popen[str], str]:
    """The service in a process of its own, by its command; its first log line names the port."""
    command = [sys.executable, "-m", "pipeline.cli", "serve", "--port", "0", "--drain-s", "0"]
    process = subprocess.Popen(
        [*command, "--bundle", str(bundle), "--state", str(state), *options],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    line = json.loads(process.stderr.readline())
    assert line["event"] == "listening"
    return process, f"http://127.0.0.1:{line['port']}"


def test_the_command_serves_stops_on_sigterm_and_leaves_its_state(
    bundle_folder: BUNDLE, tmp_path: Path
) -> None:
    state, lake = tmp_path / "serve" / "guard.json", tmp_path / "lake"
    config = tmp_path / "tidegate.yaml"
    config.write_text(f"telemetry: {{lake: {lake}}}")
    process, url = start(bundle_folder(None), state, "--config", str(config), "--ext-proc-port", "0")
    try:
        with httpx.Client(base_url=url) as client:
            for _ in range(100):
                try:
                    ready = client.get("/readyz").json()
                    break
                except httpx.TransportError:
                    time.sleep(0.1)
            assert ready["ready"]
            admitted = client.post("/v1/admit", json={"prompt_tokens": 10, "tenant": "secret-tenant"}).json()
            settled = client.post(
                "/v1/settle",
                json={"reservation_id": admitted["reservation_id"], "output_tokens": 5, "outcome": "served"},
            )
            assert settled.json() == {"settled": True}
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 0, log
    assert json.loads(state.read_text())["version"] == 1
    with Lake(str(lake)) as opened:
        for table in ("requests", "decisions", "outcomes"):
            assert opened.query(f"SELECT count(*) FROM lake.{table} WHERE source = 'tidegate'").item() == 1
    lines = [json.loads(line) for line in log.splitlines()]
    assert all({"time", "level", "event"} <= set(line) for line in lines)
    assert "ext_proc listening" in [line["event"] for line in lines]
    assert "secret-tenant" not in log
    assert not [line for line in lines if line["level"] == "error"]


def test_an_address_in_use_is_one_sentence(bundle_folder: BUNDLE) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=rf"127\.0\.0\.1:{port} can't be listened on .* --port"):
            serve(bundle_folder(None), Settings(), "127.0.0.1", port)


def test_answers_are_not_held_back_by_nagles_algorithm() -> None:
    """asyncio switches it off for sockets that name their protocol only; else each answer waits 40 ms."""
    with listen("127.0.0.1", 0) as listening:
        assert listening.proto == socket.IPPROTO_TCP


def test_a_missing_bundle_is_exit_code_2(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pipeline.cli", "serve", "--bundle", str(tmp_path)],
        capture_output=True,
        text=True,
        env={**os.environ, "NO_COLOR": "1"},
    )
    assert done.returncode == 2
    assert "bundle.json can't be read" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_bundle_folder_that_is_none_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--bundles must be a folder; got .*nowhere"):
        serve(tmp_path, Settings(bundles=tmp_path / "nowhere"), "127.0.0.1", 0)
