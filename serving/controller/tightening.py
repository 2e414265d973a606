"""Tightening in [0, 1]: the level that a forecast applies to the rules, moving at a bounded rate."""

import math


class Tightening:
    """A level on its way to a target; 0 is the rules alone.

    The level moves by at most ``max_change_per_s`` up and down. A target that is not renewed for ``hold_s``
    becomes 0: a forecaster that has gone silent releases the gate.

    >>> tightening = Tightening(max_change_per_s=0.2, hold_s=15.0)
    >>> tightening.set(1.0, now_s=0.0)
    >>> [round(tightening.level(now_s), 2) for now_s in (1.0, 2.0, 8.0, 15.0, 16.0, 30.0)]
    [0.2, 0.4, 1.0, 1.0, 0.8, 0.0]
    """

    def __init__(self, max_change_per_s: float, hold_s: float) -> None:
        self.ignored = 0
        self._max_change_per_s = max_change_per_s
        self._hold_s = hold_s
        self._target = 0.0
        self._set_level = 0.0
        self._set_s = 0.0

    def set(self, target: float, now_s: float) -> None:
        """Move towards ``target``, cut to [0, 1]; one that is not a number counts as 0."""
        if math.isnan(target):
            self.ignored += 1
            target = 0.0
        self._set_level = self.level(now_s)
        self._target = min(1.0, max(0.0, target))
        self._set_s = now_s

    def target(self, now_s: float) -> float:
        """Level that it moves to."""
        return self._target if now_s <= self._set_s + self._hold_s else 0.0

    def level(self, now_s: float) -> float:
        """Level at ``now_s``."""
        if self._target == 0.0 == self._set_level:
            return 0.0
        since_s = now_s - self._set_s
        held = self._moved(self._set_level, self._target, min(since_s, self._hold_s))
        return held if since_s <= self._hold_s else self._moved(held, 0.0, since_s - self._hold_s)

    def _moved(self, level: float, target: float, seconds: float) -> float:
        most = self._max_change_per_s * seconds
        return max(target, level - most) if target < level else min(target, level + most)
