"""When a client tries again: as the OpenAI SDK for Python does.

https://github.com/openai/openai-python/blob/main/src/openai/_base_client.py
"""

import math
from collections.abc import Mapping
from random import Random

LONGEST_S = 120.0
"""The SDK gives up when it is told to wait longer."""
RETRIES = 2
"""How often it tries again, by default."""


def delay_s(status: int | None, headers: Mapping[str, str], retries: int, random: Random) -> float | None:
    """Seconds to wait before the next try; None to give up. ``status`` None: no answer came.

    >>> delay_s(429, {"retry-after": "7", "retry-after-ms": "6480"}, 0, Random(1))
    6.48
    >>> delay_s(429, {"retry-after": "7", "x-should-retry": "false"}, 0, Random(1)) is None
    True
    >>> delay_s(503, {}, 2, Random(1)) is None
    True

    """
    told_s = _told_s(headers)
    if retries >= RETRIES or told_s > LONGEST_S:
        return None
    should = headers.get("x-should-retry")
    if should == "false" or (should != "true" and status is not None and not _again(status)):
        return None
    if told_s > 0:
        return told_s
    own_s: float = min(8.0, 0.5 * 2**retries)
    return own_s * (1 - 0.25 * random.random())


def _again(status: int) -> bool:
    return status in (408, 409, 429) or status >= 500


def _told_s(headers: Mapping[str, str]) -> float:
    """Advice in seconds; 0 where there is none that can be read as a number of seconds."""
    for name, unit_s in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        try:
            told_s = float(headers[name]) * unit_s
        except (KeyError, ValueError):
            continue
        return told_s if math.isfinite(told_s) else 0.0
    return 0.0
