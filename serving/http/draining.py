"""An orderly stop, and clients that take too long to ask: what the service adds to uvicorn."""

import asyncio
import logging
import signal
import threading
import time
from types import FrameType

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from serving.service import Service

log = logging.getLogger("tidegate")

HEADERS_S = 10.0
"""A request's head has this long to come whole; uvicorn itself would wait for ever."""


class Drain:
    """What a signal to stop does; install it as a uvicorn server's ``handle_exit``.

    SIGTERM drains: for ``drain_s`` the service goes on answering, admits and settlements too, while /readyz
    says 503, so that whoever sends requests goes elsewhere and settles what it holds. Then the server stops.
    Another signal, or SIGINT, stops it at once.
    """

    def __init__(self, server: uvicorn.Server, service: Service, drain_s: float) -> None:
        self._stop = server.handle_exit
        self._service = service
        self._drain_s = drain_s

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Take a signal."""
        if number != signal.SIGTERM or self._service.draining or self._drain_s <= 0:
            self._service.draining = True
            self._stop(number, frame)
            return
        self._service.draining = True
        # In a thread: the handler may have interrupted the event loop, or a line that was being logged.
        threading.Thread(target=self._stop_later, args=(number,), daemon=True).start()

    def _stop_later(self, number: int) -> None:
        log.info("draining", extra={"fields": {"drain_s": self._drain_s}})
        time.sleep(self._drain_s)
        self._stop(number, None)


class Impatient(H11Protocol):
    """HTTP/1.1 whose connections are closed when a request's head takes over `HEADERS_S` to come."""

    _give_up: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start waiting for the first head."""
        super().connection_made(transport)
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        """Take bytes; those that leave a head unfinished don't start the wait anew."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting()
        elif self._give_up is None and self.conn.trailing_data[0]:
            self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait_for_head(self) -> None:
        self._give_up = self.loop.call_later(HEADERS_S, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._give_up is not None:
            self._give_up.cancel()
            self._give_up = None
