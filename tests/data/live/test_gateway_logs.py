"""Log lines of every form: taken, refused with a reason or ignored; nothing lost, nothing secret kept."""

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.live import envoy_log, litellm_log
from data.live.gateway_logs import READERS, parse
from data.live.intake import Intake
from data.live.tail import MAX_LINE_BYTES, Line
from data.writer import fitted

NOW = datetime(2026, 3, 1, 12, 0, 10, tzinfo=UTC)
ENVOY = {
    "start_time": "2026-03-01T12:00:00.250000Z",
    "duration_ms": 2000,
    "request_id": "6050887e",
    "method": "POST",
    "path": "/v1/chat/completions",
    "status": 200,
    "flags": "-",
    "prompt_tokens": 90,
}
LITELLM = {
    "id": "chatcmpl-1",
    "call_type": "acompletion",
    "status": "success",
    "startTime": 1772366400.25,
    "endTime": 1772366402.25,
    "model": "gpt-4o",
    "prompt_tokens": 90,
    "completion_tokens": 12,
}
GOOD = {"envoy": ENVOY, "litellm": LITELLM}
FORMS = pytest.mark.parametrize("form", list(READERS))


def read(form, *lines: bytes | dict) -> Intake:
    numbered = [
        Line(number, line if isinstance(line, bytes) else json.dumps(line).encode())
        for number, line in enumerate(lines, 1)
    ]
    return parse(numbered, form, source="edge", file="access.log", now=NOW)


@FORMS
def test_a_line_is_a_finished_request(form):
    row = read(form, GOOD[form]).requests.row(0, named=True)
    assert row["arrived_at"] == datetime(2026, 3, 1, 12, 0, 0, 250_000, UTC)
    assert row["finished_at"] == datetime(2026, 3, 1, 12, 0, 2, 250_000, UTC)
    assert (row["source"], row["prompt_tokens"], row["outcome"]) == ("edge", 90, "served")


@FORMS
def test_unknown_prompt_tokens_go_to_quarantine_with_that_reason_and_never_count_as_zero(form):
    intake = read(form, GOOD[form] | {"prompt_tokens": None}, GOOD[form])
    assert intake.requests.height == 1
    assert intake.rejected["reason"].item() == "prompt_tokens is unknown: the record has none"
    assert intake.rejected["line"].item() == 1
    assert intake.rejected["file"].item() == "access.log"


@FORMS
@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"a": ', "the line is not JSON"),
        (b"\xff\xfe\x00", "the line is not JSON"),
        (b"[" * 100_000, "the line is not JSON"),
        (b"[1]", "the line must be a JSON object; got list"),
    ],
)
def test_a_line_that_is_no_object_is_refused_and_only_its_size_is_kept(form, line, reason):
    rejected = read(form, line).rejected.row(0, named=True)
    assert rejected["reason"] == reason
    assert rejected["raw"] == f"({len(line)} bytes, not kept)"


@FORMS
def test_a_cut_line_is_refused(form):
    line = Line(3, b"x" * MAX_LINE_BYTES, cut=True)
    rejected = parse([line], form, source="edge", file="f", now=NOW).rejected.row(0, named=True)
    assert rejected["reason"] == "the line is longer than 1048576 bytes"
    assert rejected["raw"] == "(1048576 bytes or more, not kept)"


@FORMS
def test_blank_lines_are_ignored(form):
    assert read(form, b"", b"  ").ignored == 2


@FORMS
def test_a_time_60_s_ahead_is_refused_with_the_offset_and_one_behind_is_taken(form):
    ahead, behind = {
        "envoy": ({"start_time": "2026-03-01T12:01:10Z"}, {"start_time": "2026-03-01T11:59:00Z"}),
        "litellm": ({"startTime": NOW.timestamp() + 60, "endTime": NOW.timestamp() + 61}, {"startTime": 1e9}),
    }[form]
    intake = read(form, GOOD[form] | ahead, GOOD[form] | behind)
    assert intake.requests.height == 1
    assert "is 60.0 s ahead of this machine's clock, 5 s are let pass" in intake.rejected["reason"].item()


@FORMS
def test_secrets_reach_neither_lake_nor_quarantine(form):
    secrets = {
        "authorization": "Bearer sk-secret",
        "messages": [{"role": "user", "content": "a secret"}],
        "response": {"choices": ["secret"]},
        "metadata": {"user_api_key_hash": "secret", "user_api_key_alias": "search", "user_agent": "secret"},
        "model_parameters": {"max_tokens": 9, "system": "secret"},
        "error_information": {"error_message": "secret"},
    }
    intake = read(form, GOOD[form] | secrets, GOOD[form] | secrets | {"prompt_tokens": -1})
    assert (intake.requests.height, intake.rejected.height) == (1, 1)
    assert "secret" not in json.dumps([*intake.requests.rows(), *intake.rejected.rows()], default=str)


VALUES = st.sampled_from(
    [
        None,
        True,
        -1,
        0,
        7,
        10**30,
        1e300,
        float("nan"),
        "",
        "-",
        "\ud800",
        "x\0",
        "9" * 5000,
        "2026-03-01",
        [],
        {},
    ]
)
KEYS = st.sampled_from(sorted({*envoy_log.JSON_FORMAT, *litellm_log.KEYS, "level"}))


@given(
    st.sampled_from(list(READERS)),
    st.lists(st.binary(max_size=40) | st.dictionaries(KEYS, VALUES, max_size=4), max_size=5),
)
def test_any_lines_are_taken_refused_or_ignored_and_nothing_gets_lost(form, lines):
    intake = read(form, *(GOOD[form] | line if isinstance(line, dict) else line for line in lines))
    assert intake.records == len(lines)
    fitted("requests", intake.requests)
    fitted("quarantine", intake.rejected)
