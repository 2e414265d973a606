"""Kubernetes objects: only fields that exist, and names that meet."""

import re
import subprocess
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from fastapi import FastAPI

from serving.config.mapping import read_settings
from serving.http.keys import parse
from serving.http.signals import Forecast, Now
from tests.deploy import crds

VERSIONS = ("1.27", "1.30", "1.33", kubernetes_validate.latest_version())
"""From the first with time zones of CronJobs to the newest known."""


def check(each: dict, version: str) -> None:
    """Raise where Kubernetes, or the operator whose object it is, would refuse an object or drop a field."""
    try:
        kubernetes_validate.validate(each, version, strict=True)
    except kubernetes_validate.SchemaNotFoundError:
        jsonschema.validate(each, crds.schema(each["apiVersion"], each["kind"]))


def load(deploy: Path) -> dict[tuple[str, str], dict]:
    objects = [
        each
        for file in sorted((deploy / "kubernetes").glob("*.yaml"))
        for each in yaml.safe_load_all(file.read_text())
    ]
    by_name = {(each["kind"], each["metadata"]["name"]): each for each in objects}
    assert len(by_name) == len(objects)
    return by_name


@pytest.fixture(scope="module")
def objects(deploy: Path) -> dict[tuple[str, str], dict]:
    return load(deploy)


@pytest.fixture(scope="module")
def pods(objects: dict) -> list[dict]:
    job = objects["CronJob", "tidegate-retraining"]["spec"]["jobTemplate"]["spec"]
    return [objects["Deployment", "tidegate"]["spec"]["template"]["spec"], job["template"]["spec"]]


@pytest.fixture(scope="module")
def paths(service_app: FastAPI) -> set[str]:
    return set(service_app.openapi()["paths"])


@pytest.mark.parametrize("version", VERSIONS)
def test_objects_are_what_kubernetes_takes_and_have_no_field_that_it_lacks(
    objects: dict, version: str
) -> None:
    for each in objects.values():
        check(each, version)


@pytest.mark.parametrize(
    ("name", "path", "value"),
    [
        (("Deployment", "tidegate"), "spec.template.spec.containers.0.readinesProbe", {}),
        (("Deployment", "tidegate"), "spec.replicas", "1"),
        (("CronJob", "tidegate-retraining"), "spec.concurrencyPolicy", 1),
        (("CronJob", "tidegate-retraining"), "spec.jobTemplate.spec.template.spec.restart", "Never"),
        (("PersistentVolumeClaim", "tidegate"), "spec.resources.request", {}),
        (("Service", "tidegate"), "spec.ports.0.targetport", "http"),
        (("ServiceMonitor", "tidegate"), "spec.endpoints.0.interval", 15),
        (("ServiceMonitor", "tidegate"), "spec.endpoints.0.bearerToken", "x"),
        (("ScaledObject", "tidegate-engines"), "spec.fallback.behavior", "currentReplicasIfHigh"),
        (("ScaledObject", "tidegate-engines"), "spec.triggers.0.metadata.targetValue", 20),
        (("TriggerAuthentication", "tidegate-reader"), "spec.secretTargetRef.0.keys", "key"),
    ],
)
def test_a_wrong_field_would_be_found(deploy: Path, name: tuple[str, str], path: str, value: object) -> None:
    each = load(deploy)[name]
    *way, last = path.split(".")
    place: Any = each
    for step in way:
        place = place[int(step) if step.isdecimal() else step]
    place[last] = value
    with pytest.raises((kubernetes_validate.ValidationError, jsonschema.ValidationError)):
        check(each, VERSIONS[-1])


def test_selectors_meet_labels_and_ports_meet_names(objects: dict) -> None:
    deployment = objects["Deployment", "tidegate"]["spec"]
    labels = deployment["template"]["metadata"]["labels"]
    service = objects["Service", "tidegate"]
    assert deployment["selector"]["matchLabels"] == labels == service["spec"]["selector"]
    ports = {port["name"] for port in deployment["template"]["spec"]["containers"][0]["ports"]}
    assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
    monitor = objects["ServiceMonitor", "tidegate"]["spec"]
    assert monitor["selector"]["matchLabels"] == service["metadata"]["labels"]
    assert monitor["endpoints"][0]["port"] in {port["name"] for port in service["spec"]["ports"]}


def test_containers_run_without_rights_and_on_a_read_only_root(pods: list[dict]) -> None:
    for pod in pods:
        assert pod["securityContext"]["runAsNonRoot"]
        assert not pod["automountServiceAccountToken"]
        volumes = {volume["name"] for volume in pod["volumes"]}
        for container in [*pod.get("initContainers", []), *pod["containers"]]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["resources"].keys() == {"requests", "limits"}
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes


def test_probes_and_metrics_are_routes_of_the_service(
    objects: dict, pods: list[dict], paths: set[str]
) -> None:
    container = pods[0]["containers"][0]
    asked = {container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "liveness", "readiness")}
    asked |= {end["path"] for end in objects["ServiceMonitor", "tidegate"]["spec"]["endpoints"]}
    assert asked <= paths


