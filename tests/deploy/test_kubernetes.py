"""Kubernetes objects: only fields that exist, and names that meet."""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from fastapi import FastAPI

from serving.config.mapping import read_settings
from serving.keys import VARIABLE
from serving.signals import Forecast, Now

ANY: Any = None
LABELS = {"app.kubernetes.io/name": str}
META = {"name": str, "labels": LABELS}
CONTEXT = {"allowPrivilegeEscalation": bool, "readOnlyRootFilesystem": bool, "capabilities": {"drop": [str]}}
AMOUNTS = {"cpu": str, "memory": str, "storage": str}
PROBE = {
    "httpGet": {"path": str, "port": str},
    "periodSeconds": int,
    "timeoutSeconds": int,
    "failureThreshold": int,
}
CONTAINER = {
    "name": str, "image": str, "command": [str], "args": [str],
    "env": [{"name": str, "value": str, "valueFrom": {"secretKeyRef": {"name": str, "key": str}}}],
    "ports": [{"name": str, "containerPort": int}],
    "startupProbe": PROBE, "livenessProbe": PROBE, "readinessProbe": PROBE,
    "lifecycle": {"preStop": {"exec": {"command": [str]}}},
    "resources": {"requests": AMOUNTS, "limits": AMOUNTS},
    "securityContext": CONTEXT,
    "volumeMounts": [{"name": str, "mountPath": str, "readOnly": bool}],
}  # fmt: skip
TERM = {"topologyKey": str, "labelSelector": {"matchLabels": LABELS}}
POD = {
    "metadata": {"labels": LABELS},
    "spec": {
        "automountServiceAccountToken": bool,
        "restartPolicy": str,
        "terminationGracePeriodSeconds": int,
        "affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [TERM]}},
        "securityContext": {
            "runAsNonRoot": bool, "runAsUser": int, "runAsGroup": int, "fsGroup": int,
            "fsGroupChangePolicy": str, "seccompProfile": {"type": str},
        },
        "initContainers": [CONTAINER],
        "containers": [CONTAINER],
        "volumes": [
            {
                "name": str,
                "persistentVolumeClaim": {"claimName": str},
                "emptyDir": {"sizeLimit": str},
                "configMap": {"name": str},
            }
        ],
    },
}  # fmt: skip
TRIGGER = {
    "type": str,
    "metadata": {"url": str, "valueLocation": str, "targetValue": str, "authMode": str},
    "authenticationRef": {"name": str},
}
SPECS = {
    ("apps/v1", "Deployment"): {
        "replicas": int,
        "strategy": {"type": str},
        "selector": {"matchLabels": LABELS},
        "template": POD,
    },
    ("v1", "PersistentVolumeClaim"): {"accessModes": [str], "resources": {"requests": AMOUNTS}},
    ("v1", "Service"): {"selector": LABELS, "ports": [{"name": str, "port": int, "targetPort": str}]},
    ("batch/v1", "CronJob"): {
        "schedule": str, "timeZone": str, "concurrencyPolicy": str, "startingDeadlineSeconds": int,
        "successfulJobsHistoryLimit": int, "failedJobsHistoryLimit": int,
        "jobTemplate": {"spec": {"backoffLimit": int, "activeDeadlineSeconds": int, "template": POD}},
    },
    ("monitoring.coreos.com/v1", "ServiceMonitor"): {
        "selector": {"matchLabels": LABELS},
        "endpoints": [
            {
                "port": str, "path": str, "interval": str, "scrapeTimeout": str,
                "authorization": {"credentials": {"name": str, "key": str}},
            }
        ],
    },
    ("keda.sh/v1alpha1", "ScaledObject"): {
        "scaleTargetRef": {"name": str}, "pollingInterval": int, "cooldownPeriod": int,
        "minReplicaCount": int, "maxReplicaCount": int,
        "fallback": {"failureThreshold": int, "replicas": int, "behavior": str},
        "triggers": [TRIGGER],
    },
    ("keda.sh/v1alpha1", "TriggerAuthentication"): {
        "secretTargetRef": [{"parameter": str, "name": str, "key": str}]
    },
}  # fmt: skip
"""Fields that these objects may have, with their types; Kubernetes drops or refuses others."""


def misfits(value: object, shape: Any, place: str) -> Iterator[str]:
    """Places where a value has a field or a type that its shape lacks."""
    if isinstance(shape, dict) and isinstance(value, dict):
        for key, inner in value.items():
            if key in shape:
                yield from misfits(inner, shape[key], f"{place}.{key}")
            else:
                yield f"{place}.{key}"
    elif isinstance(shape, list) and isinstance(value, list):
        for n, inner in enumerate(value):
            yield from misfits(inner, shape[0], f"{place}[{n}]")
    elif type(value) is not shape:
        yield place


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


def test_objects_have_no_field_that_kubernetes_lacks(objects: dict) -> None:
    for each in objects.values():
        shape = {
            "apiVersion": str,
            "kind": str,
            "metadata": META,
            "spec": SPECS[each["apiVersion"], each["kind"]],
        }
        assert list(misfits(each, shape, each["kind"])) == []


def test_a_misspelt_field_would_be_found(deploy: Path) -> None:
    each = load(deploy)["Deployment", "tidegate"]
    each["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}
    each["spec"]["replicas"] = "1"
    assert list(misfits(each["spec"], SPECS["apps/v1", "Deployment"], "spec")) == [
        "spec.replicas",
        "spec.template.spec.containers[0].readinesProbe",
    ]


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


def test_the_command_parses_and_keys_come_where_it_reads_them(
    pods: list[dict], parses: Callable[[Sequence[str]], None]
) -> None:
    container = pods[0]["containers"][0]
    parses([argument for argument in container["args"] if not argument.startswith("--config")])
    assert container["env"][0]["name"] == VARIABLE


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


def test_kustomize_finds_its_files_and_the_configuration_is_right(deploy: Path, objects: dict) -> None:
    settings = yaml.safe_load((deploy / "kustomization.yaml").read_text())
    assert all((deploy / resource).is_file() for resource in settings["resources"])
    generator = settings["configMapGenerator"][0]
    name, _, file = generator["files"][0].partition("=")
    assert name == "tidegate.yaml"
    assert read_settings(deploy / file)
    volumes = objects["Deployment", "tidegate"]["spec"]["template"]["spec"]["volumes"]
    assert {"name": "config", "configMap": {"name": generator["name"]}} in volumes


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
