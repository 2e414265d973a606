"""Time as the service sees it: passed in, so that tests, demos and replays can drive it."""

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """Wall time for what is stored, monotonic time for what is measured, and a way to wait."""

    def wall_us(self) -> int:
        """Microseconds since the Unix epoch, UTC; never goes backwards."""
        ...

    def monotonic_s(self) -> float:
        """Seconds from an arbitrary start; never goes backwards."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait for that long on this clock."""
        ...


class SystemClock:
    """The machine's time.

    Wall time is read once and carried on by the monotonic clock: a step of the machine's clock can neither
    pile a minute of arrivals into one second nor send a tick into the past.
    """

    def __init__(self) -> None:
        self._offset_us = time.time_ns() // 1_000 - time.monotonic_ns() // 1_000

    def wall_us(self) -> int:
        """Microseconds since the Unix epoch."""
        return self._offset_us + time.monotonic_ns() // 1_000

    def monotonic_s(self) -> float:
        """Seconds of the machine's monotonic clock."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait without holding the event loop."""
        await asyncio.sleep(seconds)


class ManualClock:
    """Time that stands still until it is told to move.

    >>> clock = ManualClock(wall_us=1_700_000_000_000_000)
    >>> clock.advance(2.5)
    >>> clock.wall_us(), clock.monotonic_s()
    (1700000002500000, 2.5)
    """

    def __init__(self, wall_us: int = 0) -> None:
        self._wall_us = wall_us
        self._moved_us = 0

    def wall_us(self) -> int:
        """Microseconds since the Unix epoch."""
        return self._wall_us + self._moved_us

    def monotonic_s(self) -> float:
        """Seconds moved so far."""
        return self._moved_us / 1e6

    def advance(self, seconds: float) -> None:
        """Move time forward."""
        self._moved_us += round(seconds * 1e6)

    async def sleep(self, seconds: float) -> None:
        """Wait until someone has moved time that far."""
        until_us = self._moved_us + round(seconds * 1e6)
        await asyncio.sleep(0)  # even a wait for nothing lets others run
        while self._moved_us < until_us:
            await asyncio.sleep(0.001)
