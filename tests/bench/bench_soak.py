"""An hour of traffic at a service in five minutes: its memory must stay flat, and nothing may stay reserved.

    python tests/bench/bench_soak.py [--seconds N]

One service in a process of its own gets a stream of requests of ever new tenants, models, sessions and ids
over kept-alive connections. Most are settled, some are cancelled, some settled twice, some never. At the end
everything that was never settled has run out of its lease. Memory is that of the process, every five seconds;
its growth is that of the last quarter's median over the third quarter's.

All tables of the service are bounded, and fill in the first half. Those bounded by number, of 50,000 tenants
say, or 20,000 flows: they stop to grow after about 100,000 requests, so the first third has over three times
as many a second. Those bounded by time, such as that of sessions that were silent for under four minutes: the
service's clock goes twelve times as fast as ours.
"""

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from bench_serve import Client
from harness import ROOT, Check, report

GROWTH_TARGET, OPEN_TARGET = 1.02, 0
FILL_RATE_PER_S, RATE_PER_S = 1_000, 300
SPEED = 12.0
LOOK_EVERY_S = 5.0
LEASE_S = 2.0
"""Of the machine's clock, as all else here."""
PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / 2**20


class FastClock:
    """The machine's time since the start, made faster; it starts at the true hour."""

    def __init__(self) -> None:
        self._start_us, self._start_s = time.time_ns() // 1_000, time.monotonic()

    def wall_us(self) -> int:
        """Microseconds since the Unix epoch."""
        return self._start_us + int(self.monotonic_s() * 1e6)

    def monotonic_s(self) -> float:
        """Seconds of this clock since the start."""
        return (time.monotonic() - self._start_s) * SPEED

    async def sleep(self, seconds: float) -> None:
        """Wait for that long on this clock."""
        await asyncio.sleep(seconds / SPEED)


def serve(folder: str) -> None:
    """Serve on a free port, which is printed."""
    import uvicorn

    from models.bundle import Bundle
    from serving.app import create_app
    from serving.controller.rules import Rules
    from serving.settings import Settings

    listening = socket.create_server(("127.0.0.1", 0))
    settings = Settings(rules=Rules(capacity_tokens=2**30, lease_s=LEASE_S * SPEED))
    app = create_app(Bundle.load(Path(folder)), settings, FastClock())
    print(listening.getsockname()[1], flush=True)
    config = uvicorn.Config(app, log_config=None, access_log=False, timeout_keep_alive=600)
    uvicorn.Server(config).run(sockets=[listening])


def resident_mib(pid: int) -> float:
    """Memory of a process that is in RAM, MiB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_MIB


def due(since_s: float, seconds: float) -> int:
    """Requests that are to have been sent so long after the start.

    >>> due(10.0, 300.0), due(100.0, 300.0), due(110.0, 300.0)
    (10000, 100000, 103000)
    """
    fill_s = seconds / 3
    return int(FILL_RATE_PER_S * min(since_s, fill_s) + RATE_PER_S * max(0.0, since_s - fill_s))


async def life(client: Client, random: Random, number: int) -> None:
    """One request from asking to whatever end."""
    asked = {
        "tenant": f"tenant-{number}",
        "model": f"model-{number % 50}",
        "session": f"session-{number // 3}",
        "request_id": f"request-{number}",
        "lane": random.choice(["premium", "standard", "batch"]),
        "prompt_tokens": random.randrange(1, 4_000),
    }
    status, answer = await client.post("/v1/admit", asked)
    if status != 200:
        return
    reservation = {"reservation_id": answer["reservation_id"]}
    await asyncio.sleep(random.uniform(0.0, 1.0))
    end = random.random()
    settled = reservation | {"output_tokens": random.randrange(1, 900), "outcome": "served"}
    if end < 0.9:
        await client.post("/v1/settle", settled)
    elif end < 0.95:
        await client.post("/v1/cancel", reservation)
    elif end < 0.97:
        await client.post("/v1/settle", settled)
        await client.post("/v1/settle", settled)


async def soak(port: int, pid: int, seconds: float) -> dict[str, Any]:
    """Send the stream; memory over time, and what is still open after the last lease."""
    client, random = Client(port), Random(0)
    await client.open()
    memory_mib: list[float] = []
    running: set[asyncio.Task[None]] = set()
    start_s = time.monotonic()
    number = 0
    while (since_s := time.monotonic() - start_s) < seconds:
        if since_s >= len(memory_mib) * LOOK_EVERY_S:
            memory_mib.append(resident_mib(pid))
        while number < due(since_s, seconds):
            task = asyncio.create_task(life(client, random, number))
            running.add(task)
            task.add_done_callback(running.discard)
            number += 1
        await asyncio.sleep(0.005)
    await asyncio.gather(*running)
    await asyncio.sleep(LEASE_S + 2.0)  # some ticks later the last lease is over
    text = (await client.get("/metrics")).decode()
    line = next(line for line in text.splitlines() if line.startswith("tidegate_open_reservations "))
    return {"requests": number, "memory_mib": memory_mib, "open": float(line.split()[1])}


def main(seconds: float) -> None:
    """Measure, print, write var/bench/soak.json."""
    from tests.noise_bundle import noise_model, write_noise_bundle

    with tempfile.TemporaryDirectory() as name:
        write_noise_bundle(Path(name), noise_model(), None)
        command = [sys.executable, __file__, "--serve", name]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        try:
            seen = asyncio.run(soak(int(server.stdout.readline()), server.pid, seconds))
        finally:
            server.kill()
            server.wait()
    quarters = [float(np.median(part)) for part in np.array_split(seen["memory_mib"], 4)]
    growth = quarters[3] / quarters[2]
    checks = [
        Check("memory, MiB, last quarter / third", quarters[3], quarters[2], growth, GROWTH_TARGET, False),
        Check("reservations open at the end", seen["open"], None, seen["open"], OPEN_TARGET, False),
    ]
    facts = {"seconds": seconds, "quarters_mib": quarters, **seen}
    print(f"Written to {report('soak', checks, facts, ('fastapi', 'uvicorn'))}")
    print(json.dumps({"requests": seen["requests"], "quarters_mib": [round(mib, 1) for mib in quarters]}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=295.0, help="how long requests come")
    parser.add_argument("--serve", metavar="BUNDLE", help=argparse.SUPPRESS)
    told = parser.parse_args()
    if told.seconds < 4 * LOOK_EVERY_S:
        parser.error(
            f"--seconds must be at least {4 * LOOK_EVERY_S:g}, a look for each quarter; got {told.seconds:g}"
        )
    sys.path.insert(0, str(ROOT))
    serve(told.serve) if told.serve else main(told.seconds)
