"""Engine profiles as files: YAML, of which JSON is a part."""

from dataclasses import asdict, fields
from pathlib import Path

import yaml

from data.errors import InputError
from serving.controller.engine_model import EngineProfile

_INTS = ("kv_blocks", "block_tokens")


def write_profile(profile: EngineProfile, path: Path) -> None:
    """Write a profile; every number is written so that it reads back the same.

    Raises:
        InputError: when the file can't be written.

    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(asdict(profile), sort_keys=False), encoding="utf-8")
    except OSError as error:
        raise InputError(f"Profile {path} can't be written: {error.strerror}.") from error


def read_profile(path: Path) -> EngineProfile:
    """Read a profile, such as the rules take as their `engine`.

    Raises:
        InputError: when the file can't be read, or lacks a number, or has one that can't be.

    """
    try:
        told = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"Profile {path} can't be read as YAML: {error}") from error
    names = [field.name for field in fields(EngineProfile)]
    required = [name for name in names if name != "block_tokens"]
    if not isinstance(told, dict):
        raise InputError(f"Profile {path} must be a mapping of {', '.join(names)}.")
    unknown = [str(key) for key in told if key not in names]
    missing = [name for name in required if name not in told]
    if unknown or missing:
        wrong = [f"missing: {', '.join(missing)}"] * bool(missing)
        wrong += [f"unknown: {', '.join(unknown)}"] * bool(unknown)
        raise InputError(f"Profile {path} must have {', '.join(names)}; {'; '.join(wrong)}.")
    for name, value in told.items():
        kind = str if name == "name" else int if name in _INTS else (int, float)
        if not isinstance(value, kind) or isinstance(value, bool):
            wanted = "text" if name == "name" else "a whole number" if name in _INTS else "a number"
            raise InputError(f"Profile {path}: {name} must be {wanted}; got {value!r}.")
    return EngineProfile(**told)
