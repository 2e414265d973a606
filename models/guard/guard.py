"""Score to alarm: the calibrated threshold, kept on budget, behind ledger, skill gate and trip wire."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from data.errors import InputError
from features.ticks import HORIZON_S
from models.guard.ledger import Ledger
from models.guard.skill import Onset, SkillGate
from models.guard.tripwire import TripWire

if TYPE_CHECKING:
    from models.bundle import GuardState

VERSION = 2
RATE = 0.05
"""Share of negative ticks that may be in alarm."""
AIM = 0.047
"""Share that the threshold steers for: under the budget, so that the ledger seldom has to refuse."""
STEP = 0.007
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
        threshold: what the score was compared with, None where calibration gave none.
        denied: the score was over the threshold and the budget refused.
        would: threshold and budget let an alarm stand; it does where the guard is not advisory.

    """

    alarm: bool
    threshold: float | None
    denied: bool
    would: bool = False


class _Noted(NamedTuple):
    over: bool
    would: bool


class Guard:
    """Raises an alarm where the score is over the threshold, the budget allows it, and skill is shown.

    The threshold starts where calibration put it and follows the scores' drift by quantile tracking
    (Angelopoulos, Candes and Tibshirani, "Conformal PID control for time series prediction", NeurIPS 2023):
    up a step for each settled negative tick over it, down a little for each one under it. The ledger holds
    the rate whatever the threshold does. Without a threshold, behind a closed skill gate, or once the trip
    wire is crossed, the guard is advisory and never alarms.

    Would-be alarms are charged to a ledger of their own, `would_ledger`, which also holds every charge of
    the ledger: what they show is what would happen, and an advisory guard spends none of the budget.

    Args:
        threshold: on the scale of the score; None stays advisory.
        scale: of the scores' upper tail, the threshold's pace.
        ledger: the budget; by default a fresh one.
        skill: the skill gate; None leaves it out.
        wire: the trip wire; None leaves it out.

    """

    def __init__(
        self,
        threshold: float | None,
        scale: float = 1.0,
        ledger: Ledger | None = None,
        skill: SkillGate | None = None,
        wire: TripWire | None = None,
    ) -> None:
        self.threshold = threshold
        self.scale = scale
        self.ledger = ledger or Ledger()
        self.would_ledger = Ledger.from_dict(self.ledger.to_dict())
        self.skill = skill
        self.wire = wire
        self._unsettled: dict[int, _Noted] = {}
        self._stood = False  # a would-be alarm, at the tick before
        self._over_since_s: int | None = None  # among settled ticks

    @classmethod
    def start(cls, state: "GuardState", ledger: Ledger | None = None) -> "Guard":
        """Guard of a bundle just loaded, all five parts; the ledger of the bundle before goes on."""
        skill = SkillGate([Onset(None, anticipated, chance) for anticipated, chance in state.skill])
        return cls(state.threshold, state.scale, ledger, skill, TripWire())

    @property
    def advisory(self) -> bool:
        """The forecast is reported and does not tighten."""
        return self.threshold is None or self.muted or not (self.skill is None or self.skill.open)

    @property
    def muted(self) -> bool:
        """The trip wire is crossed: only a new bundle helps."""
        return self.wire is not None and self.wire.tripped

    @property
    def reason(self) -> str | None:
        """Why the guard is advisory, for people; None where it is not, or where calibration knows why."""
        if self.wire is not None and self.wire.tripped:
            return self.wire.reason
        return None if self.skill is None or self.threshold is None else self.skill.reason

    def decide(self, t_s: int, score: float | None) -> Verdict:
        """Decide tick ``t_s``; an unknown score (None or NaN) never alarms."""
        if self.threshold is None or score is None or math.isnan(score):
            self._stood = False
            return Verdict(False, self.threshold, False)
        threshold = self.threshold + self.scale * (-HOLD if self._stood else self._caution(t_s))
        over = score > threshold
        would = self._stood = over and self.would_ledger.charge(t_s)
        self._unsettled[t_s] = _Noted(over, would)
        if len(self._unsettled) > MAX_UNSETTLED:  # outcomes stopped coming
            del self._unsettled[next(iter(self._unsettled))]
        alarm = would and not self.advisory and self.ledger.charge(t_s)
        return Verdict(alarm, threshold, over and not would, would)

    def _caution(self, t_s: int) -> float:
        """Raise the bar for new alarms as the budget runs low, 0 to RAISE."""
        return RAISE * max(0.0, 1.0 - self.would_ledger.remaining(t_s) / RESERVE)

    def settle(self, t_s: int, negative: bool, *, late: bool = False, onset_s: int | None = None) -> None:
        """Learn how tick ``t_s`` turned out, in order of time.

        Args:
            t_s: the tick, whole seconds.
            negative: it counts, and no onset came within 60 s.
            late: it counts, and an onset came within 30 s.
            onset_s: the next onset after the tick where one came within 60 s, whether the tick counts or not.

        """
        if self.ledger.settle(t_s, negative):
            self.would_ledger.settle(t_s, negative)
            self.learn(t_s, negative, late=late, onset_s=onset_s)

    def learn(self, t_s: int, negative: bool, *, late: bool = False, onset_s: int | None = None) -> None:
        """Learn how tick ``t_s`` turned out, as `settle` has it, where the ledgers are settled by another."""
        noted = self._unsettled.pop(t_s, None)
        # Outcomes come in order: what is older than this one will never be settled.
        self._unsettled = {later: was for later, was in self._unsettled.items() if later > t_s}
        if self.threshold is None:
            return
        if self.skill is not None:
            self.skill.settle(t_s, None if noted is None else noted.would, onset_s)
        if noted is None:
            self._over_since_s = None
            return
        if negative:
            self.threshold += STEP * self.scale * (float(noted.over) - AIM)
        if not noted.over:
            self._over_since_s = None
        elif self._over_since_s is None:
            self._over_since_s = t_s
        if self.wire is not None:
            since_s = self._over_since_s
            in_time = since_s is not None and onset_s is not None and onset_s - since_s >= HORIZON_S[0]
            self.wire.settle(noted.over, negative=negative, late=late, in_time=in_time)

    def awaits(self, t_s: int) -> bool:
        """Tell whether it decided tick ``t_s`` and has not learned yet how that turned out."""
        return t_s in self._unsettled

    @property
    def awaiting(self) -> bool:
        """Outcomes of ticks that it decided are still to come."""
        return bool(self._unsettled)

    def pause(self) -> None:
        """Decide no more, until `resume`; what was decided may still be learned from."""
        self.would_ledger = self.ledger  # a copy would go out of date
        self._stood = False

    def resume(self, ledger: Ledger) -> None:
        """Decide again, on the books of the guard that decided meanwhile."""
        self.ledger, self.would_ledger = ledger, Ledger.from_dict(ledger.to_dict())
        if not self._unsettled:
            self._over_since_s = None  # ticks that others decided lie between

    def evidence(self) -> dict[str, Any]:
        """All of the state but the ledgers, in plain JSON types."""
        return {
            "version": VERSION,
            "threshold": self.threshold,
            "scale": self.scale,
            "stood": self._stood,
            "over_since_s": self._over_since_s,
            "unsettled": [[t_s, noted.over, noted.would] for t_s, noted in self._unsettled.items()],
            "skill": None if self.skill is None else self.skill.to_dict(),
            "wire": None if self.wire is None else self.wire.to_dict(),
        }

    def to_dict(self) -> dict[str, Any]:
        """State in plain JSON types."""
        ledgers = {"ledger": self.ledger.to_dict(), "would_ledger": self.would_ledger.to_dict()}
        return self.evidence() | ledgers

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> "Guard":
        """Restore a guard that goes on exactly where `to_dict` left it.

        A state of version 1, which knew neither skill gate nor trip wire, has none.

        Raises:
            InputError: when the state is damaged or of another version.

        """
        try:
            if state["version"] == 1:
                state = _from_version_1(state)
            if state["version"] != VERSION:
                raise InputError(f"Guard state must be of version {VERSION}; got {state['version']!r}.")
            threshold = None if state["threshold"] is None else float(state["threshold"])
            scale = float(state["scale"])
            if not (0.0 < scale < math.inf and (threshold is None or math.isfinite(threshold))):
                raise ValueError(f"threshold {threshold} or scale {scale} is not a number to work with")
            guard = cls(
                threshold,
                scale,
                Ledger.from_dict(state["ledger"]),
                None if state["skill"] is None else SkillGate.from_dict(state["skill"]),
                None if state["wire"] is None else TripWire.from_dict(state["wire"]),
            )
            guard.would_ledger = Ledger.from_dict(state["would_ledger"])
            guard._stood = bool(state["stood"])
            since_s = state["over_since_s"]
            guard._over_since_s = None if since_s is None else int(since_s)
            guard._unsettled = {
                int(t_s): _Noted(bool(over), bool(would)) for t_s, over, would in state["unsettled"]
            }
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"Guard state is damaged ({type(error).__name__}: {error}). "
                "Restore an older copy, or start afresh."
            ) from error
        return guard


def _from_version_1(state: Mapping[str, Any]) -> dict[str, Any]:
    """The same state as version 2 has it: every tick over the threshold counts as a would-be alarm."""
    return {
        "version": VERSION,
        "threshold": state["threshold"],
        "scale": state["scale"],
        "stood": state["alarmed"],
        "over_since_s": None,
        "unsettled": [[t_s, over, over] for t_s, over in state["unsettled"]],
        "ledger": state["ledger"],
        "would_ledger": state["ledger"],
        "skill": None,
        "wire": None,
    }
