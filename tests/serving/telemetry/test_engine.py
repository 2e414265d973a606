import math
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from data.live.samples import Sample
from serving.controller.decide import Controller
from serving.controller.decision import RequestFacts
from serving.controller.rules import Rules
from serving.http.messages import EngineSample
from serving.telemetry.engine import Engine

NOW_US = 1_700_000_000_000_000
OK = Sample(source="pool", at_us=NOW_US, engine="0", state="ok")
QUEUE_RULES = Rules(alpha=0.1, beta=0.8, gamma=0.1, queue_capacity=100, hard_reject_above=0.5)
"""Rules that go by the engine's queue above all: 100 waiting requests alone are too many."""


def sample(engine: str = "0", **readings: Any) -> Sample:
    return replace(OK, engine=engine, **readings)


def engine(rules: Rules = QUEUE_RULES) -> Engine:
    return Engine(Controller(rules, random=Random(7)))


def pressure(engine: Engine, now_s: float = 0.0) -> float:
    return engine.controller.snapshot(now_s).backpressure


def admits(engine: Engine, now_s: float = 0.0) -> bool:
    return engine.controller.admit(RequestFacts(prompt_tokens=10), now_s).admitted


def test_scraped_queues_of_all_engines_make_the_pressure():
    gate = engine()
    gate.scraped([sample("0", waiting=30), sample("1", waiting=50)], NOW_US, 0.0)
    assert gate.reading("queue_depth", NOW_US) == 80
    assert pressure(gate) == pytest.approx(0.8 * 0.8 / 0.9)  # the hit rate is unknown and left out


def test_features_hear_what_engines_say_scraped_or_pushed():
    gate = engine()
    gate.scraped([sample("0", waiting=30, running=4), sample("1", state="suspect", waiting=9)], NOW_US, 0.0)
    gate.take(EngineSample(queue_depth=7, kv_cache_usage=0.5), NOW_US, 0.0, "gateway")
    waiting, running, usage, preemptions = gate.state.tell(NOW_US + 1)
    assert (waiting, running, usage) == (37.0, 4.0, 0.5)
    assert math.isnan(preemptions)


def test_a_target_that_was_scraped_again_replaces_its_samples_only():
    gate = engine()
    gate.scraped([sample("0", waiting=30)], NOW_US, 0.0)
    gate.scraped([sample("0", source="other", waiting=5)], NOW_US, 0.0)
    gate.scraped([sample("0", waiting=10)], NOW_US, 0.0)
    assert gate.reading("queue_depth", NOW_US) == 15


def test_a_full_engine_that_freezes_is_unknown_and_requests_go_by_own_count():
    gate = engine()
    gate.scraped([sample(waiting=5_000)], NOW_US, 0.0)
    assert not admits(gate)
    gate.scraped([sample(state="suspect", waiting=None)], NOW_US + 5_000_000, 5.0)
    assert gate.reading("queue_depth", NOW_US + 5_000_000) is None
    assert pressure(gate, 5.0) == 0.0
    assert admits(gate, 5.0)


def test_a_failed_scrape_is_unknown_not_an_empty_queue():
    gate = engine()
    gate.scraped([sample("0", waiting=40), sample("1", waiting=40)], NOW_US, 0.0)
    gate.scraped([sample("0", state="failed")], NOW_US, 0.0)
    assert gate.reading("queue_depth", NOW_US) == 40
    gate.scraped([sample("1", state="failed")], NOW_US, 0.0)
    assert gate.reading("queue_depth", NOW_US) is None


def test_scrapes_that_fail_for_two_minutes_leave_the_rules_to_themselves():
    gate, alone = engine(), engine()
    gate.scraped([sample(waiting=90)], NOW_US, 0.0)
    for after_s in range(5, 125, 5):
        gate.scraped([sample(state="failed", at_us=NOW_US + after_s * 1_000_000)], NOW_US, float(after_s))
        assert pressure(gate, after_s) == pressure(alone, after_s)
        assert gate.reading("queue_depth", NOW_US) is None


def test_a_stale_sample_is_unknown_while_others_still_come():
    gate = engine()
    gate.scraped([sample("0", waiting=60)], NOW_US, 0.0)
    later_us = NOW_US + 16_000_000
    gate.scraped([sample("1", waiting=5, at_us=later_us)], later_us, 16.0)
    assert gate.reading("queue_depth", later_us) == 5
    assert gate.fleet(later_us).engines == len(gate._scraped) == 1  # engines that come and go are forgotten


def test_without_any_news_the_last_pressure_ends_by_itself():
    gate = engine()
    gate.scraped([sample(waiting=5_000)], NOW_US, 0.0)
    assert pressure(gate, 14.0) > 0.8
    assert pressure(gate, 16.0) == 0.0
    assert gate.reading("queue_depth", NOW_US + 16_000_000) is None


