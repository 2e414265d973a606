"""A gate inside another server's process: what configures it, and what decides there.

With a bundle it is the whole service, forecast included; without one it is the rules alone. Either way it
sees only the requests of its own process: where several processes serve one engine, let them share their
limits (section `shared` of the configuration), or let a gateway ask `tidegate serve` instead.
"""

import math
import os
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from data.errors import InputError
from data.schema import LANES
from serving.admission import settling
from serving.admission.facts import facts_of
from serving.admission.waiting_room import WaitingRoom
from serving.clock import Clock
from serving.config.mapping import read_settings
from serving.controller.decide import Controller
from serving.controller.decision import Decision
from serving.controller.waiting import Ticket
from serving.http.messages import AdmitRequest, SettleRequest
from serving.metrics import Gauges, Metrics
from serving.settings import Settings
from serving.shared.optional import sharing_of
from serving.telemetry.engine import Engine
from serving.telemetry.scraping import Scraping

_YES, _NO = ("1", "true", "yes"), ("0", "false", "no", "")


@dataclass(frozen=True, slots=True)
class Configuration:
    """What a gate in another process is made from.

    Attributes:
        settings: as for the service; what concerns its own HTTP routes does not count.
        bundle: folder of the bundle; None decides by the rules alone, and records nothing.
        trust_headers: headers that start with `x-tidegate-`, and the tenant header of the settings, count.
            Only where a gateway in front takes them away from clients.
        max_wait_ms: how long a request for which there is no room yet waits for its turn, up to the longest
            wait of the rules; None refuses it at once. A trusted `x-tidegate-max-wait-ms` counts first.

    """

    settings: Settings = field(default_factory=Settings)
    bundle: Path | None = None
    trust_headers: bool = False
    max_wait_ms: float | None = None

    def __post_init__(self) -> None:
        if self.max_wait_ms is not None and not 0 < self.max_wait_ms < math.inf:
            raise InputError(f"max_wait_ms must be over 0 and finite; got {self.max_wait_ms!r}.")


class Gate(Protocol):
    """What decides: `serving.service.Service`, or `RulesAlone`."""

    settings: Settings
    clock: Clock
    metrics: Metrics

    async def make_room(self, request: AdmitRequest) -> None:
        """Call it before `admit`: where replicas share limits it may wait for room."""
        ...

    def admit(self, request: AdmitRequest) -> Decision:
        """Decide on a request."""
        ...

    async def admit_or_wait(
        self, request: AdmitRequest, left: Callable[[], Awaitable[None]]
    ) -> Decision | None:
        """Decide within the request's ``max_wait_ms``; None when its client has ``left`` before."""
        ...

    def settle(self, request: SettleRequest) -> bool:
        """Settle a reservation."""
        ...

    def renew(self, reservation_id: str) -> bool:
        """Start a lease anew."""
        ...


