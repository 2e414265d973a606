"""Whether the event loop was held up lately: then clients may have hung up on requests that lay unread."""

import asyncio
import math
from collections.abc import Awaitable, Callable

BEAT_S = 0.05
LATE_S = 0.1
"""Gateways wait longer than that for a check."""
AFTERMATH_S = 1.0
"""What lay unread is read by then."""
TURNS = 5
"""Of the event loop, until a request read after a hang-up knows of it: read, end, closed, told."""


class Stalls:
    """Notices when the event loop comes late."""

    def __init__(self) -> None:
        self._beat_s = math.inf
        self._until_s = -math.inf

    async def run(self) -> None:
        """Beat, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            self._beat_s = loop.time()
            await asyncio.sleep(BEAT_S)
            if self._missed(loop.time()):
                self._until_s = loop.time() + AFTERMATH_S

    def lately(self) -> bool:
        """It was held up within the last second, or was until this moment."""
        now_s = asyncio.get_running_loop().time()
        return now_s < self._until_s or self._missed(now_s)

    def _missed(self, now_s: float) -> bool:
        return now_s - self._beat_s > BEAT_S + LATE_S


async def gone(left: Callable[[], Awaitable[None]]) -> bool:
    """Whether a client has hung up already; ``left`` returns when it has."""
    leaving = asyncio.ensure_future(left())
    for _ in range(TURNS):
        await asyncio.sleep(0)
    if leaving.done():
        return True
    leaving.cancel()
    return False
