"""The manifests of `deploy/kubernetes`: by the schemas of their kinds, by each other, and by the server that they start."""

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
# With the first version that has what is used here out of beta (gRPC probes, 1.27), and the newest.
VERSIONS = ["1.27.0", "1.37.0"]
OWN = ["deployment.yaml", "service.yaml", "hpa.yaml", "pdb.yaml"]
KSERVE = ["kserve/servingruntime.yaml", "kserve/inferenceservice.yaml"]
# What is no manifest.
ELSE = ["kustomization.yaml", "prometheus-adapter.yaml"]


def load(name: str) -> Dict[str, Any]:
    document = yaml.safe_load((FOLDER / name).read_text())
    assert isinstance(document, dict)
    return document


def test_every_file_is_checked() -> None:
    files = {str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*") if path.is_file()}
    assert files == {*OWN, *KSERVE, *ELSE}
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


def test_errors_within_kserves_kinds_are_found() -> None:
    models = kserve_schema.sdk()
    if models is None:
        pytest.skip("KServe's SDK is not installed")
    checker, runtime = kserve_schema.Checker(models, VERSIONS[-1]), load("kserve/servingruntime.yaml")
    container = runtime["spec"]["containers"][0]
    container["ports"][0]["containerPort"] = "many"
    container["readinessprobe"] = {}
    runtime["spec"]["supportedModelFormats"][0]["autoSelect"] = "yes"
    told = "\n".join(checker.errors(runtime))
    for part in ("'many' is not of type", "readinessprobe", "autoSelect: 'yes' is no bool"):
        assert part in told
    del runtime["spec"]["containers"]
    assert "ServingRuntime.spec: containers is missing" in checker.errors(runtime)


def mutations(document: Dict[str, Any]) -> List[Dict[str, Any]]:
    """Documents that a schema worth its name refuses."""
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


def test_a_replica_has_the_time_that_it_takes_to_drain() -> None:
    pod = load("deployment.yaml")["spec"]["template"]["spec"]
    container = weir_container(pod)
    drain = int(environment(container)["WEIR_DRAIN_SECONDS"])
    assert pod["terminationGracePeriodSeconds"] >= pre_stop(container) + drain + 20
    runtime = weir_container(load("kserve/servingruntime.yaml")["spec"])
    (flag,) = [one for one in runtime["args"] if one.startswith("--drain-seconds=")]
    predictor = load("kserve/inferenceservice.yaml")["spec"]["predictor"]
    assert predictor["terminationGracePeriodSeconds"] >= pre_stop(runtime) + int(flag.split("=")[1]) + 20


def test_names_lead_to_each_other() -> None:
    deployment, service, hpa = load("deployment.yaml"), load("service.yaml"), load("hpa.yaml")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert load("pdb.yaml")["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert deployment["spec"]["selector"]["matchLabels"].items() <= labels.items()
    target = hpa["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == (deployment["kind"], deployment["metadata"]["name"])
    container = weir_container(deployment["spec"]["template"]["spec"])
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    assert {one["name"]: one["port"] for one in service["spec"]["ports"]} == {"grpc": 50051, "http": 8000}
    assert all(ports[one["targetPort"]] == one["port"] for one in service["spec"]["ports"])
    # what is opened is what the server listens on
    listens = [value for name, value in environment(container).items() if name.endswith("LISTEN")]
    assert sorted(listens) == sorted(f"0.0.0.0:{port}" for port in ports.values())
    assert service["spec"]["clusterIP"] == "None"
    runtime, predictor = load("kserve/servingruntime.yaml"), load("kserve/inferenceservice.yaml")["spec"]["predictor"]
    (model,) = runtime["spec"]["supportedModelFormats"]
    assert predictor["model"]["runtime"] == runtime["metadata"]["name"]
    assert predictor["model"]["modelFormat"] == {"name": model["name"], "version": model["version"]}
    container = weir_container(runtime["spec"])
    opened = {f"0.0.0.0:{one['containerPort']}" for one in container["ports"]}
    flags = dict(one[2:].split("=", 1) for one in container["args"] if "=" in one)
    assert {flags["listen"], flags["http-listen"]} == opened
    # the first port is the service's own
    assert flags["listen"].endswith(f":{container['ports'][0]['containerPort']}")


def environment(container: Dict[str, Any]) -> Dict[str, str]:
    """The container's variables; what Kubernetes fills in is taken from its limits."""
    made = {}
    for one in container["env"]:
        kind, _, name = one.get("valueFrom", {}).get("resourceFieldRef", {}).get("resource", "").partition(".")
        made[one["name"]] = str(one["value"] if "value" in one else container["resources"][kind][name])
    return made


def weir() -> Path:
    program = local.weir_program()
    if program is None:
        pytest.skip("no weir to test with: set WEIR_BIN, or run `cargo build`")
    return program


def test_the_server_takes_these_settings() -> None:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("WEIR_")}
    ours = environment(weir_container(load("deployment.yaml")["spec"]["template"]["spec"]))
    runtime = weir_container(load("kserve/servingruntime.yaml")["spec"])
    name = load("kserve/inferenceservice.yaml")["metadata"]["name"]
    # as KServe fills it in
    flags = [one.replace("{{.Name}}", name).replace("/mnt/models", str(local.MODEL)) for one in runtime["args"]]
    assert flags[0] == "serve" and f"--model={name}={local.MODEL}" in flags
    # what the image would serve beside it
    assert "ENV WEIR_MODELS=" in (local.ROOT / "Dockerfile").read_text() and environment(runtime)["WEIR_MODELS"] == ""
    model = f"--model={local.MODEL}"
    for command, variables in [(["serve", model], ours), (flags, environment(runtime))]:
        for wrong in ({}, {"WEIR_QUEUE": "none"}):
            told = subprocess.run(
                [weir(), *command, "--check-config"],
                env={**clean, **variables, **wrong},
                capture_output=True,
                text=True,
                timeout=local.SOON,
            )
            assert (told.returncode == 0) == (wrong == {}), told.stderr
    # "# threads: not set", or `rows = 32`
    settings = (re.split(r" = |: ", line)[0] for line in printed(weir(), clean))
    assert set(ours) <= {"WEIR_" + name.replace("-", "_").upper() for name in settings}


def printed(program: Path, clean: Dict[str, str]) -> List[str]:
    told = subprocess.run([program, "serve", "--print-config"], env=clean, capture_output=True, text=True, check=True)
    return [line.lstrip("# ") for line in told.stdout.splitlines()]


def test_what_is_scaled_by_is_what_the_server_tells() -> None:
    weir()
    rules = load("prometheus-adapter.yaml")["rules"]["custom"]
    series = [rule["seriesQuery"].split("{")[0] for rule in rules]
    # as the rules rename them
    assert all((rule["name"]["matches"], rule["name"]["as"]) == ("^weir:(.*)$", "weir_$1") for rule in rules)
    scaled_by = [metric["pods"]["metric"]["name"] for metric in load("hpa.yaml")["spec"]["metrics"]]
    assert [name.replace("weir:", "weir_") for name in series] == scaled_by
    with local.Server() as server:
        for name in series:
            assert server.metric(name[len("weir:") :]) == 0
