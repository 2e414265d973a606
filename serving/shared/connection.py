"""The connection to the shared store: who it is, how it is secured, and where its slot of a cluster lies."""

import os
from typing import Any

from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from data.errors import InputError
from serving.http.keys import private_text
from serving.shared.settings import SharedSettings

PASSWORD = "TIDEGATE_SHARED_PASSWORD"  # the variable's name, no password
LEAST_TIMEOUT_S = 0.05


def connect(settings: SharedSettings, at: tuple[str, int] | None = None) -> Redis:
    """A client of the store; it connects when first asked, and tries once.

    The password comes from the environment, else from its file, else from the URL; it is read with each call,
    so that a changed file counts from the next connection on.

    Args:
        settings: where the store is.
        at: host and port of the node of a cluster that holds our keys, where that is known.

    Raises:
        InputError: when the URL or a file can't be read. No message repeats either.

    """
    timeout_s = max(LEAST_TIMEOUT_S, settings.lease_s / 4)
    told: dict[str, Any] = {
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "retry": Retry(NoBackoff(), 0),
        "decode_responses": True,
    }
    if password := _password(settings):
        told["password"] = password
    for name, file in (
        ("ssl_ca_certs", settings.ca_file),
        ("ssl_certfile", settings.cert_file),
        ("ssl_keyfile", settings.cert_key_file),
    ):
        if file is not None:
            if not os.access(file, os.R_OK):
                raise InputError(f"File {file}, which shared names for TLS, can't be read.")
            told[name] = str(file)
    try:
        pool: ConnectionPool = ConnectionPool.from_url(settings.url, **told)
    except ValueError as error:
        raise InputError("Setting shared.url can't be read; it must be like rediss://HOST:PORT/0.") from error
    if at is not None:
        pool.connection_kwargs.update(host=at[0] or pool.connection_kwargs.get("host"), port=at[1])
    return Redis.from_pool(pool)


def _password(settings: SharedSettings) -> str | None:
    if password := os.environ.get(PASSWORD):
        return password
    return None if settings.password_file is None else private_text(settings.password_file).strip()
