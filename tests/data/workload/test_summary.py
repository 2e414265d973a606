from data.schema import work_tokens
from data.workload import CAUSES, Workload, summarise


def test_counts_are_those_of_the_frames(workload: Workload) -> None:
    counts = {what: (count, per_day) for what, count, per_day in summarise(workload, days=0.1)}
    assert counts["requests"] == (workload.requests.height, workload.requests.height / 0.1)
    assert counts["work, tokens"][0] == workload.requests.select(work_tokens().sum()).item()
    assert sum(counts[f"cause: {cause}"][0] for cause in CAUSES) == workload.causes.height
