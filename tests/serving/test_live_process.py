"""The service in a process of its own: swaps under load, keys, slow clients, an orderly stop."""

import json
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from models.bundle import MANIFEST_FILE, MODEL_FILE, Bundle
from models.guard.guard import Guard
from serving.forecast.guard_state import guard_state, save

EDGE, OPS = "edge-" + "e" * 40, "ops-" + "o" * 40
FOLDER = Callable[[float | None], Path]


class Live:
    """A running service and everything that it logged."""

    def __init__(self, folder: Path, *options: str) -> None:
        keys = folder / "keys"
        keys.write_text(f"edge admit,telemetry {EDGE}\nops control,read {OPS}\n")
        keys.chmod(0o600)
        command = [sys.executable, "-m", "pipeline.cli", "serve", "--port", "0", "--lake", ""]
        command += ["--state", str(folder / "guard.json"), "--keys", str(keys), *options]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        self.log = [self.process.stderr.readline()]
        self.port = json.loads(self.log[0])["port"]
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        self.until(lambda client: client.get("/healthz").status_code == 200)

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.log += self.process.stderr.readlines()

    def client(self, key: str) -> httpx.Client:
        headers = {"authorization": f"Bearer {key}"}
        return httpx.Client(base_url=f"http://127.0.0.1:{self.port}", headers=headers, timeout=30)

    def until(self, wanted: Callable[[httpx.Client], bool]) -> None:
        with self.client(OPS) as client:
            for _ in range(300):
                try:
                    if wanted(client):
                        return
                except httpx.TransportError:
                    pass
                time.sleep(0.1)
        raise AssertionError("never")


@contextmanager
def live(folder: Path, *options: str) -> Iterator[Live]:
    service = Live(folder, *options)
    try:
        yield service
    finally:
        service.process.kill()
        service.process.wait()
        service.reader.join(timeout=10)
        assert service.process.stderr is not None
        service.process.stderr.close()


@pytest.fixture
def root(tmp_path: Path, bundle_folder: FOLDER, other_bundle_folder: FOLDER) -> Path:
    for name, folder in (("a", bundle_folder(1.0)), ("b", other_bundle_folder(2.0))):
        shutil.copytree(folder, tmp_path / "bundles" / name)
    return tmp_path / "bundles"


def cut(root: Path, name: str, file: str, share: float) -> None:
    """A bundle one of whose files ends early."""
    shutil.copytree(root / "b", root / name)
    whole = (root / name / file).read_bytes()
    (root / name / file).write_bytes(whole[: int(share * len(whole))])


def spent_guard(path: Path, bundle: Bundle) -> dict[str, object]:
    """A guard on disk that has earned and spent budget and whose wire is crossed; what its report says."""
    guard = Guard.start(bundle.manifest.guard)
    now_s = int(time.time()) // 5 * 5 - 600
    for t_s in range(now_s - 10_000, now_s, 5):
        guard.settle(t_s, negative=True)
    assert all(guard.ledger.charge(now_s + 5 * tick) for tick in range(3))
    assert guard.wire is not None
    guard.wire.tripped = True
    save(path, guard_state(bundle.version, guard))
    return {"charges": 3, "remaining_alarm_ticks": guard.ledger.remaining()}


