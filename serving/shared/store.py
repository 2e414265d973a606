"""The shared store: a Redis or Valkey server, asked by one atomic script."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import resources
from typing import Any

from redis.exceptions import MovedError, RedisError, ResponseError

from data.errors import InputError
from serving.controller.pool import Ask, Grant
from serving.shared.connection import connect
from serving.shared.settings import SharedSettings

SCRIPT = resources.files("serving.shared").joinpath("scripts/exchange.lua").read_text("utf-8")

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
        self._redis = connect(settings)
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
        try:
            try:
                answer = await self._script(keys=keys, args=told)
            except MovedError as moved:  # all our keys are in one slot, and its node is there
                await self._connect_anew((moved.host, moved.port))
                answer = await self._script(keys=keys, args=told)
        except StoreError:
            # To whoever is there now: the server may have become a replica, or have another password.
            await self._connect_anew()
            raise
        try:
            return _read(answer)
        except (TypeError, ValueError) as error:
            raise ResponseError("The answer is none of this version's script.") from error

    async def close(self) -> None:
        """Close the connection."""
        await self._redis.aclose()

    async def _connect_anew(self, at: tuple[str, int] | None = None) -> None:
        before = self._redis
        with suppress(InputError):  # a file that can't be read now: as before, until it can
            self._redis = connect(self._settings, at)
            self._script = self._redis.register_script(SCRIPT)
        with suppress(*StoreError):
            await before.aclose()


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
