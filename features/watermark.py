"""How long late rows still count: the last minutes' rows by second, and what was learned before them.

What is learned second by second can't take a late row in where it stands. It goes back to a snapshot from
before the row, and the seconds since then close anew; once, however many late rows there are.
"""

from collections import defaultdict, deque
from collections.abc import Callable
from typing import Generic, Protocol, Self, TypeVar

WATERMARK_S = 60
"""A row for a second this long before the first open one still counts; those before it change nothing."""
SNAPSHOT_EVERY_S = 15
"""Up to this much more than the delay of a late row closes anew; a snapshot of 1,000 flows takes 0.1 ms."""


class Copies(Protocol):
    """Something that can be kept as it is while it goes on."""

    def copy(self) -> Self:
        """The same, to go on by itself."""
        ...


Learned = TypeVar("Learned", bound=Copies)
Rows = TypeVar("Rows")


class Watermark(Generic[Learned, Rows]):
    """Seconds that close in order and are closed again when a late row changes one of them.

    Attributes:
        rows: what came in each second, kept until no late row can reach it.
        closed_s: seconds before this one are closed.
        late: rows that came too late to count.

    >>> from collections import Counter
    >>> past = Watermark(Counter(), int)
    >>> seen = Counter()
    >>> def close_until(second: int) -> Counter:
    ...     learned = past.rewound(seen)
    ...     while past.closed_s < second:
    ...         learned["work"] += past.rows[past.closed_s]
    ...         past.close(learned)
    ...     return learned
    >>> past.rows[0] = 5
    >>> seen = close_until(100)
    >>> past.takes(39), past.takes(40)
    (False, True)
    >>> past.rows[40] += 2
    >>> close_until(100)["work"], past.late
    (7, 1)

    """

    def __init__(self, learned: Learned, rows: Callable[[], Rows]) -> None:
        self.rows: defaultdict[int, Rows] = defaultdict(rows)
        self.closed_s = 0
        self.late = 0
        self._changed_s: int | None = None  # first closed second that late rows changed
        self._snapshots: deque[tuple[int, Learned]] = deque([(0, learned.copy())])

    def takes(self, second: int) -> bool:
        """Whether a row for that second counts, and is to be put to its rows; one that doesn't is counted."""
        if second >= self.closed_s:
            return True
        if second < max(self.closed_s - WATERMARK_S, 0):
            self.late += 1
            return False
        self._changed_s = second if self._changed_s is None else min(self._changed_s, second)
        return True

    def rewound(self, learned: Learned) -> Learned:
        """What was learned before the first second that late rows changed; without such rows, all of it."""
        if self._changed_s is None:
            return learned
        while self._snapshots[-1][0] > self._changed_s:
            self._snapshots.pop()
        self._changed_s = None
        self.closed_s, before = self._snapshots[-1]
        return before.copy()

    def close(self, learned: Learned) -> None:
        """Close the next second, whose rows are learned."""
        self.closed_s += 1
        if self.closed_s % SNAPSHOT_EVERY_S:
            return
        self._snapshots.append((self.closed_s, learned.copy()))
        while len(self._snapshots) > 1 and self._snapshots[1][0] <= self.closed_s - WATERMARK_S:
            first_s, _ = self._snapshots.popleft()
            for second in range(first_s, self._snapshots[0][0]):
                self.rows.pop(second, None)
