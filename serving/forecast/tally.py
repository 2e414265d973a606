"""The numbers of the live report: counts of what has matured, and the rates that follow, with intervals."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from features.ticks import HORIZON_S, TICK_S, Ticks
from models.guard.intervals import Blocks, Estimate

EPISODE_S = 75
"""An alarm episode is right when an onset follows its start within this time."""
LEAD_QUANTILES = (0.1, 0.5, 0.9)
UNKNOWN = Estimate(None, None, None)
SEED = 0
"""Of the bootstrap: the same outcomes give the same intervals."""

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Matured ticks in order of time; all arrays have shape (n,).

    Attributes:
        t_s: seconds from the first request.
        eligible: the tick counts.
        next_onset_s: the onset within 60 s, -1 where there is none.
        alarm: the guard let the forecast tighten the gate.
        tightened: the gate stood tightened, by this alarm or still on its way back from one before.

    """

    t_s: Ints
    eligible: Bools
    next_onset_s: Ints
    alarm: Bools
    tightened: Bools

    @classmethod
    def none(cls) -> "Outcomes":
        """Before anything has matured."""
        ints, bools = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.bool_)
        return cls(ints, bools, ints, bools, bools)

    @property
    def labels(self) -> Ticks:
        """The same ticks without alarms: which are positive, late and negative."""
        return Ticks(self.t_s, self.eligible, self.next_onset_s)

    def then(self, later: "Outcomes") -> "Outcomes":
        """These ticks and those that matured after them."""
        return Outcomes(
            np.concatenate([self.t_s, later.t_s]),
            np.concatenate([self.eligible, later.eligible]),
            np.concatenate([self.next_onset_s, later.next_onset_s]),
            np.concatenate([self.alarm, later.alarm]),
            np.concatenate([self.tightened, later.tightened]),
        )

    def after(self, t_s: int) -> "Outcomes":
        """Those later than ``t_s``."""
        first = int(np.searchsorted(self.t_s, t_s, "right"))
        return Outcomes(
            self.t_s[first:],
            self.eligible[first:],
            self.next_onset_s[first:],
            self.alarm[first:],
            self.tightened[first:],
        )


@dataclass(frozen=True, slots=True)
class Tally:
    """Matured counts, and the rates that follow from them; None where nothing has matured to tell.

    Attributes:
        false_alarm_rate: share of negative ticks in alarm.
        strict_false_alarm_rate: share of negative and late ticks in alarm.
        recall: share of onsets with an alarm 60 to 30 s before that stood until the onset.
        precision: share of alarm episodes that an onset followed within 75 s.
        random_recall: the recall to expect of the same alarms, moved by a random time.
        alarms: eligible ticks in alarm.
        releasing: negative ticks without alarm at which the gate was not back yet from the alarm before.
        leads_s: time from the start of an alarm to the onset that it anticipated.

    """

    false_alarm_rate: Estimate = UNKNOWN
    strict_false_alarm_rate: Estimate = UNKNOWN
    recall: Estimate = UNKNOWN
    precision: Estimate = UNKNOWN
    random_recall: float | None = None
    ticks: int = 0
    eligible: int = 0
    negatives: int = 0
    lates: int = 0
    positives: int = 0
    false_alarms: int = 0
    releasing: int = 0
    onsets: int = 0
    anticipated: int = 0
    alarms: int = 0
    episodes: int = 0
    right_episodes: int = 0
    leads_s: tuple[int, ...] = ()

    @property
    def base_rate(self) -> float | None:
        """Share of eligible ticks that are positive."""
        return _share(self.positives, self.eligible)

    @property
    def alarm_share(self) -> float | None:
        """Share of eligible ticks in alarm."""
        return _share(self.alarms, self.eligible)

    @property
    def rests_on(self) -> str:
        """What recall, precision and false-alarm rate were counted over, for people.

        >>> Tally(onsets=1, episodes=3, negatives=14_200).rests_on
        'recall on 1 onset, precision on 3 alarm episodes, false-alarm rate on 14200 calm ticks'
        """
        return (
            f"recall on {_of(self.onsets, 'onset')}, precision on {_of(self.episodes, 'alarm episode')}, "
            f"false-alarm rate on {_of(self.negatives, 'calm tick')}"
        )

    def lead_s(self) -> dict[str, float] | None:
        """Quantiles of the time from the start of an alarm to the onset that it anticipated."""
        if not self.leads_s:
            return None
        found = np.quantile(self.leads_s, LEAD_QUANTILES)
        return {f"p{round(100 * q)}": float(lead) for q, lead in zip(LEAD_QUANTILES, found, strict=True)}


