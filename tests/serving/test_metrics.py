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
