from pathlib import Path

import pytest

from data.errors import InputError
from serving.config.file import read
from serving.config.yaml_file import load

LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join(9 * [f'*{before}'])}]\n"
    for before, name in zip("abcdefghijk", "bcdefghijkl", strict=True)
)


def written(folder: Path, text: str) -> Path:
    path = folder / "tidegate.yaml"
    path.write_bytes(text.encode("latin-1"))
    return path


def test_each_place_has_its_line(tmp_path):
    told = load(written(tmp_path, "a:\n  b: 1\n\n  c:\n    - d: 2\n    - {e: 3}\n"))

    assert told.content == {"a": {"b": 1, "c": [{"d": 2}, {"e": 3}]}}
    assert [told.line(place) for place in (("a", "b"), ("a", "c"), ("a", "c", 1, "e"))] == [2, 4, 6]
    assert told.line(("a", "c", 0, "missing")) == 5  # the nearest place above it
    assert told.line(("other",)) is None


def test_a_key_of_a_merge_may_be_set_anew(tmp_path):
    told = load(written(tmp_path, "a: &base {b: 1, c: 2}\nd:\n  <<: *base\n  c: 3\n"))

    assert told.content["d"] == {"b": 1, "c": 3}
    assert not told.twice


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: \x01", "is not YAML: unacceptable character #x0001"),
        ("a: \xff", "is not YAML"),
        ("a: 1\nb: 2\n--- \nc: 3", "line 3, is not YAML: but found another document"),
        ("a: 2026-02-30", "holds a value that can't be: day is out of range for month"),
        ("a: " + 1_000 * "[", "is nested too deep"),
        ("a: &a [*a]", "a is not a known key"),
        ("telemetry: &a {mappings: *a}", "telemetry.mappings.mappings.columns is missing"),
        (LAUGHS, "tidegate.yaml has 12 faults"),
        (LAUGHS + "engine: {profile: *l}", "engine.profile must be text; got a list"),
    ],
)
def test_a_file_that_cannot_be_is_a_sentence(tmp_path, text, sentence):
    with pytest.raises(InputError) as refused:
        read(written(tmp_path, text))
    assert sentence in str(refused.value)


def test_sections_with_everything_commented_out_are_empty(tmp_path):
    path = written(tmp_path, "telemetry:\n  scrape:\npriority_queues:\ntenants:\n  by_name:\nkv_headroom:\n")
    assert read(path) == read(written(tmp_path, ""))
