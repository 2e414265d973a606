from prometheus_client import generate_latest

from serving.metrics import Metrics


def test_what_is_unknown_is_left_out_and_never_zero() -> None:
    metrics = Metrics(lambda: {"tidegate_a": ("Known.", 0.5), "tidegate_b": ("Unknown.", None)})
    text = generate_latest(metrics.registry).decode()
    assert "tidegate_a 0.5" in text
    assert "tidegate_b" not in text


def test_labels_are_lane_and_reason_only() -> None:
    metrics = Metrics(dict)
    metrics.refused.labels("batch", "backpressure").inc()
    metrics.rows_refused.labels("late").inc()
    labels = {
        name for family in metrics.registry.collect() for sample in family.samples for name in sample.labels
    }
    assert labels <= {"lane", "reason", "le"}


def test_a_gauge_may_have_a_value_for_each_lane() -> None:
    metrics = Metrics(lambda: {"tidegate_a": ("By lane.", {"premium": 0.0, "batch": 1.0})})
    text = generate_latest(metrics.registry).decode()
    assert 'tidegate_a{lane="premium"} 0.0\ntidegate_a{lane="batch"} 1.0\n' in text


def test_what_the_forecast_refused_is_0_for_each_lane_from_the_start() -> None:
    text = generate_latest(Metrics(dict).registry).decode()
    for lane in ("premium", "standard", "batch"):
        assert f'tidegate_refused_by_forecast_total{{lane="{lane}"}} 0.0' in text
