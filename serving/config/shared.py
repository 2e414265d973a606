"""Section `shared` of `tidegate.yaml`: limits that several replicas hold together."""

from collections.abc import Iterator
from typing import Literal

from data.config import Section
from serving.config.faults import Fault
from serving.config.keys import Float, Int, key
from serving.shared.settings import LEASE_EXCHANGES, PREFIX, URL


class Shared(Section):
    """Where replicas meet; capacity and quotas are then those of all of them together."""

    url: str = key(
        "SharedSettings.url",
        "Redis or Valkey server, rediss:// for TLS. Its password may stand in TIDEGATE_SHARED_PASSWORD.",
        default=...,
        pattern=URL,
    )
    mode: Literal["leased", "exact"] = key(
        "SharedSettings.mode",
        "leased decides in memory, by room fetched ahead; exact fetches what a request lacks first.",
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
        "Longest that a request waits for an exchange before it is decided by what is known.",
        gt=0,
    )
    prefix: str = key(
        "SharedSettings.prefix",
        "Start of every key; fleets that share a server need different ones.",
        pattern=PREFIX,
    )


def crosscheck(told: Shared | None) -> Iterator[Fault]:
    """A lease outlives a lost exchange."""
    if told is not None and told.lease_s < LEASE_EXCHANGES * told.exchange_s * (1 - 1e-9):
        yield Fault(
            ("shared", "lease_s"),
            f"shared.lease_s must be at least {LEASE_EXCHANGES} times exchange_s ({told.exchange_s:g}); "
            f"got {told.lease_s:g}",
        )
