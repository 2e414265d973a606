"""The budget ledger: a hard stop that holds the false-alarm share of every trailing window."""

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from data.errors import InputError

VERSION = 1
WINDOWS = ((86_400, 0.05), (3_600, 0.15))
"""(length_s, share): alarms on calm ticks are at most this share of the calm ticks of the trailing window."""


class Ledger:
    """Charges alarms against the calm ticks that earn them.

    An alarm may stand at tick t only when, in every window (t - length_s, t], the charges standing, this one
    included, are at most share * calm ticks. A tick whose outcome is not known yet, or never comes, counts as
    charged but never as calm. So whatever the traffic and the scores do:

    - at every tick with an alarm, each trailing window holds false alarms <= share * negative ticks;
    - so does every prefix of the run, for each window's share: cut the run backwards into windows that end at
      alarms, and all false alarms lie in disjoint windows that keep the share.

    A window that ends at a tick without an alarm makes no such promise: calm ticks may have left it since.

    Ticks are whole seconds and move forward. `charge` denies a tick that is not later than the last one asked
    about or settled, and `settle` ignores one that is not later than the last settled; neither raises, and
    neither can add an alarm. After a clock that jumped ahead, the ledger denies until time has caught up.
    A fresh ledger has earned nothing. Every call is O(1) amortised.

    >>> ledger = Ledger()
    >>> ledger.charge(0)
    False
    >>> _ = [ledger.settle(t_s, negative=True) for t_s in range(0, 100, 5)]
    >>> ledger.charge(160), ledger.charge(165)  # 20 calm ticks pay for one alarm
    (True, False)
    >>> ledger.settle(160, negative=False)  # an onset came: refunded
    True
    >>> ledger.charge(225)
    True
    """

    def __init__(self, windows: Sequence[tuple[int, float]] = WINDOWS) -> None:
        self.windows = tuple((length_s, share) for length_s, share in windows)
        if not self.windows or any(length_s <= 0 or not 0 < share < 1 for length_s, share in self.windows):
            raise InputError(
                "Ledger windows must be one or more pairs of a positive length in seconds and a share "
                f"between 0 and 1; got {list(windows)!r}."
            )
        self.asked_s: int | None = None
        self.settled_s: int | None = None
        self.charges = 0
        self.denials = 0
        self._books = [_Book(length_s, share) for length_s, share in self.windows]

    def charge(self, t_s: int) -> bool:
        """Ask to raise or hold an alarm at tick ``t_s``, seconds; true when it is charged and may stand."""
        if self.now_s is not None and t_s <= self.now_s:
            self.denials += 1
            return False
        self.asked_s = t_s
        self._advance(t_s)
        if any(book.left() < 1 for book in self._books):
            self.denials += 1
            return False
        for book in self._books:
            book.charged[t_s] = None
        self.charges += 1
        return True

    def settle(self, t_s: int, negative: bool) -> bool:
        """Book the outcome of tick ``t_s``, alarmed or not; false when it came out of order and is ignored.

        A negative tick counts as calm and its charge stands; any other tick (positive, late, in an event,
        unknown) gets its charge back.
        """
        if self.settled_s is not None and t_s <= self.settled_s:
            return False
        self.settled_s = t_s
        for book in self._books:
            if negative:
                book.calm.append(t_s)
            else:
                book.charged.pop(t_s, None)
        self._advance(t_s)
        return True

    @property
    def now_s(self) -> int | None:
        """The latest tick asked about or settled; none when fresh."""
        return max((t_s for t_s in (self.asked_s, self.settled_s) if t_s is not None), default=None)

    def share(self, length_s: int) -> float:
        """Charges over calm ticks in the window of that length, as of the latest tick; NaN if none calm."""
        for book in self._books:
            if book.length_s == length_s:
                return len(book.charged) / len(book.calm) if book.calm else float("nan")
        lengths = [length_s for length_s, _ in self.windows]
        raise InputError(f"Ledger window must be one of {lengths} seconds; got {length_s!r}.")

    def remaining(self, t_s: int | None = None) -> int:
        """Alarm ticks that the budget has left at tick ``t_s``, by default as of the latest tick."""
        if t_s is not None:
            self._advance(t_s)
        return max(0, min(book.left() for book in self._books))

    def to_dict(self) -> dict[str, Any]:
        """State in plain JSON types; ticks as runs (first, last, step), so a calm day takes a few bytes."""
        longest = max(self._books, key=lambda book: book.length_s)
        return {
            "version": VERSION,
            "windows": [list(window) for window in self.windows],
            "asked_s": self.asked_s,
            "settled_s": self.settled_s,
            "charges": self.charges,
            "denials": self.denials,
            "charged": _runs(longest.charged),
            "calm": _runs(longest.calm),
        }

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> "Ledger":
        """Restore a ledger that goes on exactly where `to_dict` left it.

        Raises:
            InputError: when the state is damaged or of another version.

        """
        if not isinstance(state, Mapping) or state.get("version") != VERSION:
            found = state.get("version") if isinstance(state, Mapping) else state
            raise InputError(
                f"Ledger state must be of version {VERSION}; got {found!r}. Start a fresh ledger."
            )
        try:
            windows = [(_whole(length_s), float(share)) for length_s, share in state["windows"]]
            ledger = cls(windows)
            ledger.asked_s, ledger.settled_s = (
                None if state[name] is None else _whole(state[name]) for name in ("asked_s", "settled_s")
            )
            ledger.charges, ledger.denials = (_whole(state[name], least=0) for name in ("charges", "denials"))
            longest_s = max(length_s for length_s, _ in windows)
            charged = _ticks(state["charged"], ledger.asked_s, ledger.now_s, longest_s)
            calm = _ticks(state["calm"], ledger.settled_s, ledger.now_s, longest_s)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"Ledger state is damaged ({type(error).__name__}: {error}). Restore an older copy, or start "
                "a fresh ledger, which earns its budget anew."
            ) from error
        for book in ledger._books:
            book.charged.update(dict.fromkeys(charged))
            book.calm.extend(calm)
        if ledger.now_s is not None:
            ledger._advance(ledger.now_s)
        return ledger

    def _advance(self, t_s: int) -> None:
        now_s = t_s if self.now_s is None else max(t_s, self.now_s)
        for book in self._books:
            book.drop_until(now_s - book.length_s)


