from typing import get_args

from prometheus_client import CollectorRegistry, generate_latest

from data.schema import LANES
from serving.controller.decision import Reason
from serving.metrics import Metrics, counter
from serving.telemetry.recording import COLUMNS
from serving.telemetry.rows import FaultKind


def test_what_is_unknown_is_left_out_and_never_zero() -> None:
    metrics = Metrics(lambda: {"tidegate_a": ("Known.", 0.5), "tidegate_b": ("Unknown.", None)})
    text = generate_latest(metrics.registry).decode()
    assert "tidegate_a 0.5" in text
    assert "tidegate_b" not in text


def test_labels_are_those_whose_values_are_ours() -> None:
    metrics = Metrics(dict)
    samples = [sample for family in metrics.registry.collect() for sample in family.samples]
    assert {name for sample in samples for name in sample.labels} == {"lane", "reason", "table", "le"}
    assert len(samples) < 150


def test_a_gauge_may_have_a_value_for_each_lane() -> None:
    metrics = Metrics(lambda: {"tidegate_a": ("By lane.", {"premium": 0.0, "batch": 1.0})})
    text = generate_latest(metrics.registry).decode()
    assert 'tidegate_a{lane="premium"} 0.0\ntidegate_a{lane="batch"} 1.0\n' in text


def test_every_counter_is_0_for_each_of_its_labels_before_its_first_event() -> None:
    """`increase` needs a value before the first event to see it."""
    value = Metrics(dict).registry.get_sample_value
    for lane in LANES:
        assert value("tidegate_admitted_total", {"lane": lane}) == 0
        assert value("tidegate_refused_by_forecast_total", {"lane": lane}) == 0
        for reason in get_args(Reason):
            assert value("tidegate_refused_total", {"lane": lane, "reason": reason}) == 0
    for reason in get_args(FaultKind):
        assert value("tidegate_telemetry_rows_refused_total", {"reason": reason}) == 0
    for table in (*COLUMNS, "engine_samples"):
        assert value("tidegate_lake_rows_lost_total", {"table": table}) == 0


def test_a_counter_of_several_labels_has_every_combination() -> None:
    registry = CollectorRegistry()
    waits = counter(registry, "waits", "Waits.", lane=("a", "b"), result=("in", "out"))
    waits.labels("b", "out").inc(3)
    counts = {
        (sample.labels["lane"], sample.labels["result"]): sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == "waits_total"
    }
    assert counts == {("a", "in"): 0, ("a", "out"): 0, ("b", "in"): 0, ("b", "out"): 3}
