"""Sessions whose next turn is due: turns that ended and that nothing has followed yet, by how long ago."""

from collections.abc import Hashable, Iterable
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

AGES_S = (0, 30, 60, 120, 240)
"""Bounds of the age classes; a session that was silent for longer is taken to be over."""
CLASSES = tuple(pairwise(AGES_S))
"""First age and the one after the last of each class, in seconds."""
LAST_AGE_S = AGES_S[-1]

_NEVER_S = 1 << 38
_TIME_BITS = 40


class Returns:
    """Sessions that wait for their next turn; grows second by second, equal to `waiting_before`.

    A session waits from the end of a turn until whatever happens in it next. In one second arrivals come
    before ends.

    >>> returns = Returns()
    >>> returns.close(0, came=["a", "b"], left=[]), returns.close(7, came=[], left=["a", "b"])
    (None, None)
    >>> returns.close(40, came=["b"], left=[])
    >>> returns.waiting(41).tolist()
    [0, 1, 0, 0]
    """

    def __init__(self) -> None:
        self._since: dict[Hashable, int] = {}  # in order of time
        self._count: dict[int, int] = {}  # how many have waited since a second

    def close(self, second: int, came: Iterable[Hashable], left: Iterable[Hashable]) -> None:
        """Take in the sessions of a second's arrivals and of its ends; seconds in order."""
        for session in came:
            self._forget(session)
        for session in left:
            self._forget(session)
            self._since[session] = second
            self._count[second] = self._count.get(second, 0) + 1
        while self._since and self._since[over := next(iter(self._since))] <= second - LAST_AGE_S:
            self._forget(over)

    def waiting(self, t_s: int) -> NDArray[np.int64]:
        """Sessions that wait before a tick, by age class, (len(CLASSES),)."""
        counts = [0] * len(CLASSES)
        for second, count in self._count.items():
            age_s = t_s - 1 - second
            for index, (low, high) in enumerate(CLASSES):
                if low <= age_s < high:
                    counts[index] += count
        return np.array(counts, np.int64)

    def copy(self) -> "Returns":
        """The same knowledge, to go on by itself."""
        twin = Returns()
        twin._since, twin._count = self._since.copy(), self._count.copy()
        return twin

    def _forget(self, session: Hashable) -> None:
        second = self._since.pop(session, None)
        if second is None:
            return
        if self._count[second] == 1:
            del self._count[second]
        else:
            self._count[second] -= 1


def waits(turns: pl.DataFrame) -> NDArray[np.int64]:
    """Second since which and second until which a session waited, int64, (2, waits).

    Args:
        turns: ``session`` (a number below 2^23), ``second`` of the arrival and ``known_s`` of the end; int64,
            one row a turn.

    """
    session, second, known_s = (turns[name].to_numpy() for name in ("session", "second", "known_s"))
    # One number an event, in order of session, time, and arrivals before ends: sorted faster than three.
    events = np.concatenate([second << 1, (np.minimum(known_s, _NEVER_S) << 1) + 1])
    events += np.tile(session, 2) << _TIME_BITS
    events.sort()
    session, at = events >> _TIME_BITS, (events & (1 << _TIME_BITS) - 1) >> 1
    until = np.append(at[1:], _NEVER_S)
    until[np.append(session[1:] != session[:-1], True)] = _NEVER_S
    ended = (events & 1 == 1) & (until > at)
    return np.stack([at[ended], until[ended]])


def waiting_before(waited: NDArray[Any], seconds: int, t_s: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sessions that wait before each tick, by age class, int64, (len(CLASSES), n), from `waits`."""
    since, until = waited
    counts = np.zeros((len(CLASSES), len(t_s)), np.int64)
    for row, (low, high) in zip(counts, CLASSES, strict=True):
        starts, stops = since + low, np.minimum(since + high, until)
        known = (stops > starts) & (starts < seconds)
        change = np.bincount(starts[known], minlength=seconds + 1)[: seconds + 1].astype(np.int64)
        change -= np.bincount(np.minimum(stops[known], seconds), minlength=seconds + 1)
        row[1:] = np.cumsum(change)[t_s[1:] - 1]
    return counts
