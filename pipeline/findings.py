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
from features.ticks import HORIZON_S, TICK_S
from features.windows import NAMES, SPEC_HASH
from models.examples import TraceExamples
from models.guard.guard import RATE
from pipeline import scoring, yardsticks
from pipeline.contenders import FORECASTER, Contender, pooled
from pipeline.split import DAY_S, Span, Split
from pipeline.targets import defects, sentence, targets
from pipeline.train import Fitted
from pipeline.verdict import verdict

REQUIRED_NEGATIVES = 59
"""Effective negatives that calibration needs at a rate of 0.05 and a confidence of 0.95."""


LIGHT = 0.5


@dataclass(frozen=True, slots=True)
class Fold:
    """One test span: what was trained before it, and what everyone did in it, the forecaster first."""

    spans: Split
    fitted: Fitted
    contenders: list[Contender]


@dataclass(frozen=True)
class Findings:
    """Everything that a report is made of; test spans of the folds follow each other without a gap.

    Attributes:
        test_fraction: share of the trace that is tested; None where it is tested day by day.
        causes: what is known of the causes of bursts (t_s, cause); None where nothing is.

    """

    trace: Trace
    prepared: TraceExamples
    folds: list[Fold]
    seed: int
    test_fraction: float | None
    causes: pl.DataFrame | None

    @cached_property
    def contenders(self) -> list[Contender]:
        """Contenders over all test spans, the forecaster first."""
        return pooled([fold.contenders for fold in self.folds])

    @cached_property
    def fitted(self) -> Fitted:
        """The last forecaster, with what each one said of its own test span; NaN outside of these."""
        last = self.folds[-1].fitted
        p_slots, peak_load = (np.full_like(said, np.nan) for said in (last.p_slots, last.peak_load))
        for fold in self.folds:
            test = fold.spans.test.holds(self.prepared.ticks.t_s)
            p_slots[test], peak_load[test] = fold.fitted.p_slots[test], fold.fitted.peak_load[test]
        return Fitted(last.bundle, p_slots, peak_load)

    @cached_property
    def span(self) -> Span:
        """All that is tested."""
        return Span(self.folds[0].spans.test.start_s, self.folds[-1].spans.test.end_s)

    @cached_property
    def test(self) -> NDArray[np.bool_]:
        """Which ticks of the trace are tested."""
        return self.span.holds(self.prepared.ticks.t_s)

    @cached_property
    def onsets(self) -> NDArray[np.int64]:
        """Onsets in the test span, seconds."""
        return self._onsets(self.span)

    @cached_property
    def ours(self) -> scoring.Ticks:
        """The forecaster's alarms."""
        return self._alarms(self.contenders[0], self.span)

    def report(self) -> dict[str, Any]:
        """The report in plain Python types; no wall-clock time is in it."""
        rows = [self._contender(one, self.span) for one in self.contenders]
        last, guard = self.folds[-1].spans, self.fitted.bundle.manifest.guard
        held, days = targets(rows), self._days()
        guarded = self.contenders[0].guarded
        reason = guard.advisory_reason or guarded.reason
        silent = None if guarded.advisory is None else float(np.mean(guarded.advisory))
        judged = verdict(rows, reason, silent)
        told = self._untaught() + [sentence(target) for target in held if target["met"] is not None]
        broken = defects(
            [
                ("the test span", rows[0]["scores"]),
                *((f"day {day['day']}", day["contenders"][0]["scores"]) for day in days),
            ]
        )
        return {
            "schema_version": 2,
            "trace": self._trace(),
            "split": {
                "train": asdict(last.train),
                "calibrate": asdict(last.calibrate),
                "test": asdict(self.span),
                "gap_s": last.gap_s,
                "warmup_s": last.warmup_s,
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
            "verdict": judged | {"sentences": [*judged["sentences"], *told, *broken]},
            "targets": held,
            "defects": broken,
            "guard": {
                "threshold": probability(guard.threshold),
                "effective_negatives": guard.effective_negatives,
                "thinning_step": guard.thinning_step,
                "required_negatives": REQUIRED_NEGATIVES,
                "advisory": reason is not None,
                "reason": reason,
                "advisory_share": silent,
                "alarms_denied_by_ledger": guarded.denied,
            },
            "contenders": rows,
            "days": days,
            "recall_by_cause": self._recall_by_cause(),
            "reliability": yardsticks.reliability(self.fitted.p_onset[self.test], self.ours),
            "forecast": self._coverage(),
            "versions": self.fitted.bundle.manifest.versions,
        }

    def _days(self) -> list[dict[str, Any]]:
        """A row a test day, where the trace is tested day by day."""
        if self.test_fraction is not None:
            return []
        days = []
        for fold in self.folds:
            rows = [self._contender(one, fold.spans.test) for one in fold.contenders]
            brief = [
                {key: row[key] for key in ("name", "title", "kind", "scores", "hindsight")} for row in rows
            ]
            days.append(
                {
                    "day": fold.spans.test.start_s // DAY_S + 1,
                    **{name: asdict(getattr(fold.spans, name)) for name in ("train", "calibrate", "test")},
                    "advisory": _advisory_at_end(fold.contenders[0]),
                    "contenders": brief,
                    "targets": targets(rows),
                }
            )
        return days

    def _untaught(self) -> list[str]:
        """Sentences for test spans before which there was no burst to learn from."""
        spans = [fold.spans for fold in self.folds if not len(self._onsets(fold.spans.train))]
        return [
            f"Nothing to learn from: no burst begins in the {span.train.end_s - span.train.start_s:,} s that "
            f"train for the test from second {span.test.start_s:,} on."
            for span in spans
        ]

    def _onsets(self, span: Span) -> NDArray[np.int64]:
        onset_s = self.prepared.events.onset_s
        return onset_s[span.holds(onset_s)]

    def _alarms(self, contender: Contender, span: Span) -> scoring.Ticks:
        ticks = self.prepared.ticks.select(span.holds(self.prepared.ticks.t_s))
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

    def _contender(self, contender: Contender, span: Span) -> dict[str, Any]:
        ours, onsets = contender.name == FORECASTER, self._onsets(span)
        theirs = self._alarms(contender, span)
        told = probability if ours else _as_it_is
        best = yardsticks.hindsight(contender.score, theirs, onsets, RATE)
        apart = None
        if not ours and span == self.span:
            apart = asdict(yardsticks.difference(self.ours, theirs, onsets, seed=self.seed))
        return {
            "name": contender.name,
            "title": contender.title,
            "kind": contender.kind,
            "scores": asdict(scoring.score(theirs, onsets, seed=self.seed)),
            "threshold": told(contender.state.threshold),
            "hindsight": best and asdict(best) | {"threshold": told(best.threshold)},
            "curve": [list(point) for point in yardsticks.curve(contender.score, theirs, onsets)],
            "difference": apart,
        }

    def _recall_by_cause(self) -> list[dict[str, Any]]:
        if self.causes is None:
            return []
        return yardsticks.recall_by_cause(self.ours, self.onsets, likely(self.causes, self.prepared))

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


def _advisory_at_end(contender: Contender) -> bool:
    """Whether its guard let no forecast tighten when the span ended."""
    return contender.state.threshold is None or contender.guarded.reason is not None


def _as_it_is(threshold: float | None) -> float | None:
    return threshold
