"""Another bundle while the service runs: found, loaded and tried beside the event loop, then taken over.

A bundle that can't serve is refused with the reason, and the one that serves goes on. Nothing of the gate is
reset: traffic, outcomes, budget and what every bundle's guard has seen go on (serving.forecast.guard_state).
"""

import asyncio
import contextlib
import logging
import re
from dataclasses import dataclass
from pathlib import Path

from data.errors import InputError
from models.bundle import MANIFEST_FILE, MODEL_FILE, Bundle, Manifest
from serving.metrics import counter
from serving.service import Service

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}(/[A-Za-z0-9][A-Za-z0-9._-]{0,127}){0,3}")
"""Name of a bundle: folders below the bundle folder, none of which starts with a dot."""
WATCH_S = 1.0
"""A watched folder is looked at so often; what stands there twice alike is loaded."""
FILES = (MANIFEST_FILE, MODEL_FILE)

Identity = tuple[tuple[str, int, int, int], ...]

log = logging.getLogger("tidegate")


class RefusedError(Exception):
    """A bundle that is not taken; ``status`` is the answer's."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True, slots=True)
class Swapped:
    """What became of a bundle that can serve; unchanged where it served already."""

    bundle: str
    before: str
    changed: bool


class Bundles:
    """Swaps the bundle of a service, one at a time."""

    def __init__(self, service: Service) -> None:
        """Nothing is looked for yet; the service's registry gets the counter."""
        self._service = service
        self._busy = asyncio.Lock()
        self._swaps = counter(
            service.metrics.registry,
            "tidegate_bundle_swaps",
            "Bundles offered while the service ran: loaded, unchanged (it served already) or refused.",
            result=("loaded", "unchanged", "refused"),
        )

    async def swap_to(self, name: str) -> Swapped:
        """Swap to the bundle of that name in the bundle folder.

        Raises:
            RefusedError: when there is none, when it can't serve, or while another one is being loaded.

        """
        if self._busy.locked():
            raise RefusedError(409, "Another bundle is being loaded; ask again when it is done.")
        async with self._busy:
            try:
                folder = await asyncio.to_thread(find, self._service.settings.bundles, name)
            except RefusedError as error:
                self._refuse(name, error)
                raise
            return await self._swap(folder, folder, name)

    async def watch(self, folder: Path) -> None:
        """Swap whenever another bundle stands at ``folder``, which may be a link; until cancelled.

        The bundle of the start is none that has come: if it still stands there, what `swap_to` loaded
        meanwhile goes on.
        """
        loaded = before = None
        known: Manifest | None = self._service.bundle.manifest
        while True:
            now = await asyncio.to_thread(identity, folder)
            if now is not None and now == before and now != loaded:
                loaded = now  # refused or not: it is tried again once its files have changed
                async with self._busy:
                    with contextlib.suppress(RefusedError):  # counted and logged
                        real = await asyncio.to_thread(folder.resolve)
                        await self._swap(folder, real, folder.name, known)
                known = None
            before = now
            await self._service.clock.sleep(WATCH_S)

    async def _swap(self, told: Path, folder: Path, name: str, known: Manifest | None = None) -> Swapped:
        before = self._service.bundle
        try:
            bundle = await asyncio.to_thread(load, folder)
        except InputError as error:
            refused = RefusedError(422, str(error))
            self._refuse(name, refused)
            raise refused from error
        changed = bundle.manifest not in (before.manifest, known)
        self._swaps.labels("loaded" if changed else "unchanged").inc()
        if changed:
            self._service.swap(bundle)
            fields = {"folder": str(told), "bundle": bundle.version, "before": before.version}
            log.info("bundle loaded", extra={"fields": fields | {"providers": bundle.providers}})
        return Swapped(bundle.version, before.version, changed)

    def _refuse(self, name: str, error: RefusedError) -> None:
        self._swaps.labels("refused").inc()
        fields = {"name": name[:200], "reason": str(error), "serving": self._service.bundle.version}
        log.error("bundle refused; the one before goes on", extra={"fields": fields})


def find(root: Path | None, name: str) -> Path:
    """Folder of a bundle below ``root``, links followed.

    Raises:
        RefusedError: when there is no bundle folder, the name is none, or it leads out of the folder.

    """
    if root is None:
        raise RefusedError(
            409, "No bundle folder is configured; start with --bundles DIR to load from there."
        )
    if not NAME.fullmatch(name):
        raise RefusedError(
            422,
            "The name of a bundle must be that of a folder in the bundle folder: letters, digits, '.', '_' "
            "and '-', with '/' between folders.",
        )
    try:
        within, folder = root.resolve(strict=True), (root / name).resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise RefusedError(404, f"The bundle folder has no bundle {name!r}.") from error
    if folder == within or not folder.is_relative_to(within) or not folder.is_dir():
        raise RefusedError(404, f"The bundle folder has no bundle {name!r}.")
    return folder


def load(folder: Path) -> Bundle:
    """Load, check and warm the bundle in a folder whose links are resolved.

    Raises:
        InputError: naming the file, when it can't serve, or a file of it lies elsewhere.

    """
    for name in FILES:
        try:
            real = (folder / name).resolve()
        except (OSError, RuntimeError) as error:
            raise InputError(f"{folder / name} can't be read: {error}") from error
        if not real.is_relative_to(folder):
            raise InputError(f"{folder / name} is a link that leads out of the bundle; copy the file there.")
    return Bundle.load(folder)


def identity(folder: Path) -> Identity | None:
    """What changes when another bundle stands there; None while none does."""
    try:
        real = folder.resolve(strict=True)
        told = [(real / name, (real / name).stat()) for name in FILES]
    except (OSError, RuntimeError):
        return None
    return tuple((str(path), stat.st_ino, stat.st_size, stat.st_mtime_ns) for path, stat in told)
