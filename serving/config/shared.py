"""Section `shared` of `tidegate.yaml`: limits that several replicas hold together."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from data.config import Section
from serving.config.faults import Fault
from serving.config.keys import Float, Int, key
from serving.shared.settings import ESCAPED, LEASE_EXCHANGES, PLAIN, PREFIX, URL


class Shared(Section):
    """Where replicas meet; capacity and quotas are then those of all of them together."""

    url: str = key(
        "SharedSettings.url",
        "Redis or Valkey server, rediss:// for TLS; of a cluster, any node. Its password is best kept in the "
        "environment as TIDEGATE_SHARED_PASSWORD, or in password_file.",
        default=...,
        pattern=URL,
    )
    mode: Literal["leased", "exact"] = key(
        "SharedSettings.mode",
        "leased decides in memory, by room fetched ahead. exact keeps no room ready: a request that lacks "
        "some waits for an exchange first, a round trip each, up to deadline_ms.",
    )
    replicas: Int = key(
        "SharedSettings.replicas",
        "Replicas meant to run; while the server is lost each goes by its share of the limits.",
        "replicas",
        gt=0,
    )
    exchange_s: Float = key("SharedSettings.exchange_s", "Longest time between two exchanges.", gt=0)
    lease_s: Float = key(
        "SharedSettings.lease_s",
        "How long what was granted holds without another exchange; at least 3 times exchange_s.",
        gt=0,
    )
    deadline_ms: Float = key(
        "SharedSettings.deadline_ms",
        "Longest that a request waits for an exchange before it is decided by what is known; in mode exact it"
        " is then mostly refused. tidegate_shared_late counts those of tidegate_shared_waited.",
        gt=0,
    )
    prefix: str = key(
        "SharedSettings.prefix",
        "Start of every key; fleets that share a server need different ones.",
        pattern=PREFIX,
    )
    password_file: Path | None = key(
        "SharedSettings.password_file",
        "File with the password, readable by its owner alone; read anew with each connection. null: none.",
    )
    ca_file: Path | None = key(
        "SharedSettings.ca_file",
        "Authority that the server's certificate is checked against. null: the system's.",
    )
    cert_file: Path | None = key(
        "SharedSettings.cert_file", "Certificate for a server that asks clients for one. null: none."
    )
    cert_key_file: Path | None = key("SharedSettings.cert_key_file", "Key of cert_file. null: none.")


def crosscheck(told: Shared | None) -> Iterator[Fault]:
    """A lease outlives a lost exchange; files of TLS serve a connection with TLS."""
    if told is None:
        return
    if not re.match(PLAIN, told.url):
        yield Fault(("shared", "url"), f"shared.url {ESCAPED}")
    for name in ("ca_file", "cert_file", "cert_key_file"):
        if getattr(told, name) is not None and not told.url.startswith("rediss:"):
            yield Fault(("shared", name), f"shared.{name} needs a url that starts with rediss://")
    for name, other in (("cert_file", "cert_key_file"), ("cert_key_file", "cert_file")):
        if getattr(told, name) is not None and getattr(told, other) is None:
            yield Fault(("shared", name), f"shared.{name} needs shared.{other}")
    if told.lease_s < LEASE_EXCHANGES * told.exchange_s * (1 - 1e-9):
        yield Fault(
            ("shared", "lease_s"),
            f"shared.lease_s must be at least {LEASE_EXCHANGES} times exchange_s ({told.exchange_s:g}); "
            f"got {told.lease_s:g}",
        )
