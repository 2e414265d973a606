"""Runs: bouts of a flow's activity, split where it was quiet for over a minute."""

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
    work: list[int]


class RunDetector:
    """Cuts the activity of flows into runs, one flow-second at a time, in order of time.

    >>> detector = RunDetector()
    >>> [detector.observe(0, second, 600) for second in (0, 1)]
    [True, False]
    >>> detector.observe(0, 300, 600), detector.previous(0)
    (True, Run(start_s=0, load=120.0))
    """

    def __init__(self) -> None:
        self._open: dict[int, _Open] = {}
        self._previous: dict[int, Run] = {}

    def observe(self, flow: int, second: int, work: int) -> bool:
        """Take in what a flow sent in a second; true when a new run starts with it."""
        run = self._open.get(flow)
        starts = run is None or second - run.last_s > QUIET_S
        if run is None or starts:
            if run is not None:
                loads = (tokens / window for tokens, window in zip(run.work, PEAK_WINDOWS_S, strict=True))
                self._previous[flow] = Run(run.start_s, max(loads))
            run = self._open[flow] = _Open(second, second, [0] * len(PEAK_WINDOWS_S))
        run.last_s = second
        age_s = second - run.start_s
        for index, window in enumerate(PEAK_WINDOWS_S):
            if age_s < window:
                run.work[index] += work
        return starts

    def previous(self, flow: int) -> Run | None:
        """The flow's last complete run, None where there is none."""
        return self._previous.get(flow)
