from random import Random

import pytest

from pipeline.play.retries import delay_s


@pytest.mark.parametrize(
    ("status", "headers", "expected"),
    [
        (429, {"retry-after": "7"}, 7.0),
        (429, {"retry-after-ms": "6480", "retry-after": "7"}, 6.48),
        (429, {"retry-after-ms": "soon", "retry-after": "7"}, 7.0),
        (429, {"retry-after": "121", "x-should-retry": "true"}, None),
        (429, {"retry-after": "120"}, 120.0),
        (429, {"retry-after": "7", "x-should-retry": "false"}, None),
        (403, {"retry-after": "7"}, None),
        (403, {"retry-after": "7", "x-should-retry": "true"}, 7.0),
        (529, {"retry-after": "2"}, 2.0),
        (400, {}, None),
    ],
)
def test_advice_is_obeyed_as_the_sdk_does(status, headers, expected):
    assert delay_s(status, headers, 0, Random(1)) == expected


@pytest.mark.parametrize("advice", [{}, {"retry-after": "0"}, {"retry-after": "-3"}, {"retry-after": "nan"}])
@pytest.mark.parametrize(("retries", "longest"), [(0, 0.5), (1, 1.0)])
def test_without_usable_advice_it_backs_off_by_itself(advice, retries, longest):
    for status in (None, 429, 503):
        assert 0.75 * longest <= delay_s(status, advice, retries, Random(3)) <= longest


def test_it_tries_again_twice():
    assert delay_s(429, {"retry-after": "1"}, 1, Random(1)) == 1.0
    assert delay_s(429, {"retry-after": "1"}, 2, Random(1)) is None
