"""`tidegate collect` follows gateway logs."""

import json
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from data.config import LogFile
from data.lake import Lake
from data.live.follow import state_file

LINE = {"start_time": datetime.now(UTC).isoformat(), "duration_ms": 5, "status": 200, "prompt_tokens": 9}


def command(tmp_path: Path) -> list[str]:
    config = tmp_path / "tidegate.yaml"
    config.write_text(
        f"telemetry:\n  lake: {tmp_path / 'lake'}\n  logs:\n"
        f"    - {{source: edge, path: {log_of(tmp_path)}, form: envoy}}\n"
    )
    return [sys.executable, "-m", "pipeline.cli", "collect", "--config", str(config)]


def read_to_the_end(tmp_path: Path) -> bool:
    states = list(tmp_path.glob("lake/collect/*.json"))
    return bool(states) and json.loads(states[0].read_bytes())["offset"] == log_of(tmp_path).stat().st_size


def log_of(tmp_path: Path) -> Path:
    return tmp_path / "access.log"


def test_a_log_goes_into_the_lake_until_sigterm(tmp_path):
    log_of(tmp_path).write_text("".join(json.dumps(LINE | {"request_id": name}) + "\n" for name in "abca"))
    with subprocess.Popen(command(tmp_path), stdout=subprocess.PIPE, text=True) as process:
        deadline_s = time.monotonic() + 60
        while not read_to_the_end(tmp_path) and process.poll() is None and time.monotonic() < deadline_s:
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert "Collecting from 0 targets and 1 logs" in said
    assert "3 stored, 0 quarantined, 1 duplicates, 0 ignored." in said
    with Lake(tmp_path / "lake") as opened:
        assert opened.query("SELECT count(*) FROM lake.requests").item() == 3


def test_a_broken_state_file_is_one_sentence_and_exit_code_2(tmp_path):
    state = state_file(
        LogFile(source="edge", path=log_of(tmp_path), form="envoy"), tmp_path / "lake" / "collect"
    )
    state.parent.mkdir(parents=True)
    state.write_text("{}")
    done = subprocess.run(command(tmp_path), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "does not hold a place in a log; delete it" in done.stderr
    assert "Traceback" not in done.stderr
