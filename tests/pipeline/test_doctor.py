"""What the doctor finds, on things that are really well or really broken."""

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import polars as pl
import pytest
from packaging.requirements import Requirement

from data.config import Target
from data.lake import Lake
from data.schema import POLARS_REQUESTS
from pipeline import doctor

# Of MLflow's own use of SQLAlchemy.
pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated")


@contextmanager
def engine(ahead_s: float = 0.0, status: int = 200, wait_s: float = 0.0) -> Iterator[str]:
    """Address of a metrics endpoint whose clock is ahead of ours."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            time.sleep(wait_s)
            self.send_response_only(status)
            self.send_header("date", format_datetime(datetime.now(UTC) + timedelta(seconds=ahead_s), True))
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def states(findings: Iterator[doctor.Finding]) -> list[tuple[str, str]]:
    return [(finding.subject, finding.state) for finding in findings]


def test_this_installation_is_whole() -> None:
    assert states(doctor.installation()) == [
        ("python", "ok"),
        ("packages", "ok"),
        ("training", "ok"),
        ("duckdb", "ok"),
    ]


@pytest.mark.parametrize(
    ("requirement", "extra", "fault"),
    [
        ("no-such-package>=1", "", "no-such-package is missing"),
        ("numpy>=999", "", "numpy must be >=999; got "),
        ("numpy>=1", "", None),
        ("numpy>=999; sys_platform == 'plan9'", "", None),
        ("no-such-package>=1; extra == 'train'", "", None),
        ("no-such-package>=1; extra == 'train'", "train", "no-such-package is missing"),
        ("no-such-package>=1", "train", None),
    ],
)
def test_a_requirement(requirement: str, extra: str, fault: str | None) -> None:
    found = doctor._unmet(Requirement(requirement), extra)
    assert found == fault if fault is None else (found or "").startswith(fault)


def test_the_clock_is_told_as_the_kernel_sees_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for error_s, state in ((None, "warning"), (0.01, "ok"), (16.0, "fault")):
        monkeypatch.setattr(doctor, "_clock_error_s", lambda error_s=error_s: error_s)
        assert states(doctor.clock()) == [("clock", state)]


def test_no_lake_yet_is_well_and_stays_so(tmp_path: Path) -> None:
    assert states(doctor.lake(str(tmp_path / "lake"))) == [("disk", "ok"), ("lake", "ok")]
    assert not (tmp_path / "lake").exists()


def test_a_lake_with_rows_from_the_future(tmp_path: Path) -> None:
    row = {"source": "edge", "request_id": "a", "prompt_tokens": 1}
    for hours, state in ((-1, []), (1, [("lake", "warning")])):
        with Lake(tmp_path) as opened:
            at = datetime.now(UTC) + timedelta(hours=hours)
            opened.append_requests(
                pl.DataFrame([row | {"request_id": str(hours), "arrived_at": at}], schema=POLARS_REQUESTS)
            )
        assert states(doctor.lake(str(tmp_path))) == [("disk", "ok"), ("lake", "ok"), *state]


def test_a_damaged_lake(tmp_path: Path) -> None:
    (tmp_path / "catalog.sqlite").write_bytes(b"not a catalog" * 1000)
    assert states(doctor.lake(str(tmp_path))) == [("disk", "ok"), ("lake", "fault")]


def test_a_lake_whose_database_is_down() -> None:
    location = "postgresql://nobody:secret@127.0.0.1:1/none"
    (finding,) = doctor.lake(location)
    assert (finding.state, "start the database" in finding.mend) == ("fault", True)
    assert "secret" not in finding.what


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for free, state in ((2 << 30, "ok"), (1 << 29, "warning"), (1 << 20, "fault")):
        usage = lambda _, free=free: type("Usage", (), {"free": free})  # noqa: E731
        monkeypatch.setattr(doctor.shutil, "disk_usage", usage)
        assert states(doctor.lake(str(tmp_path / "none")))[0] == ("disk", state)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, ["ok"]),
        ({"ahead_s": 60.0}, ["ok", "warning"]),
        ({"ahead_s": -60.0}, ["ok", "warning"]),
        ({"status": 500}, ["fault"]),
        ({"wait_s": 0.6}, ["warning"]),
        ({"wait_s": 1.2}, ["fault"]),
    ],
    ids=str,
)
def test_a_target(facts: dict[str, float], expected: list[str]) -> None:
    with engine(**facts) as url:  # type: ignore[arg-type]
        found = list(doctor.scrape_target(Target(name="pool", url=url, timeout_s=1.0)))
    assert [finding.state for finding in found] == expected
    assert all(finding.mend for finding in found if finding.state != "ok")
    if facts.get("ahead_s") == 60.0:
        assert "ahead of this machine's" in found[1].what


def test_a_target_that_is_down() -> None:
    found = doctor.scrape_target(Target(name="pool", url="http://127.0.0.1:1/metrics"))
    assert states(found) == [("target pool", "fault")]


def test_a_folder_that_is_no_bundle(tmp_path: Path) -> None:
    assert states(doctor.served_model(tmp_path)) == [("bundle", "fault")]


def test_a_store_that_is_not_there(tmp_path: Path) -> None:
    assert states(doctor.model_store(f"sqlite:///{tmp_path}/none.db")) == [("model store", "ok")]
    assert states(doctor.model_store("http://127.0.0.1:1")) == [("model store", "fault")]
    (tmp_path / "broken.db").write_bytes(b"no database" * 1000)
    assert states(doctor.model_store(f"sqlite:///{tmp_path}/broken.db")) == [("model store", "fault")]


def test_a_real_mlflow_server(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--port", str(port), "--workers", "1"]
    store = [
        "--backend-store-uri",
        f"sqlite:///{tmp_path}/mlflow.db",
        "--artifacts-destination",
        str(tmp_path),
    ]
    with (tmp_path / "log").open("w") as log, subprocess.Popen(
        [*command, *store], stdout=log, stderr=log, start_new_session=True
    ) as server:  # fmt: skip
        try:
            address = f"http://127.0.0.1:{port}"
            for _ in range(600):
                try:
                    if httpx.get(f"{address}/health").is_success:
                        break
                except httpx.HTTPError:
                    time.sleep(0.1)
            (finding,) = doctor.model_store(address)
            assert (finding.state, finding.what) == ("ok", f"{address} answers; 1 experiments")
        finally:
            server.terminate()
            server.wait()


def test_the_command_fails_only_on_faults(tmp_path: Path) -> None:
    def run(*arguments: str) -> tuple[int, str]:
        command = [
            sys.executable,
            "-m",
            "pipeline.cli",
            "doctor",
            "--lake",
            str(tmp_path / "lake"),
            *arguments,
        ]
        store = ["--tracking", f"sqlite:///{tmp_path}/none.db"]
        done = subprocess.run([*command, *store], capture_output=True, text=True)
        return done.returncode, done.stdout

    code, out = run("--json")
    assert code == 0
    assert {finding["subject"] for finding in json.loads(out)} >= {"python", "clock", "lake", "model store"}
    (tmp_path / "c.yaml").write_text('telemetry: {scrape: [{name: gone, url: "http://127.0.0.1:1/metrics"}]}')
    code, out = run("--config", str(tmp_path / "c.yaml"))
    assert code == 1
    assert "target gone" in out
    assert "→ see that the engine runs" in out
