"""Settings of limits that replicas share, checked when the service starts."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from data.errors import InputError

Mode = Literal["leased", "exact"]
URL = r"^(redis|rediss|unix)://"
PLAIN = r"^\w+://([^/?#@\s]*@)?[^@\s]*$"
"""One '@' at most, before any '/': otherwise nobody can tell what is a password and what is not."""
ESCAPED = "must have / ? # @ in a password written as %2F %3F %23 %40"
PREFIX = r"^[^{}]+$"
"""Braces would change the slot that a cluster keeps the keys in."""
LEASE_EXCHANGES = 3
"""A lease lasts so many exchanges at least: one that is lost ends none."""


@dataclass(frozen=True, slots=True)
class SharedSettings:
    """Where replicas meet, and how closely they keep to their limits together.

    Attributes:
        url: server, such as rediss://tide@store:6380/0; of a cluster, any of its nodes. Its password is best
            kept in the environment as TIDEGATE_SHARED_PASSWORD, or in a file.
        mode: leased decides in memory, by room that is fetched ahead; exact fetches what a request lacks
            before it is decided.
        replicas: replicas that are meant to run; while the store is lost each goes by its share of the
            limits.
        exchange_s: longest time between two exchanges with the store.
        lease_s: how long what was granted holds without another exchange.
        deadline_ms: longest that a request waits for an exchange before it is decided by what is known.
        prefix: start of every key; fleets that share a server need different ones.
        password_file: file with the password, which only its owner may read.
        ca_file: certificates of the authority that the server's is checked against; None takes the system's.
        cert_file: certificate that is shown to a server which asks clients for one.
        cert_key_file: its key.

    """

    url: str = field(repr=False)
    mode: Mode = "leased"
    replicas: int = 2
    exchange_s: float = 0.1
    lease_s: float = 1.0
    deadline_ms: float = 5.0
    prefix: str = "tidegate"
    password_file: Path | None = None
    ca_file: Path | None = None
    cert_file: Path | None = None
    cert_key_file: Path | None = None

    def __post_init__(self) -> None:
        if not re.match(URL, self.url):  # it isn't repeated: it may hold a password
            raise InputError("Setting shared.url must start with redis://, rediss:// or unix://.")
        if not re.match(PLAIN, self.url):
            raise InputError(f"Setting shared.url {ESCAPED}.")
        if not self.url.startswith("rediss:") and (self.ca_file or self.cert_file or self.cert_key_file):
            raise InputError(
                "Settings ca_file, cert_file and cert_key_file of shared need a url that starts with rediss://."
            )
        if (self.cert_file is None) != (self.cert_key_file is None):
            raise InputError("Settings cert_file and cert_key_file of shared must both be set, or neither.")
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
