import hashlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from data.catalogue import TRACES, PublicTrace, digest, fetch, find
from data.errors import InputError

BODY = bytes(range(256)) * 2_000


@dataclass
class Server:
    """A real HTTP server with one file, and what was asked of it."""

    address: str = ""
    ranges: bool = True
    cut_after: list[int] = field(default_factory=list)  # bytes sent before the connection breaks, per request
    status: int = 200
    asked: list[str | None] = field(default_factory=list)


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers["range"]
            state.asked.append(wanted)
            start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and state.ranges else 0
            if start >= len(BODY):
                self.send_error(416)
                return
            self.send_response(state.status if state.status != 200 else 206 if start else 200)
            self.send_header("content-length", str(len(BODY) - start))
            self.end_headers()
            sent = BODY[start:]
            self.wfile.write(sent[: state.cut_after.pop(0)] if state.cut_after else sent)

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        state.address = f"http://127.0.0.1:{http.server_port}/traces/t.csv"
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        yield state
        http.shutdown()
        thread.join()


def trace(server: Server, pin: str | None = "sha256:" + hashlib.sha256(BODY).hexdigest()) -> PublicTrace:
    return PublicTrace("t", server.address, pin, None, "CC0", "nobody")


def test_a_file_is_fetched_once(server: Server, tmp_path: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    path = fetch(trace(server), tmp_path / "new", progress=lambda got, total: seen.append((got, total)))
    assert path == tmp_path / "new" / "t.csv"
    assert path.read_bytes() == BODY
    assert seen[-1] == (len(BODY), len(BODY))
    assert fetch(trace(server), tmp_path / "new") == path
    assert server.asked == [None]
    assert [file.name for file in path.parent.iterdir()] == ["t.csv"]


def test_a_cut_connection_is_resumed(server: Server, tmp_path: Path) -> None:
    server.cut_after = [100_000, 50_000]
    assert fetch(trace(server), tmp_path).read_bytes() == BODY
    assert server.asked == [None, "bytes=100000-", "bytes=150000-"]


def test_what_has_arrived_stays_for_the_next_time(server: Server, tmp_path: Path) -> None:
    server.cut_after = [1_000] * 5
    with pytest.raises(InputError, match=r"can't be downloaded: .* fetch again to go on"):
        fetch(trace(server), tmp_path)
    assert (tmp_path / "t.csv.part").read_bytes() == BODY[:5_000]
    assert fetch(trace(server), tmp_path).read_bytes() == BODY
    assert server.asked[-1] == "bytes=5000-"


def test_a_server_without_ranges_starts_again(server: Server, tmp_path: Path) -> None:
    server.ranges = False
    server.cut_after = [100_000]
    assert fetch(trace(server), tmp_path).read_bytes() == BODY
    assert server.asked == [None, "bytes=100000-"]


def test_a_complete_part_is_only_verified(server: Server, tmp_path: Path) -> None:
    (tmp_path / "t.csv.part").write_bytes(BODY)
    assert fetch(trace(server), tmp_path).read_bytes() == BODY


def test_another_file_than_the_pinned_one_is_not_kept(server: Server, tmp_path: Path) -> None:
    got = hashlib.sha256(BODY).hexdigest()
    with pytest.raises(InputError, match=f"expected sha256 {'0' * 64}, got {got}"):
        fetch(trace(server, "sha256:" + "0" * 64), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_place_that_is_not_the_pinned_one_is_left_alone(server: Server, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("mine")
    with pytest.raises(InputError, match="is not the pinned file"):
        fetch(trace(server), tmp_path)
    assert (tmp_path / "t.csv").read_text() == "mine"
    assert server.asked == []


def test_a_file_without_a_pin_is_kept_as_it_came(server: Server, tmp_path: Path) -> None:
    server.cut_after = [100_000]
    (tmp_path / "t.csv.part").write_text("left by an earlier call")
    assert fetch(trace(server, pin=None), tmp_path).read_bytes() == BODY
    assert server.asked == [None, "bytes=100000-"]


def test_a_refusal_is_said(server: Server, tmp_path: Path) -> None:
    server.status = 404
    with pytest.raises(InputError, match="answers 404"):
        fetch(trace(server), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_nobody_listens(server: Server, tmp_path: Path) -> None:
    silent = PublicTrace("t", "http://127.0.0.1:9/t.csv", "sha256:0", None, "CC0", "nobody")
    with pytest.raises(InputError, match="can't be downloaded"):
        fetch(silent, tmp_path)


def test_git_blob_ids(tmp_path: Path) -> None:
    path = tmp_path / "hello"
    path.write_bytes(b"hello\n")
    assert digest(path, "git-blob") == "ce013625030ba8dba906f756967f9e9ca394464a"


def test_the_catalogue_is_consistent() -> None:
    names = [trace.name for trace in TRACES]
    assert len(set(names)) == len(names)
    lengths = {"sha256": 64, "git-blob": 40}
    for entry in TRACES:
        if entry.pin:
            kind, _, pin = entry.pin.partition(":")
            assert len(bytes.fromhex(pin)) * 2 == lengths[kind]
        assert entry.address.startswith("https://")
        assert find(entry.name) is entry
    with pytest.raises(InputError, match=r"trace must be one of azure-2023-code, .*; got 'azure'"):
        find("azure")
