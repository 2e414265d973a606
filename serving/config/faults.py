"""Faults of a configuration as sentences: what is wrong, where, and which key was probably meant."""

import re
from collections.abc import Iterable, Iterator, Mapping
from difflib import SequenceMatcher
from types import UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from data.config import NAME, URL
from serving.config.keys import HEADER
from serving.config.scrub import scrubbed
from serving.config.yaml_file import Place


class Fault(NamedTuple):
    """Something wrong at a place of the file."""

    place: Place
    sentence: str


def faults_of(
    errors: Iterable[ErrorDetails], model: type[BaseModel], refused: Mapping[str, str] | None = None
) -> Iterator[Fault]:
    """Validation errors as faults.

    Args:
        errors: what pydantic found.
        model: what the file was validated against.
        refused: top-level keys that are known and not taken, and why.

    """
    for error in errors:
        place = tuple(error["loc"])
        if error["type"] == "default_factory_not_called":
            continue  # follows from another fault, which is told
        if place and place[-1] == "[key]":
            place = place[:-1]
        if error["type"] == "extra_forbidden":
            yield Fault(place, unknown(place, model, refused or {}))
        else:
            yield Fault(place, f"{dotted(place)} {_said(error)}")


def dotted(place: Place) -> str:
    """A place as people write it.

    >>> dotted(("telemetry", "scrape", 0, "name"))
    'telemetry.scrape.0.name'
    """
    return ".".join(str(part) for part in place)


def unknown(place: Place, model: type[BaseModel], refused: Mapping[str, str]) -> str:
    """Sentence for a key that isn't known at its place, with the nearest that is.

    A key that is right elsewhere is told where; else the nearest of the same section is.
    """
    *above, name = place
    if not above and name in refused:
        return refused[str(name)]
    here = keys_at(model, tuple(above))
    elsewhere = [path for path in key_paths(model) if path.rpartition(".")[2] == name and "." in path]
    closest = nearest(str(name), [*here, *([] if above else refused)])
    if elsewhere and (not closest or distance(str(name), closest) > 1):
        likeliest = max(elsewhere, key=lambda path: path.split(".")[0] == place[0])
        return f"{dotted(place)} is not a known key; it belongs at '{likeliest}'"
    if not closest:
        return f"{dotted(place)} is not a known key; none is known there"
    if not above and closest in refused:
        return f"{dotted(place)} is not a known key; the nearest one is '{closest}'. {refused[closest]}"
    return f"{dotted(place)} is not a known key; the nearest one is '{dotted((*above, closest))}'"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that was probably meant by ``name``; None where none is known.

    One that two slips of the hand at most turn into it; else one that shares long stretches with it.

    >>> nearest("calm", ["calm_s", "climb_s"]), nearest("wieght", ["name", "weight"])
    ('calm_s', 'weight')
    >>> nearest("queue", ["stale_s", "queue_capacity"])
    'queue_capacity'
    """

    def apart(other: str) -> float:
        slips = distance(name, other)
        return slips if slips <= 2 else 4.0 - SequenceMatcher(None, name, other).ratio()

    return min(known, key=apart, default=None)


def distance(one: str, other: str) -> int:
    """Letters left out, added, changed, or swapped with their neighbour, between two names.

    >>> distance("lane", "lnae"), distance("alpha", "beta"), distance("", "abc")
    (1, 4, 3)
    """
    before: list[int] = []
    last = list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        row = [i]
        for j, its in enumerate(other, 1):
            steps = min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (letter != its))
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == its:
                steps = min(steps, before[j - 2] + 1)
            row.append(steps)
        before, last = last, row
    return last[-1]


def keys_at(model: type[BaseModel], place: Place) -> list[str]:
    """Keys that may stand at a place of a file."""
    annotation: Any = model
    for part in place:
        annotation = _within(annotation, part)
    annotation = plain(annotation)
    return list(annotation.model_fields) if is_model(annotation) else []


def key_paths(model: type[BaseModel], above: str = "") -> Iterator[str]:
    """Paths of all keys of a file; NAME stands for a name of one's own, and lists show no positions."""
    for name, field in model.model_fields.items():
        yield f"{above}{name}"
        inner, path = plain(field.annotation), f"{above}{name}."
        while get_origin(inner) in (tuple, dict):
            path += "NAME." if get_origin(inner) is dict else ""
            inner = plain(_within(inner, 0))
        if is_model(inner):
            yield from key_paths(inner, path)


def plain(annotation: Any) -> Any:
    """A type without Annotated and None around it."""
    while True:
        origin = get_origin(annotation)
        if origin is Annotated:
            annotation = get_args(annotation)[0]
        elif origin in (Union, UnionType):
            some = [part for part in get_args(annotation) if part is not type(None)]
            if len(some) != 1:
                return annotation
            annotation = some[0]
        else:
            return annotation


def is_model(annotation: Any) -> bool:
    """Whether a type is a section of a file."""
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _within(annotation: Any, part: int | str) -> Any:
    annotation = plain(annotation)
    if is_model(annotation):
        field = annotation.model_fields.get(part)
        return None if field is None else field.annotation
    if get_origin(annotation) is tuple:
        return get_args(annotation)[0]
    return get_args(annotation)[1] if get_origin(annotation) is dict else None


_MOST_CHARACTERS = 100
"""More of a value than this says nothing more."""

_SAID = {
    "missing": "is missing",
    "model_type": "must hold keys and values",
    "dict_type": "must hold keys and values",
    "tuple_type": "must be a list",
    "string_type": "must be text",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "invalid_key": "must be text; put it in quotes",
}
_PATTERNS = {
    NAME: "must be at most 63 letters, digits, dots, dashes and underscores, the first a letter or digit",
    URL: "must start with http:// or https://",
    HEADER: "must be a header's name in lower case",
}


def _said(error: ErrorDetails) -> str:
    said = _SAID.get(error["type"]) or _PATTERNS.get(error.get("ctx", {}).get("pattern", ""))
    if error["type"] == "literal_error":
        said = f"must be one of {error['ctx']['expected']}"
    if said is None:
        said = re.sub(r"^(Value error, |(Input|String|Value|List|Tuple) should )", "", error["msg"])
        said = said if error["type"] == "value_error" else f"must {said}"
    if error["type"] in ("missing", "value_error", "invalid_key"):
        return said
    return f"{said}; got {_got(error['input'])}"


def _got(told: object) -> str:
    """A value, for a message; of lists and sections the kind, for they may be endless or hold secrets."""
    if isinstance(told, dict):
        return "keys and values"
    if isinstance(told, (list, tuple, set)):
        return "a list"
    text = scrubbed(repr(told))
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}..."
