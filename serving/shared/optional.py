"""Sharing where it is set: its client is an extra, which one process alone does without."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from data.errors import InputError
from serving.clock import Clock
from serving.controller.decide import Controller
from serving.shared.settings import SharedSettings

if TYPE_CHECKING:
    from serving.shared.sharing import Sharing


def sharing_of(controller: Controller, settings: SharedSettings | None, clock: Clock) -> Sharing | None:
    """What holds a controller's limits together with other replicas; None where nothing is shared.

    Raises:
        InputError: when the client is not installed, or the URL can't be read.

    """
    if settings is None:
        return None
    if importlib.util.find_spec("redis") is None:
        raise InputError(
            "shared needs a Redis client, which is not installed; pip install 'tidegate[shared]'."
        )
    from serving.shared.sharing import Sharing

    return Sharing(controller, settings, clock)
