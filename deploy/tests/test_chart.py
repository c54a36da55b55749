"""Checks the Helm chart: its defaults give the manifests of `deploy/kubernetes`, and each value has its effect."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Dict, List

import local
import pytest
import yaml

CHART = local.ROOT / "deploy/helm/weir"
MANIFESTS = local.ROOT / "deploy/kubernetes"
FILES = ["deployment.yaml", "hpa.yaml", "networkpolicy.yaml", "pdb.yaml", "service.yaml"]
VERSIONS = ["1.27.0", "1.37.0"]
# Labels that only the chart sets: they tell releases apart.
OWN_LABELS = {"app.kubernetes.io/instance", "app.kubernetes.io/version", "app.kubernetes.io/managed-by", "helm.sh/chart"}

Documents = Dict[str, Dict[str, Any]]


def render(folder: Path, values: Dict[str, Any], name: str = "weir") -> Documents:
    """Renders the chart. Returns each kind's document."""
    return {document["kind"]: document for document in render_all(folder, values, name)}


def render_all(folder: Path, values: Dict[str, Any], name: str = "weir") -> List[Dict[str, Any]]:
    """Renders the chart with the program `helm`, or with the Python package `helm_python`."""
    if helm := shutil.which("helm"):
        file = folder / "values.yaml"
        file.write_text(yaml.safe_dump(values))
        command = [helm, "template", name, str(CHART), "-f", str(file)]
        text = subprocess.run(command, capture_output=True, text=True, timeout=local.TIMEOUT, check=True).stdout
    else:
        with sdk().Chart.load(str(CHART)) as chart:
            text = "\n---\n".join(chart.render(values, name=name, namespace="default").values())
    return [document for document in yaml.safe_load_all(text) if document]


def sdk() -> Any:
    try:
        return importlib.import_module("helm_python")
    except ImportError:
        assert os.environ.get("WEIR_REQUIRE_HELM") != "1", "helm is required but not installed"
        pytest.skip("neither helm nor the Python package helm-python-sdk is installed")


def lint() -> List[str]:
    """Returns the errors and warnings of `helm lint`."""
    if helm := shutil.which("helm"):
        done = subprocess.run([helm, "lint", "--strict", str(CHART)], capture_output=True, text=True, timeout=local.TIMEOUT)
        return re.findall(r"\[(?:ERROR|WARNING)\].*", done.stdout + done.stderr)
    found = sdk().lint(str(CHART))
    # 1 is information: the chart has no icon.
    return [str(message) for message in [*found["messages"], *found["errors"]] if severity(message) > 1]


def severity(message: Any) -> int:
    """Returns the number of a message's severity; an error without a number is one."""
    return int(message["severity"]) if isinstance(message, dict) else 3


def without_own_labels(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_own_labels(inner) for key, inner in value.items() if key not in OWN_LABELS}
    return [without_own_labels(inner) for inner in value] if isinstance(value, list) else value


