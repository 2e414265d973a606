"""The bursts of a workload, by the definition that the forecaster is judged by, have known causes."""

import numpy as np
import pytest

from data.workload import Settings, generate
from features.bins import bin_work
from features.bursts import baseline, find_events
from features.ticks import label_ticks


@pytest.mark.parametrize("seed", [0, 1])
def test_a_day_has_many_bursts_and_most_have_a_heavy_cause(seed: int) -> None:
    workload = generate(Settings(days=1, seed=seed))
    bins = bin_work(workload.requests)
    found, base = find_events(bins), baseline(bins.work)
    assert 60 <= len(found) <= 200
    ticks = label_ticks(len(bins.work), found)
    assert 0.02 <= ticks.positive.sum() / ticks.eligible.sum() <= 0.06
    assert (found.last_s - found.onset_s + 61).sum() / len(bins.work) < 0.30

    at_s = workload.causes["t_s"].to_numpy()
    # Crowds and storms last for minutes; they have no single sum of work, and count by their start alone.
    work = (
        workload.causes["detail"].str.extract(r"work_tokens=(\d+)").cast(float).fill_null(np.inf).to_numpy()
    )
    late = found.onset_s[found.onset_s > 3600]

    def explained(second: int) -> bool:
        near = (at_s > second - 60) & (at_s < second + 1)
        return bool((work[near] > 0.5 * base[second] * 10).any())

    by_cause = np.mean([explained(second) for second in late])
    by_chance = np.mean([explained(second) for second in range(3600, len(bins.work), 97)])
    assert by_cause >= 0.85
    assert by_chance < 0.6 * by_cause
