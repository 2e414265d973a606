import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.gateways.openai_body import Asked, read
from serving.http.messages import AdmitRequest


def asked(**body: object) -> Asked:
    found = read(json.dumps(body).encode())
    assert found is not None
    return found


def test_text_counts_by_its_bytes_and_marks_and_pictures_do_not():
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}
    sound = {"type": "input_audio", "input_audio": {"data": "A" * 100_000, "format": "wav!"}}
    parts = [{"type": "text", "text": "a" * 400}, picture, sound]
    messages = [{"role": "system", "content": "b" * 40}, {"role": "user", "content": parts}]
    assert asked(messages=messages).prompt_tokens == 111
    assert asked(prompt="潮" * 40).prompt_tokens == 30


def test_each_prompt_of_a_batch_is_answered_by_itself():
    chat = [{"role": "user", "content": "a"}]
    assert [asked(prompt=prompt).n for prompt in ("a", ["a", "b"], [1, 2, 3], [[1, 2], [3]])] == [1, 2, 1, 2]
    assert [asked(messages=messages).n for messages in (chat, [chat, chat, chat])] == [1, 3]
    assert asked(prompt=["a"] * 100, n=100).n == 128


def test_a_prompt_that_came_tokenised_is_counted():
    assert asked(prompt=[[1, 2, 3], [4, 5]]).prompt_tokens == 5


def test_limits_under_all_their_names():
    assert asked(max_tokens=1, max_completion_tokens=5_000)[2:4] == (1, 5_000)
    assert asked(max_output_tokens=70)[3] == 70
    assert asked(prompt="a", n=10_000).n == 128


@pytest.mark.parametrize("wrong", [0, -5, "7", 1.5, True, None, [], {}])
def test_limits_that_no_engine_takes_are_not_limits(wrong: object):
    found = asked(max_tokens=wrong, max_completion_tokens=wrong, n=wrong)
    assert found[2:] == (None, None, 1)


@pytest.mark.parametrize("body", [b"", b"[1]", b"{", b"\xff", b'{"prompt": "' + b"a" * 50, b"[" * 100_000])
def test_what_is_no_json_object_is_none(body: bytes):
    assert read(body) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text("a潮\x00\ud800", max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["text", "url", "role"]), inner, max_size=3)
    ),
    max_leaves=10,
)
KEYS = (
    "messages",
    "prompt",
    "model",
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "n",
    "tools",
)


@given(st.dictionaries(st.sampled_from(KEYS), JSON))
def test_any_object_becomes_a_valid_request(body: dict):
    found = asked(**body)
    AdmitRequest(**(found._asdict() | {"prompt_tokens": found.prompt_tokens or 0}))
