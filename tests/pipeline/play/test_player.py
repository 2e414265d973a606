import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from data.errors import InputError
from pipeline.play.player import Seen, play
from pipeline.play.shots import Shot
from serving.clock import SystemClock
from serving.engine_sim.server import SimSettings
from tests.serving.engine_sim.sim_server import simulated

Answer = tuple[int, dict[str, str], bytes]
SAID = b'data: {"choices": [{"delta": {"content": " sea"}}]}\n\n'
USAGE = b'data: {"choices": [], "usage": {"completion_tokens": 1}}\n\n'
WHOLE: Answer = (200, {}, SAID + USAGE + b"data: [DONE]\n\n")


def run(url: str, *shots: Shot) -> list[Seen]:
    return asyncio.run(play(shots, url, "sim", SystemClock(), timeout_s=20.0))


def shot(at_s: float = 0.0, **headers: str) -> Shot:
    return Shot(at_s, "batch", headers, 20, None, "key")


@contextmanager
def endpoint(*answers: Answer) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """Answers in turn, and the headers of what was asked."""
    script, asked = list(answers), []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response_only(404)
            self.end_headers()

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            assert body["stream_options"] == {"include_usage": True}
            asked.append({name.lower(): value for name, value in self.headers.items()})
            status, headers, content = script.pop(0)
            self.send_response_only(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_address[1]}/v1", asked
    finally:
        http.shutdown()
        http.server_close()
        thread.join()


def test_calls_to_the_simulated_engine_are_served_in_full():
    with simulated(SimSettings(speed=100.0)) as sim:
        seen = run(
            f"{sim.url}/v1", *(shot(n * 0.01, **{"x-sim-output-tokens": str(n + 1)}) for n in range(8))
        )
        assert sim.engine.totals.output_tokens == sum(range(1, 9))
    assert [one.output_tokens for one in seen] == list(range(1, 9))
    assert {(one.end, one.tries, one.refusals) for one in seen} == {("served", 1, 0)}
    for one in seen:
        assert one.at_s <= one.sent_s < one.first_token_s <= one.ended_s


def test_a_refused_call_comes_back_when_it_is_told_to():
    with endpoint((429, {"retry-after": "1", "retry-after-ms": "60"}, b"{}"), WHOLE) as (url, asked):
        (seen,) = run(url, shot(tenant="acme"))
    assert (seen.end, seen.tries, seen.refusals, seen.output_tokens) == ("served", 2, 1, 1)
    assert seen.first_token_s - seen.sent_s >= 0.06
    assert [headers["x-stainless-retry-count"] for headers in asked] == ["0", "1"]
    assert {headers["tenant"] for headers in asked} == {"acme"}


@pytest.mark.parametrize(
    ("answers", "end", "tries", "refusals"),
    [
        ([(429, {"retry-after-ms": "5"}, b"")] * 3, "refused", 3, 3),
        ([(429, {"x-should-retry": "false"}, b"")], "refused", 1, 1),
        ([(503, {"retry-after-ms": "5"}, b"")] * 3, "overloaded", 3, 0),
        ([(400, {}, b"")], "failed", 1, 0),
        ([(200, {}, SAID)], "failed", 1, 0),
        ([(200, {}, b"data: {broken\n\n")], "failed", 1, 0),
    ],
)
def test_how_a_call_ends_is_told_apart(answers, end, tries, refusals):
    with endpoint(*answers) as (url, _):
        (seen,) = run(url, shot())
    assert (seen.end, seen.tries, seen.refusals) == (end, tries, refusals)


def test_nothing_is_played_to_an_address_where_no_one_is():
    with endpoint() as (url, _):
        pass
    with pytest.raises(InputError, match=r"Nothing answers at http.*/v1/models"):
        run(url, shot())


@pytest.mark.parametrize("url", ["127.0.0.1:8000/v1", "ftp://127.0.0.1/v1", "http://"])
def test_an_address_that_is_none_is_refused(url):
    with pytest.raises(InputError, match="--url must be an address"):
        run(url, shot())
