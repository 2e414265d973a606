"""Tidegate on a clock that reads the trace's time, so that schedules keep their place in hour and day."""

import sys
from dataclasses import replace
from pathlib import Path

import uvicorn

from models.bundle import Bundle
from serving import logs
from serving.app import create_app
from serving.clock import SystemClock
from serving.config.mapping import read_settings
from serving.server import listen

LOCAL = "127.0.0.1"
GRACE_S = 2


class TraceClock(SystemClock):
    """The system's clock, its wall time moved by ``ahead_us`` microseconds."""

    def __init__(self, ahead_us: int) -> None:
        super().__init__()
        self.ahead_us = ahead_us

    def wall_us(self) -> int:
        """Microseconds since the Unix epoch, in the time of the trace."""
        return super().wall_us() + self.ahead_us


def serve(bundle: Path, config: Path, state: Path, port: int, ext_proc: int, ahead_us: int) -> None:
    """Serve until SIGTERM: as `tidegate serve` does, but for the clock.

    Raises:
        InputError: when bundle, configuration, state or a port can't be used.

    """
    settings = replace(read_settings(config), state_file=state, lake=None, ext_proc=(LOCAL, ext_proc))
    app = create_app(Bundle.load(bundle), settings, TraceClock(ahead_us))
    logs.configure()
    with listen(LOCAL, port) as listening:
        options = uvicorn.Config(
            app, ws="none", log_config=None, access_log=False, timeout_graceful_shutdown=GRACE_S
        )
        uvicorn.Server(options).run(sockets=[listening])


if __name__ == "__main__":
    paths, numbers = [Path(word) for word in sys.argv[1:4]], [int(word) for word in sys.argv[4:7]]
    serve(paths[0], paths[1], paths[2], *numbers)
