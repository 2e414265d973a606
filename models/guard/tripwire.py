"""The trip wire: mutes a predictor whose scores have left their calibration by far."""

import math
from collections.abc import Mapping
from typing import Any

from data.errors import InputError

ALPHA = 0.05
"""Probability of ever tripping without cause, over both watches and all time."""
TRIPS_AT = 2.0 / ALPHA
"""Wealth of a watch at which the wire trips: half of ``ALPHA`` is each one's."""
LIMIT = 0.05
"""Share of calm ticks over the threshold that calibration and the moving threshold are to hold."""
STRICT_LIMIT = 0.10
"""Share of calm and late ticks over the threshold for nothing, twice the budget."""
BLOCK_TICKS = 720
"""An hour of ticks is one observation: ticks depend on each other, hours much less."""
BET = 0.4
"""Share of the wealth put on each block."""
START_BLOCKS = 24
"""A new stake starts this often, so that a long good past does not hide a bad day."""
MAX_STAKES = 30
"""Stakes that run on, the latest: giving one up only makes the wire slower."""


class TripWire:
    """Trips when the live rate of scores over the threshold is too high to be chance.

    The ledger holds the rate of alarms; what it can't tell is that it refuses most of them because the scores
    have drifted faster than the threshold follows, and that those it lets stand are then as good as random.
    So the wire watches what is over the threshold before the ledger refuses: over calm ticks against 5 %, and
    over calm and late ticks against 10 %, where a late tick counts when its alarm began less than 30 s ahead
    of the onset (one that began in time is meant to stand).

    Both are tests by betting (Waudby-Smith and Ramdas, "Estimating means of bounded random variables by
    betting", JRSS B 2024, https://doi.org/10.1093/jrsssb/qkad009): wealth is multiplied by
    1 + BET * (share / limit - 1) for each block of 720 ticks, and a new stake starts each 24 blocks. Claim:
    as long as the share to expect of each block, whatever came before it, is at most the limit, the
    probability of ever tripping is at most 5 % (Ville's inequality; no independence within a block is
    needed). Measured on calm ticks whose scores correlate 0, 0.95 and 0.99 from tick to tick: at a true rate
    of 5 %, the limit itself, 0, 2.8 and 2.8 % of 1,000 runs of 20 days trip; at 15 % all trip, after 8, 8 and
    11 hours in the median and 9, 14 and 30 at most; a rise from 4.7 to 15 % after 19 days is met after 16, 18
    and 24 hours in the median.

    Once tripped it stays so, until a new bundle brings a new wire.
    """

    def __init__(self) -> None:
        self.tripped = False
        self.over = Watch(LIMIT)
        self.strict = Watch(STRICT_LIMIT)

    @property
    def reason(self) -> str | None:
        """Why the predictor is muted, for people; None while it is not."""
        if not self.tripped:
            return None
        watch, what = (self.over, "calm ticks") if self.over.crossed else (self.strict, "calm and late ticks")
        return (
            f"The trip wire is crossed: over the last {len(watch.shares)} hours of {what}, "
            f"{watch.share:.1%} had a score over the threshold, where at most "
            f"{watch.limit:.0%} may. The scores have left their calibration: retrain. Until a new bundle "
            "is loaded, forecasts are reported and do not tighten."
        )

    def settle(self, over: bool, *, negative: bool, late: bool, in_time: bool) -> None:
        """Learn how a tick with a known score turned out.

        Args:
            over: the score was over the threshold.
            negative: no onset came within 60 s.
            late: an onset came within 30 s.
            in_time: what stands at the tick began at least 30 s ahead of that onset.

        """
        if self.tripped:
            return
        if negative:
            self.over.add(over)
        if negative or late:
            self.strict.add(over and not (late and in_time))
        self.tripped = self.over.crossed or self.strict.crossed

    def to_dict(self) -> dict[str, Any]:
        """State in plain JSON types."""
        return {"tripped": self.tripped, "over": self.over.to_dict(), "strict": self.strict.to_dict()}

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> "TripWire":
        """Restore a wire that goes on exactly where `to_dict` left it.

        Raises:
            InputError: when the state is damaged.

        """
        wire = cls()
        try:
            wire.tripped = bool(state["tripped"])
            wire.over.restore(state["over"])
            wire.strict.restore(state["strict"])
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"Trip wire state is damaged ({type(error).__name__}: {error}).") from error
        return wire


class Watch:
    """Bets against "the share of marked ticks is at most ``limit``".

    Stake j, of 1 / (j (j + 1)) of the money, is put down at block 24 (j - 1) and bet from then on; the money
    all told is a test supermartingale.
    """

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.shares: list[float] = []  # of the latest day of blocks, for people
        self.blocks = 0
        self.stakes: list[float] = []
        self._ticks = 0
        self._marked = 0

    @property
    def wealth(self) -> float:
        """Evidence against the limit; without cause it ever reaches w with probability at most 1 / w."""
        return sum(self.stakes)

    @property
    def crossed(self) -> bool:
        """The wealth is more than chance allows."""
        return self.wealth >= TRIPS_AT

    @property
    def share(self) -> float:
        """Share of marked ticks over the latest blocks, a day of them at most; NaN before the first."""
        return sum(self.shares) / len(self.shares) if self.shares else math.nan

    def add(self, marked: bool) -> None:
        """Count a tick; a full block is bet on."""
        self._ticks += 1
        self._marked += marked
        if self._ticks < BLOCK_TICKS:
            return
        if self.blocks % START_BLOCKS == 0:
            stake = self.blocks // START_BLOCKS + 1
            self.stakes = [*self.stakes[1 - MAX_STAKES :], 1.0 / (stake * (stake + 1))]
        share = self._marked / self._ticks
        self.stakes = [stake * (1.0 + BET * (share / self.limit - 1.0)) for stake in self.stakes]
        self.shares = [*self.shares[1 - START_BLOCKS :], share]
        self.blocks += 1
        self._ticks = self._marked = 0

    def to_dict(self) -> dict[str, Any]:
        """State in plain JSON types."""
        return {
            "blocks": self.blocks,
            "stakes": list(self.stakes),
            "shares": list(self.shares),
            "ticks": self._ticks,
            "marked": self._marked,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state; KeyError, TypeError or ValueError when it is damaged."""
        self.blocks, self._ticks, self._marked = (int(state[name]) for name in ("blocks", "ticks", "marked"))
        self.stakes = [float(stake) for stake in state["stakes"]]
        self.shares = [float(share) for share in state["shares"]]
        if not (0 <= self._marked <= self._ticks < BLOCK_TICKS) or self.blocks < 0:
            raise ValueError("ticks of a block don't add up")
        if not all(0.0 <= stake < float("inf") for stake in self.stakes):
            raise ValueError("a stake is not a finite number of at least 0")
        if not all(0.0 <= share <= 1.0 for share in self.shares):
            raise ValueError("a share is not in [0, 1]")
