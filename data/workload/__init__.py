"""A synthetic multi-tenant LLM workload whose bursts have named causes.

workload = generate(Settings(days=1, seed=7))
workload.requests    # polars, the schema of requests, sorted by arrival
workload.causes      # at, t_s, cause, tenant, detail
write(workload, "day.csv")

Conversations and single API calls make up 60-80 % of the requests. On top come scheduled jobs
(cause "cron"), agents that fan out after a planning call ("fan_out"), crowds ("ramp"), prompts that grow at a
steady rate ("storm"), clients that come back when told ("retry_echo"), and "shock", which nothing announces.
"""

from data.workload.generate import CAUSES, Workload, generate
from data.workload.settings import Settings
from data.workload.summary import summarise
from data.workload.write import check_path, read_truth, truth_path, write

__all__ = [
    "CAUSES",
    "Settings",
    "Workload",
    "check_path",
    "generate",
    "read_truth",
    "summarise",
    "truth_path",
    "write",
]
