"""The ledger of reservations: tokens held for admitted requests until settled, cancelled, or out of lease."""

import math
from collections import OrderedDict
from dataclasses import dataclass

from serving.controller.outputs import OutputQuantile
from serving.controller.tenants import Charge


@dataclass(slots=True)
class Reservation:
    """Tokens held for one admitted request.

    Attributes:
        lane: lane that holds them.
        tokens: prompt and expected output.
        expires_s: end of the lease.
        flow: what its output will teach.
        limit_tokens: limit on the output of one answer.
        answers: answers being generated.
        charge: what its tenant was charged.
        prompt_tokens: the part of ``tokens`` that is known.
        contended: others waited when it was let in, so that it counts for fair sharing.

    """

    lane: str
    tokens: int
    expires_s: float
    flow: OutputQuantile
    limit_tokens: int | None
    answers: int
    charge: Charge | None = None
    prompt_tokens: int = 0
    contended: bool = False


class Ledger:
    """Reservations against one capacity; nothing that would exceed it is taken.

    The capacity may be set lower than what is held: then nothing is taken, and nothing is dropped.
    Reserving checks and takes in one step. Every lease is equally long and time never goes back, so the
    order of entry is the order of expiry: the first entry is the next to expire, and no scan is needed.

    Attributes:
        capacity_tokens: the most that may be held.
        lease_s: length of a lease.
        held_tokens: what is held.
        next_expiry_s: no lease ends before.

    """

    def __init__(self, capacity_tokens: int, lease_s: float, id_prefix: str) -> None:
        self.capacity_tokens = capacity_tokens
        self.lease_s = lease_s
        self.held_tokens = 0
        self._id_prefix = id_prefix
        self._issued = 0
        self.next_expiry_s = 0.0
        self._open: OrderedDict[str, Reservation] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    @property
    def next_end_s(self) -> float:
        """When the next lease ends, if not renewed; infinite when nothing is held."""
        return next((reservation.expires_s for reservation in self._open.values()), math.inf)

    def reserve(
        self,
        lane: str,
        tokens: int,
        now_s: float,
        flow: OutputQuantile,
        limit_tokens: int | None = None,
        answers: int = 1,
        charge: Charge | None = None,
        prompt_tokens: int = 0,
        contended: bool = False,
    ) -> str | None:
        """Hold ``tokens`` and return the reservation's id; None, and nothing held, when they do not fit."""
        if tokens < 0 or self.held_tokens + tokens > self.capacity_tokens:
            return None
        self._issued += 1
        reservation_id = f"{self._id_prefix}{self._issued}"
        self._open[reservation_id] = Reservation(
            lane, tokens, now_s + self.lease_s, flow, limit_tokens, answers, charge, prompt_tokens, contended
        )
        self.held_tokens += tokens
        return reservation_id

    def release(self, reservation_id: str) -> Reservation | None:
        """Free a reservation; None when it is unknown, already freed or expired."""
        reservation = self._open.pop(reservation_id, None)
        if reservation is not None:
            self.held_tokens -= reservation.tokens
        return reservation

    def renew(self, reservation_id: str, now_s: float) -> bool:
        """Start the lease anew, for a stream that is still running; False when it is unknown."""
        reservation = self._open.get(reservation_id)
        if reservation is None:
            return False
        reservation.expires_s = now_s + self.lease_s
        self._open.move_to_end(reservation_id)
        return True

    def expired(self, now_s: float) -> list[Reservation]:
        """Free and return the reservations whose lease is over."""
        freed: list[Reservation] = []
        if now_s < self.next_expiry_s:
            return freed
        # Renewals and later reservations expire after this, so until then there is nothing to look at.
        self.next_expiry_s = now_s + self.lease_s
        while self._open:
            reservation = next(iter(self._open.values()))
            if reservation.expires_s > now_s:
                self.next_expiry_s = reservation.expires_s
                break
            self._open.popitem(last=False)
            self.held_tokens -= reservation.tokens
            freed.append(reservation)
        return freed
