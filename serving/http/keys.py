"""Keys of the API: who may call what. They come from a file or the environment, and only hashes are kept."""

import hashlib
import hmac
import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from data.errors import InputError

Scope = Literal["admit", "telemetry", "control", "read"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
VARIABLE = "TIDEGATE_KEYS"
"""Environment variable with the lines of a key file; ';' may stand between them."""
LEAST_LENGTH = 32
"""A shorter key could be guessed."""
NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")

_LINE = f"NAME SCOPES KEY, with scopes out of {', '.join(SCOPES)} parted by commas"


@dataclass(frozen=True, slots=True)
class Key:
    """A key that is accepted.

    Attributes:
        name: whose it is, for the log.
        scopes: what it may call.
        digest: SHA-256 of the key; the key itself is not kept.

    """

    name: str
    scopes: frozenset[Scope]
    digest: bytes = field(repr=False)


def read_keys(path: Path | None, environ: Mapping[str, str]) -> tuple[Key, ...]:
    """Keys of the file and of the environment variable TIDEGATE_KEYS; of one name there may be several.

    Each line is ``NAME SCOPES KEY``, such as ``gateway admit,telemetry 8f0c...``; '#' starts a comment.

    Raises:
        InputError: when the file can't be read, others may read it, or a line is wrong. No message repeats
            any part of a line: a key may stand in it.

    """
    found: list[Key] = []
    if path is not None:
        found += parse(private_text(path), f"{path}")
    if told := environ.get(VARIABLE):
        found += parse(told.replace(";", "\n"), VARIABLE)
    if path is not None and not found:
        raise InputError(f"{path} has no key; write lines {_LINE}, or start without --keys.")
    if len({key.digest for key in found}) < len(found):
        raise InputError("A key stands twice among the keys; give it to one name, with all its scopes.")
    return tuple(found)


def parse(text: str, where: str) -> list[Key]:
    """Keys in lines of text.

    >>> [key] = parse("edge admit,telemetry 0123456789abcdef0123456789abcdef  # the proxy", "keys")
    >>> key.name, sorted(key.scopes)
    ('edge', ['admit', 'telemetry'])
    """
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        place = f"Line {number} of {where}"
        if len(words) != 3 or not NAME.fullmatch(words[0]):
            raise InputError(f"{place} must be {_LINE}.")
        name, scopes, key = words
        chosen = frozenset(scope for scope in SCOPES if scope in scopes.split(","))
        if len(chosen) != len(scopes.split(",")):
            raise InputError(f"{place}: scopes must be out of {', '.join(SCOPES)}, parted by commas.")
        if len(key) < LEAST_LENGTH or not (key.isascii() and key.isprintable()):
            raise InputError(
                f"{place}: a key must be at least {LEAST_LENGTH} printable ASCII characters; make one with "
                "`python -c 'import secrets; print(secrets.token_urlsafe(32))'`."
            )
        found.append(Key(name, chosen, digest(key)))
    return found


def digest(key: str) -> bytes:
    """What is kept of a key, and compared."""
    return hashlib.sha256(key.encode()).digest()


def owner_of(keys: Sequence[Key], presented: str) -> Key | None:
    """The key that was presented, None where it is not known; takes as long whichever it is."""
    sought, found = digest(presented), None
    for key in keys:
        if hmac.compare_digest(key.digest, sought):
            found = key
    return found


def private_text(path: Path) -> str:
    """What a file holds that only its owner may read.

    Raises:
        InputError: when others may read it, or nobody can. It repeats nothing of the file.

    """
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            # Like PostgreSQL: a file of root's, such as a mounted secret, may be read by its group.
            allowed = 0o640 if status.st_uid == 0 else 0o600
            if not stat.S_ISREG(status.st_mode) or status.st_mode & 0o777 & ~allowed:
                raise InputError(
                    f"{path} must be a regular file that only its owner can read; run chmod 600 {path}."
                )
            return file.read().decode()
    except OSError as error:
        raise InputError(f"Secret file {path} can't be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise InputError(f"Secret file {path} must be UTF-8 text.") from error
