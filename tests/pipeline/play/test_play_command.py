from pathlib import Path

import polars as pl
from typer.testing import CliRunner

from pipeline.cli import app
from serving.engine_sim.server import SimSettings
from tests.serving.engine_sim.sim_server import simulated

TRACE = """request_id,arrived_at,lane,prompt_tokens,output_tokens
a,2026-01-05T09:00:00Z,premium,40,3
b,2026-01-05T09:00:20Z,batch,900,12
c,2026-01-05T09:00:40Z,batch,900,12
"""


def test_a_trace_is_played_and_told_by_lane(tmp_path: Path) -> None:
    trace, out = tmp_path / "day.csv", tmp_path / "out" / "calls.parquet"
    trace.write_text(TRACE)
    with simulated(SimSettings(speed=200.0)) as sim:
        options = ["--url", f"{sim.url}/v1", "--speed", "200", "--span-s", "30", "--out", str(out)]
        done = CliRunner().invoke(app, ["play", str(trace), *options])
    assert done.exit_code == 0, done.output
    assert all(word in done.output for word in ("premium", "batch", "all", "goodput per s"))
    assert "late (99 % of them)" in done.output
    calls = pl.read_parquet(out)
    assert calls.select("lane", "end", "output_tokens").rows() == [
        ("premium", "served", 3),
        ("batch", "served", 12),
    ]
