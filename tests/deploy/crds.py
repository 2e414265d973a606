"""Schemas of the operators' objects, as far as ours use them: what isn't named here is refused.

Fields, kinds and required ones are those of the public definitions:
https://github.com/prometheus-operator/prometheus-operator/tree/main/example/prometheus-operator-crd and
https://github.com/kedacore/keda/tree/main/config/crd/bases.
"""

from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string", "minLength": 1}
COUNT: Schema = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
DURATION: Schema = {"type": "string", "pattern": r"^([0-9]+(ms|[smhdwy]))+$"}
TEXTS: Schema = {"type": "object", "additionalProperties": {"type": "string"}}


def exactly(required: Schema, **optional: Schema) -> Schema:
    """An object of these fields and no other."""
    return {
        "type": "object",
        "properties": {**required, **optional},
        "required": sorted(required),
        "additionalProperties": False,
    }


def some(items: Schema) -> Schema:
    """A list of at least one."""
    return {"type": "array", "items": items, "minItems": 1}


SECRET_KEY = exactly({"key": TEXT}, name=TEXT, optional={"type": "boolean"})
ENDPOINT = exactly(
    {},
    port=TEXT,
    path={"type": "string", "pattern": "^/"},
    scheme={"enum": ["http", "https"]},
    interval=DURATION,
    scrapeTimeout=DURATION,
    authorization=exactly({}, type=TEXT, credentials=SECRET_KEY),
)
RULE = exactly({"expr": TEXT}, alert=TEXT, **{"for": DURATION}, labels=TEXTS, annotations=TEXTS)
TRIGGER = exactly(
    {"type": {"const": "metrics-api"}, "metadata": {}},
    name=TEXT,
    metricType={"enum": ["AverageValue", "Value", "Utilization"]},
    authenticationRef=exactly({"name": TEXT}, kind=TEXT),
)
# https://keda.sh/docs/latest/scalers/metrics-api/: every value is text.
TRIGGER["properties"]["metadata"] = exactly(
    {
        "url": {"type": "string", "pattern": "^https?://"},
        "valueLocation": TEXT,
        "targetValue": {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?$"},
    },
    format={"enum": ["json", "prometheus", "yaml", "xml"]},
    activationTargetValue={"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?$"},
    authMode={"enum": ["apiKey", "basic", "tls", "bearer"]},
    unsafeSsl={"enum": ["true", "false"]},
)
SPECS: dict[tuple[str, str], Schema] = {
    ("monitoring.coreos.com/v1", "ServiceMonitor"): exactly(
        {"selector": exactly({}, matchLabels=TEXTS), "endpoints": some(ENDPOINT)}
    ),
    ("monitoring.coreos.com/v1", "PrometheusRule"): exactly(
        {}, groups=some(exactly({"name": TEXT}, interval=DURATION, rules=some(RULE)))
    ),
    ("keda.sh/v1alpha1", "ScaledObject"): exactly(
        {
            "scaleTargetRef": exactly({"name": TEXT}, apiVersion=TEXT, kind=TEXT),
            "triggers": some(TRIGGER),
        },
        pollingInterval=COUNT,
        cooldownPeriod=COUNT,
        minReplicaCount=COUNT,
        maxReplicaCount=COUNT,
        fallback=exactly(
            {"failureThreshold": COUNT, "replicas": COUNT},
            behavior={
                "enum": ["static", "currentReplicas", "currentReplicasIfHigher", "currentReplicasIfLower"]
            },
        ),
    ),
    ("keda.sh/v1alpha1", "TriggerAuthentication"): exactly(
        {}, secretTargetRef=some(exactly({"parameter": TEXT, "name": TEXT, "key": TEXT}))
    ),
}


def schema(api_version: str, kind: str) -> Schema:
    """The schema of a whole object; KeyError where it is none of these."""
    return exactly(
        {
            "apiVersion": {"const": api_version},
            "kind": {"const": kind},
            "metadata": exactly({"name": TEXT}, labels=TEXTS, namespace=TEXT),
            "spec": SPECS[api_version, kind],
        }
    )
