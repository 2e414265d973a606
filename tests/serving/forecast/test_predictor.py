import copy
import functools
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from features.ticks import SLOTS, TICK_S, WARMUP_S
from features.windows import NAMES, SPEC_HASH
from models.bundle import Forecast, Manifest
from models.guard.guard import Guard
from models.guard.ledger import Ledger
from models.guard.skill import SkillGate
from models.guard.tripwire import TripWire
from serving.clock import ManualClock
from serving.forecast.metering import MATURE_S, Meter
from serving.forecast.offered import OfferedLoad
from serving.forecast.predictor import CATCH_UP_TICKS, LATE_S, Predictor, tightening_target

EPOCH_US = 1_700_000_000_000_000
EARN_S = 600
"""After the warm-up: calm ticks mature and earn the budget of the trailing hour."""


def manifest(threshold: float | None) -> Manifest:
    return Manifest.model_validate(
        {
            "model_sha256": "0" * 64,
            "feature_names": NAMES,
            "feature_spec_hash": SPEC_HASH,
            "scaler_mean": (),
            "scaler_scale": (),
            "training": {"source": "", "data_sha256": "", "first": "", "last": "", "requests": 0},
            "guard": {
                "threshold": threshold,
                "effective_negatives": 0,
                "thinning_step": 1,
                "advisory_reason": None if threshold is not None else "58 effective negatives, 59 needed",
            },
            "metrics": {},
            "versions": {},
        }
    )


class Told:
    """A forecaster that was told the bursts: it follows a function of the number of forecasts made."""

    version, providers = "told", ["none"]

    def __init__(self, p_onset: Callable[[int], float], threshold: float | None = 0.0) -> None:
        self.p_onset = p_onset
        self.manifest = manifest(threshold)
        self.calls = 0

    def forecast(self, features: np.ndarray) -> Forecast:
        self.calls += 1
        p = self.p_onset(self.calls)
        slots = np.full((1, SLOTS), p / SLOTS, dtype=np.float32)
        return Forecast(slots, np.float32([[1_000.0, 9_000.0]]))


