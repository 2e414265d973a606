"""Who competes in a backtest: the forecaster and what it must beat, each with the same guard and budget."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from features.ticks import HORIZON_S
from models.baselines import SIMPLE, train_lightgbm
from models.bundle import GuardState
from models.examples import TraceExamples
from models.guard.guard import Guard
from models.guard.replay import Guarded, replay
from models.guard.score import sustained_scores
from pipeline.split import Split
from pipeline.train import Fitted, calibrated

FORECASTER = "forecaster"


@dataclass(frozen=True, slots=True)
class Contender:
    """One contender over the test span; its ticks are those of the span.

    Attributes:
        name, title, kind: who it is; kind is "forecaster", "baseline" or "oracle".
        score: higher where a burst seems nearer, (ticks,).
        state: how calibration left its guard.
        guarded: what its guard then did.

    """

    name: str
    title: str
    kind: str
    score: NDArray[np.float64]
    state: GuardState
    guarded: Guarded


def compete(
    prepared: TraceExamples, split: Split, fitted: Fitted, seed: int, progress: Callable[[float], None]
) -> list[Contender]:
    """Calibrate every contender and run its guard over the test span, opened here and only here."""
    ticks, known = prepared.ticks, prepared.known
    test, span = split.test.holds(ticks.t_s), split.calibrate.holds(ticks.t_s)
    learn = split.train.holds(ticks.t_s) & ticks.eligible
    soon = ticks.onset_within(0, HORIZON_S[1])
    made: list[tuple[str, str, Callable[[], NDArray[np.float64]]]] = [
        (
            "lightgbm",
            "LightGBM on 100 lags",
            lambda: train_lightgbm(known, ticks.t_s[learn], soon[learn], seed)(known, ticks.t_s),
        ),
        *((name, title, _logged(score, prepared)) for name, (title, score) in SIMPLE.items()),
        ("random", "Random", lambda: np.random.default_rng(seed).normal(size=len(ticks))),
    ]

    def guarded(name: str, title: str, kind: str, score: NDArray[np.float64], state: GuardState) -> Contender:
        guard = Guard(state.threshold, state.scale)
        return Contender(
            name, title, kind, score[test], state, replay(guard, score[test], ticks.select(test))
        )

    progress(0.0)
    state = fitted.bundle.manifest.guard
    score = sustained_scores(fitted.p_slots)
    contenders = [guarded(FORECASTER, "Tidegate forecaster", "forecaster", score, state)]
    for done, (name, title, make) in enumerate(made):
        score = make()
        contenders.append(guarded(name, title, "baseline", score, calibrated(score, ticks, span)))
        progress((done + 1) / len(made))
    for name, title, kind, alarm in (
        ("quiet", "Always quiet", "baseline", np.zeros_like(soon)),
        ("oracle", "Perfect lead (oracle)", "oracle", soon | np.isin(ticks.t_s, prepared.events.onset_s)),
    ):
        contenders.append(_unguarded(name, title, kind, alarm[test]))
    return contenders


def _unguarded(name: str, title: str, kind: str, alarm: NDArray[np.bool_]) -> Contender:
    """A contender that needs no guard, because it has nothing to calibrate."""
    state = GuardState(threshold=None, effective_negatives=0, thinning_step=1, advisory_reason=None)
    threshold = np.full(len(alarm), np.nan)
    return Contender(name, title, kind, alarm.astype(np.float64), state, Guarded(alarm, threshold, 0))


def _logged(
    score: Callable[..., NDArray[np.float64]], prepared: TraceExamples
) -> Callable[[], NDArray[np.float64]]:
    """Logarithm of a score that is a ratio of loads: ratios then drift by steps of like size."""
    return lambda: np.log(np.maximum(score(prepared.known, prepared.ticks.t_s), 1e-3))
