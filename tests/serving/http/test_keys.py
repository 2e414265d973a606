from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.errors import InputError
from serving.http.keys import SCOPES, VARIABLE, owner_of, parse, read_keys

OLD, NEW = "old-" + "a" * 40, "new-" + "b" * 40


def key_file(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "keys"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_keys_of_file_and_environment_count_and_a_name_may_have_several(tmp_path: Path) -> None:
    path = key_file(tmp_path, f"# edge\nedge admit,telemetry {OLD}\n\nedge admit {NEW}  # from March on\n")
    keys = read_keys(path, {VARIABLE: f"ops control {'c' * 32}; dash read {'d' * 32}"})
    assert [(key.name, sorted(key.scopes)) for key in keys] == [
        ("edge", ["admit", "telemetry"]),
        ("edge", ["admit"]),
        ("ops", ["control"]),
        ("dash", ["read"]),
    ]
    for presented, name in ((OLD, "edge"), (NEW, "edge"), ("c" * 32, "ops")):
        found = owner_of(keys, presented)
        assert found is not None
        assert found.name == name
    assert owner_of(keys, OLD[:-1]) is None


def test_no_keys_are_no_keys() -> None:
    assert read_keys(None, {}) == ()


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o660, 0o666, 0o777])
def test_a_file_that_others_may_read_or_write_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(InputError, match="only its owner can read; run chmod 600"):
        read_keys(key_file(tmp_path, f"edge admit {OLD}", mode), {})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"edge {OLD}", "Line 1 of .* must be NAME SCOPES KEY"),
        (f"\n{OLD} admit edge!", "Line 2 of .*at least 32"),
        (f"edge admit,root {OLD}", "scopes must be out of admit, telemetry, control, read"),
        (f"edge admit,admit {OLD}", "scopes must be out of"),
        ("edge admit short-secret", "at least 32 printable"),
        (f"a admit {OLD}\nb read {OLD}", "stands twice"),
        ("# none yet", "has no key"),
    ],
)
def test_a_wrong_line_is_told_by_its_number_and_never_repeated(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(InputError, match=message) as raised:
        read_keys(key_file(tmp_path, text), {})
    told = str(raised.value)
    assert OLD not in told
    assert "short-secret" not in told


def test_a_missing_file_and_a_folder_are_input_errors(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(InputError, match=r"can't be read|regular file"):
            read_keys(path, {})


def test_a_key_does_not_show_in_what_is_printed_of_it() -> None:
    [key] = parse(f"edge admit {OLD}", "keys")
    assert OLD not in repr(key)
    assert key.digest.hex() not in repr(key)


@given(st.text(max_size=80))
def test_any_text_is_keys_or_an_input_error_that_does_not_repeat_it(text: str) -> None:
    try:
        found = parse(text, "keys")
    except InputError as error:
        told = str(error)
    else:
        told = ""
        assert all(key.scopes <= set(SCOPES) for key in found)
    assert not any(word in told for word in text.split() if len(word) >= 20)
