from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from serving.config.faults import distance, faults_of, key_paths
from serving.config.file import REFUSED, File

PATHS = list(key_paths(File))
LISTS = ("priority_queues", "telemetry.scrape", "telemetry.logs")
LETTERS = "abcdefghijklmnopqrstuvwxyz_"


def beside(path: str) -> list[str]:
    """Keys of the same section."""
    above = path.rpartition(".")[0]
    return [other.rpartition(".")[2] for other in PATHS if other.rpartition(".")[0] == above]


def content(path: str, name: str) -> tuple[dict[str, Any], str]:
    """A file with a key in place of the last one of a path, and the place of that section."""
    told: Any = {name: 1}
    parts = path.split(".")[:-1]
    place = []
    for depth in range(len(parts), 0, -1):
        if ".".join(parts[:depth]) in LISTS:
            told = [told]
            place.append("0")
        told = {parts[depth - 1]: told}
        place.append(parts[depth - 1])
    return told, "".join(f"{part}." for part in reversed(place))


def mistyped(name: str, slip: str, at: int, letter: str) -> str:
    at %= len(name)
    match slip:
        case "left out":
            return name[:at] + name[at + 1 :]
        case "added":
            return name[:at] + letter + name[at:]
        case "changed":
            return name[:at] + letter + name[at + 1 :]
    return name[:at] + name[at : at + 2][::-1] + name[at + 2 :]


@settings(deadline=None)
@given(
    path=st.sampled_from(PATHS),
    slip=st.sampled_from(["left out", "added", "changed", "swapped"]),
    at=st.integers(0, 40),
    letter=st.sampled_from(LETTERS),
)
def test_any_single_mistyped_key_is_refused_and_the_right_one_suggested(path, slip, at, letter):
    name = path.rpartition(".")[2]
    typed = mistyped(name, slip, at, letter)
    if typed == name:
        return
    told, place = content(path, typed)

    with pytest.raises(ValidationError) as refused:
        File.model_validate(told)

    sentences = [fault.sentence for fault in faults_of(refused.value.errors(), File, REFUSED)]
    assert f"{place}{typed} is not a known key; the nearest one is '{place}{name}'" in sentences


def test_no_slip_lies_between_two_keys():
    """Two keys of a section differ by three letters or more, so one slip has one nearest key."""
    for path in PATHS:
        more = [] if "." in path else list(REFUSED)
        assert all(distance(*pair) >= 3 for pair in combinations([*beside(path), *more], 2))


def test_a_key_told_in_another_section_is_shown_its_own():
    with pytest.raises(ValidationError) as refused:
        File.model_validate({"tenants": {"hourly": None}})

    (fault,) = faults_of(refused.value.errors(), File)
    assert fault.sentence == "tenants.hourly is not a known key; it belongs at 'tenants.default.hourly'"


@settings(deadline=None)
@given(one=st.text("abc", max_size=6), other=st.text("abc", max_size=6))
def test_distance_is_symmetric_and_zero_for_equals_alone(one, other):
    assert distance(one, other) == distance(other, one)
    assert (distance(one, other) == 0) == (one == other)
