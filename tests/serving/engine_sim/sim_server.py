"""A simulated engine behind a real socket."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import uvicorn

from serving.clock import SystemClock
from serving.engine_sim.core import EngineSim
from serving.engine_sim.server import SimSettings, build
from serving.server import listen


@dataclass(frozen=True)
class Sim:
    url: str
    engine: EngineSim

    def until_idle(self) -> None:
        """Wait until nothing runs or waits."""
        while self.engine.running or self.engine.waiting:
            time.sleep(0.005)


@contextmanager
def simulated(settings: SimSettings) -> Iterator[Sim]:
    app = build(settings, SystemClock())
    listening = listen("127.0.0.1", 0)
    config = uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        while not server.started:
            time.sleep(0.005)
        yield Sim(f"http://127.0.0.1:{listening.getsockname()[1]}", app.state.engine)
    finally:
        server.should_exit = True
        thread.join()
        listening.close()
