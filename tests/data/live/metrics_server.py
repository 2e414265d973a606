"""A real HTTP server that answers scrapes by a script."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True)
class Page:
    """An answer; `cut` announces bytes that it doesn't send, for `stall_s`; `wait_s` comes first."""

    body: str | bytes = ""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    cut: int = 0
    wait_s: float = 0.0
    stall_s: float = 0.0
    date_off_s: float = 0.0


class Server:
    """Where it listens, what it answers next, and what it was asked."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.pages: dict[str, Callable[[], Page]] = {}
        self.asked: list[tuple[str, dict[str, str]]] = []

    def url(self, path: str = "/metrics") -> str:
        return self.address + path

    def answer(self, *pages: Page | str, path: str = "/metrics") -> None:
        """Answer with these in turn, then with the last one."""
        script = [page if isinstance(page, Page) else Page(page) for page in pages]
        self.pages[path] = lambda: script.pop(0) if len(script) > 1 else script[0]


@contextmanager
def serving() -> Iterator[Server]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            server.asked.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
            page = server.pages.get(self.path, lambda: Page(status=404))()
            stop.wait(page.wait_s)
            body = page.body if isinstance(page.body, bytes) else page.body.encode()
            self.send_response_only(page.status)
            self.send_header("Date", self.date_time_string(time.time() + page.date_off_s))
            self.send_header("Content-Length", str(len(body) + page.cut))
            headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"} | page.headers
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            try:
                self.wfile.write(body)
            except OSError:  # the scraper has heard enough
                self.close_connection = True
            if page.cut:
                stop.wait(page.stall_s)
                self.close_connection = True

        def log_message(self, *_: object) -> None:
            pass

    stop = threading.Event()
    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    server = Server(f"http://127.0.0.1:{http.server_address[1]}")
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        stop.set()
        http.shutdown()
        http.server_close()
        thread.join()
