"""Time that only moves forward, whatever the clock does."""

OVERTAKING_S = 1.0
"""Callers overtake one another by less than this; a larger step back is a clock that was set back."""
FARTHEST_S = 1e12
"""Readings beyond this are no clock's: floats there no longer resolve a second's small parts."""


class Elapsed:
    """A clock's readings, made to never go back.

    A small step back stands still until the clock has caught up. After a larger one time goes on from where
    it was at the clock's pace, so leases keep running out. Readings that no clock gives are ignored.

    >>> elapsed = Elapsed()
    >>> [elapsed.at(now_s) for now_s in (100.0, 101.0, 100.5, 101.0, 7.0, 9.0, float("nan"))]
    [100.0, 101.0, 101.0, 101.0, 101.0, 103.0, 103.0]
    """

    __slots__ = ("_last_s", "_offset_s")

    def __init__(self) -> None:
        self._last_s = 0.0
        self._offset_s = 0.0

    def at(self, now_s: float) -> float:
        """Time in seconds when the clock reads ``now_s``."""
        time_s = now_s + self._offset_s
        if time_s >= self._last_s:
            if now_s < FARTHEST_S:
                self._last_s = time_s
        elif time_s < self._last_s - OVERTAKING_S and now_s > -FARTHEST_S:
            self._offset_s = self._last_s - now_s
        return self._last_s
