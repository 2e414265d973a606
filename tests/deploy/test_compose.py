import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import yaml

from serving.config.mapping import read_settings

KEYS = {
    "image", "build", "command", "entrypoint", "user", "network_mode", "healthcheck", "tmpfs", "volumes",
    "ports", "environment", "depends_on", "restart", "read_only", "cap_drop", "security_opt",
    "stop_grace_period",
}  # fmt: skip
OURS = {"engine": "tidegate", "tidegate": "tidegate", "first-bundle": "tidegate-training"}


@pytest.fixture(scope="module")
def compose(deploy: Path) -> dict:
    return yaml.safe_load((deploy / "compose.yaml").read_text())


def test_services_have_known_keys_and_pinned_images(compose: dict) -> None:
    assert compose.keys() == {"name", "services", "volumes", "x-contained"}
    for name, service in compose["services"].items():
        assert service.keys() <= KEYS
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
