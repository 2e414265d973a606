"""The guard on disk: no restart and no other bundle resets its budget, skill gate or trip wire."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data.errors import InputError
from models.bundle import Manifest
from models.guard.guard import Guard
from models.guard.ledger import Ledger

VERSION = 1
MOST_ASIDE = 32
"""Bundles whose evidence is kept while another one serves; one whose trip wire is crossed is always kept."""


@dataclass(slots=True)
class Guards:
    """The guard of the bundle that serves, and what those of bundles before it have seen.

    Attributes:
        bundle: version of the bundle that serves.
        guard: its guard.
        aside: by version, other bundles' guards; the one set aside last stands last.

    """

    bundle: str
    guard: Guard
    aside: dict[str, Guard] = field(default_factory=dict)

    def swap(self, bundle: str, manifest: Manifest) -> Guard:
        """Set the guard aside and take up that of another bundle; the ledger, which is the gate's, goes on.

        A bundle that served before goes on with its own threshold, skill gate and trip wire: loading others
        in between mends no wire, nor does writing the same bundle again. The bundle that serves keeps its
        guard as it is. A model that was calibrated anew is another bundle (models.bundle.Bundle.version).
        """
        if bundle == self.bundle:
            return self.guard
        before, ledger = self.guard, self.guard.ledger
        before.pause()
        self.aside[self.bundle] = before
        known = self.aside.pop(bundle, None)
        if known is None:
            known = Guard.start(manifest.guard, ledger)
        else:
            known.resume(ledger)
        self.bundle, self.guard = bundle, known
        for version in [version for version, guard in self.aside.items() if not guard.muted]:
            if len(self.aside) <= MOST_ASIDE:
                break
            del self.aside[version]
        return self.guard

    def to_dict(self) -> dict[str, Any]:
        """What is to be written: a snapshot in plain JSON types."""
        aside = {version: guard.evidence() for version, guard in self.aside.items()}
        return guard_state(self.bundle, self.guard) | {"aside": aside}


def load_guards(path: Path | None, bundle_version: str, manifest: Manifest) -> Guards:
    """Restore the guard from ``path``, or start it afresh where there is none.

    A state that another bundle left keeps the ledger, which is the gate's; threshold, skill gate and trip
    wire are those that this bundle had when it served last, else they start anew. A state from before there
    were gate and wire gets those of the bundle.

    Raises:
        InputError: when the file can't be read or is damaged; a budget is never reset silently.

    """
    fresh = Guard.start(manifest.guard)
    if path is None:
        return Guards(bundle_version, fresh)
    try:
        state = json.loads(path.read_bytes())
    except FileNotFoundError:
        return Guards(bundle_version, fresh)
    except OSError as error:
        raise InputError(f"Guard state {path} can't be read: {error.strerror}.") from error
    except ValueError as error:
        raise InputError(_damaged(path, f"it is not JSON ({error})")) from error
    if (
        not isinstance(state, dict)
        or state.get("version") != VERSION
        or not isinstance(state.get("guard"), dict)
    ):
        raise InputError(_damaged(path, f"it has no guard state of version {VERSION}"))
    aside = state.get("aside", {})
    if not isinstance(aside, dict) or not all(isinstance(seen, dict) for seen in aside.values()):
        raise InputError(_damaged(path, "what it says of other bundles is no table"))
    try:
        # Ticks of the process before can't be judged any more: their charges stand to the end.
        guard = Guard.from_dict({**state["guard"], "unsettled": []})
        others = {version: _paused(seen) for version, seen in aside.items()}
        guards = Guards(str(state.get("bundle")), guard, others)
        guards.swap(bundle_version, manifest)
    except InputError as error:
        raise InputError(_damaged(path, str(error))) from error
    guards.guard.skill = guards.guard.skill or fresh.skill
    guards.guard.wire = guards.guard.wire or fresh.wire
    return guards


def guard_state(bundle_version: str, guard: Guard) -> dict[str, Any]:
    """State of one guard in plain JSON types."""
    return {"version": VERSION, "bundle": bundle_version, "guard": guard.to_dict()}


def save(path: Path, state: dict[str, Any]) -> None:
    """Write a snapshot in one step: whoever reads sees the old file or the new one.

    Raises:
        OSError: when the file can't be written; the old one is left.

    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".new")
    with beside.open("w") as file:
        json.dump(state, file, allow_nan=False)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def _damaged(path: Path, why: str) -> str:
    return (
        f"Guard state {path} is damaged: {why}. Restore an older copy, or delete it to start with an empty "
        "false-alarm budget."
    )


def _paused(seen: Mapping[str, Any]) -> Guard:
    """The guard that has seen this, without books; its open ticks can't be judged any more."""
    books = Ledger().to_dict()
    guard = Guard.from_dict({**seen, "unsettled": [], "ledger": books, "would_ledger": books})
    guard.pause()
    return guard