def test_the_command_parses_and_its_files_are_mounted(
    pods: list[dict], parses: Callable[[Sequence[str]], None]
) -> None:
    (container,) = pods[0]["containers"]
    files = {}
    for argument in container["args"]:
        option, _, value = argument.partition("=")
        if value.startswith("/"):
            files[option] = value
    # They are not here, so that their options are parsed with files that are.
    parses([argument for argument in container["args"] if argument.partition("=")[0] not in files])
    parses(["serve", "--bundle=b", *(f"{option}={__file__}" for option in files)])
    mounted = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pods[0]["volumes"]}
    assert "configMap" in volumes[mounted[str(Path(files["--config"]).parent)]]
    secret = volumes[mounted[str(Path(files["--keys"]).parent)]]["secret"]
    assert secret == {"secretName": "tidegate-keys", "defaultMode": 0o440}


def test_keys_made_as_the_readme_says_are_keys(deploy: Path) -> None:
    lines = (deploy / "README.md").read_text().splitlines()
    commands = [line for line in lines if line.startswith(("K() {", "kubectl create secret"))]
    assert len(commands) == 3
    shell = 'kubectl() { for last; do :; done; echo "${last#--from-literal=}"; }\n' + "\n".join(commands)
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True)
    first, second, reader = done.stdout.splitlines()
    keys = parse(f"{first.removeprefix('keys=')}\n{second}", "the secret")
    assert [(key.name, *key.scopes) for key in keys] == [("gateway", "admit"), ("metrics", "read")]
    assert second.split()[-1] == reader.removeprefix("key=")


def test_commands_of_the_training_image_are_in_it(pods: list[dict], deploy: Path) -> None:
    image = (deploy / "Dockerfile.training").read_text()
    for container in (pods[0]["initContainers"][0], pods[1]["containers"][0]):
        assert container["image"] == "tidegate-training"
        assert f"deploy/{container['command'][0]}" in image


def test_a_drain_fits_into_the_grace_period(pods: list[dict]) -> None:
    from serving.server import GRACE_S

    wait_s = int(pods[0]["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1])
    drain_s = 5.0  # default of `tidegate serve --drain-s`
    assert wait_s + drain_s + GRACE_S < pods[0]["terminationGracePeriodSeconds"]


def test_kustomize_lists_every_file_and_the_configuration_is_right(deploy: Path, objects: dict) -> None:
    text = (deploy / "kustomization.yaml").read_text()
    settings = yaml.safe_load(text)
    assert settings.keys() == {"apiVersion", "kind", "resources", "configMapGenerator", "images"}
    assert (settings["apiVersion"], settings["kind"]) == (
        "kustomize.config.k8s.io/v1beta1",
        "Kustomization",
    )
    # Those of the operators are listed too, for who has them, behind a comment sign.
    listed = re.findall(r"(?m)^(?:# )?- (kubernetes/\S+)$", text)
    assert sorted(listed) == sorted(f"kubernetes/{file.name}" for file in (deploy / "kubernetes").iterdir())
    operators = {file for file in listed if file not in settings["resources"]}
    assert operators == {"kubernetes/servicemonitor.yaml", "kubernetes/scaledobject.yaml"}
    generator = settings["configMapGenerator"][0]
    name, _, file = generator["files"][0].partition("=")
    assert name == "tidegate.yaml"
    assert read_settings(deploy / file)
    volumes = objects["Deployment", "tidegate"]["spec"]["template"]["spec"]["volumes"]
    assert {"name": "config", "configMap": {"name": generator["name"]}} in volumes
    project = tomllib.loads((deploy.parent / "pyproject.toml").read_text())["project"]
    for image in settings["images"]:
        assert image["newTag"] == project["version"]


def test_scaling_asks_for_signals_that_exist_and_never_for_nothing(objects: dict, paths: set[str]) -> None:
    scaled = objects["ScaledObject", "tidegate-engines"]["spec"]
    fields = {"/v1/signals/now": Now.model_fields, "/v1/signals/forecast": Forecast.model_fields}
    secret = objects["TriggerAuthentication", "tidegate-reader"]
    asked = set()
    for trigger in scaled["triggers"]:
        path = "/" + trigger["metadata"]["url"].split("/", 3)[3]
        assert path in paths
        assert trigger["metadata"]["valueLocation"] in fields[path]
        assert float(trigger["metadata"]["targetValue"]) > 0
        assert trigger["authenticationRef"]["name"] == secret["metadata"]["name"]
        asked.add(trigger["metadata"]["valueLocation"])
    assert len(asked) == 4  # both axes, now and ahead
    # An answer of 503 must leave engines running.
    assert scaled["minReplicaCount"] >= 1
    assert scaled["fallback"]["replicas"] >= 1
    assert scaled["fallback"]["behavior"] == "currentReplicasIfHigher"


def test_retraining_runs_alone_and_in_order(objects: dict) -> None:
    spec = objects["CronJob", "tidegate-retraining"]["spec"]
    assert spec["concurrencyPolicy"] == "Forbid"
    assert re.fullmatch(r"(\S+ ){4}\S+", spec["schedule"])
    assert spec["startingDeadlineSeconds"] > 200  # else a short outage of the scheduler loses a run
