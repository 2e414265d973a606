import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from data.config import Telemetry
from data.errors import InputError
from data.lake import Lake
from data.live.samples import Sample
from data.writer import LakeWriter
from pipeline.collect import Samples, collect
from tests.data.live import expositions
from tests.data.live.metrics_server import serving


def stored(lake: Path) -> pl.DataFrame:
    with Lake(lake) as opened:
        return opened.query('SELECT * FROM lake.engine_samples ORDER BY "at", engine')


def test_engines_are_scraped_into_the_lake_until_sigterm(tmp_path: Path):
    config, lake = tmp_path / "tidegate.yaml", tmp_path / "lake"
    with serving() as server:
        server.answer(expositions.VLLM)
        config.write_text(
            f"telemetry:\n  lake: {lake}\n  scrape:\n"
            f'    - {{name: pool, url: "{server.url()}", interval_s: 0.2, timeout_s: 20}}\n'
            f'    - {{name: gone, url: "{server.url("/none")}", interval_s: 0.2, timeout_s: 20}}\n'
        )
        command = [sys.executable, "-m", "pipeline.cli", "collect", "--config", str(config)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            deadline_s = time.monotonic() + 60
            while len(server.asked) < 8 and process.poll() is None and time.monotonic() < deadline_s:
                time.sleep(0.05)
            process.send_signal(signal.SIGTERM)
            said, _ = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert "pool engine 0 is ok" in said
    assert "gone is failed: " in said
    rows = stored(lake)
    assert f"Stopped: {rows.height} engine samples stored, 0 lost." in said
    last = rows.filter(source="pool", engine="0").row(-1, named=True)
    assert (last["state"], last["waiting"], last["prompt_tokens_per_s"]) == ("ok", 3, 0.0)
    assert rows.filter(source="gone")["state"].unique().to_list() == ["failed"]


def test_a_configuration_with_nothing_to_collect_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match="nothing to collect"):
        collect(Telemetry(lake=str(tmp_path)), print)


def test_rows_that_the_lake_does_not_take_are_counted_and_told_once(tmp_path: Path):
    said: list[str] = []
    rows = [Sample(source="pool", at_us=0, engine="", state="ok")]
    in_the_way = tmp_path / "lake"
    in_the_way.write_text("no folder")
    with LakeWriter(str(in_the_way), max_wait_s=0.0) as writer:
        samples = Samples(writer, said.append)
        for lost in (1, 2):
            samples.take(rows)
            wait_for(lambda lost=lost: samples.lost == lost)
        in_the_way.unlink()
        samples.take(rows)
        wait_for(lambda: samples.stored == 1)
    samples.take(rows)  # the writer is closed
    assert (samples.stored, samples.lost) == (1, 3)
    assert said[0] == "pool is ok"
    assert said[1].startswith("The lake takes no rows, they are lost: ")
    assert said[2] == "The lake takes rows again."
    assert said[3].startswith("The lake takes no rows, they are lost: The lake's writer is closed")
    assert len(said) == 4


def wait_for(done: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 60
    while not done():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
