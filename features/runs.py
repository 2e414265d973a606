"""Runs: bouts of activity of one sender, split where it was quiet for over a minute."""

from dataclasses import dataclass

QUIET_S = 60
PEAK_WINDOWS_S = (10, 20)


@dataclass(frozen=True, slots=True)
class Run:
    """A run's first second and its opening load in tokens/s: the higher mean of its first 10 and 20 s."""

    start_s: int
    load: float


@dataclass(slots=True)
class _Open:
    start_s: int
    last_s: int
    work: int
    late_work: int


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
        if run is None or second - run.last_s > QUIET_S:
            if run is not None:
                first, both = run.work, run.work + run.late_work
                self._previous[sender] = Run(
                    run.start_s, max(first / PEAK_WINDOWS_S[0], both / PEAK_WINDOWS_S[1])
                )
            self._open[sender] = _Open(second, second, work, 0)
            return True
        run.last_s = second
        age_s = second - run.start_s
        if age_s < PEAK_WINDOWS_S[0]:
            run.work += work
        elif age_s < PEAK_WINDOWS_S[1]:
            run.late_work += work
        return False

    def previous(self, sender: object) -> Run | None:
        """The sender's last complete run, None where there is none."""
        return self._previous.get(sender)
