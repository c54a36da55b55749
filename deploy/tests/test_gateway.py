"""Checks the manifests of `deploy/kubernetes/gateway`: against the schemas of their kinds, against each other and the other manifests,
and against the metrics of a server, which are read as the picker reads them.

The schemas are facts of the published ones: the fields, types and limits of what the manifests use. Other fields are errors. Sources:
kubernetes-sigs/gateway-api-inference-extension (InferencePool, inference.networking.k8s.io/v1), llm-d/llm-d-router
(InferenceObjective, llm-d.ai/v1alpha2, and EndpointPickerConfig, llm-d.ai/v1alpha1), kubernetes-sigs/gateway-api (HTTPRoute and
GRPCRoute, gateway.networking.k8s.io/v1).
"""

from __future__ import annotations

import copy
import random
import re
import urllib.request
from pathlib import Path
from typing import Any, Dict, Iterator, List, Tuple

import affinity
import local
import pytest
import router
import yaml
from jsonschema import Draft202012Validator
from test_chart import without_own_labels
from test_chart import render_all as render

MANIFESTS = local.ROOT / "deploy/kubernetes"
FOLDER = MANIFESTS / "gateway"

Document = Dict[str, Any]


def objects(properties: Document, *required: str) -> Document:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def listed(items: Document, most: int = 16) -> Document:
    return {"type": "array", "items": items, "minItems": 1, "maxItems": most}


def named(pattern: str, most: int) -> Document:
    return {"type": "string", "minLength": 1, "maxLength": most, "pattern": pattern}


def kind(group: str, version: str, name: str, spec: Document) -> Document:
    return objects(
        {
            "apiVersion": {"const": f"{group}/{version}"},
            "kind": {"const": name},
            "metadata": objects({"name": NAME, "labels": {"type": "object"}}, "name"),
            "spec": spec,
        },
        "apiVersion",
        "kind",
        "metadata",
        "spec",
    )