class _Book:
    """Ticks of one window, in order of time: charges standing and calm ticks."""

    def __init__(self, length_s: int, share: float) -> None:
        self.length_s = length_s
        # Exact: in floating point 0.29 * 100 is 28.999999999999996, one alarm short.
        self.share = Fraction(str(share))
        self.charged: OrderedDict[int, None] = OrderedDict()  # refunds leave from the middle
        self.calm: deque[int] = deque()

    def left(self) -> int:
        """Charges that the calm ticks still pay for; negative when calm ticks have left the window."""
        return len(self.calm) * self.share.numerator // self.share.denominator - len(self.charged)

    def drop_until(self, edge_s: int) -> None:
        while self.charged and next(iter(self.charged)) <= edge_s:
            self.charged.popitem(last=False)
        while self.calm and self.calm[0] <= edge_s:
            self.calm.popleft()


def _runs(ticks: Iterable[int]) -> list[list[int]]:
    """Ticks in rising order as evenly spaced runs [first, last, step].

    >>> _runs([0, 5, 10, 100, 105])
    [[0, 10, 5], [100, 105, 5]]
    """
    runs: list[list[int]] = []
    for t_s in ticks:
        if runs and runs[-1][0] == runs[-1][1]:
            runs[-1][1:] = [t_s, t_s - runs[-1][0]]
        elif runs and t_s - runs[-1][1] == runs[-1][2]:
            runs[-1][1] = t_s
        else:
            runs.append([t_s, t_s, 1])
    return runs


def _ticks(runs: Any, latest_s: int | None, now_s: int | None, longest_s: int) -> list[int]:
    """Ticks of the runs; ValueError unless they rise within the longest window and up to ``latest_s``."""
    ticks: list[int] = []
    for run in runs:
        first_s, last_s, step_s = (_whole(number) for number in run)
        if latest_s is None or now_s is None or last_s > latest_s or first_s <= now_s - longest_s:
            raise ValueError(f"run {run} lies outside the time that the ledger has seen")
        if step_s < 1 or last_s < first_s or (last_s - first_s) % step_s or (ticks and first_s <= ticks[-1]):
            raise ValueError(f"run {run} is not in rising order")
        ticks.extend(range(first_s, last_s + 1, step_s))
    return ticks


def _whole(value: Any, least: int | None = None) -> int:
    if type(value) is not int or (least is not None and value < least):
        raise ValueError(
            f"{value!r} is not a whole number" + ("" if least is None else f" of at least {least}")
        )
    return value
