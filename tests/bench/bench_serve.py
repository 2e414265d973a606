"""What the gate costs on the way of a request: as middleware in a server, and as a service over HTTP.

    python tests/bench/bench_serve.py [--requests N]

The middleware: an empty Starlette app is called in this process with and without it, by turns, and the
difference of the medians is its price. Both read a chat request of 1 KB and send a short answer that tells
its usage. The service: POST /v1/admit beside an empty FastAPI endpoint with the same models, each in a
process of its own, asked over kept-alive connections; by turns as fast as it goes, then at 1,000 requests/s,
where the time counts from the moment that a request was due. Leave the machine alone meanwhile: clients and
servers share its cores.
"""

import argparse
import asyncio
import gc
import json
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from harness import ROOT, Check, report
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message

from serving.clock import SystemClock
from serving.gateways.asgi import TidegateMiddleware
from serving.gateways.in_process import Configuration
from serving.http.messages import AdmitRequest, AdmitResponse

OVERHEAD_TARGET_US, THROUGHPUT_TARGET, P99_TARGET_MS = 60.0, 0.8, 5.0
RATE_PER_S = 1_000
CONNECTIONS, ROUNDS = 32, 6
BODY = json.dumps(
    {"model": "m", "messages": [{"role": "user", "content": "a" * 900}], "max_tokens": 256}
).encode()
ASK = json.dumps({"tenant": "acme", "lane": "premium", "prompt_tokens": 20, "max_tokens": 1}).encode()


def empty_app() -> Starlette:
    """Reads its body and answers as an engine does."""

    async def answer(request: Request) -> JSONResponse:
        await request.body()
        return JSONResponse(
            {"choices": [{"message": {"content": "Hello"}}], "usage": {"completion_tokens": 5}}
        )

    return Starlette(routes=[Route("/v1/chat/completions", answer, methods=["POST"])])


async def called_us(app: ASGIApp, calls: int) -> list[float]:
    """Microseconds of each call of an app."""
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(BODY)).encode())]
    headers += [(f"x-header-{number}".encode(), b"value") for number in range(8)]
    taken_us = []
    for _ in range(calls):
        scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": headers}
        scope |= {"query_string": b"", "root_path": "", "http_version": "1.1"}
        waiting: list[Message] = [{"type": "http.request", "body": BODY, "more_body": False}]

        async def receive(waiting: list[Message] = waiting) -> Message:
            return waiting.pop()

        async def send(message: Message) -> None:
            if message.get("status", 200) != 200:
                raise RuntimeError("a request of the benchmark was refused")

        start_ns = time.perf_counter_ns()
        await app(scope, receive, send)
        taken_us.append((time.perf_counter_ns() - start_ns) / 1e3)
    return taken_us


