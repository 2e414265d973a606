"""The guard on disk: a restart must not reset its budget, its skill gate or its trip wire."""

import json
import os
from pathlib import Path
from typing import Any

from data.errors import InputError
from models.bundle import Manifest
from models.guard.guard import Guard

VERSION = 1


def load_guard(path: Path | None, bundle_version: str, manifest: Manifest) -> Guard:
    """Restore the guard from ``path``, or start it afresh where there is none.

    A state that another bundle left keeps the ledger, which is the gate's; threshold, skill gate and trip
    wire start anew with this bundle. A state from before there were gate and wire gets those of the bundle.

    Raises:
        InputError: when the file can't be read or is damaged; a budget is never reset silently.

    """
    fresh = Guard.start(manifest.guard)
    if path is None:
        return fresh
    try:
        state = json.loads(path.read_bytes())
    except FileNotFoundError:
        return fresh
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
    try:
        # Ticks of the process before can't be judged any more: their charges stand to the end.
        guard = Guard.from_dict({**state["guard"], "unsettled": []})
    except InputError as error:
        raise InputError(_damaged(path, str(error))) from error
    if state.get("bundle") == bundle_version:
        guard.skill = guard.skill or fresh.skill
        guard.wire = guard.wire or fresh.wire
        return guard
    return Guard.start(manifest.guard, guard.ledger)


def guard_state(bundle_version: str, guard: Guard) -> dict[str, Any]:
    """What is to be written: a snapshot in plain JSON types."""
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
