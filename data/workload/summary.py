"""What a workload holds, in a few counts."""

from data.schema import work_tokens
from data.workload.generate import CAUSES, Workload


def summarise(workload: Workload, days: float) -> list[tuple[str, int, float]]:
    """Name, count and count per day: requests, work, sessions, then each cause."""
    requests, causes = workload.requests, workload.causes["cause"]
    counts = {
        "requests": requests.height,
        "work, tokens": int(requests.select(work_tokens().sum()).item()),
        "sessions": requests["session"].drop_nulls().n_unique(),
        **{f"cause: {cause}": int((causes == cause).sum()) for cause in CAUSES},
    }
    return [(what, count, count / days) for what, count in counts.items()]
