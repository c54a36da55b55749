"""Checks the manifests of `deploy/kubernetes` against the schemas of their kinds, each other, and the server that they start."""

from __future__ import annotations

import copy
import os
import re
import subprocess
from pathlib import Path
from typing import Any, Dict, List

import kserve_schema
import local
import pytest
import yaml

kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
FOLDER = local.ROOT / "deploy/kubernetes"
# The first version in which the features used here are out of beta (gRPC probes, 1.27), and the newest.
VERSIONS = ["1.27.0", "1.37.0"]
OWN = ["deployment.yaml", "service.yaml", "hpa.yaml", "pdb.yaml", "networkpolicy.yaml"]
KSERVE = ["kserve/servingruntime.yaml", "kserve/inferenceservice.yaml"]
# Files that are not manifests.
OTHER = ["kustomization.yaml", "prometheus-adapter.yaml"]
# Manifests of the inference gateway, which test_gateway.py checks.
GATEWAY = FOLDER / "gateway"


def load(name: str) -> Dict[str, Any]:
    document = yaml.safe_load((FOLDER / name).read_text())
    assert isinstance(document, dict)
    return document


def test_every_file_is_checked() -> None:
    files = {str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*") if path.is_file() and GATEWAY not in path.parents}
    assert files == {*OWN, *KSERVE, *OTHER}
    assert load("kustomization.yaml")["resources"] == OWN


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", OWN)
def test_schemas_of_kubernetes(name: str, version: str) -> None:
    document = load(name)
    kubernetes_validate.validate(document, version, strict=True)
    for wrong in mutations(document):
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(wrong, version, strict=True)


@pytest.mark.parametrize("name", KSERVE)
def test_schemas_of_kserve(name: str) -> None:
    models = kserve_schema.sdk()
    if models is None:
        pytest.skip("KServe's SDK is not installed")
    checker, document = kserve_schema.Checker(models, VERSIONS[-1]), load(name)
    assert checker.errors(document) == []
    for wrong in mutations(document):
        assert checker.errors(wrong)


@pytest.mark.parametrize("name", ["deployment.yaml", "kserve/servingruntime.yaml"])
def test_liveness_is_not_probed_before_the_models_are_loaded(name: str) -> None:
    spec = load(name)["spec"]
    [container] = spec.get("template", {}).get("spec", spec)["containers"]
    startup, liveness = container["startupProbe"], container["livenessProbe"]
    assert startup["grpc"]["port"] == liveness["grpc"]["port"]
    # Large models take minutes to read and pack.
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 300


def test_errors_in_kserve_kinds_are_found() -> None:
    models = kserve_schema.sdk()
    if models is None:
        pytest.skip("KServe's SDK is not installed")
    checker, runtime = kserve_schema.Checker(models, VERSIONS[-1]), load("kserve/servingruntime.yaml")
    container = runtime["spec"]["containers"][0]
    container["ports"][0]["containerPort"] = "many"
    container["readinessprobe"] = {}
    runtime["spec"]["supportedModelFormats"][0]["autoSelect"] = "yes"
    errors = "\n".join(checker.errors(runtime))
    for part in ("'many' is not of type", "readinessprobe", "autoSelect: 'yes' is not of type bool"):
        assert part in errors
    del runtime["spec"]["containers"]
    assert "ServingRuntime.spec: containers is missing" in checker.errors(runtime)


def mutations(document: Dict[str, Any]) -> List[Dict[str, Any]]:
    """Returns broken documents that a schema must reject."""
    unknown, wrong = copy.deepcopy(document), copy.deepcopy(document)
    unknown["spec"]["replica"] = 3
    wrong["spec"] = "none"
    return [unknown, wrong]


def weir_container(pod: Dict[str, Any]) -> Dict[str, Any]:
    (container,) = pod["containers"]
    assert isinstance(container, dict)
    return container


def pre_stop(container: Dict[str, Any]) -> int:
    sleep, seconds = container["lifecycle"]["preStop"]["exec"]["command"]
    assert sleep == "sleep"
    return int(seconds)


def test_a_replica_has_time_to_drain() -> None:
    pod = load("deployment.yaml")["spec"]["template"]["spec"]
    container = weir_container(pod)
    drain = int(environment(container)["WEIR_DRAIN_SECONDS"])
    assert pod["terminationGracePeriodSeconds"] >= pre_stop(container) + drain + 20
    runtime = weir_container(load("kserve/servingruntime.yaml")["spec"])
    (flag,) = [arg for arg in runtime["args"] if arg.startswith("--drain-seconds=")]
    predictor = load("kserve/inferenceservice.yaml")["spec"]["predictor"]
    assert predictor["terminationGracePeriodSeconds"] >= pre_stop(runtime) + int(flag.split("=")[1]) + 20


def test_names_and_ports_match() -> None:
    deployment, service, hpa = load("deployment.yaml"), load("service.yaml"), load("hpa.yaml")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert load("pdb.yaml")["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert deployment["spec"]["selector"]["matchLabels"].items() <= labels.items()
    target = hpa["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == (deployment["kind"], deployment["metadata"]["name"])
    container = weir_container(deployment["spec"]["template"]["spec"])
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert {port["name"]: port["port"] for port in service["spec"]["ports"]} == {"grpc": 50051, "http": 8000}
    assert all(ports[port["targetPort"]] == port["port"] for port in service["spec"]["ports"])
    # The container exposes the ports that the server listens on.
    listens = [value for name, value in environment(container).items() if name.endswith("LISTEN")]
    assert sorted(listens) == sorted(f"0.0.0.0:{port}" for port in ports.values())
    assert service["spec"]["clusterIP"] == "None"
    runtime, predictor = load("kserve/servingruntime.yaml"), load("kserve/inferenceservice.yaml")["spec"]["predictor"]
    (model,) = runtime["spec"]["supportedModelFormats"]
    assert predictor["model"]["runtime"] == runtime["metadata"]["name"]
    assert predictor["model"]["modelFormat"] == {"name": model["name"], "version": model["version"]}
    container = weir_container(runtime["spec"])
    exposed = {f"0.0.0.0:{port['containerPort']}" for port in container["ports"]}
    flags = dict(arg[2:].split("=", 1) for arg in container["args"] if "=" in arg)
    assert {flags["listen"], flags["http-listen"]} == exposed
    # KServe's service forwards to the first port.
    assert flags["listen"].endswith(f":{container['ports'][0]['containerPort']}")


def test_only_monitoring_reaches_the_admin_port() -> None:
    pod = load("deployment.yaml")["spec"]["template"]
    policy = load("networkpolicy.yaml")["spec"]
    assert policy["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert set(policy["policyTypes"]) == {"Ingress", "Egress"}
    assert policy["egress"] == []
    names = {port["name"] for port in weir_container(pod["spec"])["ports"]}
    sources: Dict[str, List[Any]] = {}
    for rule in policy["ingress"]:
        # A rule without sources or ports would admit everyone, or to every port.
        assert rule["from"] and rule["ports"]
        for port in rule["ports"]:
            sources.setdefault(port["port"], []).extend(rule["from"])
    assert set(sources) == names
    (monitoring,) = sources["admin"]
    assert list(monitoring) == ["namespaceSelector"]


def environment(container: Dict[str, Any]) -> Dict[str, str]:
    """Returns the container's variables; a reference to a resource is replaced by its value."""
    variables = {}
    for entry in container["env"]:
        kind, _, name = entry.get("valueFrom", {}).get("resourceFieldRef", {}).get("resource", "").partition(".")
        variables[entry["name"]] = str(entry["value"] if "value" in entry else container["resources"][kind][name])
    return variables


def weir() -> Path:
    program = local.weir_program()
    if program is None:
        pytest.skip("no weir program found: set WEIR_BIN or run `cargo build`")
    return program


def test_the_server_accepts_these_settings() -> None:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("WEIR_")}
    deployment = environment(weir_container(load("deployment.yaml")["spec"]["template"]["spec"]))
    runtime = weir_container(load("kserve/servingruntime.yaml")["spec"])
    name = load("kserve/inferenceservice.yaml")["metadata"]["name"]
    # Substitutes the placeholders as KServe does.
    flags = [arg.replace("{{.Name}}", name).replace("/mnt/models", str(local.MODEL)) for arg in runtime["args"]]
    assert flags[0] == "serve" and f"--model={name}={local.MODEL}" in flags
    # The image sets WEIR_MODELS, and the manifest clears it.
    assert "ENV WEIR_MODELS=" in (local.ROOT / "Dockerfile").read_text() and environment(runtime)["WEIR_MODELS"] == ""
    model = f"--model={local.MODEL}"
    for command, variables in [(["serve", model], deployment), (flags, environment(runtime))]:
        for wrong in ({}, {"WEIR_QUEUE": "none"}):
            result = subprocess.run(
                [weir(), *command, "--check-config"],
                env={**clean, **variables, **wrong},
                capture_output=True,
                text=True,
                timeout=local.TIMEOUT,
            )
            assert (result.returncode == 0) == (wrong == {}), result.stderr
    # Lines have the form "# threads: not set" or "rows = 32".
    settings = (re.split(r" = |: ", line)[0] for line in printed(weir(), clean))
    assert set(deployment) <= {"WEIR_" + name.replace("-", "_").upper() for name in settings}


def printed(program: Path, clean: Dict[str, str]) -> List[str]:
    result = subprocess.run([program, "serve", "--print-config"], env=clean, capture_output=True, text=True, check=True)
    return [line.lstrip("# ") for line in result.stdout.splitlines()]


def test_the_autoscaler_uses_metrics_of_the_server() -> None:
    weir()
    rules = load("prometheus-adapter.yaml")["rules"]["custom"]
    series = [rule["seriesQuery"].split("{")[0] for rule in rules]
    # The rules rename nothing.
    assert not any("name" in rule for rule in rules)
    scaled_by = [metric["pods"]["metric"]["name"] for metric in load("hpa.yaml")["spec"]["metrics"]]
    assert series == scaled_by
    with local.Server() as server:
        for name in series:
            assert server.metric(name.removeprefix("weir_")) == 0
