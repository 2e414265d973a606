"""Alerts and the dashboard ask only for what the service tells."""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import promql_parser
import pytest
import yaml
from fastapi import FastAPI

from serving import signals

LINE = re.compile(r"# TYPE (\S+) (\S+)")


@pytest.fixture(scope="module")
def told(service_app: FastAPI) -> set[str]:
    """Names of the series that /metrics shows once everything is known."""

    async def get() -> str:
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(service_app), base_url="http://t"
        ) as client:
            return (await client.get("/metrics")).text

    # Gauges that are not known yet are left out of an exposition: the service knows their names.
    service = service_app.state.service
    names = {*service.gauges(), *signals.gauges(service)}
    for name, kind in LINE.findall(asyncio.run(get())):
        names |= {f"{name}_bucket", f"{name}_sum", f"{name}_count"} if kind == "histogram" else {name}
    return names


def expressions(deploy: Path) -> Iterator[tuple[str, str]]:
    for group in yaml.safe_load((deploy / "prometheus/alerts.yaml").read_text())["groups"]:
        yield from ((rule["alert"], rule["expr"]) for rule in group["rules"])
    for panel in json.loads((deploy / "grafana/tidegate.json").read_text())["panels"]:
        yield from ((panel["title"], target["expr"]) for target in panel.get("targets", []))


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
    rules = yaml.safe_load((deploy / "prometheus/alerts.yaml").read_text())["groups"][0]["rules"]
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in {"page", "warn", "info"}
        assert rule["annotations"].keys() == {"summary", "description"}
        assert re.fullmatch(r"[0-9]+[smhd]", rule.get("for", "1m"))


def test_first_events_are_found_though_their_counter_was_not_there_before(deploy: Path) -> None:
    # A labelled counter appears with its first event, and `increase` of a new series is nothing.
    by_name = dict(expressions(deploy))
    for name in ("TidegateLakeRowsLost", "TidegateFailedOpen"):
        assert "unless" in by_name[name]
        assert "offset" in by_name[name]


def test_the_dashboard_is_whole(deploy: Path) -> None:
    board = json.loads((deploy / "grafana/tidegate.json").read_text())
    source = yaml.safe_load((deploy / "grafana/datasource.yaml").read_text())["datasources"][0]
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    squares = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(squares)) == len(squares), "panels overlap"
    assert max(x for x, _ in squares) == 23
    for panel in panels:
        for target in panel.get("targets", []):
            assert target["datasource"]["uid"] == source["uid"]


def test_the_rule_file_becomes_an_object_of_the_operator_as_the_readme_says(
    deploy: Path, told: set[str]
) -> None:
    readme = (deploy / "README.md").read_text()
    head = re.search(r"printf '(.*)'\n", readme).group(1).replace("\\n", "\n")  # type: ignore[union-attr]
    rules = (deploy / "prometheus/alerts.yaml").read_text()
    made = yaml.safe_load(head + re.sub(r"(?m)^", "  ", rules))
    assert made["kind"] == "PrometheusRule"
    assert made["spec"] == yaml.safe_load(rules)
    assert set(re.findall(r'__name__="(\w+)"', readme)) <= told
