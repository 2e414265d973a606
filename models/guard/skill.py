"""The skill gate: alarms stand only while they anticipate more onsets than chance would."""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from data.errors import InputError
from features.ticks import HORIZON_S, TICK_S

OPENS_AT = 0.0005
"""Chance of so many anticipated onsets by luck, at or under which the gate opens. Low, because the question
is asked again at every onset."""
LEAST = 3
"""Anticipated onsets that a proof needs: two of two may be one lucky hour."""
CLOSES_OVER = 0.10
"""The same chance, over which an open gate closes: no more than luck is left of the proof."""
ONSETS = 40
"""Onsets that count, the latest."""
DAYS = 14
"""Longest that one of them counts."""
APART_S = 600
"""An onset nearer than this to the one counted before tells nothing new: one alarm may stand for both."""
DAY_S = 86_400
HOUR_S = 3_600

_WINDOW = HORIZON_S[1] // TICK_S + 1
_EARLY = (HORIZON_S[1] - HORIZON_S[0]) // TICK_S + 1
_PRIOR_TICKS = 12
"""A minute in which every tick is a hit is added to each day: few alarms don't make chance look like 0."""


class Onset(NamedTuple):
    """What one onset tells.

    Attributes:
        at_s: when it came; None for one of calibration, until the first tick dates it.
        anticipated: a would-be alarm started 60 to 30 s ahead or before, and stood until the onset.
        chance: share of the trailing day's ticks at which an onset would have been anticipated.

    """

    at_s: int | None
    anticipated: bool
    chance: float


