"""A trace played to a running service: its past in batches, then step by step on a clock that we move."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import polars as pl
import uvicorn
from numpy.typing import NDArray

from features.flows import known_at_us
from features.ticks import TICK_S
from models.bundle import Bundle
from serving.app import create_app
from serving.clock import ManualClock
from serving.server import listen
from serving.settings import Settings

US = 1_000_000
TICK_US = TICK_S * US
ROWS_A_POST = 10_000
PATIENCE_S = 120.0
"""Real time that an answer or a tick may take; far more than any needs, so that a fault ends in words."""


@dataclass(frozen=True, slots=True)
class Events:
    """What a gateway reports of a trace, in order of time.

    Attributes:
        at_us: when, microseconds since the Unix epoch, (n,).
        lines: the rows of POST /v1/telemetry as JSON, (n,).

    """

    at_us: NDArray[np.int64]
    lines: pl.Series

    def between(self, from_us: int, until_us: int) -> pl.Series:
        """Lines of the events in [from, until)."""
        first, last = np.searchsorted(self.at_us, [from_us, until_us]).tolist()
        return self.lines.slice(first, last - first)


def events(requests: pl.DataFrame) -> Events:
    """Each request's arrival, and its end where the trace knows one.

    Where a source gives an output but no time of finish, the end is put where features put it; one that gives
    an output but no outcome was served.

    >>> from datetime import UTC, datetime
    >>> from data.schema import POLARS_REQUESTS
    >>> row = {"request_id": "a", "arrived_at": datetime(2026, 1, 5, tzinfo=UTC), "prompt_tokens": 9}
    >>> events(pl.DataFrame([row], schema=POLARS_REQUESTS)).lines.to_list()
    ['{"event":"arrived","at":"2026-01-05T00:00:00.000000Z","request_id":"a","prompt_tokens":9}']
    """
    arrived = requests.select(
        pl.col("arrived_at").to_physical().alias("at_us"),
        _json(
            pl.lit("arrived").alias("event"),
            _instant(pl.col("arrived_at").to_physical()),
            *("request_id", "prompt_tokens", "tenant", "lane", "model", "session", "log_type"),
        ),
    )
    ended = requests.filter(pl.any_horizontal(pl.col("output_tokens", "outcome").is_not_null())).select(
        known_at_us().alias("at_us"),
        _json(
            pl.lit("finished").alias("event"),
            _instant(known_at_us()),
            pl.col("request_id"),
            pl.col("outcome").fill_null("served"),
            *("output_tokens", "cached_tokens"),
        ),
    )
    both = pl.concat([arrived, ended]).sort("at_us", maintain_order=True)  # an arrival before its own end
    return Events(both["at_us"].to_numpy(), both["line"])


def _instant(at_us: pl.Expr) -> pl.Expr:
    return pl.from_epoch(at_us, time_unit="us").dt.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").alias("at")


def _json(*columns: pl.Expr | str) -> pl.Expr:
    # A key with null says the same as no key, at a third more bytes.
    encoded = pl.struct(*columns).struct.json_encode()
    return encoded.str.replace_all(r',"[a-z_]+":null', "").alias("line")


@contextmanager
def serving(bundle: Path, settings: Settings, clock: ManualClock, port: int) -> Iterator[httpx.Client]:
    """Run the service on a local socket, on ``clock``, and give a client of it; stops it at the end.

    Raises:
        InputError: when the bundle or the port can't be used.

    """
    app = create_app(Bundle.load(bundle), settings, clock)
    with listen("127.0.0.1", port) as listening:
        config = uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=5)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, name="service")
        thread.start()
        try:
            url = f"http://127.0.0.1:{listening.getsockname()[1]}"
            with httpx.Client(base_url=url, timeout=PATIENCE_S) as client:
                yield client
        finally:
            server.should_exit = True
            thread.join()


class PlayedClock(ManualClock):
    """Time that the demo moves while the service, in a thread of its own, waits on it.

    A wait may end early, as its callers look at the time again: a move between such a look and the wait
    after it would otherwise be noticed only at the next move, and nobody moves on before it was.
    """

    async def sleep(self, seconds: float) -> None:
        """Wait a thousandth of a real second."""
        await asyncio.sleep(0.001)


class Player:
    """Plays events to a service, whose clock it moves.

    Attributes:
        accepted, refused: rows that the service took in and did not.
        forecast: what the service last said of itself, as GET /v1/forecast answers.

    """

    def __init__(self, client: httpx.Client, clock: ManualClock, told: Events) -> None:
        """``told`` starts with the first event that the service is to hear of: ticks count from it."""
        self.client = client
        self.clock = clock
        self.accepted = 0
        self.refused = 0
        self.forecast: dict[str, Any] = {}
        self._told = told
        self._origin_us = int(told.at_us[0])

    def history(self, progress: Callable[[float], None] = lambda share: None) -> None:
        """Post everything before now; the service ticks through it in the next step."""
        lines = self._told.between(0, self.clock.wall_us())
        for first in range(0, len(lines), ROWS_A_POST):
            self._post(lines.slice(first, ROWS_A_POST))
            progress(min(1.0, (first + ROWS_A_POST) / len(lines)))

    def step(self, seconds: float) -> dict[str, Any]:
        """Let that much time pass, with what was offered in it; returns the forecast after it."""
        now_us = self.clock.wall_us()
        # What comes in this step arrives in it, so it is told before the tick at its end closes it.
        self._post(self._told.between(now_us, now_us + round(seconds * US)))
        self.clock.advance(seconds)
        return self._wait()

    def _post(self, lines: pl.Series) -> None:
        if lines.is_empty():
            return
        answer = self.client.post("/v1/telemetry", content="\n".join(lines).encode())
        answer.raise_for_status()
        self.accepted += answer.json()["accepted"]
        self.refused += answer.json()["refused"]

    def _wait(self) -> dict[str, Any]:
        """Wait for the tick that is due now: the service ticks beside its requests."""
        since_us = self.clock.wall_us() - self._origin_us
        due = datetime.fromtimestamp((self._origin_us + since_us // TICK_US * TICK_US) / US, UTC)
        give_up_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < give_up_s:
            self.forecast = self.client.get("/v1/forecast").raise_for_status().json()
            at = self.forecast["tick_at"]
            waits = self.forecast["reason"] == "history is being replayed"  # in thin traffic, for 30 s
            if waits or self.forecast["state"] == "dead" or (at and datetime.fromisoformat(at) >= due):
                return self.forecast
        raise TimeoutError(f"The service made no tick in {PATIENCE_S:g} s; it says {self.forecast}.")