def count(past: Outcomes, onset_s: Ints, settled_until_s: int) -> Tally:
    """Count matured ticks; a full day of them (17,280) takes about 2 ms, so it may be done between requests.

    Args:
        past: the ticks.
        onset_s: onsets in order of time, (onsets,).
        settled_until_s: every onset up to here is among them.

    """
    t_s, alarm = past.t_s, past.alarm
    if not len(t_s):
        return Tally()
    labels, blocks = past.labels, Blocks(t_s, seed=SEED)
    negative, late = labels.negative, labels.late
    first = alarm & ~(np.append(False, alarm[:-1]) & (np.diff(t_s, prepend=t_s[0]) == TICK_S))
    # An onset counts when the ticks of its last minute have matured as well.
    x = onset_s[(onset_s - HORIZON_S[1] >= t_s[0]) & (onset_s <= t_s[-1])]
    met = _anticipated(x, t_s, alarm)
    starts = t_s[first]
    leads = x[met] - starts[np.searchsorted(starts, x[met], "right") - 1]
    ripe = first & past.eligible & (t_s + EPISODE_S <= settled_until_s)
    right = np.searchsorted(onset_s, t_s + EPISODE_S, "right") > np.searchsorted(onset_s, t_s, "right")
    return Tally(
        false_alarm_rate=blocks.ratio_of(t_s, alarm, negative),
        strict_false_alarm_rate=blocks.ratio_of(t_s, alarm, negative | late),
        recall=blocks.ratio_of(x, met, np.ones(len(x), dtype=np.bool_)),
        precision=blocks.ratio_of(t_s, right, ripe),
        random_recall=_random_recall(alarm) if len(x) else None,
        ticks=len(t_s),
        eligible=_number(past.eligible),
        negatives=_number(negative),
        lates=_number(late),
        positives=_number(labels.positive),
        false_alarms=_number(alarm & negative),
        releasing=_number(past.tightened & ~alarm & negative),
        onsets=len(x),
        anticipated=_number(met),
        alarms=_number(alarm & past.eligible),
        episodes=_number(ripe),
        right_episodes=_number(right & ripe),
        leads_s=tuple(leads.tolist()),
    )


def _anticipated(x: Ints, t_s: Ints, alarm: Bools) -> Bools:
    """Tell for each onset: an alarm at a tick in [x-60, x-30], and at all, at least one, in (x-10, x]."""
    nearest_s, farthest_s = HORIZON_S
    alarms = np.append(0, np.cumsum(alarm))

    def ticks(first_s: Ints, last_s: Ints) -> tuple[Ints, Ints]:
        return np.searchsorted(t_s, first_s, "left"), np.searchsorted(t_s, last_s, "right")

    first, end = ticks(x - farthest_s, x - nearest_s)
    early = alarms[end] > alarms[first]
    first, end = ticks(x - 2 * TICK_S + 1, x)
    return np.asarray(early & (end > first) & (alarms[end] - alarms[first] == end - first))


def _random_recall(alarm: Bools) -> float:
    """Share of all ticks that would be anticipated if they were onsets."""
    nearest, farthest = (edge // TICK_S for edge in HORIZON_S)
    early = np.any([np.roll(alarm, shift) for shift in range(nearest, farthest + 1)], axis=0)
    return float(np.mean(early & alarm & np.roll(alarm, 1)))


def _number(chosen: Bools) -> int:
    return int(np.count_nonzero(chosen))


def _of(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
