"""What the forecaster is to reach on every trace, and by how much it falls short."""

from collections.abc import Sequence
from typing import Any

from models.guard.guard import RATE
from pipeline.contenders import LIGHTGBM, TOLD
from pipeline.verdict import MIN_ONSETS

FACTORS = {LIGHTGBM: 1.2, TOLD: 0.85}
"""Recall under the guard, without hindsight, over that of a yardstick whose threshold is known afterwards."""


def targets(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Hold the contenders of a report, the forecaster first, against each target whose yardstick is there.

    A target is {against, title, factor, hindsight_recall, wanted, reached, met, short_by}; the last five are
    None where too few onsets tell anything.
    """
    scores = rows[0]["scores"]
    reached = scores["event_recall"]["value"]
    judged = scores["onsets"] >= MIN_ONSETS
    found = []
    for row in rows:
        if row["name"] not in FACTORS:
            continue
        factor, best = FACTORS[row["name"]], row["hindsight"] and row["hindsight"]["recall"]
        wanted = None if best is None or not judged else factor * best
        known = wanted is not None and reached is not None
        found.append(
            {
                "against": row["name"],
                "title": row["title"],
                "factor": factor,
                "hindsight_recall": best,
                "wanted": wanted,
                "reached": reached if known else None,
                "met": reached >= wanted if known else None,
                "short_by": max(wanted - reached, 0.0) if known else None,
            }
        )
    return found


def sentence(target: dict[str, Any]) -> str:
    """The target in words.

    >>> sentence({"title": "LightGBM", "factor": 1.2, "hindsight_recall": 0.3, "wanted": 0.36,
    ...           "reached": 0.31, "met": False, "short_by": 0.05})
    'Target of 1.2 x LightGBM in hindsight (0.30): recall 0.36 wanted, 0.31 reached, short by 0.05.'
    """
    opening = f"Target of {target['factor']:g} x {target['title']} in hindsight"
    if target["met"] is None:
        return f"{opening}: not judged, for want of onsets ({MIN_ONSETS} at least) or of calm."
    outcome = "met" if target["met"] else f"short by {target['short_by']:.2f}"
    return (
        f"{opening} ({target['hindsight_recall']:.2f}): recall {target['wanted']:.2f} wanted, "
        f"{target['reached']:.2f} reached, {outcome}."
    )


def defects(spans: Sequence[tuple[str, dict[str, Any]]]) -> list[str]:
    """Sentences for the spans, (name, scores of the forecaster), whose false alarms broke the promise."""
    found = []
    for name, scores in spans:
        rate = scores["false_alarm_rate"]["value"]
        if rate is not None and rate > RATE:
            found.append(
                f"Defect: false alarms on {100 * rate:.2f} % of calm ticks in {name}, over the "
                f"{100 * RATE:g} % that the guard promises."
            )
    return found
