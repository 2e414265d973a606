"""Runs: bouts of activity of one sender, split where it was quiet for over a minute."""

from dataclasses import dataclass

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
        self._open: dict[object, _Open] = {}
        self._previous: dict[object, Run] = {}

    def observe(self, sender: object, second: int, work: int) -> bool:
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

    def previous(self, sender: object) -> Run | None:
        """The sender's last complete run, None where there is none."""
        return self._previous.get(sender)

    def copy(self) -> "RunDetector":
        """A detector that knows the same and goes on by itself."""
        twin = RunDetector()
        twin._open, twin._previous = self._open.copy(), self._previous.copy()
        return twin
