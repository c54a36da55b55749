"""Checks the schema of the Helm chart's values, which Helm applies before it renders. The tests need no Helm."""

from __future__ import annotations

import json
from typing import Any, Dict, List

import local
import pytest
import yaml
from jsonschema import Draft7Validator

CHART = local.ROOT / "deploy/helm/weir"
SCHEMA: Dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
DEFAULTS: Dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
# Helm adds this value to those of a subchart.
OF_HELM = {"global"}


def merged(defaults: Any, values: Any) -> Any:
    """Returns the defaults with a user's values in their place, as Helm merges them: maps key by key, others as a whole."""
    if isinstance(defaults, dict) and isinstance(values, dict):
        return {**defaults, **{key: merged(defaults.get(key), value) for key, value in values.items()}}
    return values


def faults(values: Dict[str, Any]) -> List[str]:
    """Returns the paths of the user's values that the schema refuses."""
    found = Draft7Validator(SCHEMA).iter_errors(merged(DEFAULTS, values))
    return [".".join(map(str, fault.absolute_path)) for fault in found]


def test_the_schema_is_a_schema() -> None:
    Draft7Validator.check_schema(SCHEMA)


def test_the_schema_has_the_documented_values() -> None:
    assert set(SCHEMA["properties"]) == set(DEFAULTS) | OF_HELM
    for name, value in DEFAULTS.items():
        schema = SCHEMA["properties"][name]
        # Maps whose keys the user or Kubernetes chooses are open.
        if schema.get("additionalProperties") is False:
            assert set(schema["properties"]) == set(value), name


def test_the_defaults_are_accepted() -> None:
    assert faults({}) == []


@pytest.mark.parametrize(
    "values",
    [
        {"image": {"tag": "12"}},
        # The template refuses a number, and says that it needs quotes.
        {"image": {"tag": 12}},
        {"image": {"digest": "sha256:" + "0" * 64}},
        {"replicas": 0, "autoscaling": {"enabled": False}},
        {"env": {"WEIR_ROWS": "8", "WEIR_LATE_HEADERS": True}},
        # The template refuses a number, and says that it needs quotes.
        {"env": {"WEIR_KV_MEMORY": 1073741824}},
        {"extraEnv": [{"name": "WEIR_API_KEYS", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "keys"}}}]},
        {"resources": {"limits": {"cpu": 8, "memory": "6Gi"}}},
        {"volumes": [{"name": "tls", "secret": {"secretName": "tls"}}], "volumeMounts": [{"name": "tls", "mountPath": "/tls"}]},
        {"tolerations": [{"key": "cpu", "operator": "Exists"}], "nodeSelector": {"kind": "cpu"}},
        {"affinity": {"podAntiAffinity": {}}, "imagePullSecrets": [{"name": "registry"}]},
        {"podDisruptionBudget": {"maxUnavailable": "25%"}},
        {"networkPolicy": {"from": [], "egress": [{"ports": [{"port": 4317}]}]}},
        {"global": {"imageRegistry": "registry.example.org"}},
    ],
)
def test_right_values_are_accepted(values: Dict[str, Any]) -> None:
    assert faults(values) == []


@pytest.mark.parametrize(
    ("values", "path"),
    [
        ({"replica": 3}, ""),
        ({"image": {"name": "weir"}}, "image"),
        ({"image": {"digest": "0" * 64}}, "image.digest"),
        ({"image": {"repository": ""}}, "image.repository"),
        ({"image": {"pullPolicy": "Sometimes"}}, "image.pullPolicy"),
        ({"replicas": "3"}, "replicas"),
        ({"replicas": -1}, "replicas"),
        ({"autoscaling": {"minReplicas": 0}}, "autoscaling.minReplicas"),
        ({"autoscaling": {"enabled": "false"}}, "autoscaling.enabled"),
        ({"autoscaling": {"waiting": 0}}, "autoscaling.waiting"),
        ({"drainSeconds": "2m"}, "drainSeconds"),
        ({"preStopSeconds": 1.5}, "preStopSeconds"),
        ({"env": {"WEIR_ROWS": ["8"]}}, "env.WEIR_ROWS"),
        ({"env": {"WEIR-ROWS": "8"}}, "env"),
        ({"env": [{"name": "WEIR_ROWS", "value": "8"}]}, "env"),
        ({"extraEnv": {"WEIR_ROWS": "8"}}, "extraEnv"),
        ({"resources": {"limits": {"cpu": ["8"]}}}, "resources.limits.cpu"),
        ({"volumes": [{"secret": {"secretName": "tls"}}]}, "volumes.0"),
        ({"volumeMounts": [{"name": "tls"}]}, "volumeMounts.0"),
        ({"probesOverHttp": "yes"}, "probesOverHttp"),
        ({"podAnnotations": {"prometheus.io/port": 9090}}, "podAnnotations.prometheus.io/port"),
        ({"podDisruptionBudget": {"maxUnavailable": "some"}}, "podDisruptionBudget.maxUnavailable"),
        ({"networkPolicy": {"from": {"podSelector": {}}}}, "networkPolicy.from"),
        ({"networkPolicy": {"monitoringNamespace": ""}}, "networkPolicy.monitoringNamespace"),
    ],
)
def test_wrong_values_are_refused(values: Dict[str, Any], path: str) -> None:
    assert faults(values) == [path]
