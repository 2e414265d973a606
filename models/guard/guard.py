"""Score to alarm: the calibrated threshold, kept on budget, behind the ledger."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from data.errors import InputError
from models.guard.ledger import Ledger

VERSION = 1
RATE = 0.05
"""Share of negative ticks that may be in alarm."""
AIM = 0.047
"""Share that the threshold steers for: under the budget, so that the ledger seldom has to refuse."""
STEP = 0.02
"""How far one false alarm tick moves the threshold, as a share of its scale."""
HOLD = 0.2
"""How far under the threshold a standing alarm holds, as a share of its scale: an onset that comes a little
later than foreseen still finds the gate tightened."""

RESERVE = 40
"""Alarm ticks left in the budget under which a new alarm must be the surer the fewer are left: a refusal
would hit whichever alarm comes next, good or bad. Without it, steering for 0.05 in place of 0.04 cost 0.06
recall on two 3-day workloads."""
RAISE = 1.0
"""How much surer when none is left, as a share of the threshold's scale."""

MAX_UNSETTLED = 1_000
"""Ticks remembered until their outcome comes, well over an hour of them."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The guard's word on one tick.

    Attributes:
        alarm: the gate is tightened.
        threshold: what the score was compared with, None while advisory.
        denied: the score was over the threshold and the budget refused.

    """

    alarm: bool
    threshold: float | None
    denied: bool


class Guard:
    """Raises an alarm where the score is over the threshold and the budget allows it.

    The threshold starts where calibration put it and follows the scores' drift by quantile tracking
    (Angelopoulos, Candes and Tibshirani, "Conformal PID control for time series prediction", NeurIPS 2023):
    up a step for each settled negative tick over it, down a little for each one under it. The ledger holds
    the rate whatever the threshold does. Without a threshold the guard is advisory and never alarms.
    """

    def __init__(self, threshold: float | None, scale: float = 1.0, ledger: Ledger | None = None) -> None:
        self.threshold = threshold
        self.scale = scale
        self.ledger = ledger or Ledger()
        self._unsettled: dict[int, bool] = {}
        self._alarmed = False

    @property
    def advisory(self) -> bool:
        """The forecast is reported and does not tighten."""
        return self.threshold is None

    def decide(self, t_s: int, score: float | None) -> Verdict:
        """Decide tick ``t_s``; an unknown score (None or NaN) never alarms."""
        if self.threshold is None or score is None or math.isnan(score):
            self._alarmed = False
            return Verdict(False, self.threshold, False)
        threshold = self.threshold + self.scale * (-HOLD if self._alarmed else self._caution(t_s))
        over = score > threshold
        self._unsettled[t_s] = over
        if len(self._unsettled) > MAX_UNSETTLED:  # outcomes stopped coming
            del self._unsettled[next(iter(self._unsettled))]
        self._alarmed = over and self.ledger.charge(t_s)
        return Verdict(self._alarmed, threshold, over and not self._alarmed)

    def _caution(self, t_s: int) -> float:
        """Raise the bar for new alarms as the budget runs low, 0 to RAISE."""
        return RAISE * max(0.0, 1.0 - self.ledger.remaining(t_s) / RESERVE)

    def settle(self, t_s: int, negative: bool) -> None:
        """Learn how tick ``t_s`` turned out, in order of time: ``negative`` or anything else."""
        if not self.ledger.settle(t_s, negative):
            return
        over = self._unsettled.pop(t_s, None)
        # Outcomes come in order: what is older than this one will never be settled.
        self._unsettled = {later: was for later, was in self._unsettled.items() if later > t_s}
        if self.threshold is not None and negative and over is not None:
            self.threshold += STEP * self.scale * (float(over) - AIM)

    def to_dict(self) -> dict[str, Any]:
        """State in plain JSON types."""
        return {
            "version": VERSION,
            "threshold": self.threshold,
            "scale": self.scale,
            "alarmed": self._alarmed,
            "unsettled": [[t_s, over] for t_s, over in self._unsettled.items()],
            "ledger": self.ledger.to_dict(),
        }

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> "Guard":
        """Restore a guard that goes on exactly where `to_dict` left it.

        Raises:
            InputError: when the state is damaged or of another version.

        """
        try:
            if state["version"] != VERSION:
                raise InputError(f"Guard state must be of version {VERSION}; got {state['version']!r}.")
            threshold = None if state["threshold"] is None else float(state["threshold"])
            scale = float(state["scale"])
            if not (0.0 < scale < math.inf and (threshold is None or math.isfinite(threshold))):
                raise ValueError(f"threshold {threshold} or scale {scale} is not a number to work with")
            guard = cls(threshold, scale, Ledger.from_dict(state["ledger"]))
            guard._alarmed = bool(state["alarmed"])
            guard._unsettled = {int(t_s): bool(over) for t_s, over in state["unsettled"]}
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"Guard state is damaged ({type(error).__name__}: {error}). "
                "Restore an older copy, or start afresh."
            ) from error
        return guard
