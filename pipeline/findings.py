"""What a backtest found, in the form of report.schema.json."""

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from data.readers import Trace
from features.bursts import LOAD_WINDOW_S
from features.ticks import HORIZON_S, TICK_S, Ticks
from features.windows import NAMES, SPEC_HASH
from models.examples import TraceExamples
from models.guard.guard import RATE
from pipeline import scoring
from pipeline.contenders import FORECASTER, Contender
from pipeline.split import Split
from pipeline.train import Fitted
from pipeline.verdict import verdict

REQUIRED_NEGATIVES = 59
"""Effective negatives that calibration needs at a rate of 0.05 and a confidence of 0.95."""


LIGHT = 0.5


@dataclass(frozen=True)
class Findings:
    """Everything that a report is made of; `contenders` start with the forecaster."""

    trace: Trace
    prepared: TraceExamples
    spans: Split
    fitted: Fitted
    contenders: list[Contender]
    seed: int
    test_fraction: float
    causes: pl.DataFrame | None

    @cached_property
    def test(self) -> NDArray[np.bool_]:
        """Which ticks of the trace are tested."""
        return self.spans.test.holds(self.prepared.ticks.t_s)

    @cached_property
    def ticks(self) -> Ticks:
        """The ticks of the test span."""
        return self.prepared.ticks.select(self.test)

    @cached_property
    def onsets(self) -> NDArray[np.int64]:
        """Onsets in the test span, seconds."""
        onset_s = self.prepared.events.onset_s
        return onset_s[self.spans.test.holds(onset_s)]

    @cached_property
    def ours(self) -> scoring.Ticks:
        """The forecaster's alarms."""
        return self._alarms(self.contenders[0])

    def report(self) -> dict[str, Any]:
        """The report in plain Python types; no wall-clock time is in it."""
        rows = [self._contender(one) for one in self.contenders]
        guard = self.fitted.bundle.manifest.guard
        return {
            "schema_version": 1,
            "trace": self._trace(),
            "split": {
                **{name: asdict(getattr(self.spans, name)) for name in ("train", "calibrate", "test")},
                "gap_s": self.spans.gap_s,
                "warmup_s": self.spans.warmup_s,
            },
            "settings": {
                "seed": self.seed,
                "ensemble_seeds": [self.seed],
                "test_fraction": self.test_fraction,
                "tick_s": TICK_S,
                "horizon_s": list(HORIZON_S),
                "budget": RATE,
                "feature_spec_hash": SPEC_HASH,
                "features": len(NAMES),
            },
            "verdict": verdict(rows, guard.advisory_reason),
            "guard": {
                "threshold": probability(guard.threshold),
                "effective_negatives": guard.effective_negatives,
                "thinning_step": guard.thinning_step,
                "required_negatives": REQUIRED_NEGATIVES,
                "advisory": guard.threshold is None,
                "reason": guard.advisory_reason,
                "alarms_denied_by_ledger": self.contenders[0].guarded.denied,
            },
            "contenders": rows,
            "recall_by_cause": self._recall_by_cause(),
            "reliability": scoring.reliability(self.fitted.p_onset[self.test], self.ours),
            "forecast": self._coverage(),
            "versions": self.fitted.bundle.manifest.versions,
        }

    def _alarms(self, contender: Contender) -> scoring.Ticks:
        ticks = self.ticks
        return scoring.Ticks(ticks.t_s, contender.guarded.alarm, ticks.eligible, ticks.next_onset_s)

    def _trace(self) -> dict[str, Any]:
        trace, seconds = self.trace, len(self.prepared.bins.work)
        first = datetime.fromtimestamp(self.prepared.bins.origin_us / 1e6, UTC)
        return {
            "name": trace.name,
            "format": trace.format,
            "sha256": trace.sha256,
            "requests": trace.requests.height,
            "quarantined": trace.quarantined.height,
            "first_request": first.isoformat(timespec="milliseconds"),
            "span_s": seconds,
            "requests_per_s": trace.requests.height / seconds,
            "onsets": len(self.prepared.events),
            "capacity_known": False,
        }

    def _contender(self, contender: Contender) -> dict[str, Any]:
        ours, theirs, is_ours = self.ours, self._alarms(contender), contender.name == FORECASTER
        told = probability if is_ours else _as_it_is
        best = scoring.hindsight(contender.score, theirs, self.onsets, RATE)
        return {
            "name": contender.name,
            "title": contender.title,
            "kind": contender.kind,
            "scores": asdict(scoring.score(theirs, self.onsets, seed=self.seed)),
            "threshold": told(contender.state.threshold),
            "hindsight": best and asdict(best) | {"threshold": told(best.threshold)},
            "curve": [list(point) for point in scoring.curve(contender.score, theirs, self.onsets)],
            "difference": None
            if is_ours
            else asdict(scoring.difference(ours, theirs, self.onsets, seed=self.seed)),
        }

    def _recall_by_cause(self) -> list[dict[str, Any]]:
        if self.causes is None:
            return []
        return scoring.recall_by_cause(self.ours, self.onsets, likely(self.causes, self.prepared))

    def _coverage(self) -> dict[str, Any] | None:
        """Share of eligible test ticks whose peak stayed at or under each forecast quantile."""
        counts = self.test & self.prepared.ticks.eligible & ~np.isnan(self.fitted.p_onset)
        if not counts.any():
            return None
        examples = self.prepared.examples
        peak = examples.peak_ratio * np.exp(examples.features[:, NAMES.index("baseline")])
        quantiles = self.fitted.bundle.manifest.peak_quantiles
        return {
            "peak_coverage": [
                {"quantile": quantile, "covered": float(np.mean(peak[counts] <= load))}
                for quantile, load in zip(quantiles, self.fitted.peak_load[counts].T, strict=True)
            ]
        }


def likely(causes: pl.DataFrame, prepared: TraceExamples) -> pl.DataFrame:
    """Causes that may start a burst: not the light ones, and lasting ones again for every minute they last.

    A cause is light when its whole work would not lift a 10 s load by half of its baseline.
    """
    if not {"work_tokens", "lasts_s"} <= set(causes.columns):
        return causes
    tick = (causes["t_s"].to_numpy() // TICK_S).astype(np.int64).clip(0, len(prepared.baseline) - 1)
    least = LIGHT * LOAD_WINDOW_S * np.nan_to_num(prepared.baseline[tick])
    heavy = causes.filter(pl.col("work_tokens").is_null() | (pl.col("work_tokens") >= pl.Series(least)))
    minutes = pl.int_ranges(0, (pl.col("lasts_s") // 60 + 1).cast(pl.Int64))
    return (
        heavy.with_columns(minute=minutes)
        .explode("minute")
        .with_columns(pl.col("t_s") + 60 * pl.col("minute"))
    )


def probability(logit: float | None) -> float | None:
    """Probability of a logit: the forecaster's thresholds are told on the scale of a probability."""
    return None if logit is None else float(1.0 / (1.0 + np.exp(-logit)))


def _as_it_is(threshold: float | None) -> float | None:
    return threshold