NAME = named(r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", 253)
GROUP = {
    "type": "string",
    "maxLength": 253,
    "pattern": r"^$|^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
}
KIND = named(r"^[a-zA-Z]([-a-zA-Z0-9]*[a-zA-Z0-9])?$", 63)
PORT = {"type": "integer", "minimum": 1, "maximum": 65535}
LABEL = {"type": "string", "maxLength": 63, "pattern": r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$"}
DURATION = {"type": "string", "pattern": r"^([0-9]{1,5}(h|m|s|ms)){1,4}$"}
PARENTS = listed(
    objects({"group": GROUP, "kind": KIND, "namespace": NAME, "name": NAME, "sectionName": NAME, "port": PORT}, "name"),
    32,
)
BACKENDS = listed(
    objects(
        {"group": GROUP, "kind": KIND, "namespace": NAME, "name": NAME, "port": PORT, "weight": {"type": "integer"}},
        "name",
    )
)
PATHS = {
    "type": {"enum": ["Exact", "PathPrefix", "RegularExpression"]},
    "value": {"type": "string", "maxLength": 1024, "pattern": "^/"},
}
HTTP_RULE = {
    "matches": listed(objects({"path": objects(PATHS)}), 64),
    "backendRefs": BACKENDS,
    "timeouts": objects({"request": DURATION, "backendRequest": DURATION}),
}
POOL = {
    "selector": objects(
        {"matchLabels": {"type": "object", "additionalProperties": LABEL, "maxProperties": 64}}, "matchLabels"
    ),
    "targetPorts": listed(objects({"number": PORT}, "number"), 8),
    "appProtocol": {"enum": ["http", "kubernetes.io/h2c"]},
    "endpointPickerRef": objects(
        {
            "group": GROUP,
            "kind": KIND,
            "name": NAME,
            "port": objects({"number": PORT}, "number"),
            "failureMode": {"enum": ["FailOpen", "FailClose"]},
        },
        "name",
        # Required for a Service.
        "port",
    ),
}
OBJECTIVE = {"poolRef": objects({"group": GROUP, "kind": KIND, "name": NAME}, "name"), "priority": {"type": "integer"}}
REF = {"pluginRef": {"type": "string"}}
ENGINE = ["name", "queuedRequestsSpec", "runningRequestsSpec", "kvUsageSpec", "loraSpec", "cacheInfoSpec"]
# The parameters of the plugins, which the picker reads strictly.
PARAMETERS = {
    "metrics-data-source": objects(
        {"scheme": {"enum": ["http", "https"]}, "path": {"type": "string"}, "insecureSkipVerify": {"type": "boolean"}}
    ),
    "core-metrics-extractor": objects(
        {
            "engineLabelKey": {"type": "string"},
            "defaultEngine": {"type": "string"},
            "engineConfigs": listed(objects({name: {"type": "string"} for name in ENGINE}, *ENGINE)),
        }
    ),
    "approx-prefix-cache-producer": objects(
        {
            "autoTune": {"type": "boolean"},
            # The picker raises smaller ones to this.
            "blockSizeTokens": {"type": "integer", "minimum": 64},
            "maxPrefixTokensToMatch": {"type": "integer", "minimum": 0},
            "lruCapacityPerServer": {"type": "integer", "minimum": 1},
        }
    ),
    "prefix-cache-scorer": objects({}),
    "queue-scorer": objects({}),
    "running-requests-size-scorer": objects({}),
    "kv-cache-utilization-scorer": objects({}),
    "max-score-picker": objects({}),
    "single-profile-handler": objects({}),
}
PROFILE = {"name": {"type": "string"}, "plugins": listed(objects({**REF, "weight": {"type": "number"}}, "pluginRef"))}
SOURCES = listed(objects({**REF, "extractors": listed(objects(REF, "pluginRef"))}, "pluginRef", "extractors"))
CONFIG = objects(
    {
        "apiVersion": {"const": "llm-d.ai/v1alpha1"},
        "kind": {"const": "EndpointPickerConfig"},
        "featureGates": listed({"enum": ["flowControl"]}),
        "plugins": listed(
            objects(
                {"name": {"type": "string"}, "type": {"enum": list(PARAMETERS)}, "parameters": {"type": "object"}},
                "type",
            )
        ),
        "schedulingProfiles": listed(objects(PROFILE, "name", "plugins")),
        "dataLayer": objects({"injectDefaults": {"type": "boolean"}, "sources": SOURCES}),
    },
    "apiVersion",
    "kind",
    "plugins",
    "schedulingProfiles",
)
ROUTES = "gateway.networking.k8s.io"
GRPC_RULE = {"matches": {"type": "array"}, "backendRefs": BACKENDS}
SCHEMAS = {
    "inferencepool.yaml": kind(
        "inference.networking.k8s.io",
        "v1",
        "InferencePool",
        objects(POOL, "selector", "targetPorts", "endpointPickerRef"),
    ),
    "inferenceobjective.yaml": kind("llm-d.ai", "v1alpha2", "InferenceObjective", objects(OBJECTIVE, "poolRef")),
    "httproute.yaml": kind(
        ROUTES, "v1", "HTTPRoute", objects({"parentRefs": PARENTS, "rules": listed(objects(HTTP_RULE))})
    ),
    "grpcroute.yaml": kind(
        ROUTES, "v1", "GRPCRoute", objects({"parentRefs": PARENTS, "rules": listed(objects(GRPC_RULE))})
    ),
    "picker-config.yaml": CONFIG,
}


def load(name: str) -> Document:
    document = yaml.safe_load((FOLDER / name).read_text())
    assert isinstance(document, dict)
    return document


def picker() -> Dict[str, Document]:
    return {document["kind"]: document for document in yaml.safe_load_all((FOLDER / "picker.yaml").read_text())}


def leaves(value: Any, path: Tuple[Any, ...] = ()) -> Iterator[Tuple[Any, ...]]:
    """Yields the path of each part of a document."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts:
        yield (*path, key)
        yield from leaves(part, (*path, key))


def replaced(document: Document, path: Tuple[Any, ...], value: Any) -> Document:
    changed: Any = copy.deepcopy(document)
    part = changed
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    assert isinstance(changed, dict)
    return changed


@pytest.mark.parametrize("name", SCHEMAS)
def test_published_schemas(name: str) -> None:
    schema = Draft202012Validator(SCHEMAS[name])
    document = load(name)
    assert [error.message for error in schema.iter_errors(document)] == []
    closed = [
        path
        for path in leaves(document)
        if "labels" not in path and "matchLabels" not in path and "parameters" not in path
    ]
    assert len(closed) >= 10
    for path in closed:
        assert not schema.is_valid(replaced(document, path, None)), path
        assert not schema.is_valid(
            replaced(document, (*path[:-1], "unknown"), 1) if isinstance(path[-1], str) else {}
        ), path
    for plugin in document.get("plugins", []):
        parameters = Draft202012Validator(PARAMETERS[plugin["type"]])
        assert parameters.is_valid(plugin.get("parameters", {})), plugin
        assert not parameters.is_valid({**plugin.get("parameters", {}), "unknown": 1})


def test_schemas_of_kubernetes() -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    for document in picker().values():
        for version in ("1.27.0", "1.37.0"):
            validator.validate(document, version, strict=True)


def test_every_file_is_applied() -> None:
    kustomization = load("kustomization.yaml")
    (config,) = kustomization["configMapGenerator"]
    assert config["files"] == ["picker-config.yaml"]
    files = {path.name for path in FOLDER.iterdir()}
    assert files == {"kustomization.yaml", *kustomization["resources"], *config["files"]}


def test_names_ports_and_labels_exist() -> None:
    deployment = yaml.safe_load((MANIFESTS / "deployment.yaml").read_text())["spec"]["template"]
    (container,) = deployment["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    service = yaml.safe_load((MANIFESTS / "service.yaml").read_text())
    services = {port["port"]: port for port in service["spec"]["ports"]}
    pool, http, grpc = load("inferencepool.yaml"), load("httproute.yaml"), load("grpcroute.yaml")
    assert pool["spec"]["selector"]["matchLabels"].items() <= deployment["metadata"]["labels"].items()
    assert pool["spec"]["targetPorts"] == [{"number": ports["http"]}]
    assert (load("inferenceobjective.yaml")["spec"]["poolRef"]["name"], pool["kind"]) == (
        pool["metadata"]["name"],
        "InferencePool",
    )
    picked, others = http["spec"]["rules"]
    (backend,) = picked["backendRefs"]
    assert (f"{backend['group']}/v1", backend["kind"], backend["name"]) == (
        pool["apiVersion"],
        pool["kind"],
        pool["metadata"]["name"],
    )
    # The picker's parser refuses a body that is no completion.
    assert [match["path"] for match in picked["matches"]] == [{"type": "PathPrefix", "value": "/v1/completions"}]
    (backend,) = others["backendRefs"]
    assert backend == {"name": service["metadata"]["name"], "port": ports["http"]} and backend["port"] in services
    (rule,) = grpc["spec"]["rules"]
    (backend,) = rule["backendRefs"]
    assert backend["name"] == service["metadata"]["name"]
    assert services[backend["port"]]["appProtocol"] == "kubernetes.io/h2c"
    assert http["spec"]["parentRefs"] == grpc["spec"]["parentRefs"]

    parts = picker()
    chosen = pool["spec"]["endpointPickerRef"]
    own = parts["Service"]
    assert (chosen["kind"], chosen["name"]) == (own["kind"], own["metadata"]["name"])
    (port,) = [port for port in own["spec"]["ports"] if port["port"] == chosen["port"]["number"]]
    template = parts["Deployment"]["spec"]["template"]
    assert own["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    # The pool does not contain the picker.
    assert not pool["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    (program,) = template["spec"]["containers"]
    containers = {entry["name"]: entry["containerPort"] for entry in program["ports"]}
    flags = dict(flag.removeprefix("--").split("=", 1) for flag in program["args"])
    assert flags["pool-name"] == pool["metadata"]["name"]
    assert int(flags["grpc-port"]) == containers[port["targetPort"]] == port["port"]
    assert int(flags["grpc-health-port"]) == program["readinessProbe"]["grpc"]["port"] == containers["health"]
    (mount,) = program["volumeMounts"]
    assert flags["config-file"] == f"{mount['mountPath']}/picker-config.yaml"
    (volume,) = template["spec"]["volumes"]
    assert volume["configMap"]["name"] == load("kustomization.yaml")["configMapGenerator"][0]["name"]
    assert parts["RoleBinding"]["subjects"] == [
        {"kind": "ServiceAccount", "name": parts["ServiceAccount"]["metadata"]["name"]}
    ]
    assert template["spec"]["serviceAccountName"] == parts["ServiceAccount"]["metadata"]["name"]
    readable = {
        (group, name) for rule in parts["Role"]["rules"] for group in rule["apiGroups"] for name in rule["resources"]
    }
    assert {
        ("", "pods"),
        ("inference.networking.k8s.io", "inferencepools"),
        ("llm-d.ai", "inferenceobjectives"),
    } <= readable


def test_plugins_refer_to_each_other() -> None:
    config = load("picker-config.yaml")
    defined = {plugin.get("name", plugin["type"]) for plugin in config["plugins"]}
    assert len(defined) == len(config["plugins"])
    (profile,) = config["schedulingProfiles"]
    weights = {plugin["pluginRef"]: plugin.get("weight") for plugin in profile["plugins"]}
    (source,) = config["dataLayer"]["sources"]
    assert {*weights, source["pluginRef"], *(extractor["pluginRef"] for extractor in source["extractors"])} <= defined
    # The simulation of clients/python/tools/router.py measures these.
    (producer,) = [
        plugin["parameters"] for plugin in config["plugins"] if plugin["type"] == "approx-prefix-cache-producer"
    ]
    assert router.PrefixAffinity.block == 4 * producer["blockSizeTokens"]
    assert router.PrefixAffinity.capacity == producer["lruCapacityPerServer"]
    assert weights == {**router.PrefixAffinity.weights, "max-score-picker": None}


Series = List[Tuple[Dict[str, str], float]]


def families(text: str) -> Dict[str, Tuple[str, Series]]:
    """Reads Prometheus' text format: the type of each family, and its series in their order."""
    found: Dict[str, Tuple[str, Series]] = {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind_of = line.split(" ")
            found[name] = (kind_of, [])
        elif not line.startswith("#"):
            match = re.fullmatch(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)", line)
            assert match is not None, line
            labels = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', match[2] or ""))
            family = next(
                (name for name in (match[1], re.sub("_(bucket|sum|count)$", "", match[1])) if name in found), None
            )
            assert family is not None, line
            found[family][1].append((labels, float(match[3])))
    return found


def extract(found: Dict[str, Tuple[str, Series]], spec: str) -> Tuple[Dict[str, str], float]:
    """Finds the series of a metric spec as the picker does: the first whose labels match, of a gauge or a counter."""
    match = re.fullmatch(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?", spec)
    assert match is not None
    wanted = dict(re.findall(r'(\w+)="?([^",}]*)"?', match[2] or ""))
    kind_of, series = found[match[1]]
    assert kind_of in ("gauge", "counter")
    return next((labels, value) for labels, value in series if wanted.items() <= labels.items())


def scraped(address: str) -> Dict[str, Tuple[str, Series]]:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=local.TIMEOUT) as answer:
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        return families(answer.read().decode())


def test_the_picker_finds_each_metric() -> None:
    if local.weir_program() is None:
        pytest.skip("no weir program found: set WEIR_BIN or run `cargo build`")
    config = load("picker-config.yaml")
    parameters = {plugin["type"]: plugin.get("parameters", {}) for plugin in config["plugins"]}
    assert parameters["metrics-data-source"] == {"scheme": "http", "path": "/metrics"}
    (engine,) = parameters["core-metrics-extractor"]["engineConfigs"]
    assert parameters["core-metrics-extractor"]["defaultEngine"] == engine["name"] == "weir"
    # The built-in engine of the picker, for a server with --metrics-compat.
    vllm = {
        "queuedRequestsSpec": "vllm:num_requests_waiting",
        "runningRequestsSpec": "vllm:num_requests_running",
        "kvUsageSpec": "vllm:kv_cache_usage_perc",
        "loraSpec": "",
        "cacheInfoSpec": "vllm:cache_config_info",
    }
    flags = ["--http-listen", "127.0.0.1:0", "--http-metrics", "--metrics-compat", "vllm"]
    flags += ["--model", f"b={local.DEFAULT}", "--metrics-block-size", str(router.PrefixAffinity.block)]
    with local.Server(*flags) as server:
        address = server.listener("playground")
        found = scraped(address)
        for specs in (engine, vllm):
            for model in ("", '{model_name="b"}', "{model_name=b}", f"{{model_name={local.MODEL.name}}}"):
                assert extract(found, specs["queuedRequestsSpec"] + model)[1] == 0
                assert extract(found, specs["runningRequestsSpec"] + model)[1] == 0
                assert 0 <= extract(found, specs["kvUsageSpec"] + model)[1] <= 1
                labels, value = extract(found, specs["cacheInfoSpec"] + model)
                assert value == 1 and int(labels["block_size"]) == router.PrefixAffinity.block
                assert int(labels["num_gpu_blocks"]) > 0
        # A cache of the default size holds what the picker remembers.
        order = random.Random(1)
        for _ in range(router.PrefixAffinity.capacity + 16):
            prompt = affinity.text(order, router.PrefixAffinity.block)
            router.stream_completion(address, {"model": "b", "prompt": prompt, "max_tokens": 1})
        assert extract(scraped(address), 'weir_segment_cache_entries{model_name="b"}')[1] >= router.PrefixAffinity.capacity
        lines = ['weir_num_requests_waiting{a="b"} 2', "weir_num_requests_running{} 3", "weir_kv_cache_usage_ratio{} 0.5"]
        assert router.load_of("\n".join(lines)) == router.Load(2, 3, 0.5)
        again = scraped(address)
        order = [[labels for labels, _ in series] for _, series in found.values()]
        later = [[labels for labels, _ in series] for name, (_, series) in again.items() if name in found]
        pairs = zip(order, later)
        assert all(first == second[: len(first)] or not first for first, second in pairs)


def test_routed_paths_exist() -> None:
    if local.weir_program() is None:
        pytest.skip("no weir program found: set WEIR_BIN or run `cargo build`")
    matches = [match for rule in load("httproute.yaml")["spec"]["rules"] for match in rule["matches"]]
    below = {"/v1": "/models", "/v2": "/health/live"}
    with local.Server("--http-listen", "127.0.0.1:0") as server:
        address = server.listener("playground")
        for match in matches:
            path = match["path"]["value"] + below.get(match["path"]["value"], "")
            request = urllib.request.Request(f"http://{address}{path}", method="OPTIONS")
            with urllib.request.urlopen(request, timeout=local.TIMEOUT) as answer:
                assert answer.status == 204


def test_the_chart_has_the_same_objects(tmp_path: Path) -> None:
    plain = {document["metadata"]["name"] for document in render(tmp_path, {})}
    assert plain == {"weir"}
    rendered = render(tmp_path, {"gateway": {"enabled": True}})
    found = {(document["kind"], document["metadata"]["name"]): document for document in rendered}
    expected = [load(name) for name in SCHEMAS if name != "picker-config.yaml"] + list(picker().values())
    for document in expected:
        assert without_own_labels(found[document["kind"], document["metadata"]["name"]]) == document
    config = yaml.safe_load(found["ConfigMap", "weir-picker"]["data"]["picker-config.yaml"])
    assert config == load("picker-config.yaml")
    (container,) = found["Deployment", "weir"]["spec"]["template"]["spec"]["containers"]
    assert {"name": "WEIR_HTTP_METRICS", "value": "open"} in container["env"]
    # A second release selects neither the first one's replicas nor its picker.
    values = {"gateway": {"enabled": True, "parent": "edge", "picker": "picker:1", "priority": -1}}
    other = {
        (document["kind"], document["metadata"]["name"]): document for document in render(tmp_path, values, "other")
    }
    pool = other["InferencePool", "other-weir"]["spec"]
    labels = other["Deployment", "other-weir"]["spec"]["template"]["metadata"]["labels"]
    assert pool["selector"]["matchLabels"].items() <= labels.items()
    assert pool["endpointPickerRef"]["name"] == "other-weir-picker"
    pod = other["Deployment", "other-weir-picker"]["spec"]["template"]
    assert other["Service", "other-weir-picker"]["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert not pool["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    (program,) = pod["spec"]["containers"]
    assert program["image"] == "picker:1" and "--pool-name=other-weir" in program["args"]
    assert other["HTTPRoute", "other-weir"]["spec"]["parentRefs"] == [{"name": "edge"}]
    assert other["InferenceObjective", "other-weir-interactive"]["spec"]["priority"] == -1
