"""A real redis-server on a free port, without persistence; one for each module."""

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator

import pytest
import redis


class Server:
    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.client = redis.Redis.from_url(self.url, decode_responses=True)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *options: str) -> None:
        command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", ""]
        self._process = subprocess.Popen(
            [*command, "--appendonly", "no", *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for _ in range(2_000):
            try:
                self.client.ping()
                return
            except redis.ConnectionError:
                time.sleep(0.005)
        raise RuntimeError("redis-server did not start")

    def stop(self) -> None:
        """Kill it: it says no word."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed")
    server = Server()
    server.start()
    yield server
    server.stop()
    server.client.close()


@pytest.fixture
def own() -> Iterator[Server]:
    """A server of the test's own, which it starts as it needs it."""
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed")
    server = Server()
    yield server
    server.stop()
    server.client.close()


@pytest.fixture
def store_url(server: Server) -> str:
    """An empty store."""
    server.client.flushall()
    return server.url
