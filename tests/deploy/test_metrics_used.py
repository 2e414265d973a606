"""Alerts and the dashboard ask only for what the service tells."""

import asyncio
import json
import re
from pathlib import Path

import httpx
import jsonschema
import promql_parser
import pytest
import yaml
from fastapi import FastAPI
from prometheus_client import generate_latest

from serving.gateways.asgi import TidegateMiddleware
from serving.gateways.envoy_proc import ExternalProcessor
from serving.gateways.in_process import Configuration
from serving.http import signals
from tests.deploy import crds
from tests.deploy.asked import expressions, panels, rules

LINE = re.compile(r"# TYPE (\S+) (\S+)")


@pytest.fixture(scope="module")
def exposition(service_app: FastAPI) -> str:
    """What the service and the middleware tell before anything has happened."""

    async def get() -> str:
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(service_app), base_url="http://t"
        ) as client:
            return (await client.get("/metrics")).text

    service = service_app.state.service
    ExternalProcessor(service)
    middleware = TidegateMiddleware(service_app, Configuration(), service.clock)
    return asyncio.run(get()) + generate_latest(middleware.gate.metrics.registry).decode()


@pytest.fixture(scope="module")
def told(service_app: FastAPI, exposition: str) -> set[str]:
    """Names of the series that /metrics shows once everything is known."""
    # Gauges that are not known yet are left out of an exposition: the service knows their names.
    service = service_app.state.service
    names = {*service.gauges(), *signals.gauges(service)}
    for name, kind in LINE.findall(exposition):
        names |= {f"{name}_bucket", f"{name}_sum", f"{name}_count"} if kind == "histogram" else {name}
    return names


def series(expression: str) -> set[str]:
    """Series that an expression selects; raises where it is no PromQL."""
    found: set[str] = set()

    def note(node: promql_parser.Expr) -> None:
        if isinstance(node, promql_parser.VectorSelector):
            assert node.name, f"a selector without a name in {expression}"
            found.add(node.name)

    promql_parser.walk(promql_parser.parse(expression), note)
    return found


def test_every_expression_parses_and_selects_what_is_told(deploy: Path, told: set[str]) -> None:
    for name, expression in expressions(deploy):
        assert series(expression), name
        assert series(expression) <= told, name


def test_every_series_of_the_expressions_would_be_missed(told: set[str]) -> None:
    assert "tidegate_tightening" in told
    assert series("rate(tidegate_no_such_total[5m])") - told
    with pytest.raises(ValueError, match=r"\S"):
        series("rate(tidegate_ticks_total[5m]")


def test_alerts_say_what_is_wrong_and_what_to_do(deploy: Path) -> None:
    alerts = rules(deploy)
    assert len({rule["alert"] for rule in alerts}) == len(alerts)
    for rule in alerts:
        assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in {"page", "warn", "info"}
        assert rule["annotations"].keys() == {"summary", "description"}
        assert re.fullmatch(r"[0-9]+[smhd]", rule.get("for", "1m"))


def test_series_that_alerts_pick_by_label_are_0_before_their_first_event(exposition: str) -> None:
    """`increase` of a series that appears with its first event is nothing."""
    for picked in (
        'tidegate_envoy_checks_total{result="failed_open"}',
        'tidegate_nginx_checks_total{result="failed_open"}',
        'tidegate_asgi_requests_total{result="failed_open"}',
        'tidegate_over_limit_total{limit="requests"}',
        'tidegate_bundle_swaps_total{result="refused"}',
        'tidegate_denied_total{reason="scope"}',
        'tidegate_envoy_denied_total{reason="missing"}',
        'tidegate_lake_rows_lost_total{table="decisions"}',
        'tidegate_refused_total{lane="premium",reason="saturated"}',
    ):
        assert f"{picked} 0.0\n" in exposition


def test_the_dashboard_is_whole(deploy: Path) -> None:
    board = json.loads((deploy / "grafana/tidegate.json").read_text())
    source = yaml.safe_load((deploy / "grafana/datasource.yaml").read_text())["datasources"][0]
    reference = {"type": source["type"], "uid": source["uid"]}
    every = board["panels"]
    assert len({panel["id"] for panel in every}) == len(every)
    assert {panel["type"] for panel in every} == {"row", "timeseries"}
    squares = [
        (x, y)
        for panel in every
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    width, height = 24, 1 + max(y for _, y in squares)
    assert len(set(squares)) == len(squares), "panels overlap"
    assert set(squares) == {(x, y) for x in range(width) for y in range(height)}, "there is a gap"
    shown = panels(deploy)
    assert len({panel["title"] for panel in shown}) == len(shown)
    for panel in shown:
        assert panel["description"], panel["title"]
        assert panel["datasource"] == reference
        assert panel["fieldConfig"]["defaults"]["unit"] in {
            "short",
            "reqps",
            "ops",
            "percentunit",
            "s",
            "bytes",
        }
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"]) > 0
        for target in panel["targets"]:
            assert target["datasource"] == reference
            assert target["legendFormat"]


def test_the_dashboard_shows_what_an_operator_asks(deploy: Path) -> None:
    shown = set().union(*(series(target["expr"]) for panel in panels(deploy) for target in panel["targets"]))
    assert shown >= {
        "tidegate_false_alarm_rate", "tidegate_recall", "tidegate_precision", "tidegate_tightening",
        "tidegate_refused_total", "tidegate_offered_tokens_per_second",
        "tidegate_forecast_tokens_per_second_p90", "tidegate_ledger_remaining_ticks",
        "tidegate_bundle_swaps_total", "tidegate_shared_store_lost", "tidegate_waiting",
        "tidegate_engines_known", "tidegate_lake_rows_lost_total",
    }  # fmt: skip


def test_the_operators_page_tells_every_alert_and_names_what_is_there(deploy: Path, told: set[str]) -> None:
    page = (deploy.parent / "docs/operations.md").read_text()
    assert sorted(re.findall(r"(?m)^\| (Tidegate\w+) \|", page)) == sorted(
        rule["alert"] for rule in rules(deploy)
    )
    assert set(re.findall(r"`(tidegate_\w+)", page)) <= told


def test_the_rule_file_becomes_an_object_of_the_operator_as_the_readme_says(
    deploy: Path, told: set[str]
) -> None:
    readme = (deploy / "README.md").read_text()
    head = re.search(r"printf '(.*)'\n", readme).group(1).replace("\\n", "\n")  # type: ignore[union-attr]
    rules = (deploy / "prometheus/alerts.yaml").read_text()
    made = yaml.safe_load(head + re.sub(r"(?m)^", "  ", rules))
    jsonschema.validate(made, crds.schema("monitoring.coreos.com/v1", "PrometheusRule"))
    assert made["spec"] == yaml.safe_load(rules)
    assert set(re.findall(r'__name__="(\w+)"', readme)) <= told
