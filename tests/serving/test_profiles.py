import json
from dataclasses import asdict

import pytest

from data.errors import InputError
from serving.controller.engine_model import A100, H100
from serving.controller.rules import Rules
from serving.profiles import read_profile, write_profile


@pytest.mark.parametrize("profile", [H100, A100])
def test_a_profile_reads_back_the_same_and_the_rules_take_it(profile, tmp_path):
    write_profile(profile, tmp_path / "new" / "profile.yaml")
    read = read_profile(tmp_path / "new" / "profile.yaml")

    assert read == profile
    assert Rules(engine=read).capacity == profile.capacity_tokens


def test_json_is_read_too(tmp_path):
    (tmp_path / "profile.json").write_text(json.dumps(asdict(H100)))

    assert read_profile(tmp_path / "profile.json") == H100


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kv_blocks": 0}, "kv_blocks must be over 0; got 0"),
        ({"kv_blocks": 1.5}, "kv_blocks must be a whole number; got 1.5"),
        ({"decode_base_s": "fast"}, "decode_base_s must be a number; got 'fast'"),
        ({"decode_base_s": float("nan")}, "decode_base_s must be finite; got nan"),
        ({"decode_base_s": True}, "decode_base_s must be a number; got True"),
        ({"name": 7}, "name must be text; got 7"),
        ({"blocks": 7}, "unknown: blocks"),
    ],
)
def test_a_profile_that_cannot_be_is_refused_by_name(change, message, tmp_path):
    path = tmp_path / "profile.json"
    path.write_text(json.dumps({**asdict(H100), **change}).replace("NaN", ".nan"))

    with pytest.raises(InputError, match=message):
        read_profile(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: x", "missing: prefill_base_s"),
        ("- 1", "must be a mapping"),
        ("a: [", "can't be read as YAML"),
        ("", "must be a mapping"),
    ],
)
def test_a_file_that_is_no_profile_is_refused(text, message, tmp_path):
    (tmp_path / "profile.yaml").write_text(text)

    with pytest.raises(InputError, match=message):
        read_profile(tmp_path / "profile.yaml")


def test_a_profile_that_cannot_be_stored_or_found_says_so(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="can't be written"):
        write_profile(H100, tmp_path / "file" / "profile.yaml")
    with pytest.raises(InputError, match="can't be read"):
        read_profile(tmp_path / "absent.yaml")
