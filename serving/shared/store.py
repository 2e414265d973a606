"""The shared store: a Redis or Valkey server, asked by one atomic script."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from data.errors import InputError
from serving.controller.pool import Ask, Grant
from serving.shared.settings import SharedSettings

SCRIPT = resources.files("serving.shared").joinpath("scripts/exchange.lua").read_text("utf-8")
PASSWORD = "TIDEGATE_SHARED_PASSWORD"  # the variable's name, no password

StoreError = (RedisError, OSError, TimeoutError)
"""What says that the store can't be reached or gives no answer in time."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the store said.

    Attributes:
        known: it knew this replica; False where the replica is new, was away for too long, or the store
            began anew: then tell it everything.
        overtaken: a later exchange came first; nothing was granted.
        live_replicas: replicas that hold a lease, this one included.
        store_time_us: the server's time, microseconds since the Unix epoch.
        recalled: pools of which others are short.
        grants: one for each ask.

    """

    known: bool
    overtaken: bool
    live_replicas: int
    store_time_us: int
    recalled: tuple[str, ...]
    grants: tuple[Grant, ...]


class Store:
    """One replica's connection; it connects when first asked.

    Keys share a hash tag, so a cluster keeps them in one slot. Neither the URL nor the password is logged.
    """

    def __init__(self, settings: SharedSettings, replica: str) -> None:
        self._settings = settings
        self._replica = replica
        self._calls = 0
        self._prefix = f"{{{settings.prefix}}}:"
        told: dict[str, Any] = {}
        if password := os.environ.get(PASSWORD):
            told["password"] = password
        timeout_s = max(0.05, settings.lease_s / 4)
        try:
            self._redis: Redis = Redis.from_url(
                settings.url,
                socket_timeout=timeout_s,
                socket_connect_timeout=timeout_s,
                retry=Retry(NoBackoff(), 0),
                decode_responses=True,
                **told,
            )
        except ValueError as error:
            raise InputError(
                "Setting shared.url can't be read; it must be like rediss://HOST:PORT/0."
            ) from error
        self._script = self._redis.register_script(SCRIPT)

    async def exchange(self, asks: Sequence[Ask], *, leaving: bool = False) -> Answer:
        """Tell what this replica uses, and take what it is granted.

        Raises:
            RedisError, OSError, TimeoutError: when the store can't be reached or takes too long.

        """
        self._calls += 1
        settings = self._settings
        keys = [f"{self._prefix}members", f"{self._prefix}recalls"]
        told: list[str | int] = [
            self._replica,
            self._calls,
            round(settings.lease_s * 1e6),
            settings.replicas,
            int(settings.mode == "exact"),
            int(leaving),
        ]
        for ask in asks:
            keys.append(f"{self._prefix}pool:{ask.name}")
            told += [
                ask.name,
                ask.length_s * 1_000_000,
                int(ask.sliding),
                ask.limit_tokens,
                ask.burst_tokens,
                ask.period,
                ask.used_tokens,
                ask.keep_tokens,
                ask.need_tokens,
                ask.want_tokens,
                int(ask.carries),
            ]
        return _read(await self._script(keys=keys, args=told))

    async def close(self) -> None:
        """Close the connection."""
        await self._redis.aclose()


def _read(told: list[Any]) -> Answer:
    """The script's flat answer.

    >>> _read([1, 4, 1_700_000_000_000_000, 1, "held:rest", 250, 1_000, 0, 0]).grants
    (Grant(room_tokens=250, reachable_tokens=1000, elsewhere_tokens=0, contended=False),)
    """
    state, live, time_us, recalls = (int(number) for number in told[:4])
    recalled, numbers = told[4 : 4 + recalls], told[4 + recalls :]
    grants = tuple(
        Grant(room, reachable, elsewhere, bool(contended))
        for room, reachable, elsewhere, contended in zip(*[iter(numbers)] * 4, strict=True)
    )
    return Answer(state == 1, state == -1, live, time_us, tuple(recalled), grants)
