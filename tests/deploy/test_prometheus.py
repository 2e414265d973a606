"""Rules, dashboard and exposition in a real Prometheus."""

import contextlib
import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import promql_parser
import pytest
import yaml

from tests.deploy.asked import expressions, rules
from tests.serving.live_apps import until

pytestmark = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None,
    reason="prometheus and promtool are not installed: Debian's package `prometheus` brings both",
)
CASES = Path(__file__).with_name("alert_cases.yaml")


def promtool(*arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["promtool", *arguments], capture_output=True, text=True, **more)


def test_promtool_accepts_configuration_and_rules(deploy: Path) -> None:
    for kind, file in (("config", "prometheus.yaml"), ("rules", "alerts.yaml")):
        done = promtool("check", kind, file, cwd=deploy / "prometheus")
        assert done.returncode == 0, done.stderr


def test_alerts_fire_when_they_should_and_only_then() -> None:
    done = promtool("test", "rules", CASES.name, cwd=CASES.parent)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not(deploy: Path) -> None:
    seen: dict[bool, set[str]] = {True: set(), False: set()}
    for case in yaml.safe_load(CASES.read_text())["tests"]:
        for look in case["promql_expr_test"]:
            (matcher,) = (
                m for m in promql_parser.parse(look["expr"]).matchers.matchers if m.name == "alertname"
            )
            seen[bool(look["exp_samples"])].add(matcher.value)
    assert seen[True] == seen[False] == {rule["alert"] for rule in rules(deploy)}


class Stack:
    """Addresses of a service, its simulated engine, and the Prometheus that scrapes the service."""

    def __init__(self, service: str, prometheus: str) -> None:
        self.service, self.prometheus = service, prometheus

    def ask(self, path: str, **parameters: str) -> Any:
        """Data of an answer of Prometheus; raises where it answers with an error."""
        answer = httpx.get(f"{self.prometheus}/api/v1/{path}", params=parameters, timeout=30).json()
        assert answer["status"] == "success", answer
        return answer["data"]

    def told(self) -> str:
        """The service's metrics."""
        return httpx.get(f"{self.service}/metrics", timeout=30).raise_for_status().text


@contextlib.contextmanager
def process(folder: Path, name: str, *command: str) -> Iterator[None]:
    with (folder / f"{name}.log").open("w") as log:
        running = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
        try:
            yield
        finally:
            running.kill()
            running.wait()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).status_code == 200
    except httpx.TransportError:
        return False


@pytest.fixture(scope="module")
def stack(deploy: Path, bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("prometheus")
    engine, service, prometheus = (f"127.0.0.1:{free_port()}" for _ in range(3))
    scrape = {"name": "sim", "url": f"http://{engine}/metrics", "interval_s": 1, "timeout_s": 0.5}
    (folder / "tidegate.yaml").write_text(json.dumps({"telemetry": {"lake": "lake", "scrape": [scrape]}}))
    configuration = yaml.safe_load((deploy / "prometheus/prometheus.yaml").read_text())
    configuration["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    configuration["rule_files"] = [str(deploy / "prometheus" / file) for file in configuration["rule_files"]]
    configuration["scrape_configs"][0]["static_configs"] = [{"targets": [service]}]
    (folder / "prometheus.yaml").write_text(json.dumps(configuration))
    tidegate = (sys.executable, "-m", "pipeline.cli")
    served = ("--bundle", str(bundle), "--config", "tidegate.yaml", "--port", service.partition(":")[2])
    stored = ("--config.file=prometheus.yaml", "--storage.tsdb.path=tsdb")
    with (
        process(folder, "engine", *tidegate, "engine-sim", "--port", engine.partition(":")[2]),
        process(folder, "service", *tidegate, "serve", *served),
        process(folder, "prometheus", "prometheus", *stored, f"--web.listen-address={prometheus}"),
    ):
        until(lambda: answers(f"http://{service}/readyz") and answers(f"http://{prometheus}/-/ready"))
        running = Stack(f"http://{service}", f"http://{prometheus}")
        for number in range(6):
            asked = {"lane": ("premium", "standard", "batch")[number % 3], "prompt_tokens": 100}
            admitted = httpx.post(f"{running.service}/v1/admit", json=asked).json()
            if number < 3:
                ended = {"reservation_id": admitted["reservation_id"]}
                ended |= {"output_tokens": 10, "outcome": "served"}
                httpx.post(f"{running.service}/v1/settle", json=ended).raise_for_status()
        until(lambda: "tidegate_engines_known 1.0" in running.told())
        # A rate needs two scrapes of each counter, the last of which begins to be told now.
        enough = "min(count_over_time(tidegate_admitted_total[1m])) > 2"
        until(lambda: running.ask("query", query=enough)["result"])
        yield running


def test_the_service_is_scraped_and_its_exposition_is_clean(stack: Stack) -> None:
    (target,) = stack.ask("targets")["activeTargets"]
    assert target["health"] == "up", target["lastError"]
    done = promtool("check", "metrics", input=stack.told())
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_prometheus_evaluates_every_alert(deploy: Path, stack: Stack) -> None:
    def evaluated() -> list[dict[str, Any]] | None:
        found = [rule for group in stack.ask("rules")["groups"] for rule in group["rules"]]
        return found if all(rule["health"] != "unknown" for rule in found) else None

    found = until(evaluated)
    assert {rule["name"] for rule in found} == {rule["alert"] for rule in rules(deploy)}
    assert [rule.get("lastError") for rule in found if rule["health"] != "ok"] == []
    assert {rule["name"] for rule in found if rule["state"] == "firing"} == set()


def selected(expression: str) -> set[str]:
    names: set[str] = set()

    def note(node: promql_parser.Expr) -> None:
        if isinstance(node, promql_parser.VectorSelector):
            names.add(str(node.name))

    promql_parser.walk(promql_parser.parse(expression), note)
    return names


def test_every_panel_shows_what_the_service_tells(deploy: Path, stack: Stack) -> None:
    told = {line.partition("{")[0].partition(" ")[0] for line in stack.told().splitlines() if line[0] != "#"}
    alerts, empty, filled = {rule["alert"] for rule in rules(deploy)}, [], 0
    for name, expression in expressions(deploy):
        result = stack.ask("query", query=expression)["result"]
        if name in alerts or "offset" in expression or not selected(expression) <= told:
            continue
        if expression.endswith("> 0"):  # empty while nothing of the kind happens
            continue
        filled += 1
        if not result:
            empty.append((name, expression))
    assert empty == []
    assert filled > 25
