import json
import logging
import sys

from serving.logs import JsonLines


def record(**more: object) -> logging.LogRecord:
    made = logging.LogRecord("tidegate", logging.ERROR, __file__, 1, "tick %s", ("failed",), None)
    made.__dict__.update(more)
    return made


def test_an_event_is_one_line_of_json_with_its_fields() -> None:
    line = JsonLines().format(record(fields={"port": 8311}))
    assert "\n" not in line
    parsed = json.loads(line)
    assert (parsed["level"], parsed["event"], parsed["port"]) == ("error", "tick failed", 8311)
    assert parsed["time"].endswith("+00:00")


def test_a_traceback_stays_on_the_line() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError:
        line = JsonLines().format(record(exc_info=sys.exc_info()))
    assert "\n" not in line
    assert "ValueError" in json.loads(line)["traceback"]
