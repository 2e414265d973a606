"""Rows a second of POST /v1/telemetry with the lake on, and what a decision takes meanwhile.

    python tests/bench/bench_telemetry.py [--rows N]

The service runs as `tidegate serve` in a process of its own, held to one core; it reads, checks, counts and
commits, and answers when the rows are in the lake. Its clients share the other cores: two send bodies of
whole requests, half of them alone, to be timed, and half while a third asks to admit a request every 5 ms;
those decisions are timed, and others before anything is pushed, as a fact without a target: a core that is
filled with telemetry has little left. All rows are looked for in the lake at the end. Rows per second of the
service's CPU time are written down too: on a machine that does other work they tell what the core would do
alone.
"""

import argparse
import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
from harness import Check, report

from data.lake import Lake
from features.windows import NAMES
from models.bundle import write_bundle
from models.export import export
from models.forecaster import NONE, Examples, Settings, train

PACKAGES = ("polars", "duckdb", "duckdb-extension-ducklake", "fastapi", "uvicorn", "pydantic")
ROWS_TARGET_PER_S = 50_000
BODY_ROWS = 10_000
SENDERS = 2
IDLE_S = 3.0


def noise_bundle(folder: Path, examples: int = 64) -> None:
    """A bundle that is quick to train: what it forecasts doesn't matter here."""
    random = np.random.default_rng(0)
    features = random.normal(0.0, 1.0, (examples, len(NAMES))).astype(np.float32)
    onsets, peaks = random.integers(0, NONE + 1, examples), np.ones(examples, dtype=np.float32)
    model = train(Examples(features, onsets, peaks), Settings(members=1, hidden=8, epochs=2, batch=32))
    write_bundle(
        folder,
        export(model, features),
        scaler_mean=(0.0,) * len(NAMES),
        scaler_scale=(1.0,) * len(NAMES),
        training={
            "source": "noise",
            "data_sha256": "0" * 64,
            "first": "2026-01-01T00:00:00Z",
            "last": "2026-01-02T00:00:00Z",
            "requests": examples,
        },
        guard={
            "threshold": None,
            "effective_negatives": 0,
            "thinning_step": 1,
            "advisory_reason": "trained on noise",
        },
        metrics={},
        versions={},
    )


def bodies(rows: int) -> list[bytes]:
    """Whole requests of 200 tenants that ended just now, in bodies of `BODY_ROWS`."""
    now = datetime.now(UTC)
    times = [(now - timedelta(milliseconds=7 * n)).isoformat() for n in range(2_000)]
    lanes = ("premium", "standard", "batch")

    def row(n: int) -> str:
        return (
            f'{{"event": "request", "request_id": "chatcmpl-{n:016x}", "tenant": "tenant-{n % 200}", '
            f'"lane": "{lanes[n % 3]}", "model": "llama-3.3-70b", "prompt_tokens": {200 + n % 3_000}, '
            f'"cached_tokens": {n % 200}, "output_tokens": {n % 700}, "at": "{times[n % 1_000 + 1_000]}", '
            f'"finished_at": "{times[n % 1_000]}", "outcome": "served"}}'
        )

    return [
        "\n".join(map(row, range(first, min(first + BODY_ROWS, rows)))).encode()
        for first in range(0, rows, BODY_ROWS)
    ]


def push(port: int, parts: Sequence[bytes], failures: list[str]) -> None:
    """Send bodies one after the other over one connection."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    for body in parts:
        connection.request("POST", "/v1/telemetry", body, {"content-type": "application/x-ndjson"})
        answer = connection.getresponse()
        told = json.loads(answer.read())
        if answer.status != 200 or told["refused"] or told["duplicates"] or not told["stored"]:
            failures.append(f"{answer.status}: {str(told)[:300]}")


def ask(port: int, until: threading.Event, taken_ms: list[float]) -> None:
    """Ask to admit a request every 5 ms, and time each answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    body, headers = b'{"prompt_tokens": 10, "max_tokens": 1}', {"content-type": "application/json"}
    while not until.wait(0.005):
        start = time.perf_counter()
        connection.request("POST", "/v1/admit", body, headers)
        connection.getresponse().read()
        taken_ms.append(1e3 * (time.perf_counter() - start))


