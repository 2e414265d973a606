"""The tick: features to forecast to verdict to the tightening that the rules should move to."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from features.ticks import TICK_S, WARMUP_S
from features.windows import NAMES, over_line
from models.bundle import Forecast, Manifest
from models.guard.guard import Guard
from models.guard.score import next_score
from serving.forecast.metering import Matured, Meter
from serving.forecast.offered import US, OfferedLoad

LATE_S = 2.0 * TICK_S
"""Without a tick for this long one was missed: the predictor is late, and the rules alone decide."""
CATCH_UP_TICKS = 12
"""Ticks made at one go after history was replayed or the process stood still: requests come between."""
LEAST_TIGHTENING = 0.3
FULL_AT_RATIO = 4.0
"""Predicted peak over baseline at which the gate tightens fully."""

State = Literal["warming up", "active", "advisory", "late", "dead"]

_BASELINE = NAMES.index("baseline")


class Forecasts(Protocol):
    """What a predictor needs of a bundle."""

    @property
    def version(self) -> str:
        """Short name of the model."""
        ...

    @property
    def manifest(self) -> Manifest:
        """What the bundle says about itself."""
        ...

    @property
    def providers(self) -> list[str]:
        """Where the model runs."""
        ...

    def forecast(self, features: NDArray[np.float32]) -> Forecast:
        """Forecast n ticks."""
        ...


@dataclass(frozen=True, slots=True)
class Seen:
    """What the last tick saw; None is unknown.

    Attributes:
        t_s: the tick, seconds from the first request.
        at_us: the same instant, microseconds since the Unix epoch.
        p_onset: probability of a burst onset within the next 60 s.
        score: what decides, on the scale of the threshold (models.guard.score).
        peak_load: quantiles of the highest load in the next 60 s, tokens/s.
        baseline: load known as normal, tokens/s.
        threshold: what the score was compared with.
        alarm: the guard let the forecast tighten the gate.
        denied: the score was over the threshold and the false-alarm budget refused.
        would_alarm: threshold and budget let an alarm stand; it does unless the predictor is advisory.

    """

    t_s: int
    at_us: int
    p_onset: float | None = None
    score: float | None = None
    peak_load: Mapping[str, float] | None = None
    baseline: float | None = None
    threshold: float | None = None
    alarm: bool = False
    denied: bool = False
    would_alarm: bool = False


@dataclass(frozen=True, slots=True)
class Status:
    """The predictor's state and, for people, why."""

    state: State
    reason: str


def tightening_target(peak_load: float, baseline: float) -> float:
    """Level that an alarm asks for: from 0.3, rising with the predicted peak, to 1 at four times normal.

    >>> tightening_target(1_000.0, 1_000.0), tightening_target(2_500.0, 1_000.0), tightening_target(9e9, 1.0)
    (0.3, 0.5, 1.0)
    """
    level = (peak_load / baseline - 1.0) / (FULL_AT_RATIO - 1.0)
    return min(1.0, max(LEAST_TIGHTENING, level))


