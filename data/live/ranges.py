"""What a reading can be; anything else is dropped and counted, never clamped."""

import math
from collections.abc import Mapping

SHARE = (0.0, 1.0)
MOST = 1e15
"""Counts beyond this are no counts: floats hardly tell neighbours apart there."""
RANGES: Mapping[str, tuple[float, float]] = {
    "waiting": (0.0, 1e9),
    "running": (0.0, 1e9),
    "kv_cache_usage": SHARE,
    "kv_blocks": (1.0, 1e12),
    "kv_block_tokens": (1.0, 1e9),
    "hit_rate": SHARE,
}
_WHOLE = ("waiting", "running", "kv_blocks", "kv_block_tokens")


def fault(signal: str, value: float) -> str | None:
    """Why this can't be the value of a signal; None when it can. Signals without a range are counters.

    >>> fault("kv_cache_usage", 39.0)
    'kv_cache_usage 39 lies outside 0 to 1 and may be a percentage'
    >>> fault("kv_cache_usage", -0.39), fault("kv_cache_usage", 0.39)
    ('kv_cache_usage -0.39 lies outside 0 to 1', None)
    >>> fault("output_tokens", math.nan)
    'output_tokens is NaN'

    """
    if math.isnan(value):
        return f"{signal} is NaN"
    lowest, highest = RANGES.get(signal, (0.0, MOST))
    if not lowest <= value <= highest:
        outside = f"{signal} {value:g} lies outside {lowest:g} to {highest:g}"
        return f"{outside} and may be a percentage" if is_percentage(signal, value) else outside
    if signal in _WHOLE and value % 1:
        return f"{signal} {value:g} is not a whole number"
    return None


def is_percentage(signal: str, value: float) -> bool:
    """True for a share that looks like one of a hundred."""
    return RANGES.get(signal) == SHARE and 1.0 < value <= 100.0
