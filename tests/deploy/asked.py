"""What alerts and the dashboard ask of Prometheus."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml


def rules(deploy: Path) -> list[dict[str, Any]]:
    """The alert rules."""
    groups = yaml.safe_load((deploy / "prometheus/alerts.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def panels(deploy: Path) -> list[dict[str, Any]]:
    """The panels of the dashboard that show something; rows are left out."""
    board = json.loads((deploy / "grafana/tidegate.json").read_text())
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def expressions(deploy: Path) -> Iterator[tuple[str, str]]:
    """Name of each alert and panel, and an expression of it."""
    yield from ((rule["alert"], rule["expr"]) for rule in rules(deploy))
    for panel in panels(deploy):
        yield from ((panel["title"], target["expr"]) for target in panel["targets"])
