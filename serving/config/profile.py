"""The engine's profile that a configuration names."""

from pathlib import Path

from data.errors import InputError
from serving.controller.engine_model import A100, H100, EngineProfile
from serving.profiles import read_profile

PROFILES = {"h100": H100, "a100": A100}


def find_profile(name: str, folder: Path) -> EngineProfile:
    """Profile of that name, or from that file, sought in ``folder`` where its path is relative.

    Raises:
        InputError: when there is none, or the file holds none.

    """
    known = PROFILES.get(name)
    if known is not None:
        return known
    path = folder / name
    if not path.is_file():
        raise InputError(f"must be one of {', '.join(PROFILES)}, or a file that can be found; got {name!r}")
    return read_profile(path)
