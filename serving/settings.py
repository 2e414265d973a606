"""Settings of the online service, checked when it starts."""

import re
from dataclasses import dataclass, field
from pathlib import Path

from data.config import Target
from data.errors import InputError
from serving.controller.rules import Rules
from serving.http.keys import Key
from serving.shared.settings import SharedSettings

TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+")
"""A header's name, as RFC 9110 spells it."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How the service runs; the defaults suit one process beside one engine.

    Attributes:
        state_file: where the guard's false-alarm budget outlives a restart; None keeps it in memory.
        save_every_s: how often it is written, besides at shutdown.
        capacity_tokens_per_s: work that the engine can do, where that is known: bursts under 70 % of it
            don't count in the live report.
        rules: the controller's rules.
        max_body_bytes: longest request body that is read.
        max_open_requests: requests observed elsewhere that may wait for their end at one time.
        max_recent_requests: requests observed elsewhere that are known again when they are told twice.
        lake: where offered load, decisions, forecasts and outcomes are recorded; None records nothing.
        scrape: engines whose metrics are read.
        source: name of this service's rows in the lake.
        tenant_header: request header in which a gateway names the tenant; it must take it away from clients.
        ext_proc: host and port of the gRPC service that settles for Envoy; None runs none. Needs `.[envoy]`.
        shared: where replicas hold the limits together; None is this process alone. Needs `.[shared]`.
        bundles: folder whose bundles POST /v1/bundle may load; None lets it load none.
        watch_bundle: folder, or link to one, whose bundle is loaded whenever another one stands there.
        keys: who may call what; with none, everyone may call everything.
        key_file: file that keys are read from again whenever it changes.
        max_url_bytes: longest path and query that are answered.
        max_header_bytes: most that the headers of a request may hold.
        max_requests: that are answered at one time; up to half of them wait for their turn.
        body_timeout_s: a request's body has this long to come whole.
        max_waiting_rows: rows that may wait for the lake; with more, senders are told to come back.

    """

    state_file: Path | None = None
    save_every_s: float = 60.0
    capacity_tokens_per_s: float | None = None
    rules: Rules = field(default_factory=Rules)
    max_body_bytes: int = 8 * 1024 * 1024
    max_open_requests: int = 100_000
    max_recent_requests: int = 500_000
    lake: str | None = None
    scrape: tuple[Target, ...] = ()
    source: str = "tidegate"
    max_waiting_rows: int = 200_000
    tenant_header: str = "x-tidegate-tenant"
    ext_proc: tuple[str, int] | None = None
    shared: SharedSettings | None = None
    bundles: Path | None = None
    watch_bundle: Path | None = None
    keys: tuple[Key, ...] = ()
    key_file: Path | None = None
    max_url_bytes: int = 8 * 1024
    max_header_bytes: int = 32 * 1024
    max_requests: int = 1_000
    body_timeout_s: float = 20.0

    def __post_init__(self) -> None:
        for name in (
            "save_every_s",
            "max_body_bytes",
            "max_open_requests",
            "max_recent_requests",
            "max_waiting_rows",
            "max_url_bytes",
            "max_header_bytes",
            "max_requests",
            "body_timeout_s",
        ):
            if not getattr(self, name) > 0:
                raise InputError(f"Setting {name} must be over 0; got {getattr(self, name)!r}.")
        if not TOKEN.fullmatch(self.tenant_header):
            raise InputError(
                f"Setting tenant_header must be a header's name in lower case; got {self.tenant_header!r}."
            )
        capacity = self.capacity_tokens_per_s
        if capacity is not None and not 0 < capacity < float("inf"):
            raise InputError(f"Setting capacity_tokens_per_s must be over 0 and finite; got {capacity!r}.")
