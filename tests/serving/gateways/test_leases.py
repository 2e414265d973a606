from collections.abc import Callable
from pathlib import Path

import pytest

from models.bundle import Bundle
from serving.clock import ManualClock
from serving.controller.rules import Rules
from serving.gateways.leases import Leases
from serving.http.messages import AdmitRequest, SettleRequest
from serving.service import Service
from serving.settings import Settings

LEASE_S = 120.0


@pytest.fixture
def held(bundle_folder: Callable[[float | None], Path]) -> tuple[Leases, Service, ManualClock]:
    clock = ManualClock(1_700_000_000_000_000)
    settings = Settings(rules=Rules(lease_s=LEASE_S))
    service = Service(Bundle.load(bundle_folder(None)), settings, clock)
    return Leases(service), service, clock


def admit(service: Service) -> str:
    return service.admit(AdmitRequest(prompt_tokens=1_000)).reservation_id or ""


def tokens(service: Service, clock: ManualClock) -> int:
    return service.controller.snapshot(clock.monotonic_s()).held_tokens


@pytest.mark.parametrize(
    ("for_s", "least_s"), [(900.0, 860.0), (300.0, 260.0), (60.0, 120.0), (120.0, 120.0)]
)
def test_a_reservation_lives_for_its_time_and_never_shorter_than_a_lease(
    held: tuple[Leases, Service, ManualClock], for_s: float, least_s: float
) -> None:
    leases, service, clock = held
    leases.hold(admit(service), for_s)
    lived_s = 0.0
    while tokens(service, clock):
        clock.advance(10.0)
        lived_s += 10.0
        if lived_s % (LEASE_S / 3) == 0:
            leases.renew()
    assert least_s <= lived_s <= max(for_s, LEASE_S)
    leases.renew()
    assert len(leases) == 0


def test_what_was_settled_otherwise_is_forgotten(held: tuple[Leases, Service, ManualClock]) -> None:
    leases, service, _ = held
    first, second = admit(service), admit(service)
    leases.hold(first, 900.0)
    leases.hold(second, 900.0)
    service.settle(SettleRequest(reservation_id=first, outcome="served"))
    leases.renew()
    assert len(leases) == 1
    leases.ended(second)
    leases.ended(second)
    assert len(leases) == 0
