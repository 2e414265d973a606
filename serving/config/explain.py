"""Every key of the configuration explained: meaning, unit, default, range, and what it sets."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from data.errors import InputError
from data.schema import LANES
from serving.config.faults import is_model, nearest, plain
from serving.config.file import REFUSED, File

_UNITS = {
    "tokens_per_s": "tokens/s",
    "per_s": "1/s",
    "ms": "ms",
    "s": "s",
    "tokens": "tokens",
    "blocks": "blocks",
    "bytes": "bytes",
}
_BOUNDS = {"gt": "over", "ge": "from", "lt": "under", "le": "up to"}


@dataclass(frozen=True, slots=True)
class Entry:
    """A key, explained.

    Attributes:
        path: from the top of the file; NAME stands for a name of one's own, lists show no positions.
        meaning: a sentence.
        unit: of the value; empty where it has none.
        default: what holds where the key isn't set.
        range: what it may be.
        sets: attribute of the rules or settings that it becomes; a section may have none, and no default.

    """

    path: str
    meaning: str
    unit: str
    default: str
    range: str
    sets: str


def entries(model: type[BaseModel] = File, above: str = "") -> Iterator[Entry]:
    """All keys, each section before its keys.

    >>> next(entry for entry in entries() if entry.path == "reservations.lease_s")
    ... # doctest: +NORMALIZE_WHITESPACE
    Entry(path='reservations.lease_s', meaning='How long a reservation lives without settlement or renewal.',
          unit='s', default='120.0', range='over 0', sets='Rules.lease_s')
    """
    for name, field in model.model_fields.items():
        path = f"{above}{name}"
        inner, inside = plain(field.annotation), path
        listed = ""
        while get_origin(inner) in (tuple, dict):
            listed = "list" if get_origin(inner) is tuple else "names and what belongs to each"
            inside += ".NAME" if get_origin(inner) is dict else ""
            inner = plain(get_args(inner)[-1 if get_origin(inner) is dict else 0])
        if is_model(inner):
            yield Entry(path, field.description or "", "", "", listed or "section", _extra(field, "sets"))
            yield from entries(inner, f"{inside}.")
        else:
            sets = _extra(field, "sets") or f"{model.__name__}.{name}"
            yield Entry(
                path,
                field.description or "",
                _unit(name, field),
                _default(field),
                listed or _range(inner, field),
                sets,
            )


def explained(key: str) -> list[Entry]:
    """The entries of a key: its own, and of a section those within; a last name is enough.

    Raises:
        InputError: when there is no such key, with the nearest.

    """
    every = list(entries())
    asked = _normal(key, every)
    found = [entry for entry in every if entry.path == asked or entry.path.startswith(f"{asked}.")]
    found = found or [entry for entry in every if entry.path.rpartition(".")[2] == asked]
    if found:
        return found
    if asked in REFUSED:
        raise InputError(REFUSED[asked])
    names = {entry.path.rpartition(".")[2]: entry.path for entry in reversed(every)}
    closest = nearest(asked, [*(entry.path for entry in every), *names, *REFUSED])
    raise InputError(f"{key} is not a known key; the nearest one is '{names.get(closest or '', closest)}'")


def _normal(key: str, every: list[Entry]) -> str:
    """A key without positions in lists, and with NAME for names: `tenants.by_name.acme.weight`."""
    parts = [part for part in key.split(".") if not part.isdigit()]
    for entry in every:
        known = entry.path.split(".")
        if len(known) == len(parts) and all(
            other in (part, "NAME") for part, other in zip(parts, known, strict=True)
        ):
            return entry.path
    return ".".join(parts)


def _extra(field: FieldInfo, name: str) -> str:
    extra = field.json_schema_extra
    return str(extra.get(name) or "") if isinstance(extra, dict) else ""


def _unit(name: str, field: FieldInfo) -> str:
    ends = (unit for end, unit in _UNITS.items() if name.endswith(f"_{end}"))
    return _extra(field, "unit") or next(ends, "")


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "must be set"
    if field.default_factory is not None:
        told: Any = field.default_factory
        return ", ".join(f"{told({'name': lane})} ({lane})" for lane in LANES)
    default = field.default
    if default is None:
        return "null"
    if isinstance(default, bool):
        return str(default).lower()
    return str(default) if default or default == 0 else "none"


def _range(inner: Any, field: FieldInfo) -> str:
    if get_origin(inner) is Literal:
        return ", ".join(map(str, get_args(inner)))
    if inner is bool:
        return "true, false"
    bounds = (
        f"{word} {getattr(part, bound)}"
        for part in field.metadata
        for bound, word in _BOUNDS.items()
        if getattr(part, bound, None) is not None
    )
    return " ".join(bounds) or ("text" if inner is not int and inner is not float else "")
