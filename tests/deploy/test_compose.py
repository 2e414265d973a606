import copy
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import yaml
from compose_spec import PyCompose

from serving.config.mapping import read_settings

OURS = {"engine": "tidegate", "tidegate": "tidegate", "first-bundle": "tidegate-training"}


@pytest.fixture(scope="module")
def compose(deploy: Path) -> dict:
    return yaml.safe_load((deploy / "compose.yaml").read_text())


def test_a_parser_of_the_format_accepts_it(compose: dict) -> None:
    PyCompose.from_json(json.dumps(compose)).validate()


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("envoy", "volume", []),
        ("envoy", "ports", ["127.0.0.1:http:10000"]),
        ("engine", "restart", "sometimes"),
        ("engine", "depends_on", {"tidegate": {"condition": "service_begun"}}),
        ("tidegate", "stop_grace_period", "60x"),
        ("tidegate", "read_only", "yes"),
    ],
)
def test_the_parser_would_find_what_is_wrong(compose: dict, name: str, key: str, value: object) -> None:
    wrong = copy.deepcopy(compose)
    wrong["services"][name][key] = value
    with pytest.raises(ValueError, match=r"\S"):
        PyCompose.from_json(json.dumps(wrong))


def test_images_are_pinned_and_containers_contained(compose: dict) -> None:
    for name, service in compose["services"].items():
        assert service["image"] == OURS.get(name) or re.search(
            r":v?[0-9]+\.[0-9]+\.[0-9]+$", service["image"]
        )
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]


def test_mounted_and_built_files_exist(compose: dict, deploy: Path) -> None:
    for service in compose["services"].values():
        for mount in service.get("volumes", []):
            source = mount.split(":")[0]
            assert (deploy / source).exists() if source.startswith(".") else source in compose["volumes"]
        if "build" in service:
            assert (deploy / service["build"]["context"] / service["build"]["dockerfile"]).is_file()


def test_dependencies_and_networks_name_services(compose: dict) -> None:
    services = compose["services"]
    for service in services.values():
        assert service.get("depends_on", {}).keys() <= services.keys()
        assert service.get("network_mode", "service:envoy") == "service:envoy"


def test_only_this_machine_reaches_it(compose: dict) -> None:
    ports = [port for service in compose["services"].values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_our_commands_parse_and_the_configuration_is_right(
    compose: dict, deploy: Path, parses: Callable[[Sequence[str]], None]
) -> None:
    for name in ("tidegate", "engine"):
        parses(compose["services"][name]["command"])
    scraped = [target.url for target in read_settings(deploy / "compose/tidegate.yaml").scrape]
    assert scraped == ["http://127.0.0.1:8000/metrics"]


def test_envoy_is_reached_from_outside_by_a_change_of_one_line(compose: dict, deploy: Path) -> None:
    old, new = re.search(r"s/(.*?)/(.*?)/'", compose["services"]["envoy"]["command"][0]).groups()  # type: ignore[union-attr]
    example = (deploy / "envoy/envoy.yaml").read_text()
    assert len(re.findall(old, example)) == 1
    changed = yaml.safe_load(re.sub(old, new, example))
    address = changed["static_resources"]["listeners"][0]["address"]["socket_address"]
    assert address == {"address": "0.0.0.0", "port_value": 10000}
