"""What may be said of the forecaster's skill, and in which sentences."""

from collections.abc import Sequence
from typing import Any

MIN_ONSETS = 10
"""Onsets in the test span under which no skill can be told from chance."""


def verdict(
    rows: Sequence[dict[str, Any]], advisory_reason: str | None, advisory_share: float | None = None
) -> dict[str, Any]:
    """Judge the contenders of a report, the forecaster first: skill, advisory or not, and why.

    Args:
        rows: of the report.
        advisory_reason: why no forecast can tighten at the end of the test span; None where it can.
        advisory_share: share of the test span in which it let none; None where there was no guard.

    """
    ours = rows[0]["scores"]
    recall, chance, onsets = ours["event_recall"], ours["random_recall"], ours["onsets"]
    advisory = advisory_reason is not None
    sentences = [] if advisory_reason is None else [advisory_reason]
    if advisory_reason is None and advisory_share:
        sentences.append(
            f"In {advisory_share:.0%} of the test span skill was not shown yet or no more: no alarm was "
            "raised there, and the numbers count none."
        )
    if onsets < MIN_ONSETS or advisory:
        few = f", fewer than the {MIN_ONSETS} that a claim needs" if onsets < MIN_ONSETS else ""
        sentences.append(
            f"The test span holds {onsets} burst onset{'' if onsets == 1 else 's'}{few}: skill can't be "
            "shown on this trace, and the predictor stays advisory: it reports and does not tighten."
        )
        return {"skill": "cannot be shown", "advisory": True, "sentences": sentences}
    if recall["low"] is not None and chance is not None and recall["low"] > chance:
        sentences.append(
            f"Recall {recall['value']:.2f} (90 % interval {recall['low']:.2f} to {recall['high']:.2f}) is "
            f"above the {chance:.2f} of a random alarm with the same share of time."
        )
        skill = "shown"
    else:
        sentences.append(
            "Recall is not above that of a random alarm with the same share of time: there is no skill on "
            "this trace, and the predictor stays advisory."
        )
        skill, advisory = "not shown", True
    for row in rows[1:]:
        if row["kind"] == "baseline" and row["name"] == "lightgbm":
            claim = row["difference"]["claim"]
            sentences.append(
                f"Against {row['title']} under the same guard and budget: {claim}"
                f" ({ours['event_recall']['value']:.2f} and {row['scores']['event_recall']['value']:.2f})."
            )
    return {"skill": skill, "advisory": advisory, "sentences": sentences}
