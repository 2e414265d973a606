"""A whole report, scored for real on made-up load, onsets and scores."""

from dataclasses import asdict
from typing import Any

import numpy as np
import polars as pl

from pipeline import scoring, yardsticks
from pipeline.targets import targets

START_S = 259_200
CAUSES = ("cron", "fan_out", "ramp")


def sample(hours: int = 8, seed: int = 0) -> dict[str, Any]:
    """Arguments of `pipeline.report.write_report`, without the folder."""
    random = np.random.default_rng(seed)
    t_s = np.arange(START_S, START_S + hours * 3600, 5, dtype=np.int64)
    onsets = START_S + np.cumsum(random.integers(400, 1800, hours * 4))
    onsets = onsets[onsets < t_s[-1] - 200]
    following = np.append(onsets, -1)[np.searchsorted(onsets, t_s, side="right")]
    since = t_s - np.append(-(10**6), onsets)[np.searchsorted(onsets, t_s, side="right")]
    baseline = 20_000 * (1.3 + np.sin(2 * np.pi * t_s / 86_400))
    load = baseline * random.lognormal(0, 0.25, len(t_s)) * np.where(since < 40, 3.0, 1.0)
    quiet = scoring.Ticks(t_s, np.zeros(len(t_s), dtype=bool), since > 100, following)
    soon = quiet.labels.onset_within(0, 60)
    mood = np.repeat(random.normal(size=len(t_s) // 12 + 1), 12)[: len(t_s)]

    def contend(name: str, title: str, kind: str, strength: float) -> tuple[dict[str, Any], scoring.Ticks]:
        values = strength * soon + mood + random.normal(size=len(t_s)) * 0.4
        best = yardsticks.hindsight(values, quiet, onsets, rate=0.04)
        assert best is not None
        ticks = scoring.Ticks(t_s, values >= best.threshold, quiet.eligible, following)
        contender = {
            "name": name,
            "title": title,
            "kind": kind,
            "scores": asdict(scoring.score(ticks, onsets, resamples=200, seed=seed)),
            "threshold": best.threshold,
            "hindsight": asdict(best),
            "curve": yardsticks.curve(values, quiet, onsets),
        }
        return contender, ticks

    ours, alarms = contend("forecaster", "Forecaster", "forecaster", 2.6)
    contenders = [ours | {"difference": None}]
    for name, title, kind, strength in (
        ("last_value", "Last value", "baseline", 0.4),
        ("panic_ratio", "Panic ratio, 60 s / 180 s", "baseline", 0.3),
        ("ewma", "EWMA slope", "baseline", 0.5),
        ("seasonal_naive", "Seasonal naive, 1 h", "baseline", 0.2),
        ("lightgbm", "LightGBM on lags", "baseline", 1.6),
        ("told", "LightGBM told the causes", "told", 3.4),
        ("oracle", "Perfect-lead oracle", "oracle", 40.0),
    ):
        other, ticks = contend(name, title, kind, strength)
        apart = yardsticks.difference(alarms, ticks, onsets, resamples=200, seed=seed)
        contenders.append(other | {"difference": asdict(apart)})
    silent = scoring.score(quiet, onsets, resamples=200, seed=seed)
    contenders.append(
        {
            "name": "quiet",
            "title": "Always quiet",
            "kind": "baseline",
            "scores": asdict(silent),
            "threshold": None,
            "hindsight": None,
            "curve": [],
            "difference": asdict(yardsticks.difference(alarms, quiet, onsets, resamples=200, seed=seed)),
        }
    )
    known = onsets[: len(onsets) * 4 // 5]
    causes = pl.DataFrame({"t_s": known - 40.0, "cause": random.choice(CAUSES, len(known)).tolist()})
    p_onset = np.clip(soon * random.beta(3, 4, len(t_s)) + random.beta(1, 30, len(t_s)), 0, 1)
    return {
        "report": {
            "schema_version": 2,
            "trace": {
                "name": "sample",
                "format": "tidegate",
                "sha256": "0123456789abcdef" * 4,
                "requests": 1_469_000,
                "quarantined": 3,
                "first_request": "2026-03-02T00:00:00Z",
                "span_s": 432_000,
                "requests_per_s": 8.5,
                "onsets": 700,
                "capacity_known": False,
            },
            "split": {
                "train": {"start_s": 3600, "end_s": 170_000},
                "calibrate": {"start_s": 173_660, "end_s": 255_000},
                "test": {"start_s": START_S, "end_s": START_S + hours * 3600},
                "gap_s": 3660,
                "warmup_s": 3600,
            },
            "settings": {
                "seed": seed,
                "ensemble_seeds": [0, 1, 2],
                "test_fraction": 0.4,
                "tick_s": 5,
                "horizon_s": [30, 60],
                "budget": 0.05,
                "feature_spec_hash": "5f2b9c01",
                "features": 164,
            },
            "verdict": {
                "skill": "shown",
                "advisory": False,
                "sentences": ["The strongest baseline is LightGBM on lags; the interval excludes zero."],
            },
            "guard": {
                "threshold": 1.234,
                "effective_negatives": 1204,
                "thinning_step": 7,
                "required_negatives": 59,
                "advisory": False,
                "reason": None,
                "advisory_share": 0.0,
                "alarms_denied_by_ledger": 41,
            },
            "targets": targets(contenders),
            "defects": [],
            "contenders": contenders,
            "days": [],
            "recall_by_cause": yardsticks.recall_by_cause(alarms, onsets, causes),
            "reliability": yardsticks.reliability(p_onset, quiet),
            "forecast": {
                "peak_coverage": [{"quantile": 0.5, "covered": 0.52}, {"quantile": 0.9, "covered": 0.88}]
            },
            "versions": {"python": "3.11.2", "tidegate": "0.1.0", "torch": "2.13.0"},
        },
        "ticks": pl.DataFrame(
            {
                "t_s": t_s,
                "load": load,
                "baseline": np.where(t_s < START_S + 60, np.nan, baseline),
                "alarm": alarms.alarm.astype(np.int8),
            }
        ),
        "onsets": onsets,
        "lead_times": scoring.lead_times(alarms, onsets),
    }