class SkillGate:
    """Open while the would-be alarms anticipate the latest onsets better than chance.

    A would-be alarm is one that the threshold and the budget would let stand, were the gate open: it is
    what counts, gate open or closed, so that a closed gate can open again. Chance is the recall of the same
    alarms moved by a random time, hence of a random alarm with the same share of time in episodes of the
    same length. Of the last ``ONSETS`` onsets in ``DAYS`` days, at least ``APART_S`` apart, k were
    anticipated; by luck alone k is a sum of coin tosses, whose upper tail the binomial of the mean chance
    bounds (Hoeffding, "On the distribution of the number of successes in independent trials", Annals of
    Mathematical Statistics, 1956). The gate opens where that tail is at most ``OPENS_AT`` and closes where it
    is over ``CLOSES_OVER``: where the one-sided 90 % lower bound of recall no longer excludes chance. A new
    gate starts from the onsets of the calibration span, or closed.

    Measured on alarms in 5 % of the time, 150 runs each: alarms of scores that correlate 0, 0.8, 0.95 and
    0.99 from tick to tick and know nothing of the onsets open the gate at any time of 20 days with 48 onsets
    a day in 0, 2.7, 4.0 and 0.7 % of runs, with 8 a day in 0, 0, 0 and 1.3 %. Alarms that anticipate half,
    0.3, 0.2 and 0.1 of the onsets besides open it after 6, 11, 21 and 53 onsets in the median (0.95).

    Ticks with an unknown score, and onsets with one in their last minute, count neither way.

    >>> gate = SkillGate([Onset(None, True, 0.03)] * 4 + [Onset(None, False, 0.03)] * 6)
    >>> gate.open, round(gate.recall, 2), f"{gate.luck:.6f}"
    (True, 0.4, '0.000147')
    >>> SkillGate([Onset(None, False, 0.03)] * 10).open
    False
    """

    def __init__(self, evidence: Sequence[Onset] = ()) -> None:
        self.onsets: deque[Onset] = deque(evidence, maxlen=ONSETS)
        self.luck = 1.0
        self.open = False
        self._judge()
        self._hours: deque[list[int]] = deque()  # [hour, ticks, hits] of the trailing day
        self._recent: deque[tuple[int, bool]] = deque(maxlen=_WINDOW)  # consecutive ticks, (t_s, would)
        self._next_s: int | None = None

    @property
    def anticipated(self) -> int:
        """Of the onsets that count."""
        return sum(onset.anticipated for onset in self.onsets)

    @property
    def recall(self) -> float:
        """Share of the onsets that were anticipated; NaN where none counts."""
        return self.anticipated / len(self.onsets) if self.onsets else math.nan

    @property
    def chance(self) -> float:
        """Recall to expect of a random alarm with the same share of time; NaN where no onset counts."""
        return sum(onset.chance for onset in self.onsets) / len(self.onsets) if self.onsets else math.nan

    @property
    def reason(self) -> str | None:
        """Why the gate is closed, for people; None while it is open."""
        if self.open:
            return None
        closed = "Until skill shows, forecasts are reported and do not tighten."
        if not self.onsets:
            return f"No burst has shown yet whether alarms anticipate bursts. {closed}"
        return (
            f"Alarms would have anticipated {self.anticipated} of the last {len(self.onsets)} bursts; "
            f"{self.chance * len(self.onsets):.1f} are to be expected of a random alarm with the same share "
            f"of time. {closed}"
        )

    def settle(self, t_s: int, would: bool | None, onset_s: int | None) -> None:
        """Learn how tick ``t_s`` turned out, in order of time.

        Args:
            t_s: the tick, whole seconds.
            would: an alarm would have stood; None where the score was unknown.
            onset_s: the next onset after the tick where one comes within 60 s.

        """
        if would is None or (self._recent and t_s - self._recent[-1][0] != TICK_S):
            self._recent.clear()
        if would is not None:
            self._recent.append((t_s, would))
            self._count(t_s)
        changed = self._expire(t_s)
        if self._next_s is not None and t_s >= self._next_s:
            changed |= self._met(self._next_s)
        self._next_s = onset_s
        if changed:
            self._judge()

    def _count(self, t_s: int) -> None:
        """Count a tick, and whether an onset at it would have been anticipated."""
        if len(self._recent) < _WINDOW:
            return
        hour = t_s // HOUR_S
        if not self._hours or self._hours[-1][0] != hour:
            self._hours.append([hour, 0, 0])
        would = [was for _, was in self._recent]
        self._hours[-1][1] += 1
        self._hours[-1][2] += any(would[:_EARLY]) and would[-2] and would[-1]

    def _met(self, x: int) -> bool:
        """Take an onset into account; false where it tells nothing."""
        latest_s = self.onsets[-1].at_s if self.onsets else None
        if (latest_s is not None and x - latest_s < APART_S) or len(self._recent) < _WINDOW:
            return False
        nearest_s, farthest_s = HORIZON_S
        early = any(would for t_s, would in self._recent if x - farthest_s <= t_s <= x - nearest_s)
        last = [would for t_s, would in self._recent if x - 2 * TICK_S < t_s <= x]
        ticks = sum(hour[1] for hour in self._hours) + _PRIOR_TICKS
        hits = sum(hour[2] for hour in self._hours) + _PRIOR_TICKS
        self.onsets.append(Onset(x, early and all(last), hits / ticks))
        return True

    def _expire(self, t_s: int) -> bool:
        """Date the onsets of calibration, drop what is too old; true where an onset was dropped."""
        while self._hours and self._hours[0][0] <= (t_s - DAY_S) // HOUR_S:
            self._hours.popleft()
        if self.onsets and self.onsets[0].at_s is None:
            # As if just seen, and before any onset of its own: those of calibration are earlier for certain.
            dated = [
                onset._replace(at_s=t_s - APART_S) if onset.at_s is None else onset for onset in self.onsets
            ]
            self.onsets = deque(dated, maxlen=ONSETS)
        before = len(self.onsets)
        while self.onsets and (self.onsets[0].at_s or 0) <= t_s - DAYS * DAY_S:
            self.onsets.popleft()
        return len(self.onsets) < before

    def _judge(self) -> None:
        self.luck = binomial_tail(self.anticipated, len(self.onsets), self.chance) if self.onsets else 1.0
        proof = self.anticipated >= LEAST and self.luck <= OPENS_AT
        self.open = proof or (self.open and self.luck <= CLOSES_OVER)

    def to_dict(self) -> dict[str, Any]:
        """State in plain JSON types."""
        return {
            "open": self.open,
            "onsets": [list(onset) for onset in self.onsets],
            "hours": [list(hour) for hour in self._hours],
            "recent": [list(tick) for tick in self._recent],
            "next_s": self._next_s,
        }

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> "SkillGate":
        """Restore a gate that goes on exactly where `to_dict` left it.

        Raises:
            InputError: when the state is damaged.

        """
        try:
            onsets = [
                Onset(None if at_s is None else int(at_s), bool(anticipated), float(chance))
                for at_s, anticipated, chance in state["onsets"]
            ]
            if not all(0.0 < onset.chance <= 1.0 for onset in onsets):
                raise ValueError("a chance is not in (0, 1]")
            gate = cls(onsets)
            gate._hours.extend([int(hour), int(ticks), int(hits)] for hour, ticks, hits in state["hours"])
            gate._recent.extend((int(t_s), bool(would)) for t_s, would in state["recent"])
            gate._next_s = None if state["next_s"] is None else int(state["next_s"])
            gate.open = bool(state["open"])
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"Skill gate state is damaged ({type(error).__name__}: {error}).") from error
        return gate


def binomial_tail(k: int, n: int, p: float) -> float:
    """Probability of at least k successes in n trials of probability p, exactly.

    >>> binomial_tail(0, 10, 0.05), round(binomial_tail(2, 10, 0.05), 4)
    (1.0, 0.0861)
    """
    if k <= 0:
        return 1.0
    return math.fsum(math.comb(n, hits) * p**hits * (1.0 - p) ** (n - hits) for hits in range(k, n + 1))
