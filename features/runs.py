"""Runs: bouts of activity of one sender, split where it was quiet for over a minute."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

QUIET_S = 60
PEAK_WINDOWS_S = (10, 20)


@dataclass(frozen=True, slots=True)
class Run:
    """A run's first second and its opening load in tokens/s: the higher mean of its first 10 and 20 s."""

    start_s: int
    load: float


_Open = tuple[int, int, int, int]
"""A run under way: first and latest second, work of its first 10 s and of the next 10; replaced, not changed,
so that a copy of a detector may share it."""


class RunDetector:
    """Cuts the activity of senders into runs, second by second, in order of time.

    >>> detector = RunDetector()
    >>> [detector.observe("job", second, 600) for second in (0, 1)]
    [True, False]
    >>> detector.observe("job", 300, 600), detector.previous("job")
    (True, Run(start_s=0, load=120.0))
    """

    def __init__(self) -> None:
        self._open: dict[Hashable, _Open] = {}
        self._previous: dict[Hashable, Run] = {}

    def observe(self, sender: Hashable, second: int, work: int) -> bool:
        """Take in what a sender sent in a second; true when a new run starts with it."""
        run = self._open.get(sender)
        if run is None or second - run[1] > QUIET_S:
            if run is not None:
                start_s, _, first, then = run
                self._previous[sender] = Run(
                    start_s, max(first / PEAK_WINDOWS_S[0], (first + then) / PEAK_WINDOWS_S[1])
                )
            self._open[sender] = second, second, work, 0
            return True
        start_s, _, first, then = run
        age_s = second - start_s
        if age_s < PEAK_WINDOWS_S[0]:
            first += work
        elif age_s < PEAK_WINDOWS_S[1]:
            then += work
        self._open[sender] = start_s, second, first, then
        return False

    def previous(self, sender: Hashable) -> Run | None:
        """The sender's last complete run, None where there is none."""
        return self._previous.get(sender)

    def copy(self) -> "RunDetector":
        """A detector that knows the same and goes on by itself."""
        twin = RunDetector()
        twin._open, twin._previous = self._open.copy(), self._previous.copy()
        return twin


@dataclass(frozen=True, slots=True)
class Runs:
    """Every run of many senders, sender by sender, each one's in order of time; n runs.

    Attributes:
        sender: whose run it is, int64, (n,).
        rank: how many runs of the same sender came before, int64, (n,).
        entry: the entry of the activity that the run starts with, int64, (n,).
        start_s: its first second, int64, (n,).
        load: its opening load, as `Run` has it, tokens/s, float64, (n,).

    """

    sender: NDArray[np.int64]
    rank: NDArray[np.int64]
    entry: NDArray[np.int64]
    start_s: NDArray[np.int64]
    load: NDArray[np.float64]


def find_runs(sender: NDArray[Any], second: NDArray[Any], work: NDArray[np.int64]) -> Runs:
    """Find the runs that a `RunDetector` finds, in activity that is sorted by second; any whole numbers.

    >>> runs = find_runs(np.array([0, 1, 0, 0]), np.array([0, 0, 1, 300]), np.array([600, 5, 600, 1]))
    >>> runs.start_s.tolist(), runs.load.tolist(), runs.rank.tolist()
    ([0, 300, 0], [120.0, 0.1, 0.5], [0, 1, 0])
    """
    # Narrow integers are sorted by radix, ten times as fast.
    narrow = sender.astype(np.int16) if sender.max(initial=0) < 1 << 15 else sender
    order = np.argsort(narrow, kind="stable")
    who, when = sender[order], second[order]
    starts = np.ones(len(order), dtype=np.bool_)
    starts[1:] = (who[1:] != who[:-1]) | (np.diff(when) > QUIET_S)
    first = np.flatnonzero(starts)
    age_s = when - np.repeat(when[first], np.diff(first, append=len(order)))
    first_s, both_s = PEAK_WINDOWS_S
    opening, both = (
        np.add.reduceat(np.where(age_s < window_s, work[order], 0), first) if len(first) else first
        for window_s in PEAK_WINDOWS_S
    )
    return Runs(
        who[first].astype(np.int64),
        ranks(who[first]),
        order[first],
        when[first].astype(np.int64),
        np.maximum(opening / first_s, both / both_s),
    )


def ranks(group: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many entries of the same group come before each, int64, (n,); equal groups side by side.

    >>> ranks(np.array([4, 4, 4, 2, 7, 7])).tolist()
    [0, 1, 2, 0, 0, 1]
    """
    starts = np.ones(len(group), dtype=np.bool_)
    starts[1:] = group[1:] != group[:-1]
    first = np.flatnonzero(starts)
    return np.arange(len(group)) - np.repeat(first, np.diff(first, append=len(group)))


def spans(count: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Take apart groups of so many members: the group of each member, and its rank in it.

    >>> [part.tolist() for part in spans(np.array([2, 0, 3]))]
    [[0, 0, 2, 2, 2], [0, 1, 0, 1, 2]]
    """
    group = np.repeat(np.arange(len(count)), count)
    return group, np.arange(len(group)) - np.repeat(np.cumsum(count) - count, count)
