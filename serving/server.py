"""Starting and stopping the service on a socket."""

import contextlib
import gc
import importlib.util
import ipaddress
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
from serving.http.draining import Drain, Impatient
from serving.settings import Settings

GRACE_S = 10
"""Requests that are being answered have this long to end after a signal to stop."""
DRAIN_S = 5.0
"""Whoever sends requests looks at /readyz a few times in this time."""

log = logging.getLogger("tidegate")


def serve(
    bundle: Path,
    settings: Settings,
    host: str,
    port: int,
    *,
    drain_s: float = DRAIN_S,
    insecure: bool = False,
) -> None:
    """Serve until SIGTERM or SIGINT, then save the guard's state and return.

    Args:
        bundle: folder of the bundle.
        settings: of the service.
        host: address to listen on.
        port: to listen on; 0 takes a free one.
        drain_s: how long everything is still answered after SIGTERM, while /readyz says 503.
        insecure: listen beyond loopback though anyone who reaches the port may then call it.

    Raises:
        InputError: when a bundle or its folder, the state or the address can't be used, or anyone could call.

    """
    if not insecure:
        check_reach(settings, host)
    if settings.bundles is not None and not settings.bundles.is_dir():
        raise InputError(
            f"--bundles must be a folder; got {settings.bundles}. Make it, or leave the option out."
        )
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
    config = uvicorn.Config(
        app,
        http=Impatient,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE_S,
    )
    server = uvicorn.Server(config)
    server.handle_exit = Drain(server, app.state.service, drain_s)  # type: ignore[method-assign, assignment]
    fields = {"host": host, "port": listening.getsockname()[1], "keys": len(settings.keys)}
    log.info("listening", extra={"fields": fields})
    server.run(sockets=[listening])


def check_reach(settings: Settings, host: str) -> None:
    """Refuse to be reached by anyone; a service without keys answers whoever is on this machine alone.

    Raises:
        InputError: when others could call without a key.

    """
    if not settings.keys and not loopback(host):
        raise InputError(
            f"Without keys the service listens on loopback only; got --host {host}. Give it --keys FILE, or "
            "say --insecure: then anyone who reaches the port may decide on requests and change the service."
        )


def loopback(host: str) -> bool:
    """Only this machine reaches the address.

    >>> [loopback(host) for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost", "0.0.0.0", "::", "db")]
    [True, True, True, True, False, False, False]
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


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
