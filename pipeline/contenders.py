"""Who competes in a backtest: the forecaster and what it must beat, each with the same guard and budget."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from features.ticks import HORIZON_S
from models.baselines import PLANNERS, SIMPLE, boost, lag_features, told_features
from models.bundle import GuardState
from models.examples import TraceExamples
from models.guard.guard import Guard
from models.guard.replay import Guarded, joined, replay, warmed
from models.guard.score import sustained_scores
from pipeline.split import Split
from pipeline.train import Fitted, calibrated

FORECASTER = "forecaster"
LIGHTGBM = "lightgbm"
TOLD = "told"


@dataclass(frozen=True, slots=True)
class Contender:
    """One contender over the test span; its ticks are those of the span.

    Attributes:
        name, title: who it is.
        kind: "forecaster" or "baseline"; "told" and "oracle" know the future and only bound what is possible.
        score: higher where a burst seems nearer, (ticks,).
        state: how the last calibration left its guard.
        guarded: what its guard then did.
        guard: its guard at the end; None where it has nothing to calibrate.

    """

    name: str
    title: str
    kind: str
    score: NDArray[np.float64]
    state: GuardState
    guarded: Guarded
    guard: Guard | None


@dataclass(frozen=True, slots=True)
class Field:
    """What contenders know of a whole trace, each tick of what came before it: computed once, split by split.

    Attributes:
        prepared: the trace.
        seed: of everything random.
        untrained: name, title and scores (ticks,) of those that don't train.
        lags: `lag_features` of every tick.
        told: `told_features` of every tick; None where the causes aren't known.

    """

    prepared: TraceExamples
    seed: int
    untrained: list[tuple[str, str, NDArray[np.float64]]]
    lags: NDArray[np.float32]
    told: NDArray[np.float32] | None


def field(prepared: TraceExamples, causes: pl.DataFrame | None, seed: int) -> Field:
    """Make a trace ready for contenders; causes as `data.workload.read_truth` tells them."""
    known, t_s = prepared.known, prepared.ticks.t_s
    # Logarithm of a ratio of loads: ratios then drift by steps of like size.
    untrained = [
        (name, title, np.log(np.maximum(score(known, t_s), 1e-3))) for name, (title, score) in SIMPLE.items()
    ]
    untrained += [(name, title, score(known, t_s)) for name, (title, score) in PLANNERS.items()]
    untrained.append(("random", "Random", np.random.default_rng(seed).normal(size=len(t_s))))
    told = None if causes is None or not causes.height else told_features(known, causes, t_s)
    return Field(prepared, seed, untrained, lag_features(known, t_s), told)


def compete(
    field: Field,
    split: Split,
    fitted: Fitted,
    progress: Callable[[float], None],
    before: Sequence[Contender] = (),
) -> list[Contender]:
    """Calibrate every contender and run its guard over the test span, opened here and only here.

    ``before`` are the contenders of the test span that ends where this one starts: guards go on with the
    budget that they had left. Ticks whose outcome was still open there stay charged.
    """
    ticks = field.prepared.ticks
    test, span = split.test.holds(ticks.t_s), split.calibrate.holds(ticks.t_s)
    learn = split.train.holds(ticks.t_s) & ticks.eligible
    soon = ticks.onset_within(0, HORIZON_S[1])
    gap = (ticks.t_s >= split.calibrate.end_s) & (ticks.t_s < split.test.start_s)
    guards = {one.name: one.guard for one in before}

    def guarded(name: str, title: str, kind: str, score: NDArray[np.float64], state: GuardState) -> Contender:
        before = guards.get(name)
        # A service that starts warms up over the gap: calm ticks earn budget while nothing tightens yet.
        ledger = warmed(ticks.select(gap), split.test.start_s) if before is None else before.ledger
        # Gate and wire can only silence: rivals go without, so that none is beaten for having been muted.
        ours = name == FORECASTER
        guard = Guard.start(state, ledger) if ours else Guard(state.threshold, state.scale, ledger)
        outcome = replay(guard, score[test], ticks.select(test))
        return Contender(name, title, kind, score[test], state, outcome, guard)

    def boosted(name: str, title: str, kind: str, features: NDArray[np.float32]) -> Contender:
        score = boost(features[learn], soon[learn], field.seed)(features)
        return guarded(name, title, kind, score, calibrated(score, ticks, span))

    progress(0.0)
    state = fitted.bundle.manifest.guard
    score = sustained_scores(fitted.p_slots)
    contenders = [
        guarded(FORECASTER, "Tidegate forecaster", "forecaster", score, state),
        boosted(LIGHTGBM, "LightGBM on 100 lags", "baseline", field.lags),
    ]
    progress(0.4)
    for name, title, score in field.untrained:
        contenders.append(guarded(name, title, "baseline", score, calibrated(score, ticks, span)))
    contenders.append(_unguarded("quiet", "Always quiet", "baseline", np.zeros(int(test.sum()), np.bool_)))
    progress(0.6)
    if field.told is not None:
        features = np.concatenate([field.lags, field.told], axis=1)
        contenders.append(boosted(TOLD, "LightGBM told the causes", "told", features))
    perfect = soon | np.isin(ticks.t_s, field.prepared.events.onset_s)
    contenders.append(_unguarded("oracle", "Perfect lead (oracle)", "oracle", perfect[test]))
    progress(1.0)
    return contenders


def pooled(days: Sequence[Sequence[Contender]]) -> list[Contender]:
    """The same contenders over adjacent test spans, as over one; states and guards are the last ones."""
    return [
        replace(
            parts[-1],
            score=np.concatenate([part.score for part in parts]),
            guarded=joined([part.guarded for part in parts]),
        )
        for parts in zip(*days, strict=True)
    ]


def _unguarded(name: str, title: str, kind: str, alarm: NDArray[np.bool_]) -> Contender:
    """A contender that needs no guard, because it has nothing to calibrate."""
    state = GuardState(threshold=None, effective_negatives=0, thinning_step=1, advisory_reason=None)
    threshold = np.full(len(alarm), np.nan)
    return Contender(name, title, kind, alarm.astype(np.float64), state, Guarded(alarm, threshold, 0), None)
