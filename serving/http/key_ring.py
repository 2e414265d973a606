"""The keys that are accepted now: a key file that changes is read again, without a restart."""

import asyncio
import logging
import os
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge

from data.errors import InputError
from serving.clock import Clock
from serving.http.keys import Key, read_keys

WATCH_S = 1.0
"""A change counts once the file has stood as it is for so long: no half-written file is read."""

Identity = tuple[int, ...]

log = logging.getLogger("tidegate")


class KeyRing:
    """Keys of the start, and from then on those of the file, where there is one.

    A file that can't be read, has no key or a line that is wrong changes nothing: the keys from before go on
    being accepted, and log and ``tidegate_key_file_refused`` say so. So a mistake neither locks callers out
    nor opens the service to anyone.

    Attributes:
        keys: those accepted; with none, everything is open.

    """

    def __init__(
        self, keys: tuple[Key, ...], path: Path | None, clock: Clock, registry: CollectorRegistry
    ) -> None:
        self.keys = keys
        self.path = path
        self._clock = clock
        self._told: Identity | None = None  # the file may have changed since the start read it
        accepted = Gauge(
            "tidegate_keys", "Keys that are accepted; with 0 everything is open.", registry=registry
        )
        accepted.set_function(lambda: len(self.keys))
        self._refused = Gauge(
            "tidegate_key_file_refused",
            "The key file as it stands can't be used: keys from before are accepted.",
            registry=registry,
        )

    async def watch(self) -> None:
        """Read the file again whenever it has changed; until cancelled."""
        if self.path is None:
            return
        before = None
        while True:
            now = await asyncio.to_thread(identity, self.path)
            if now == before != self._told:
                self._told = now  # used or not: it is read again once it has changed
                await asyncio.to_thread(self.read)
            before = now
            await self._clock.sleep(WATCH_S)

    def read(self) -> bool:
        """Accept the keys of the file from now on; False, and nothing changes, when it can't be used."""
        try:
            keys = read_keys(self.path, os.environ)
        except InputError as error:  # its sentence repeats nothing of the file
            self._refused.set(1)
            fields: dict[str, object] = {"reason": str(error), "keys": len(self.keys)}
            log.error("key file refused; the keys from before go on", extra={"fields": fields})
            return False
        new, old = set(keys), set(self.keys)
        self.keys = keys
        self._refused.set(0)
        if new != old:
            fields = {"keys": len(keys), "added": _names(new - old), "dropped": _names(old - new)}
            log.info("keys changed", extra={"fields": fields})
        return True


def identity(path: Path) -> Identity:
    """What changes when a file is written, replaced or may be read by others; () while there is none."""
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_mode


def _names(keys: set[Key]) -> list[str]:
    return sorted({key.name for key in keys})
