from pathlib import Path

import numpy as np
import polars as pl
import pytest

from data.errors import InputError
from features.ticks import Ticks
from models.bundle import Bundle
from models.guard.guard import Guard
from models.guard.replay import replay, warmed
from pipeline.gateway_demo.rehearsal import MODEL, Rehearsal, hand_over, recall, without_forecast, workload
from serving.forecast.guard_state import load_guards
from tests.noise_bundle import noise_model, write_noise_bundle

GAP_S, TEST_S, END_S, SHIFT_S = 3_600, 7_200, 12_000, 1_700_000_000


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_noise_bundle(tmp_path_factory.mktemp("bundle"), noise_model(), -1.0)


@pytest.fixture
def played(bundle: Path) -> Rehearsal:
    """An onset every 1,000 s, and scores that are high in the minute before most of them."""
    t_s = np.arange(GAP_S, END_S, 5)
    onset_s = -(-(t_s + 1) // 1_000) * 1_000
    score = np.where(onset_s - t_s <= 60, 1.0, -3.0) + np.random.default_rng(0).normal(0.0, 0.5, len(t_s))
    ticks = pl.DataFrame(
        {
            "t_s": t_s,
            "score": score,
            "alarm": False,
            "eligible": True,
            "next_onset_s": onset_s,
            "load": 1.0,
            "held_out": t_s >= TEST_S,
        }
    ).with_columns(score=pl.when("held_out").then("score"))
    return Rehearsal(pl.DataFrame(), ticks, bundle)


@pytest.mark.parametrize("until_s", [TEST_S, 8_005, 11_000])
def test_the_service_goes_on_with_the_guard_as_the_rehearsal_had_it(
    played: Rehearsal, tmp_path: Path, until_s: int
) -> None:
    hand_over(played, until_s, SHIFT_S, tmp_path / "guard.json")
    loaded = Bundle.load(played.bundle)
    guard = load_guards(tmp_path / "guard.json", loaded.version, loaded.manifest).guard

    ticks = Ticks(*(played.ticks[name].to_numpy() for name in ("t_s", "eligible", "next_onset_s")))
    gap, past = ticks.t_s < TEST_S, (ticks.t_s >= TEST_S) & (ticks.t_s < until_s)
    rehearsed = Guard.start(loaded.manifest.guard, warmed(ticks.select(gap), TEST_S))
    score = played.ticks["score"].fill_null(float("nan")).to_numpy()
    replay(rehearsed, score[past], ticks.select(past))

    assert guard.threshold == rehearsed.threshold
    assert guard.ledger.remaining() == rehearsed.ledger.remaining() > 0
    assert guard.ledger.charges == rehearsed.ledger.charges
    assert guard.advisory == rehearsed.advisory


def test_times_of_the_state_are_those_of_the_play(played: Rehearsal, tmp_path: Path) -> None:
    hand_over(played, 11_000, SHIFT_S, tmp_path / "guard.json")
    loaded = Bundle.load(played.bundle)
    guard = load_guards(tmp_path / "guard.json", loaded.version, loaded.manifest).guard
    assert guard.ledger.settled_s is not None
    assert SHIFT_S + 10_800 < guard.ledger.settled_s < SHIFT_S + 11_000


def test_without_forecast_the_bundle_is_advisory_and_all_else_is_the_same(
    bundle: Path, tmp_path: Path
) -> None:
    before, after = (
        Bundle.load(one).manifest for one in (bundle, without_forecast(bundle, tmp_path / "rules"))
    )
    assert Guard.start(after.guard).advisory
    assert after.guard.advisory_reason is not None
    assert after.model_copy(update={"guard": before.guard}) == before


def test_a_gateway_sees_one_model_and_every_request_has_a_tenant() -> None:
    made = workload(600 / 86_400, 2.0, 3)
    assert made["model"].unique().to_list() == [MODEL]
    assert made["log_type"].null_count() == made.height
    assert made["tenant"].null_count() == 0


def test_no_run_before_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Leave --reuse out"):
        recall(tmp_path)
