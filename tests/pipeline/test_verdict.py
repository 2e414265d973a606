from typing import Any

import pytest

from pipeline.verdict import MIN_ONSETS, verdict

FEW = "The predictor saw too few calm ticks."


def row(
    name: str = "forecaster",
    kind: str = "forecaster",
    *,
    recall: tuple[float | None, float | None, float | None] = (0.5, 0.4, 0.6),
    chance: float | None = 0.1,
    onsets: int = 40,
    claim: str | None = None,
) -> dict[str, Any]:
    value, low, high = recall
    return {
        "name": name,
        "title": name.title(),
        "kind": kind,
        "scores": {
            "event_recall": {"value": value, "low": low, "high": high},
            "random_recall": chance,
            "onsets": onsets,
        },
        "difference": claim and {"claim": claim},
    }


RIVALS = [
    row("lightgbm", "baseline", recall=(0.3, 0.2, 0.4), claim="better"),
    row("last_value", "baseline", recall=(0.2, 0.1, 0.3), claim="better"),
    row("oracle", "oracle", recall=(1.0, 1.0, 1.0), claim="worse"),
]


def test_skill_shown_tells_recall_chance_and_the_strongest_baseline() -> None:
    assert verdict([row(), *RIVALS], None) == {
        "skill": "shown",
        "advisory": False,
        "sentences": [
            "Recall 0.50 (90 % interval 0.40 to 0.60) is above the 0.10 of a random alarm with the same "
            "share of time.",
            "Against Lightgbm under the same guard and budget: better (0.50 and 0.30).",
        ],
    }


@pytest.mark.parametrize(
    ("recall", "chance"),
    [
        ((0.5, 0.1, 0.9), 0.1),  # the interval reaches down to chance
        ((0.05, 0.0, 0.09), 0.1),
        ((0.0, 0.0, 0.0), 0.0),  # never alarmed
        ((0.9, None, None), 0.1),  # no interval
        ((0.9, 0.8, 1.0), None),
    ],
)
def test_recall_that_chance_may_reach_is_no_skill(
    recall: tuple[float, float | None, float | None], chance: float | None
) -> None:
    found = verdict([row(recall=recall, chance=chance), *RIVALS], None)
    assert (found["skill"], found["advisory"]) == ("not shown", True)
    assert found["sentences"] == [
        "Recall is not above that of a random alarm with the same share of time: there is no skill on this "
        "trace, and the predictor stays advisory.",
        f"Against Lightgbm under the same guard and budget: better ({recall[0]:.2f} and 0.30).",
    ]


@pytest.mark.parametrize(
    ("onsets", "held"),
    [(0, "0 burst onsets"), (1, "1 burst onset"), (MIN_ONSETS - 1, f"{MIN_ONSETS - 1} burst onsets")],
)
def test_too_few_onsets_show_nothing_however_high_the_recall(onsets: int, held: str) -> None:
    recall = (1.0, 1.0, 1.0) if onsets else (None, None, None)
    assert verdict([row(recall=recall, onsets=onsets), *RIVALS], None) == {
        "skill": "cannot be shown",
        "advisory": True,
        "sentences": [
            f"The test span holds {held}, fewer than the {MIN_ONSETS} that a claim needs: skill can't be "
            "shown on this trace, and the predictor stays advisory: it reports and does not tighten."
        ],
    }


def test_as_many_onsets_as_a_claim_needs_are_judged() -> None:
    assert verdict([row(onsets=MIN_ONSETS), *RIVALS], None)["skill"] == "shown"


def test_what_was_not_calibrated_is_advisory_and_says_why_first() -> None:
    found = verdict([row(recall=(0.0, 0.0, 0.0), chance=0.0), *RIVALS], FEW)
    assert (found["skill"], found["advisory"]) == ("cannot be shown", True)
    assert found["sentences"] == [
        FEW,
        "The test span holds 40 burst onsets: skill can't be shown on this trace, and the predictor stays "
        "advisory: it reports and does not tighten.",
    ]


def test_a_gate_that_was_closed_for_a_while_is_told_with_the_numbers() -> None:
    found = verdict([row(), *RIVALS], None, 0.25)
    assert (found["skill"], found["advisory"]) == ("shown", False)
    assert found["sentences"][0].startswith("In 25% of the test span skill was not shown yet or no more")
    assert verdict([row(), *RIVALS], None, 0.0) == verdict([row(), *RIVALS], None)


def test_without_lightgbm_nothing_is_said_of_it() -> None:
    assert len(verdict([row(), *RIVALS[1:]], None)["sentences"]) == 1
