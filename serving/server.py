"""Starting and stopping the service on a socket."""

import contextlib
import gc
import importlib.util
import logging
import signal
import socket
from pathlib import Path

import uvicorn

from data.errors import InputError
from models.bundle import Bundle
from serving import logs
from serving.app import create_app
from serving.clock import SystemClock
from serving.settings import Settings

GRACE_S = 10
"""Requests that are being answered have this long to end after a signal to stop."""

log = logging.getLogger("tidegate")


def serve(bundle: Path, settings: Settings, host: str, port: int) -> None:
    """Serve until SIGTERM or SIGINT, then save the guard's state and return.

    Raises:
        InputError: when the bundle, the state or the address can't be used.

    """
    app = create_app(Bundle.load(bundle), settings, SystemClock())
    listening = listen(host, port)
    if settings.ext_proc is not None:
        with contextlib.ExitStack() as unless_it_can:
            unless_it_can.callback(listening.close)
            check_ext_proc(*settings.ext_proc)
            unless_it_can.pop_all()
    logs.configure()
    # What start-up made lives as long as the process: looking it through again would only pause decisions.
    gc.freeze()
    # uvicorn raises the signal again once it has shut down; an orderly stop is no failure.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    config = uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=GRACE_S)
    log.info("listening", extra={"fields": {"host": host, "port": listening.getsockname()[1]}})
    uvicorn.Server(config).run(sockets=[listening])


def check_ext_proc(host: str, port: int) -> None:
    """Tell at once, not once the app has started, that ext_proc can't be served.

    Raises:
        InputError: when gRPC is not installed, or the address can't be used.

    """
    if importlib.util.find_spec("grpc") is None:
        raise InputError("--ext-proc-port needs gRPC, which is not installed; pip install 'tidegate[envoy]'.")
    listen(host, port, option="--ext-proc-port").close()


def listen(host: str, port: int, option: str = "--port") -> socket.socket:
    """Open a listening socket; port 0 takes a free one. ``option`` is what an operator changes it with.

    Raises:
        InputError: when the address can't be used.

    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, asyncio turns Nagle's algorithm off; without, every answer took 40 ms more.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen()
    except (OSError, OverflowError) as error:
        listening.close()
        raise InputError(
            f"Address {host}:{port} can't be listened on ({error}); choose another with --host and {option}."
        ) from error
    return listening