class RulesAlone:
    """The controller and the metrics of its engines, without forecast and lake.

    Raises:
        InputError: when two scrape targets share a name, or what is shared can't be.

    """

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self.settings = settings
        self.clock = clock
        offset_s = clock.wall_us() / 1e6 - clock.monotonic_s()
        prefix = f"r{secrets.token_hex(4)}-"
        self.controller = Controller(settings.rules, id_prefix=prefix, wall_offset_s=offset_s)
        self.sharing = sharing_of(self.controller, settings.shared, clock)
        self.metrics = Metrics(self._gauges)
        self.waiting = WaitingRoom(self.controller, clock, self.metrics.registry)
        self._admitted = {lane: self.metrics.admitted.labels(lane) for lane in LANES}
        self.scraping: Scraping | None = None
        if settings.scrape:
            self.scraping = Scraping(settings.scrape, Engine(self.controller), clock)
            self.metrics.registry.register(self.scraping)

    async def make_room(self, request: AdmitRequest) -> None:
        """Where replicas share limits, fetch the room that a request lacks."""
        if self.sharing is not None:
            await self.sharing.make_room(facts_of(request))

    def admit(self, request: AdmitRequest) -> Decision:
        """Decide on a request."""
        decision = self.controller.admit(facts_of(request), self.clock.monotonic_s())
        self._count(request, decision)
        return decision

    async def admit_or_wait(
        self, request: AdmitRequest, left: Callable[[], Awaitable[None]]
    ) -> Decision | None:
        """Decide within the request's ``max_wait_ms``; None when its client has ``left`` before."""
        now_s = self.clock.monotonic_s()
        answer = self.controller.enqueue(facts_of(request), now_s, request.max_wait_ms or 0.0)
        decision = await self.waiting.wait(answer, left) if isinstance(answer, Ticket) else answer
        if decision is not None:
            self._count(request, decision)
        return decision

    def settle(self, request: SettleRequest) -> bool:
        """Settle a reservation with what was really used; false when there is none of that name."""
        settled = settling.settle(self.controller, request, self.clock.monotonic_s())
        (self.metrics.settled if settled else self.metrics.unsettled).inc()
        return settled

    def renew(self, reservation_id: str) -> bool:
        """Start the lease of a request that is still running anew; false when there is none of that name."""
        return self.controller.renew(reservation_id, self.clock.monotonic_s())

    def _count(self, request: AdmitRequest, decision: Decision) -> None:
        if request.retry_count or request.retry_of is not None:
            self.metrics.retries.labels(decision.lane).inc()
        if decision.admitted:
            self._admitted[decision.lane].inc()
        else:
            self.metrics.refused.labels(decision.lane, decision.reason).inc()

    def _gauges(self) -> Gauges:
        seen = self.controller.snapshot(self.clock.monotonic_s())
        return {
            **({} if self.sharing is None else self.sharing.gauges()),
            "tidegate_backpressure": ("B in [0, 1], over its known terms.", seen.backpressure),
            "tidegate_held_tokens": ("Tokens reserved.", float(seen.held_tokens)),
            "tidegate_capacity_tokens": ("Tokens that may be reserved.", float(seen.capacity_tokens)),
            "tidegate_open_reservations": ("Admitted and not settled.", float(seen.reservations)),
            "tidegate_expired_reservations": ("Ran out of lease.", float(seen.expired)),
        }


def from_environment(environ: Mapping[str, str] = os.environ) -> Configuration:
    """Configuration by environment variables, for servers that start a middleware without arguments.

    TIDEGATE_CONFIG is the configuration file, TIDEGATE_BUNDLE the folder of the bundle, TIDEGATE_STATE the
    file in which the false-alarm budget outlives a restart, TIDEGATE_TRUST_HEADERS 1 or 0,
    TIDEGATE_MAX_WAIT_MS the longest wait for room; each may be absent.

    Raises:
        InputError: when the configuration file, or a value, can't be used.

    """
    config, bundle, state = (environ.get(f"TIDEGATE_{name}") for name in ("CONFIG", "BUNDLE", "STATE"))
    trust = environ.get("TIDEGATE_TRUST_HEADERS", "").lower()
    if trust not in _YES + _NO:
        raise InputError(f"TIDEGATE_TRUST_HEADERS must be 1 or 0; got {trust!r}.")
    wait = environ.get("TIDEGATE_MAX_WAIT_MS", "")
    try:
        max_wait_ms = float(wait) if wait else None
    except ValueError as error:
        raise InputError(f"TIDEGATE_MAX_WAIT_MS must be a number of milliseconds; got {wait!r}.") from error
    settings = read_settings(Path(config)) if config else Settings()
    if state:
        settings = replace(settings, state_file=Path(state))
    return Configuration(settings, Path(bundle) if bundle else None, trust in _YES, max_wait_ms)


def build(configuration: Configuration, clock: Clock) -> Gate:
    """The gate of a configuration.

    Raises:
        InputError: when the bundle, or the guard's state on disk, can't be used.

    """
    if configuration.bundle is None:
        return RulesAlone(configuration.settings, clock)
    from models.bundle import Bundle  # a forecast's libraries, only where there is one
    from serving.service import Service

    return Service(Bundle.load(configuration.bundle), configuration.settings, clock)


def jobs(gate: Gate) -> list[Coroutine[Any, Any, None]]:
    """What must run beside a gate until it is cancelled: ticks, scrapes, records, what replicas share."""
    if isinstance(gate, RulesAlone):
        return [job.run() for job in (gate.sharing, gate.scraping) if job is not None]
    from serving.service import Service

    if not isinstance(gate, Service):
        return []
    beside = [job.run() for job in (gate.sharing, gate.recording, gate.scraping) if job is not None]
    return [_tick(gate), *beside]


async def _tick(service: Any) -> None:
    await service.remember()
    await service.run()