def started(folder: Path, core: int) -> tuple[subprocess.Popen[str], int]:
    """The service on one core, and its port."""
    command = [
        sys.executable,
        "-m",
        "pipeline.cli",
        "serve",
        "--port",
        "0",
        "--bundle",
        str(folder / "bundle"),
    ]
    process = subprocess.Popen(
        [*command, "--state", str(folder / "guard.json"), "--lake", str(folder / "lake")],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )
    assert process.stderr is not None
    port = json.loads(process.stderr.readline())["port"]
    for _ in range(300):
        try:
            http.client.HTTPConnection("127.0.0.1", port, timeout=5).request("GET", "/readyz")
            return process, port
        except ConnectionRefusedError:
            time.sleep(0.1)
    raise SystemExit("the service did not start")


def cpu_s(pid: int) -> float:
    """CPU time of a process so far, all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def pushed(port: int, parts: Sequence[bytes]) -> float:
    """Seconds until all bodies are answered."""
    failures: list[str] = []
    senders = [
        threading.Thread(target=push, args=(port, parts[n::SENDERS], failures)) for n in range(SENDERS)
    ]
    start = time.perf_counter()
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    taken_s = time.perf_counter() - start
    if failures:
        raise SystemExit(f"not every row was taken: {failures[0]}")
    return taken_s


def asked(port: int, meanwhile: Callable[[], object]) -> list[float]:
    """Milliseconds of decisions while something else goes on."""
    taken_ms: list[float] = []
    done = threading.Event()
    asking = threading.Thread(target=ask, args=(port, done, taken_ms))
    asking.start()
    try:
        meanwhile()
    finally:
        done.set()
        asking.join()
    return taken_ms


def main(rows: int) -> None:
    """Measure, print, write var/bench/telemetry.json."""
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        noise_bundle(folder / "bundle")
        process, port = started(folder, cores[0])
        os.sched_setaffinity(0, set(cores[1:]) or set(cores))
        try:
            idle_ms = asked(port, lambda: time.sleep(IDLE_S))
            parts = bodies(rows)
            alone, beside = parts[: len(parts) // 2], parts[len(parts) // 2 :]
            before_s = cpu_s(process.pid)
            taken_s = pushed(port, alone)
            used_s = cpu_s(process.pid) - before_s
            busy_ms = asked(port, lambda: pushed(port, beside))
            usage = Path(f"/proc/{process.pid}/status").read_text()
            process.send_signal(signal.SIGTERM)
            process.wait(60)
        finally:
            process.kill()
        with Lake(str(folder / "lake")) as lake:
            stored = lake.query("SELECT count(*) FROM lake.requests WHERE source = 'telemetry'").item()
    if stored != rows:
        raise SystemExit(f"{stored} of {rows} rows are in the lake")
    timed = BODY_ROWS * len(alone)
    speed = timed / taken_s
    checks = [
        Check("rows/s on one core, lake on", speed, None, speed, ROWS_TARGET_PER_S),
    ]
    facts = {
        "rows": rows,
        "bytes_a_row": round(sum(map(len, parts)) / rows),
        "body_rows": BODY_ROWS,
        "senders": SENDERS,
        "seconds": taken_s,
        "cpu_seconds": used_s,
        "rows_per_cpu_second": timed / used_s,
        "admit_ms": {
            state: dict(zip(("p50", "p99", "max"), np.percentile(ms, [50, 99, 100]).tolist(), strict=True))
            for state, ms in (("idle", idle_ms), ("busy", busy_ms))
        },
        "peak_mib": round(int(usage.split("VmHWM:")[1].split()[0]) / 1024),
    }
    print(json.dumps(facts, indent=2))
    print(report("telemetry", checks, facts, PACKAGES))
    sys.exit(0 if all(check.holds for check in checks) else 1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=400_000)
    main(parser.parse_args().rows)
