import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from data.errors import InputError
from serving.clock import SystemClock
from serving.controller.engine_model import A100
from serving.engine_sim.server import SimSettings, build
from serving.profiles import write_profile


def test_a_profile_is_named_or_a_file(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    write_profile(A100, path)
    assert (
        SimSettings(profile="a100").engine().profile
        == SimSettings(profile=str(path)).engine().profile
        == A100
    )
    assert SimSettings(profile=str(path), kv_blocks=7).engine().blocks.total == 7


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (SimSettings(profile="b200"), "--profile must be h100, a100 or a file; got 'b200'"),
        (SimSettings(speed=0.0), "--speed must be over 0"),
        (SimSettings(kv_blocks=0), "kv_blocks must be over 0; got 0"),
        (SimSettings(max_model_tokens=1), "--max-model-tokens must be 2 to 1336000"),
        (SimSettings(kv_blocks=10, max_model_tokens=161), "--max-model-tokens must be 2 to 160"),
        (SimSettings(mean_output_tokens=0.5), "--mean-output-tokens must be 1 or more"),
    ],
)
def test_settings_that_cannot_be_are_named(settings: SimSettings, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build(settings, SystemClock())


def test_the_command_serves_and_stops_on_sigterm() -> None:
    command = [sys.executable, "-m", "pipeline.cli", "engine-sim", "--port", "0", "--speed", "50"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        url = process.stdout.readline().split()[-1]
        answer = httpx.post(f"{url}/v1/completions", json={"prompt": "hello"}, timeout=20.0).json()
        assert answer["usage"]["completion_tokens"] >= 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
