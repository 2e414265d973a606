"""ASGI apps on a port of their own, and waiting for what must come."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn


def until(look: Callable[[], Any]) -> Any:
    """What ``look`` finds as soon as it finds something."""
    deadline_s = time.monotonic() + 60
    while not (found := look()):
        assert time.monotonic() < deadline_s, "it did not happen"
        time.sleep(0.005)
    return found


@contextlib.contextmanager
def running(app: Any) -> Iterator[int]:
    """Serve an ASGI app from a thread; yields its port."""
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, log_config=None, ws="none", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        until(lambda: server.started or not thread.is_alive())
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(30)
        listening.close()