def test_swaps_and_broken_bundles_under_load_fail_no_request_and_reset_no_guard(
    tmp_path: Path, root: Path
) -> None:
    bundles = [Bundle.load(root / name) for name in "ab"]
    versions = [bundle.version for bundle in bundles]
    for part in range(25):
        cut(root, f"manifest-{part}", MANIFEST_FILE, part / 25)
        cut(root, f"model-{part}", MODEL_FILE, part / 25)
    shutil.copytree(root / "b", root / "incompatible")
    manifest = json.loads((root / "b" / MANIFEST_FILE).read_text()) | {
        "feature_spec_hash": "0123456789abcdef"
    }
    (root / "incompatible" / MANIFEST_FILE).write_text(json.dumps(manifest))
    current = root / "current"
    current.symlink_to("a")
    spent = spent_guard(tmp_path / "guard.json", bundles[0])
    done = threading.Event()

    def load(service: Live) -> Counter[int]:
        seen: Counter[int] = Counter()
        with service.client(EDGE) as client:
            while not done.is_set():
                answer = client.post("/v1/admit", json={"prompt_tokens": 10, "lane": "premium"})
                seen[answer.status_code] += 1
                if answer.status_code == 200:
                    told = {"reservation_id": answer.json()["reservation_id"], "outcome": "served"}
                    seen[client.post("/v1/settle", json=told).status_code] += 1
        return seen

    def swaps(client: httpx.Client, result: str) -> float:
        line = f'tidegate_bundle_swaps_total{{result="{result}"}} '
        return float(client.get("/metrics").text.partition(line)[2].partition("\n")[0] or "nan")

    def point(name: str) -> None:
        (root / "next").symlink_to(name)
        (root / "next").rename(current)

    def guard(client: httpx.Client) -> tuple[dict[str, object], bool]:
        report = client.get("/v1/report").json()
        return {name: report["ledger"][name] for name in spent}, report["retrain"]

    with (
        live(tmp_path, "--bundle", str(current), "--bundles", str(root), "--watch-bundle") as service,
        ThreadPoolExecutor(4) as pool,
        service.client(OPS) as client,
    ):
        loads = [pool.submit(load, service) for _ in range(4)]
        try:
            service.until(lambda client: swaps(client, "unchanged") == 1)  # the watched folder was looked at
            assert guard(client) == (spent, True)
            for turn, name in enumerate("bababa"):
                answer = client.post("/v1/bundle", json={"name": name}).json()
                assert (answer["bundle"], answer["changed"]) == (versions[(turn + 1) % 2], True)
                assert guard(client) == (spent, name == "a")
            for part in range(25):
                for kind, file in (("manifest", MANIFEST_FILE), ("model", MODEL_FILE)):
                    refused = client.post("/v1/bundle", json={"name": f"{kind}-{part}"})
                    assert refused.status_code == 422
                    assert file in refused.json()["detail"]
            refused = client.post("/v1/bundle", json={"name": "incompatible"})
            assert (refused.status_code, "retrain" in refused.json()["detail"]) == (422, True)
            assert client.get("/readyz").json()["bundle"] == versions[0]
            assert swaps(client, "loaded") == 6
            assert swaps(client, "refused") == 51

            point("b")
            service.until(lambda client: client.get("/readyz").json()["bundle"] == versions[1])
            point("model-12")
            service.until(lambda client: swaps(client, "refused") == 52)
            assert client.get("/readyz").json()["bundle"] == versions[1]
            assert guard(client) == (spent, False)
            assert "tidegate_tick_failures_total 0.0" in client.get("/metrics").text
        finally:
            done.set()
        seen = sum((load.result() for load in loads), Counter[int]())
    assert set(seen) == {200}
    assert seen[200] > 50


