"""Counters become rates over the real interval; where that is not known, the rate is unknown."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Counters:
    """Cumulative counts at one time: monotonic seconds, counts finite and not negative.

    `started_s` is when their process says that it started, where it does.
    """

    at_s: float
    values: Mapping[str, float]
    started_s: float | None = None


@dataclass(frozen=True, slots=True)
class Interval:
    """What counters gained between two readings; `length_s` is None where nothing can be said.

    `reason` says why not. A counter that one of the readings lacks has no gain.
    """

    length_s: float | None = None
    gains: Mapping[str, float] = field(default_factory=dict)
    reason: str | None = None
    restarted: bool = False

    def per_s(self, name: str) -> float | None:
        """Rate of a counter."""
        return _quotient(self.gains.get(name), self.length_s)

    def ratio(self, part: str, whole: str) -> float | None:
        """One counter's gain over another's, such as sum over count; unknown where nothing was counted."""
        return _quotient(self.gains.get(part), self.gains.get(whole))


def interval(before: Counters | None, now: Counters, longest_s: float) -> Interval:
    """What was gained between two readings of the same engine.

    The first reading gives no rate: what a counter holds then was gained over an unknown time. One falling
    counter means that the process restarted, so all its counters did, and the interval is unknown.

    >>> readings = [Counters(10.0 * i, {"requests": n}) for i, n in enumerate([100.0, 160.0, 5.0, 65.0])]
    >>> [interval(*two, longest_s=60).per_s("requests") for two in zip([None, *readings], readings)]
    [None, 6.0, None, 6.0]

    """
    if before is None:
        return Interval(reason="first reading: no rates yet")
    length_s = now.at_s - before.at_s
    if not 0 < length_s <= longest_s:
        return Interval(reason=f"no reading for {length_s:.0f} s: no rates" if length_s > 0 else None)
    if None not in (before.started_s, now.started_s) and before.started_s != now.started_s:
        return Interval(reason="the engine restarted: no rates", restarted=True)
    gains = {name: value - before.values[name] for name, value in now.values.items() if name in before.values}
    for name, gain in gains.items():
        if gain < 0:
            fell = f"{name} fell from {before.values[name]:.12g} to {now.values[name]:.12g}"
            return Interval(reason=f"{fell}: the engine restarted, no rates", restarted=True)
    return Interval(length_s, gains)


def _quotient(gain: float | None, divisor: float | None) -> float | None:
    if gain is None or not divisor:
        return None
    quotient = gain / divisor
    return quotient if quotient < math.inf else None