def test_a_pushed_sample_speaks_for_all_and_what_it_lacks_is_scraped():
    gate = engine()
    gate.scraped([sample(waiting=60, kv_cache_usage=0.4, prefix_hit_rate=0.75)], NOW_US, 0.0)
    assert gate.take(EngineSample(queue_depth=10, queue_capacity=50), NOW_US, 0.0) is None
    assert gate.reading("queue_depth", NOW_US) == 10
    assert gate.reading("kv_cache_usage", NOW_US) == 0.4
    assert pressure(gate) == pytest.approx(0.8 * 10 / 50 + 0.1 * 0.25)


def test_the_capacity_of_a_pushed_queue_does_not_rescale_a_scraped_one():
    gate = engine()
    gate.take(EngineSample(queue_capacity=1, kv_cache_hit_rate=1.0), NOW_US, 0.0)
    gate.scraped([sample(waiting=50)], NOW_US, 0.0)
    assert pressure(gate) == pytest.approx(0.8 * 0.5)


def usable(gate: Engine, now_s: float) -> int:
    return gate.controller.snapshot(now_s).usable_tokens


def test_scraped_preemptions_shrink_what_may_be_held_once_for_each_time_that_they_are_told():
    gate, capacity = engine(), QUEUE_RULES.capacity
    gate.scraped([sample("0", preemptions_per_s=0.4), sample("1")], NOW_US, 0.0)
    assert usable(gate, 0.0) == round(0.9 * capacity)
    gate.scraped([sample("9", source="other")], NOW_US + 6_000_000, 6.0)
    gate.take(EngineSample(queue_depth=1), NOW_US + 12_000_000, 12.0)
    assert usable(gate, 12.0) == round(0.9 * capacity)


def test_preemptions_that_a_scrape_does_not_know_are_not_zero():
    gate = engine()
    gate.scraped([sample(preemptions_per_s=0.4)], NOW_US, 0.0)
    before = usable(gate, 0.0)
    for state in ("ok", "suspect", "failed"):
        gate.scraped([sample(state=state, preemptions_per_s=None)], NOW_US + 6_000_000, 6.0)
    assert usable(gate, 6.0) == before
    gate.scraped([sample(preemptions_per_s=0.0)], NOW_US + 12_000_000, 12.0)
    assert usable(gate, 12.0) > before


def test_a_pushed_gpu_that_is_busy_degrades():
    gate = engine(Rules())
    gate.take(EngineSample(gpu_util=0.93), NOW_US, 0.0)
    assert gate.controller.snapshot(0.0).degradation == 1


def test_scraped_engines_teach_what_an_engine_can_do():
    gate = engine(Rules())
    for second in range(0, 1_000, 5):
        at_us = NOW_US + second * 1_000_000
        engines = [sample("0", running=10, tpot_mean_s=0.06), sample("1", running=100, tpot_mean_s=0.09)]
        gate.scraped([replace(one, at_us=at_us) for one in engines], at_us, float(second))
    state = gate.controller.snapshot(1_000.0)
    assert state.decode_learned.enough
    assert state.engine.decode_step_s(10) == pytest.approx(0.06, rel=0.1)
    assert state.engine.decode_step_s(100) == pytest.approx(0.09, rel=0.1)


def test_a_pushed_sample_that_has_aged_gives_way_to_the_scraped_ones():
    gate = engine()
    gate.take(EngineSample(queue_depth=99), NOW_US, 0.0)
    later_us = NOW_US + 16_000_000
    gate.scraped([sample(waiting=3, at_us=later_us)], later_us, 16.0)
    assert gate.reading("queue_depth", later_us) == 3


def test_a_pushed_sample_too_old_too_new_or_empty_is_refused():
    gate = engine()
    old = gate.take(EngineSample(at="2023-11-14T22:12:00Z", queue_depth=1), NOW_US, 0.0)
    ahead = gate.take(EngineSample(at="2023-11-14T22:14:20Z", queue_depth=1), NOW_US, 0.0)
    empty = gate.take(EngineSample(), NOW_US, 0.0)
    assert [fault and fault.kind for fault in (old, ahead, empty)] == ["late", "ahead", "invalid"]
    assert ahead is not None
    assert "60.0 s ahead" in ahead.reason
    gate.take(EngineSample(queue_depth=1), NOW_US, 0.0)
    before = gate.take(EngineSample(at="2023-11-14T22:13:15Z", queue_depth=2), NOW_US, 0.0)
    assert before is not None
    assert gate.reading("queue_depth", NOW_US) == 1
