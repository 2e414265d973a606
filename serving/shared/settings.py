"""Settings of limits that replicas share, checked when the service starts."""

import re
from dataclasses import dataclass, field
from typing import Literal, get_args

from data.errors import InputError

Mode = Literal["leased", "exact"]
URL = r"^(redis|rediss|unix)://"
PREFIX = r"^[^{}]+$"
"""Braces would change the slot that a cluster keeps the keys in."""
LEASE_EXCHANGES = 3
"""A lease lasts so many exchanges at least: one that is lost ends none."""


@dataclass(frozen=True, slots=True)
class SharedSettings:
    """Where replicas meet, and how closely they keep to their limits together.

    Attributes:
        url: server, such as rediss://tide@store:6380/0. A password may stand in it, or better in the
            environment as TIDEGATE_SHARED_PASSWORD.
        mode: leased decides in memory, by room that is fetched ahead; exact fetches what a request lacks
            before it is decided.
        replicas: replicas that are meant to run; while the store is lost each goes by its share of the
            limits.
        exchange_s: longest time between two exchanges with the store.
        lease_s: how long what was granted holds without another exchange.
        deadline_ms: longest that a request waits for an exchange before it is decided by what is known.
        prefix: start of every key; fleets that share a server need different ones.

    """

    url: str = field(repr=False)
    mode: Mode = "leased"
    replicas: int = 2
    exchange_s: float = 0.1
    lease_s: float = 1.0
    deadline_ms: float = 2.0
    prefix: str = "tidegate"

    def __post_init__(self) -> None:
        if not re.match(URL, self.url):  # it isn't repeated: it may hold a password
            raise InputError("Setting shared.url must start with redis://, rediss:// or unix://.")
        if self.mode not in get_args(Mode):
            raise InputError(
                f"Setting shared.mode must be one of {', '.join(get_args(Mode))}; got {self.mode!r}."
            )
        for name in ("replicas", "exchange_s", "lease_s", "deadline_ms"):
            if not 0 < getattr(self, name) < float("inf"):
                raise InputError(
                    f"Setting shared.{name} must be over 0 and finite; got {getattr(self, name)!r}."
                )
        if self.lease_s < LEASE_EXCHANGES * self.exchange_s * (1 - 1e-9):
            raise InputError(
                f"Setting shared.lease_s must be at least {LEASE_EXCHANGES} times exchange_s "
                f"({self.exchange_s:g}); got {self.lease_s:g}."
            )
        if not re.match(PREFIX, self.prefix):
            raise InputError(f"Setting shared.prefix must be text without braces; got {self.prefix!r}.")
