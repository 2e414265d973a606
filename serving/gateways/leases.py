"""Leases of answers whose end a gateway tells, and in whose middle it is silent: they are renewed here."""

from serving.service import Service

RENEWALS_PER_LEASE = 3


class Leases:
    """Reservations that are held until they are ended, or for the time that their gateway said."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._until_s: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._until_s)

    def hold(self, reservation_id: str, for_s: float) -> None:
        """Renew a reservation that was just made, so that it ends after ``for_s`` at the latest.

        Where that is no longer than a lease, its lease is all it gets.
        """
        self._until_s[reservation_id] = self._service.clock.monotonic_s() + for_s

    def ended(self, reservation_id: str) -> None:
        """Renew it no longer."""
        self._until_s.pop(reservation_id, None)

    def renew(self) -> None:
        """Start anew the leases that would not outlast their time; forget what has ended otherwise."""
        last_start_s = self._service.clock.monotonic_s() + self._service.settings.rules.lease_s
        for reservation_id, until_s in list(self._until_s.items()):
            if until_s < last_start_s or not self._service.renew(reservation_id):
                del self._until_s[reservation_id]

    async def run(self) -> None:
        """Renew for as long as the service lives."""
        while True:
            await self._service.clock.sleep(self._service.settings.rules.lease_s / RENEWALS_PER_LEASE)
            self.renew()
