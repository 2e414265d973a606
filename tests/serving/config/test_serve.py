import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx

CONFIG = """
telemetry: {{lake: {lake}}}
tenants: {{by_name: {{gone: {{closed: true}}}}}}
engine: {{capacity_tokens: 4000}}
"""


def test_the_service_decides_by_the_rules_of_its_file(
    bundle_folder: Callable[[float | None], Path], tmp_path: Path
) -> None:
    config = tmp_path / "tidegate.yaml"
    config.write_text(CONFIG.format(lake=tmp_path / "lake"))
    options = ["--bundle", bundle_folder(None), "--state", tmp_path / "guard.json", "--config", config]
    command = [sys.executable, "-m", "pipeline.cli", "serve", "--port", "0", *map(str, options)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = json.loads(process.stderr.readline())
        # The socket listens already: what comes before the app is up waits for it.
        with httpx.Client(base_url=f"http://127.0.0.1:{line['port']}", timeout=30) as client:
            asked = [
                client.post("/v1/admit", json={"tenant": tenant, "prompt_tokens": tokens, "max_tokens": 10})
                for tenant, tokens in (("gone", 10), ("here", 10), ("here", 5_000))
            ]
    finally:
        process.kill()
        process.communicate()
    assert [answer.status_code for answer in asked] == [429, 200, 429]
    assert [answer.headers.get("x-tidegate-reason") for answer in asked] == [
        "tenant_quota",
        None,
        "too_large",
    ]