class Predictor:
    """Ticks every 5 s of offered load, counted from the first request; all time is passed in.

    The guard's clock is whole seconds since the Unix epoch, so that its budget outlives a restart.
    A tick that fails leaves a reason and releases the gate; the next one tries again.
    """

    def __init__(self, bundle: Forecasts, guard: Guard, offered: OfferedLoad, meter: Meter) -> None:
        self.bundle = bundle
        self.guard = guard
        self.offered = offered
        self.meter = meter
        self.seen: Seen | None = None
        self.failure: str | None = None
        self.failures = 0
        self.judged: list[Matured] = []  # by the latest tick
        self.blind: str | None = None  # why nothing is known of the engines, where they are to tell
        self._before: list[Guard] = []  # of bundles before, while ticks that they decided have yet to mature
        self._target = 0.0
        self._score: float | None = None
        self._last_s = -TICK_S
        self._ticked_at_s: float | None = None
        self._caught_up = False  # history that is replayed at the start has no hole at its end

    def tick(self, now_us: int, now_s: float, tightened: bool = False) -> bool:
        """Make the ticks that are due; false when more of them are left for the next call.

        Args:
            now_us: wall time, microseconds since the Unix epoch.
            now_s: monotonic time in seconds.
            tightened: the gate is still tightened from an earlier alarm.

        """
        offered = self.offered
        if offered.origin_us is None or offered.replaying(now_us, now_s):
            self._ticked_at_s = now_s
            return True
        due_s = offered.second(now_us) // TICK_S * TICK_S
        if due_s <= self._last_s:
            return True
        if self._caught_up and due_s - self._last_s > LATE_S:
            self.meter.hole(self._last_s, due_s - 1)
        first_s = self._last_s + TICK_S
        last_s = self._last_s = min(due_s, self._last_s + CATCH_UP_TICKS * TICK_S)
        try:
            for t_s in range(first_s, last_s, TICK_S):
                offered.features(t_s)  # history: learned from, not decided on
            self._one(last_s, decide=last_s == due_s, tightened=tightened)
        except Exception as error:  # whatever broke, the rules go on and everyone may read why
            self.failures += 1
            self.failure = f"{type(error).__name__}: {error}"
            self._target = 0.0
            raise
        self.failure = None
        self._ticked_at_s = now_s
        self._caught_up = last_s == due_s
        return self._caught_up

    def swap(self, bundle: Forecasts, guard: Guard) -> None:
        """Forecast with another bundle from the next tick on; traffic, outcomes and budget go on.

        What the guard before has decided, it still learns the outcome of; the new one never does.
        """
        if guard is not self.guard:
            self._score = None  # of the other model, on another scale
            self._before = [before for before in [*self._before, self.guard] if before is not guard]
        if guard.advisory:
            self._target = 0.0
        self.bundle, self.guard = bundle, guard

    def target(self, now_s: float) -> float:
        """Tightening that the rules should move to; 0 unless an alarm stands and the tick is fresh."""
        return 0.0 if self.failure is not None or self._late(now_s) else self._target

    def tick_age_s(self, now_s: float) -> float | None:
        """Seconds since the last tick that succeeded; None before the first."""
        return None if self._ticked_at_s is None else now_s - self._ticked_at_s

    def next_tick_in_s(self, now_us: int) -> float:
        """Seconds until the next tick is due; a second while nothing has arrived to count ticks from."""
        origin_us = self.offered.origin_us
        if origin_us is None or now_us < origin_us:
            return 1.0
        period_us = TICK_S * US
        return (period_us - (now_us - origin_us) % period_us) / US

    def status(self, now_us: int, now_s: float) -> Status:
        """The predictor's state; in every state but "active" the gate follows the rules alone."""
        offered, guard = self.offered, self.bundle.manifest.guard
        if self.failure is not None:
            return Status("dead", f"the last tick failed: {self.failure}")
        if self._late(now_s):
            age_s = self.tick_age_s(now_s)
            ago = "no tick has succeeded yet" if age_s is None else f"the last tick is {age_s:.1f} s old"
            return Status("late", f"{ago}; ticks are due every {TICK_S} s")
        if offered.origin_us is None:
            return Status("warming up", "no request has arrived yet")
        if offered.replaying(now_us, now_s):
            return Status("warming up", "history is being replayed")
        if reason := self._unsure(offered.ticked_s):
            return Status("warming up", reason)
        if self.guard.advisory:
            why = self.guard.reason or guard.advisory_reason or "the bundle has no alarm threshold"
            return Status("advisory", why)
        return Status("active", "forecasts may tighten the gate")

    def _one(self, t_s: int, *, decide: bool, tightened: bool) -> None:
        features = self.offered.features(t_s)
        self.judged = self.meter.mature(t_s, self.offered.work)
        for tick in self.judged:
            at_s, onset_s = self._unix_s(tick.t_s), tick.next_onset_s
            onset_s = None if onset_s is None else self._unix_s(onset_s)
            self.guard.settle(at_s, tick.negative, late=tick.late, onset_s=onset_s)
            for guard in self._before:
                if guard.awaits(at_s):
                    guard.learn(at_s, tick.negative, late=tick.late, onset_s=onset_s)
        self._before = [guard for guard in self._before if guard.awaiting]
        if not decide:
            return
        self.seen = seen = self._look(t_s, features)
        self.meter.tick(t_s, seen.alarm, seen.alarm or tightened)
        self._target = 0.0
        # A burst that is here is the rules' own: tightened on, they would refuse what they could serve.
        if seen.alarm and seen.peak_load is not None and seen.baseline and not over_line(features[None])[0]:
            self._target = tightening_target(seen.peak_load["p90"], seen.baseline)

    def _look(self, t_s: int, features: NDArray[np.float32]) -> Seen:
        at_us = (self.offered.origin_us or 0) + t_s * US
        if not np.isfinite(features).all():
            self._score = None
            return Seen(t_s, at_us, threshold=self.guard.threshold)
        forecast = self.bundle.forecast(features[None])
        if not (np.isfinite(forecast.p_slots).all() and np.isfinite(forecast.peak_load).all()):
            raise ValueError("the model gave a forecast that is not a finite number")
        self._score = score = next_score(self._score, forecast.p_slots[0])
        verdict = self.guard.decide(self._unix_s(t_s), None if self._unsure(t_s) else score)
        quantiles = self.bundle.manifest.peak_quantiles
        return Seen(
            t_s,
            at_us,
            float(forecast.p_onset[0]),
            score,
            {
                f"p{round(100 * q)}": float(load)
                for q, load in zip(quantiles, forecast.peak_load[0], strict=True)
            },
            math.exp(float(features[_BASELINE])),
            verdict.threshold,
            verdict.alarm,
            verdict.denied,
            verdict.would,
        )

    def _unsure(self, t_s: int) -> str | None:
        """Why a forecast at ``t_s`` must not tighten, if so."""
        if t_s < WARMUP_S:
            return f"{t_s} of {WARMUP_S} s of traffic seen"
        if self.blind is not None:
            return self.blind
        if self.meter.touched(t_s):
            return "the telemetry of the last hour has a hole"
        return None

    def _unix_s(self, t_s: int) -> int:
        return (self.offered.origin_us or 0) // US + t_s

    def _late(self, now_s: float) -> bool:
        age_s = self.tick_age_s(now_s)
        return age_s is None or age_s > LATE_S