async def overhead(calls: int) -> dict[str, float]:
    """Medians in microseconds without and with the middleware."""
    apps: dict[str, ASGIApp] = {
        "bare_us": empty_app(),
        "guarded_us": TidegateMiddleware(empty_app(), Configuration(), SystemClock()),
    }
    taken_us: dict[str, list[float]] = {name: [] for name in apps}
    for app in apps.values():
        await called_us(app, 500)
    gc.collect()
    gc.freeze()
    for _ in range(ROUNDS * 4):
        for name, app in apps.items():
            taken_us[name] += await called_us(app, calls // (ROUNDS * 4))
    return {name: float(np.median(taken)) for name, taken in taken_us.items()}


def serve(kind: str, folder: str) -> None:
    """Serve one of the two apps on a free port, which is printed."""
    import uvicorn
    from fastapi import FastAPI

    listening = socket.create_server(("127.0.0.1", 0))
    if kind == "empty":
        app = FastAPI()
        said = {"reservation_id": "r-1", "lane": "premium", "expected_output_tokens": 1}
        said |= {"tightening": 0.0, "backpressure": 0.0, "lease_s": 120.0}

        @app.post("/v1/admit", response_model=AdmitResponse)
        async def admit(request: AdmitRequest) -> AdmitResponse:
            return AdmitResponse.model_validate(said)

    else:
        from models.bundle import Bundle
        from serving.app import create_app
        from serving.controller.rules import Rules
        from serving.settings import Settings

        # Nobody settles here, so the lease is short; one reservation is as cheap as another.
        settings = Settings(rules=Rules(capacity_tokens=2**30, lease_s=2.0))
        app = create_app(Bundle.load(Path(folder)), settings, SystemClock())
    gc.freeze()
    print(listening.getsockname()[1], flush=True)
    config = uvicorn.Config(app, log_config=None, access_log=False, timeout_keep_alive=600)
    uvicorn.Server(config).run(sockets=[listening])


def _post(path: str, body: bytes) -> bytes:
    head = b"POST %b HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % (path.encode(), len(body)) + body


class Client:
    """Asks one server over kept-alive connections."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.request = _post("/v1/admit", ASK)
        self.idle: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()

    async def open(self) -> None:
        """Open the connections."""
        for _ in range(CONNECTIONS):
            self.idle.put_nowait(await asyncio.open_connection("127.0.0.1", self.port))

    async def send(self, request: bytes) -> tuple[int, bytes]:
        """Status and body of the answer to a request as it goes over the wire."""
        reader, writer = connection = await self.idle.get()
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        body = await reader.readexactly(int(length.partition(b":")[2]))
        self.idle.put_nowait(connection)
        return int(head[9:12]), body

    async def ask(self) -> None:
        """One request to be let in, and its answer."""
        status, _ = await self.send(self.request)
        if status != 200:
            raise RuntimeError(f"the server answered {status}")

    async def post(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Status and answer to a body of JSON."""
        status, answer = await self.send(_post(path, json.dumps(body).encode()))
        return status, json.loads(answer)

    async def get(self, path: str) -> bytes:
        """Body of a page."""
        return (await self.send(b"GET %b HTTP/1.1\r\nhost: bench\r\n\r\n" % path.encode()))[1]

    async def per_s(self, requests: int) -> float:
        """Requests per second with all connections busy."""

        async def some() -> None:
            for _ in range(requests // CONNECTIONS):
                await self.ask()

        start_s = time.perf_counter()
        await asyncio.gather(*(some() for _ in range(CONNECTIONS)))
        return requests // CONNECTIONS * CONNECTIONS / (time.perf_counter() - start_s)

    async def paced_ms(self, requests: int) -> list[float]:
        """Milliseconds from when each request was due at `RATE_PER_S` to its answer."""
        taken_ms: list[float] = []

        async def one(due_s: float) -> None:
            await self.ask()
            taken_ms.append((time.perf_counter() - due_s) * 1e3)

        start_s, asking = time.perf_counter(), []
        for number in range(requests):
            due_s = start_s + number / RATE_PER_S
            if (left_s := due_s - time.perf_counter()) > 0:
                await asyncio.sleep(left_s)
            asking.append(asyncio.create_task(one(due_s)))
        await asyncio.gather(*asking)
        return taken_ms


async def over_http(requests: int, ports: dict[str, int]) -> dict[str, Any]:
    """Throughput of both servers by turns, and times at a steady rate."""
    clients = {name: Client(port) for name, port in ports.items()}
    for client in clients.values():
        await client.open()
        await client.per_s(20 * CONNECTIONS)
    per_s: dict[str, list[float]] = {name: [] for name in clients}
    for _ in range(ROUNDS):
        for name, client in clients.items():
            per_s[name].append(await client.per_s(requests // ROUNDS))
    paced = {
        name: np.percentile(await client.paced_ms(requests), [50, 99]) for name, client in clients.items()
    }
    return {
        "per_s": {name: float(np.median(rates)) for name, rates in per_s.items()},
        "ratios": [ours / empty for ours, empty in zip(per_s["service"], per_s["empty"], strict=True)],
        "paced_ms": {
            name: dict(zip(("p50", "p99"), row.tolist(), strict=True)) for name, row in paced.items()
        },
    }


def main(requests: int) -> None:
    """Measure, print, write var/bench/serve.json."""
    taken_us = asyncio.run(overhead(requests))
    sys.path.insert(0, str(ROOT))
    from tests.noise_bundle import noise_model, write_noise_bundle

    servers = []
    with tempfile.TemporaryDirectory() as name:
        write_noise_bundle(Path(name), noise_model(), None)
        try:
            ports = {}
            for kind in ("empty", "service"):
                command = [sys.executable, __file__, "--serve", kind, "--folder", name]
                servers.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT))
                ports[kind] = int(servers[-1].stdout.readline())
            seen = asyncio.run(over_http(requests, ports))
        finally:
            for server in servers:
                server.kill()
                server.wait()
    price_us = taken_us["guarded_us"] - taken_us["bare_us"]
    ratio, p99_ms = float(np.median(seen["ratios"])), seen["paced_ms"]["service"]["p99"]
    per_s = seen["per_s"]
    checks = [
        Check(
            "middleware, µs a request",
            taken_us["guarded_us"],
            taken_us["bare_us"],
            price_us,
            OVERHEAD_TARGET_US,
            at_least=False,
        ),
        Check(
            "/v1/admit / empty endpoint, requests/s",
            per_s["service"],
            per_s["empty"],
            ratio,
            THROUGHPUT_TARGET,
        ),
        Check(
            f"/v1/admit at {RATE_PER_S:,}/s, p99 ms",
            p99_ms,
            seen["paced_ms"]["empty"]["p99"],
            p99_ms,
            P99_TARGET_MS,
            at_least=False,
        ),
    ]
    facts = {"requests": requests, "connections": CONNECTIONS, "middleware": taken_us, **seen}
    path = report("serve", checks, facts, ("fastapi", "uvicorn", "starlette"))
    print(f"Written to {path}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=12_000, help="requests of each measurement")
    parser.add_argument("--serve", choices=("empty", "service"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    told = parser.parse_args()
    if told.serve:
        serve(told.serve, told.folder)
    else:
        main(told.requests)
