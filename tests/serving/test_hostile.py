"""Whatever bytes a client sends to a running service: an answer below 500 or a closed connection, soon."""

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.serving.test_live_process import EDGE, OPS, Live, live

ASK = b'{"prompt_tokens":5}'
JSON = b"content-type: application/json\r\n"
HEAD = b"POST /v1/admit HTTP/1.1\r\nhost: x\r\nx-tidegate-key: " + EDGE.encode() + b"\r\n"
SIZED = HEAD + JSON + b"content-length: %d\r\n" % len(ASK)
CHUNKED = HEAD + JSON + b"transfer-encoding: chunked\r\n\r\n"
MIB = 1024 * 1024


@pytest.fixture(scope="module")
def service(
    tmp_path_factory: pytest.TempPathFactory, bundle_folder: Callable[[float | None], Path]
) -> Iterator[Live]:
    with live(tmp_path_factory.mktemp("live"), "--bundle", str(bundle_folder(None))) as running:
        yield running


def sent(service: Live, *parts: bytes) -> bytes:
    """What comes back for bytes of which the last are followed by silence."""
    with socket.create_connection(("127.0.0.1", service.port), timeout=20) as connection:
        got = b""
        try:
            for part in parts:
                connection.sendall(part)
            while b"\r\n\r\n" not in got and (more := connection.recv(65_536)):
                got += more
        except ConnectionError:
            pass  # it hung up before all was sent
    return got


def resident_bytes(service: Live) -> int:
    pages = int(Path(f"/proc/{service.process.pid}/statm").read_text().split()[1])
    return pages * 4096


@pytest.mark.parametrize(
    ("parts", "statuses"),
    [
        ([SIZED, b"\r\n", ASK], {200}),
        ([SIZED, b"content-length: 5\r\n\r\n", ASK], {400}),
        ([HEAD, JSON, b"content-length: -1\r\n\r\n"], {400}),
        ([HEAD, JSON, b"content-length: +19\r\n\r\n", ASK], {400}),
        ([HEAD, JSON, b"content-length: " + b"9" * 5_000 + b"\r\n\r\n"], {400, 413}),
        ([HEAD, JSON, b"content-length: 99999999999999999\r\n\r\n"], {413}),
        ([CHUNKED, *[b"10000\r\n" + b"a" * 65_536 + b"\r\n"] * 200], {413}),
        ([CHUNKED, b"1;" + b"a" * 4 * MIB], {400, 413}),
        ([CHUNKED, b"13\r\n", ASK, b"\r\n0\r\n", b"x-t: aaaaaaaaaaaaaaaa\r\n" * 100_000], {400, 431}),
        ([SIZED, *[b"x-%d: y\r\n" % number for number in range(20_000)], b"\r\n"], {400, 431}),
        ([SIZED, b"x-a: ", *[b"a" * MIB] * 40], {400, 431}),
        ([b"GET /", *[b"a" * MIB] * 40], {400, 414}),
        ([b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n"], {414}),
        ([SIZED, b"x-a: a\0b\r\n\r\n", ASK], {400}),
        ([SIZED, b"x-a: a\rb\r\n\r\n", ASK], {400}),
        ([b"GET /%ff%00%zz HTTP/1.1\r\nhost: x\r\n\r\n"], {401}),
        ([b"GET /metrics?key=" + EDGE.encode() + b" HTTP/1.1\r\nhost: x\r\n\r\n"], {401}),
        ([b"HEAD /v1/admit HTTP/1.1\r\nhost: x\r\n\r\n"], {401}),
        ([b"OPTIONS * HTTP/1.1\r\nhost: x\r\n\r\n"], {401}),
        ([b"BREW /v1/admit HTTP/1.1\r\nhost: x\r\nx-tidegate-key: " + EDGE.encode() + b"\r\n\r\n"], {405}),
        ([b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc" * 10 + b"\r\n\r\n"], {400}),
        ([b"GET /healthz\r\n\r\n"], {400}),
        ([HEAD, JSON, b"content-length: 40000\r\n\r\n", b'{"a":' * 8_000], {422}),
        ([HEAD, JSON, b"content-length: 25\r\n\r\n", b'{"prompt_tokens":  1e999}'], {422}),
    ],
    ids=lambda told: repr(b"".join(told))[2:50] if isinstance(told, list) else "",
)
def test_no_bytes_make_it_fail_hang_or_grow(service: Live, parts: list[bytes], statuses: set[int]) -> None:
    before = resident_bytes(service)
    got = sent(service, *parts)
    # A connection that is hung up on while it still sends may lose the answer on its way.
    status = int(got.split()[1]) if got else None
    assert status in statuses or (status is None and sum(map(len, parts)) > 100_000 and min(statuses) >= 400)
    assert resident_bytes(service) - before < 24 * MIB
    assert sent(service, SIZED, b"\r\n", ASK).startswith(b"HTTP/1.1 200")  # and it serves on


@pytest.mark.parametrize(
    ("told", "kept"),
    [
        (b"trace-1", True),
        (b'a"}{"event":"forged', False),
        (b"a\\u000a", False),
        (b"\xff\xfe", False),
        (b"a" * 200, False),
        (b"a b", False),
    ],
)
def test_a_request_id_that_could_forge_a_log_line_is_replaced(service: Live, told: bytes, kept: bool) -> None:
    head = sent(service, SIZED, b"x-request-id: " + told + b"\r\n\r\n", ASK).partition(b"\r\n\r\n")[0]
    given = next(line for line in head.split(b"\r\n") if line.startswith(b"x-request-id: "))[14:]
    assert (given == told) is kept
    assert given.isascii()


def test_a_client_that_leaves_within_its_body_is_no_failure_of_the_service(service: Live) -> None:
    with socket.create_connection(("127.0.0.1", service.port), timeout=20) as connection:
        connection.sendall(SIZED + b"\r\n" + ASK[:5])
    with service.client(OPS) as client:
        assert client.get("/healthz").status_code == 200
    service.process.terminate()
    service.process.wait(timeout=30)
    service.reader.join(timeout=10)
    events = [json.loads(line)["event"] for line in service.log]
    assert "request failed" not in events
    assert "Exception in ASGI application\n" not in events