class Scene:
    """A predictor on simulated time, with one request of 100 tokens each second."""

    def __init__(self, p_onset: Callable[[int], float], threshold: float | None = 0.0) -> None:
        self.clock = ManualClock(EPOCH_US)
        # A ledger with plenty of budget, as after a calm day.
        ledger = Ledger()
        for t_s in range(EPOCH_US // 1_000_000 - 40_000, EPOCH_US // 1_000_000, TICK_S):
            ledger.settle(t_s, True)
        guard = Guard(threshold, ledger=ledger)
        self.predictor = Predictor(Told(p_onset, threshold), guard, OfferedLoad(), Meter())

    def run(self, seconds: int, arrivals: bool = True) -> None:
        for _ in range(seconds):
            if arrivals:
                self.arrive(self.clock.wall_us())
            self.clock.advance(1.0)
            self.tick()

    def arrive(self, at_us: int) -> None:
        self.predictor.offered.arrive(
            at_us, self.now_s, 100, tenant=None, lane=None, model=None, log_type=None
        )

    def tick(self) -> bool:
        return self.predictor.tick(self.clock.wall_us(), self.now_s)

    @property
    def now_s(self) -> float:
        return self.clock.monotonic_s()

    @property
    def target(self) -> float:
        return self.predictor.target(self.now_s)

    @property
    def state(self) -> str:
        return self.predictor.status(self.clock.wall_us(), self.now_s).state


@functools.cache
def _warmed() -> Scene:
    scene = Scene(lambda call: 0.01)
    scene.run(WARMUP_S + EARN_S)
    return scene


def warm(p_onset: Callable[[int], float], threshold: float | None = 0.0) -> Scene:
    scene = copy.deepcopy(_warmed())
    scene.predictor.bundle = Told(p_onset, threshold)
    scene.predictor.guard.threshold = threshold
    return scene


def test_an_alarm_tightens_ahead_and_releases_after() -> None:
    scene = warm(lambda call: 0.9 if 3 <= call <= 6 else 0.01)
    targets = []
    for _ in range(10):
        scene.run(TICK_S)
        targets.append(scene.target)
    assert targets == [0, 0, 1, 1, 1, 1, 0, 0, 0, 0]
    assert scene.state == "active"


def test_an_alarm_whose_burst_has_begun_leaves_it_to_the_rules() -> None:
    scene = warm(lambda call: 0.9)
    scene.run(TICK_S)
    assert (scene.predictor.seen.alarm, scene.target) == (True, 1.0)

    for _ in range(40):
        scene.arrive(scene.clock.wall_us())
    scene.run(TICK_S)
    assert (scene.predictor.seen.alarm, scene.target) == (True, 0.0)  # 5 times as much in the last 10 s
    scene.run(2 * TICK_S)
    assert (scene.predictor.seen.alarm, scene.target) == (True, 1.0)


def test_before_an_hour_of_traffic_the_forecast_is_shown_and_does_not_tighten() -> None:
    scene = Scene(lambda call: 0.99)
    assert scene.state == "late"
    scene.tick()
    assert scene.state == "warming up"
    scene.run(60)
    assert scene.predictor.seen is not None
    assert scene.predictor.seen.p_onset is None
    scene.run(60)
    assert scene.predictor.seen.p_onset == pytest.approx(0.99)
    assert (scene.state, scene.target) == ("warming up", 0.0)
    scene.predictor.bundle.p_onset = lambda call: 0.01  # type: ignore[attr-defined]
    scene.run(WARMUP_S + EARN_S)
    scene.predictor.bundle.p_onset = lambda call: 0.99  # type: ignore[attr-defined]
    scene.run(TICK_S)
    assert (scene.state, scene.target) == ("active", 1.0)


def test_without_a_threshold_the_forecast_is_advisory_and_never_tightens() -> None:
    scene = warm(lambda call: 0.999, threshold=None)
    scene.run(100)
    assert (scene.state, scene.target) == ("advisory", 0.0)
    assert scene.predictor.seen is not None
    assert scene.predictor.seen.p_onset == pytest.approx(0.999)
    status = scene.predictor.status(scene.clock.wall_us(), scene.now_s)
    assert status.reason == "58 effective negatives, 59 needed"


def test_a_model_that_breaks_releases_the_gate_at_once_and_may_recover() -> None:
    def broken(call: int) -> float:
        if 3 <= call <= 4:
            raise RuntimeError("out of memory")
        return 0.9

    scene = warm(broken)
    scene.run(2 * TICK_S)
    assert scene.target == 1.0
    for _ in range(2):
        with pytest.raises(RuntimeError, match="out of memory"):
            scene.run(TICK_S)
        assert (scene.state, scene.target) == ("dead", 0.0)
    assert "out of memory" in scene.predictor.status(scene.clock.wall_us(), scene.now_s).reason
    scene.run(TICK_S)
    assert (scene.state, scene.target) == ("active", 1.0)


@pytest.mark.parametrize("p", [math.nan, math.inf])
def test_a_forecast_that_is_no_number_is_a_failure(p: float) -> None:
    scene = warm(lambda call: p)
    with pytest.raises(ValueError, match="not a finite number"):
        scene.run(TICK_S)
    assert (scene.state, scene.target) == ("dead", 0.0)


def test_a_predictor_that_stands_still_is_late_and_the_gate_is_released() -> None:
    scene = warm(lambda call: 0.9)
    scene.run(TICK_S)
    scene.clock.advance(LATE_S)
    assert scene.target == 1.0
    scene.clock.advance(0.1)
    assert (scene.state, scene.target) == ("late", 0.0)


def test_after_a_hole_forecasts_do_not_tighten_until_it_has_left_the_longest_window() -> None:
    scene = warm(lambda call: 0.9)
    scene.run(TICK_S)
    scene.clock.advance(60)
    scene.tick()
    assert (scene.state, scene.target) == ("warming up", 0.0)
    scene.run(WARMUP_S)
    assert scene.state == "warming up"
    scene.run(20)
    assert scene.state == "active"


def test_a_long_hole_is_caught_up_in_parts_and_noted_once() -> None:
    scene = warm(lambda call: 0.9)
    scene.clock.advance(600)
    parts = 1
    while not scene.tick():
        parts += 1
    assert parts >= 600 // (CATCH_UP_TICKS * TICK_S)
    assert len(scene.predictor.meter._holes) == 1
    assert (scene.state, scene.target) == ("warming up", 0.0)


def test_an_idle_hour_is_load_zero_and_no_failure() -> None:
    scene = warm(lambda call: 0.01)
    scene.run(3_700, arrivals=False)
    assert scene.state == "active"
    assert scene.predictor.seen is not None
    assert scene.predictor.seen.p_onset == pytest.approx(0.01)


def test_replayed_history_is_learned_before_the_first_tick() -> None:
    scene = Scene(lambda call: 0.9)
    for second in range(4_000):
        scene.arrive(EPOCH_US - (4_000 - second) * 1_000_000)
        if second == 2_000:
            assert scene.tick()
            assert scene.predictor.offered.ticked_s == 0
    calls = 1
    while not scene.tick():
        calls += 1
    assert calls == math.ceil(4_000 / (CATCH_UP_TICKS * TICK_S))
    assert scene.predictor.offered.live.late == 0
    assert (scene.state, scene.target) == ("active", 1.0)


def test_history_that_breaks_off_holds_ticks_up_for_half_a_minute_only() -> None:
    scene = Scene(lambda call: 0.9)
    scene.arrive(EPOCH_US - 100_000_000)
    scene.run(29, arrivals=False)
    assert scene.predictor.offered.ticked_s == 0
    scene.run(2, arrivals=False)
    assert scene.predictor.offered.ticked_s > 100


def test_the_guard_hears_how_ticks_turned_out() -> None:
    scene = warm(lambda call: 0.01)
    calm = scene.predictor.guard.ledger.to_dict()["calm"][-1][1]
    scene.run(300)
    after = scene.predictor.guard.ledger.to_dict()["calm"][-1][1]
    assert after - calm > 100
    assert scene.predictor.meter.tally().negatives > 20


@pytest.mark.parametrize("foreseen", [True, False])
def test_the_skill_gate_hears_of_each_onset_and_whether_an_alarm_stood_before_it(foreseen: bool) -> None:
    scene = warm(lambda call: 0.9 if foreseen and call <= 12 else 0.01)
    gate = scene.predictor.guard.skill = SkillGate()
    scene.run(55)
    onset_s = scene.clock.wall_us() // 1_000_000
    for _ in range(20):
        for _ in range(30):
            scene.arrive(scene.clock.wall_us())
        scene.run(1)
    scene.run(150)
    (onset,) = gate.onsets
    assert onset.at_s is not None
    assert 0 <= onset.at_s - onset_s <= 5
    assert onset.anticipated is foreseen
    assert not scene.predictor.guard.ledger.charges
    assert scene.state == "advisory"


def test_after_a_swap_each_guard_hears_how_its_own_ticks_turned_out_and_of_no_others() -> None:
    def learned(guard: Guard) -> int:
        assert guard.wire is not None
        ticks = guard.wire.to_dict()["over"]["ticks"]
        assert isinstance(ticks, int)
        return ticks

    scene = warm(lambda call: 0.01)
    first = scene.predictor.guard
    first.wire = TripWire()
    scene.run(300)
    assert learned(first) == 300 // TICK_S
    second = Guard(0.0, ledger=first.ledger, wire=TripWire())
    first.pause()
    scene.predictor.swap(Told(lambda call: 0.01), second)
    calm = first.ledger.to_dict()["calm"][-1][1]
    scene.run(MATURE_S)
    assert (learned(first), first.awaiting, learned(second)) == ((300 + MATURE_S) // TICK_S, False, 0)
    scene.run(100)
    assert (learned(first), learned(second)) == ((300 + MATURE_S) // TICK_S, 100 // TICK_S)
    assert second.ledger.to_dict()["calm"][-1][1] == calm + MATURE_S + 100  # each tick booked, once

    second.pause()
    first.resume(second.ledger)
    scene.predictor.swap(Told(lambda call: 0.01), first)
    second.pause()
    scene.run(2 * MATURE_S)
    assert (learned(first), learned(second)) == (
        (300 + MATURE_S + MATURE_S) // TICK_S,
        (100 + MATURE_S) // TICK_S,
    )


def test_ticks_are_every_five_seconds_from_the_first_request() -> None:
    scene = Scene(lambda call: 0.01)
    assert scene.predictor.next_tick_in_s(scene.clock.wall_us()) == 1.0
    scene.arrive(EPOCH_US)
    scene.clock.advance(12.0)
    assert scene.predictor.next_tick_in_s(scene.clock.wall_us()) == 3.0
    scene.tick()
    scene.clock.advance(2.9)
    scene.tick()
    assert scene.predictor.offered.ticked_s == 10
    scene.clock.advance(0.1)
    scene.tick()
    assert scene.predictor.offered.ticked_s == 15


@given(st.floats(0, 1e12), st.floats(1, 1e9))
def test_an_alarm_asks_for_a_level_between_its_bounds(peak: float, base: float) -> None:
    assert 0.3 <= tightening_target(peak, base) <= 1.0


def test_without_a_word_of_the_engines_the_gate_is_released_within_one_tick_and_no_budget_is_spent() -> None:
    scene = warm(lambda call: 0.9)
    scene.run(TICK_S)
    assert scene.target == 1.0
    charges = scene.predictor.guard.ledger.charges
    scene.predictor.blind = "no engine tells"
    scene.run(TICK_S)
    assert (scene.state, scene.target) == ("warming up", 0.0)
    assert scene.predictor.guard.ledger.charges == charges
    scene.predictor.blind = None
    scene.run(TICK_S)
    assert (scene.state, scene.target) == ("active", 1.0)


def test_a_missed_tick_is_enough_to_be_late() -> None:
    assert LATE_S <= 2 * TICK_S
