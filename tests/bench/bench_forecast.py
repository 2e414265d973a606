"""What a forecast costs: features online and in batch, inference, and the memory of two weeks.

    python tests/bench/bench_forecast.py [--days N] [--samples N]

Online: a synthetic workload is played second by second; an update is one arrival and one finish, a tick
closes five seconds and computes every feature. Inference runs once every 5 s, as in service, so that caches
are cold and clocks are low; p99 of so few samples is their highest. Batch: features of a workload of about
two million requests against a plain per-second GROUP BY in DuckDB over the same rows, in turns. The peak
memory is that of a process that computes the batch features of two weeks from a Parquet file, which another
has written.
"""

import argparse
import json
import resource
import statistics
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import numpy as np
import polars as pl
from harness import Check, alternate, in_child, report

from data.workload import Settings, generate
from features.batch import batch_features
from features.online import OnlineFeatures
from features.ticks import TICK_S
from features.windows import NAMES

PACKAGES = ("polars", "numpy", "duckdb", "onnxruntime-gpu", "torch")
UPDATE_TARGET_US = 5.0
TICK_TARGET_MS = 1.0
INFERENCE_TARGET_MS = 2.0
BATCH_TARGET = 10.0
MEMORY_TARGET_MIB = 2048
ONLINE_S = 3 * 3600
PACE_S = 5.0
GROUP_BY = """
SELECT epoch(arrived_at)::BIGINT AS second, count(*), sum(prompt_tokens), sum(output_tokens)
FROM requests GROUP BY second ORDER BY second
"""


def play_online(requests: pl.DataFrame) -> tuple[float, float, float]:
    """Play the first hours; microseconds an update, and the median and p99 of a tick in milliseconds."""
    origin = int(requests["arrived_at"].to_physical()[0])
    rows = requests.filter((pl.col("arrived_at").to_physical() - origin) < ONLINE_S * 1_000_000)
    arrived = rows["arrived_at"].to_physical().to_list()
    facts = rows.select("tenant", "lane", "model", "log_type").rows()
    prompts, outputs = rows["prompt_tokens"].to_list(), rows["output_tokens"].fill_null(0).to_list()
    online, updates_s, ticks_s, row = OnlineFeatures(), 0.0, [], 0
    for t_s in range(TICK_S, ONLINE_S, TICK_S):
        until = origin + t_s * 1_000_000
        start = time.perf_counter()
        while row < len(arrived) and arrived[row] < until:
            tenant, lane, model, log_type = facts[row]
            flow = online.arrive(
                arrived[row], prompts[row], tenant=tenant, lane=lane, model=model, log_type=log_type
            )
            online.finish(arrived[row] + 3_000_000, flow, prompts[row], 0, outputs[row])
            row += 1
        middle = time.perf_counter()
        online.features(t_s)
        ticks_s.append(time.perf_counter() - middle)
        updates_s += middle - start
    settled = ticks_s[len(ticks_s) // 3 :]  # schedules have been learned by then
    return 1e6 * updates_s / row, 1e3 * float(np.median(settled)), 1e3 * float(np.quantile(settled, 0.99))


def paced_inference(folder: Path, samples: int) -> list[float]:
    """Milliseconds of each of some forecasts, one every 5 s."""
    # Here, so that the memory of batch features is measured without what training takes.
    from models.bundle import Bundle, write_bundle
    from models.export import export
    from models.forecaster import NONE, Examples, train
    from models.forecaster import Settings as ForecasterSettings

    random = np.random.default_rng(0)
    features = random.normal(size=(512, len(NAMES))).astype(np.float32)
    examples = Examples(features, random.integers(0, NONE + 1, 512), np.ones(512, dtype=np.float32))
    forecaster = train(examples, ForecasterSettings(epochs=1))  # its size is the real one; its skill is not
    window = {"source": "", "data_sha256": "", "first": "", "last": "", "requests": 0}
    guard = {"threshold": None, "effective_negatives": 0, "thinning_step": 1, "advisory_reason": "benchmark"}
    write_bundle(
        folder,
        export(forecaster, features),
        scaler_mean=(),
        scaler_scale=(),
        training=window,
        guard=guard,
        metrics={},
        versions={},
    )
    bundle, taken = Bundle.load(folder), []
    for sample in range(samples):
        time.sleep(PACE_S)
        start = time.perf_counter()
        bundle.forecast(features[sample % 512][None])
        taken.append(1e3 * (time.perf_counter() - start))
    return taken


def workload(days: float, seed: int = 7) -> pl.DataFrame:
    """Synthetic requests at the default rate, 8.5 a second."""
    return generate(Settings(days=days, seed=seed, start=datetime(2026, 1, 5, tzinfo=UTC))).requests


def main() -> None:
    """Measure, print, write var/bench/forecast.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--days", type=float, default=14.0, help="span of the memory test")
    parser.add_argument("--samples", type=int, default=24, help="paced forecasts")
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.write:
        workload(arguments.days).write_parquet(arguments.write)
        print(json.dumps({}))
        return
    if arguments.read:
        batch_features(pl.scan_parquet(arguments.read))
        print(json.dumps({"peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
        return
    # First of all: a child's peak starts at what its parent took when it was started.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "requests.parquet"
        in_child(__file__, "--days", arguments.days, "--write", path)
        peak_mib = in_child(__file__, "--read", path)["peak_mib"]
    requests = workload(2.75)
    update_us, tick_ms, tick_p99_ms = play_online(requests)
    with tempfile.TemporaryDirectory() as folder:
        inference_ms = paced_inference(Path(folder), arguments.samples)
    with duckdb.connect() as db:
        db.execute("SET TimeZone = 'UTC'")
        db.execute("CREATE TABLE requests AS SELECT * FROM requests")
        contenders = {
            "batch": lambda: batch_features(requests),
            "group by": lambda: db.execute(GROUP_BY).fetchall(),
        }
        batch_s, group_s = (statistics.median(seconds) for seconds in alternate(contenders).values())
    checks = [
        Check("online update, µs a request", update_us, None, update_us, UPDATE_TARGET_US, at_least=False),
        Check("online tick, ms, median", tick_ms, None, tick_ms, TICK_TARGET_MS, at_least=False),
        Check(
            "paced inference, ms, highest",
            max(inference_ms),
            None,
            max(inference_ms),
            INFERENCE_TARGET_MS,
            at_least=False,
        ),
        Check(
            "batch features, s, against GROUP BY",
            batch_s,
            group_s,
            batch_s / group_s,
            BATCH_TARGET,
            at_least=False,
        ),
        Check(
            f"peak memory of {arguments.days:g} days, MiB",
            peak_mib,
            None,
            peak_mib,
            MEMORY_TARGET_MIB,
            at_least=False,
        ),
    ]
    facts = {
        "requests": requests.height,
        "tick_p99_ms": tick_p99_ms,
        "inference_median_ms": float(np.median(inference_ms)),
    }
    print(report("forecast", checks, facts, PACKAGES))
    sys.exit(0 if all(check.holds for check in checks) else 1)


if __name__ == "__main__":
    main()