def test_a_stop_drains_and_nothing_that_was_logged_holds_a_key_or_a_tenant(
    tmp_path: Path, root: Path
) -> None:
    current = root / "current"
    current.symlink_to("a")
    options = ["--bundle", str(current), "--watch-bundle", "--drain-s", "2"]
    guess = "guess-" + "g" * 40
    with live(tmp_path, *options) as service:
        with service.client(EDGE) as edge, service.client(guess) as stranger, service.client(OPS) as ops:
            ask = {"prompt_tokens": 10, "tenant": "secret-tenant"}
            held = edge.post("/v1/admit", json=ask, headers={"x-request-id": "mine-1"})
            assert held.headers["x-request-id"] == "mine-1"
            assert edge.post("/v1/admit", json=ask | {"lane": EDGE}).status_code == 422
            assert stranger.post("/v1/admit", json=ask).status_code == 401
            assert edge.post("/v1/bundle", json={"name": "b"}).status_code == 403
            assert edge.get("/metrics").status_code == 403
            (root / "next").symlink_to("b")
            (root / "next").rename(current)
            b = Bundle.load(root / "b").version
            service.until(lambda client: client.get("/readyz").json()["bundle"] == b)

            service.process.send_signal(signal.SIGTERM)
            service.until(lambda client: client.get("/readyz").status_code == 503)
            away = ops.get("/readyz")
            assert (away.headers["x-should-retry"], away.headers["connection"]) == ("true", "close")
            assert edge.post("/v1/admit", json=ask).status_code == 200
            told = {"reservation_id": held.json()["reservation_id"], "outcome": "served", "output_tokens": 5}
            assert edge.post("/v1/settle", json=told).json() == {"settled": True}
        assert service.process.wait(timeout=30) == 0
        service.reader.join(timeout=10)
        with pytest.raises(httpx.TransportError), service.client(OPS) as ops:
            ops.get("/healthz")
    state = json.loads((tmp_path / "guard.json").read_text())
    assert (state["bundle"], len(state["aside"])) == (b, 1)
    log = "".join(service.log)
    events = [json.loads(line)["event"] for line in service.log]
    assert {"call denied", "bundle loaded", "draining", "stopped with open reservations"} <= set(events)
    for secret in (EDGE, OPS, guess, "secret-tenant"):
        assert secret not in log


def test_keys_are_rotated_without_a_restart_and_a_broken_file_locks_nobody_out(
    tmp_path: Path, root: Path
) -> None:
    keys, new = tmp_path / "keys", "new-" + "n" * 40

    def put(text: str) -> None:
        (tmp_path / "next").write_text(text)
        (tmp_path / "next").chmod(0o600)
        (tmp_path / "next").replace(keys)

    def status(service: Live, key: str) -> int:
        with service.client(key) as client:
            return client.post("/v1/admit", json={"prompt_tokens": 10}).status_code

    ops = f"ops control,read {OPS}\n"
    with live(tmp_path, "--bundle", str(root / "a")) as service:
        assert [status(service, key) for key in (EDGE, new)] == [200, 401]
        put(f"{ops}edge admit {EDGE}\nedge admit {new}\n")
        service.until(lambda _: status(service, new) == 200)
        assert status(service, EDGE) == 200
        put(f"{ops}edge admit {new}\n")
        service.until(lambda _: status(service, EDGE) == 401)
        assert status(service, new) == 200
        put(f"{ops}edge admit {new[:20]}\n")
        service.until(lambda client: "tidegate_key_file_refused 1.0" in client.get("/metrics").text)
        assert status(service, new) == 200
        service.process.kill()
        service.reader.join(timeout=10)
    log = "".join(service.log)
    assert '"keys changed"' in log
    assert '"key file refused; the keys from before go on"' in log
    for secret in (EDGE, OPS, new, new[:20]):
        assert secret not in log


def test_a_head_that_never_ends_is_hung_up_on_and_others_are_served(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process, so that the patience is the test's: 0.2 s in place of 10 s."""
    import asyncio

    import uvicorn

    from serving.app import create_app
    from serving.clock import SystemClock
    from serving.http import draining
    from serving.settings import Settings

    monkeypatch.setattr(draining, "HEADERS_S", 0.2)

    async def run() -> tuple[bytes, bytes, int]:
        app = create_app(Bundle.load(root / "a"), Settings(), SystemClock())
        config = uvicorn.Config(app, http=draining.Impatient, ws="none", log_config=None)
        server = uvicorn.Server(config)
        with socket.create_server(("127.0.0.1", 0)) as listening:
            serving = asyncio.create_task(server.serve(sockets=[listening]))
            while not server.started:
                await asyncio.sleep(0.01)
            port = listening.getsockname()[1]
            silent, idle = await asyncio.open_connection("127.0.0.1", port)
            slow, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /healthz HTTP/1.1\r\nx-slow: ")
            ends = await silent.read(), await slow.read()
            for each in (idle, writer):
                each.close()
                await each.wait_closed()
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
                served = (await client.get("/healthz")).status_code
            server.should_exit = True
            await serving
        return *ends, served

    assert asyncio.run(run()) == (b"", b"", 200)
