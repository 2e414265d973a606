import numpy as np

from data.workload.volleys import sizes, volleys


def test_volleys_start_on_time_and_end_within_their_spread() -> None:
    counts, start_s, spread_s = np.array([1, 50, 3]), np.array([10.0, 20.0, 100.0]), np.array([5.0, 5.0, 0.5])
    calls = volleys(
        np.random.default_rng(0),
        np.array([4, 5, 6]),
        start_s,
        counts,
        spread_s,
        np.log([900.0, 90.0]),
        np.zeros(2),
    )
    assert calls.sender.tolist() == [4] + [5] * 50 + [6] * 3
    after_s = calls.arrived_s - np.repeat(start_s, counts)
    assert after_s[[0, 1, 51]].tolist() == [0, 0, 0]
    assert (after_s <= np.repeat(spread_s, counts)).all()
    assert (calls.prompt == 900).all()


def test_sizes_tell_calls_and_work() -> None:
    counts = np.array([2, 3])
    calls = volleys(
        np.random.default_rng(0),
        np.array([0, 0]),
        np.zeros(2),
        counts,
        np.ones(2),
        np.log([100.0, 50.0]),
        np.zeros(2),
    )
    work = calls.prompt + calls.output
    assert sizes(calls, counts) == [
        f"calls=2 work_tokens={work[:2].sum()}",
        f"calls=3 work_tokens={work[2:].sum()}",
    ]
    assert sizes(calls.take(np.zeros(0, dtype=np.int64)), np.zeros(0, dtype=np.int64)) == []
