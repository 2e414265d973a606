import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from features.runs import Run, RunDetector, find_runs


def plain(activity: list[tuple[int, int]]) -> list[Run]:
    """Every run of one sender, the last one too, each from a look at all of its seconds."""
    runs: list[list[tuple[int, int]]] = []
    for second, work in activity:
        if runs and second - runs[-1][-1][0] <= 60:
            runs[-1].append((second, work))
        else:
            runs.append([(second, work)])
    found = []
    for run in runs:
        start_s = run[0][0]
        first, both = (sum(work for s, work in run if s < start_s + window) for window in (10, 20))
        found.append(Run(start_s, max(first / 10, both / 20)))
    return found


@given(
    st.lists(
        st.tuples(st.sampled_from([0, 1, 4, 9, 10, 20, 59, 60, 61, 200]), st.integers(0, 9_000)), max_size=60
    )
)
@settings(max_examples=150, deadline=None)
def test_runs_equal_the_plain_loop(steps: list[tuple[int, int]]):
    activity, second = [], 0
    for gap_s, work in steps:
        second += gap_s
        activity.append((second, work))
    detector = RunDetector()
    runs = plain(activity)
    starts, complete = [], []
    for second, work in activity:
        if detector.observe("job", second, work):
            starts.append(second)
            complete.append(detector.previous("job"))
    assert starts == [run.start_s for run in runs]
    assert complete == [None, *runs][: len(runs)]  # each run is complete when the next one starts


@pytest.mark.parametrize(("quiet_s", "starts"), [(60, False), (61, True)])
def test_a_minute_of_quiet_is_still_the_same_run(quiet_s: int, starts: bool):
    detector = RunDetector()
    detector.observe("job", 100, 1)
    assert detector.observe("job", 100 + quiet_s, 1) is starts


def test_a_slow_opening_counts_its_first_twenty_seconds():
    detector = RunDetector()
    for second in (0, 9, 10, 19, 20):
        detector.observe("job", second, 300)
    detector.observe("job", 500, 1)
    assert detector.previous("job") == Run(0, 60.0)
    detector.observe("job", 1_000, 1)
    assert detector.previous("job") == Run(500, 0.1)


def test_senders_are_kept_apart():
    detector = RunDetector()
    assert [detector.observe(sender, 5, 10) for sender in ("a", "b", ("a", 1))] == [True, True, True]
    detector.observe("a", 500, 10)
    assert detector.previous("a") == Run(5, 1.0)
    assert detector.previous("b") is None
    assert detector.previous("nobody") is None


@given(st.lists(st.tuples(st.integers(0, 90), st.integers(0, 4), st.integers(0, 9_000)), max_size=80))
@settings(max_examples=100, deadline=None)
def test_runs_found_at_once_are_those_of_the_detector(steps: list[tuple[int, int, int]]):
    second = np.cumsum([gap_s for gap_s, _, _ in steps], dtype=np.int64)
    sender = np.array([who for _, who, _ in steps], dtype=np.int64)
    work = np.array([tokens for _, _, tokens in steps], dtype=np.int64)
    detector, previous, begun = RunDetector(), {}, set()
    for entry, (at_s, who, tokens) in enumerate(
        zip(second.tolist(), sender.tolist(), work.tolist(), strict=True)
    ):
        if detector.observe(who, at_s, tokens):
            begun.add((who, entry, at_s))
            previous[who, entry] = detector.previous(who)
    runs = find_runs(sender, second, work)
    assert begun == set(zip(runs.sender.tolist(), runs.entry.tolist(), runs.start_s.tolist(), strict=True))
    for run in range(len(runs.sender)):
        before = previous[int(runs.sender[run]), int(runs.entry[run])]
        assert (before is None) == (runs.rank[run] == 0)
        if before is not None:
            assert before == Run(int(runs.start_s[run - 1]), float(runs.load[run - 1]))
