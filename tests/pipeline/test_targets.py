from typing import Any

import pytest

from pipeline.targets import defects, sentence, targets
from pipeline.verdict import MIN_ONSETS


def row(name: str, recall: float | None, best: float | None, onsets: int = 40) -> dict[str, Any]:
    return {
        "name": name,
        "title": name,
        "scores": {"event_recall": {"value": recall}, "onsets": onsets},
        "hindsight": None if best is None else {"recall": best},
    }


def test_each_yardstick_sets_its_own_target() -> None:
    rows = [
        row("forecaster", 0.40, 0.5),
        row("lightgbm", 0.2, 0.3),
        row("told", 0.3, 0.6),
        row("ewma", 0, 0.9),
    ]
    lightgbm, told = targets(rows)
    assert (lightgbm["against"], told["against"]) == ("lightgbm", "told")
    assert lightgbm["wanted"] == pytest.approx(0.36)
    assert (lightgbm["met"], lightgbm["short_by"]) == (True, 0.0)
    assert told["wanted"] == pytest.approx(0.51)
    assert told["met"] is False
    assert told["short_by"] == pytest.approx(0.11)
    assert sentence(told).endswith("recall 0.51 wanted, 0.40 reached, short by 0.11.")
    assert sentence(lightgbm).endswith("reached, met.")


def test_without_truth_nothing_is_told_of_a_told_model() -> None:
    assert [
        target["against"] for target in targets([row("forecaster", 0.4, 0.5), row("lightgbm", 0.2, 0.3)])
    ] == ["lightgbm"]


@pytest.mark.parametrize(
    ("recall", "best", "onsets"), [(0.4, 0.3, MIN_ONSETS - 1), (0.4, None, 40), (None, None, 0)]
)
def test_what_cannot_be_known_is_neither_met_nor_missed(
    recall: float | None, best: float | None, onsets: int
) -> None:
    (target,) = targets([row("forecaster", recall, 0.5, onsets), row("lightgbm", 0.2, best, onsets)])
    assert target["met"] is None
    assert target["short_by"] is None
    assert "not judged" in sentence(target)


def test_a_span_over_the_budget_is_a_defect() -> None:
    spans = [
        (name, {"false_alarm_rate": {"value": rate}}) for name, rate in (("day 2", 0.0501), ("day 3", 0.05))
    ]
    spans.append(("day 4", {"false_alarm_rate": {"value": None}}))
    assert defects(spans) == [
        "Defect: false alarms on 5.01 % of calm ticks in day 2, over the 5 % that the guard promises."
    ]