def container(documents: Documents) -> Dict[str, Any]:
    (found,) = documents["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def test_helm_finds_no_fault() -> None:
    assert lint() == []


def test_the_defaults_are_the_manifests(tmp_path: Path) -> None:
    rendered = render(tmp_path, {})
    plain = [yaml.safe_load((MANIFESTS / name).read_text()) for name in FILES]
    expected = {document["kind"]: document for document in plain}
    assert container(rendered).pop("image") == f"registry.example.org/weir:{chart()['appVersion']}"
    assert container(rendered).pop("imagePullPolicy") == "IfNotPresent"
    assert container(expected).pop("image") == "weir"
    for documents in (rendered, expected):
        # The order of variables has no meaning here: none refers to another.
        container(documents)["env"].sort(key=lambda entry: entry["name"])
    assert without_own_labels(rendered) == expected


def test_versions_match() -> None:
    version = re.search(r'^version = "(.*)"$', (local.ROOT / "Cargo.toml").read_text(), re.MULTILINE)
    assert version is not None and chart()["appVersion"] == version.group(1)


def chart() -> Dict[str, Any]:
    found = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert isinstance(found, dict)
    return found


def test_every_value_is_used_and_described() -> None:
    values = (CHART / "values.yaml").read_text()
    templates = "".join(path.read_text() for path in (CHART / "templates").iterdir())
    for name, value in yaml.safe_load(values).items():
        for key in value if isinstance(value, dict) and name not in ("env", "resources", "podAnnotations") else [""]:
            assert f".Values.{name}{'.' + key if key else ''}" in templates
    used = set(re.findall(r"\.Values\.(\w+)", templates))
    assert used == set(yaml.safe_load(values))


@pytest.mark.parametrize("version", VERSIONS)
def test_schemas_of_kubernetes(version: str, tmp_path: Path) -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    everything = {
        "imagePullSecrets": [{"name": "registry"}],
        "extraEnv": [{"name": "WEIR_TLS_CERT", "value": "/tls/tls.crt"}],
        "volumes": [{"name": "tls", "secret": {"secretName": "weir-tls"}}],
        "volumeMounts": [{"name": "tls", "mountPath": "/tls"}],
        "probesOverHttp": True,
        "nodeSelector": {"kind": "cpu"},
        "tolerations": [{"key": "cpu", "operator": "Exists"}],
        "affinity": {"podAntiAffinity": {}},
        "networkPolicy": {"egress": [{"ports": [{"port": 4317}]}]},
    }
    for values in ({}, everything):
        for document in render(tmp_path, values).values():
            validator.validate(document, version, strict=True)


def test_values_have_effects(tmp_path: Path) -> None:
    values = {
        "image": {"digest": "sha256:" + "0" * 64},
        "replicas": 3,
        "autoscaling": {"enabled": False},
        "drainSeconds": 300,
        "env": {"WEIR_ROWS": "8"},
        "probesOverHttp": True,
        "podDisruptionBudget": {"enabled": False},
        "networkPolicy": {"from": []},
    }
    documents = render(tmp_path, values, "other")
    assert set(documents) == {"Deployment", "Service", "NetworkPolicy"}
    assert all(document["metadata"]["name"] == "other-weir" for document in documents.values())
    spec = documents["Deployment"]["spec"]
    assert spec["replicas"] == 3
    assert spec["template"]["spec"]["terminationGracePeriodSeconds"] == 330
    found = container(documents)
    assert found["image"] == "registry.example.org/weir@sha256:" + "0" * 64
    variables = {entry["name"]: entry.get("value") for entry in found["env"]}
    assert (variables["WEIR_ROWS"], variables["WEIR_DRAIN_SECONDS"]) == ("8", "300")
    assert found["livenessProbe"]["httpGet"] == {"port": "admin", "path": "/health/live"}
    # Without sources, only monitoring may connect.
    (rule,) = documents["NetworkPolicy"]["spec"]["ingress"]
    assert rule["ports"] == [{"port": "admin"}]
    selector = documents["Service"]["spec"]["selector"]
    assert selector.items() <= spec["template"]["metadata"]["labels"].items() and len(selector) == 2


def test_numbers_of_variables_need_quotes(tmp_path: Path) -> None:
    env = {"WEIR_KV_MEMORY": "1073741824", "WEIR_LATE_HEADERS": True}
    variables = {entry["name"]: entry.get("value") for entry in container(render(tmp_path, {"env": env}))["env"]}
    assert (variables["WEIR_KV_MEMORY"], variables["WEIR_LATE_HEADERS"]) == ("1073741824", "true")
    # Helm would write 1.073741824e+09.
    with pytest.raises(Exception) as failed:
        render(tmp_path, {"env": {"WEIR_KV_MEMORY": 1073741824}})
    assert "env.WEIR_KV_MEMORY: put the number in quotes" in getattr(failed.value, "stderr", "") + str(failed.value)


def test_a_tag_of_digits_needs_quotes(tmp_path: Path) -> None:
    assert container(render(tmp_path, {"image": {"tag": "1.10"}}))["image"] == "registry.example.org/weir:1.10"
    # Helm would write 1.1, the tag of another image.
    with pytest.raises(Exception) as failed:
        render(tmp_path, {"image": {"tag": 1.10}})
    assert "image.tag: put the number in quotes" in getattr(failed.value, "stderr", "") + str(failed.value)
