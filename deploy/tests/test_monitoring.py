"""Checks the dashboard and the alerts of `deploy` against the metrics of a served model."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import urllib.request
from pathlib import Path
from typing import Any, Dict, Iterator, List, Set, Tuple

import local
import pytest
import yaml

from weir_client import Client, WeirError

DASHBOARD = local.ROOT / "deploy/grafana/weir.json"
ALERTS = local.ROOT / "deploy/prometheus/alerts.yaml"
# Codes of calls and requests that queries name. A server has a series of a code only once a call ended with it.
CODES = {"INTERNAL", "RESOURCE_EXHAUSTED"}
# Labels that Prometheus adds to every series of a target.
TARGET = {"instance", "job"}
# Metrics that Prometheus itself records for each target.
PROMETHEUS = {"up": TARGET}
# Operators of PromQL that are words.
WORDS = {"and", "or", "unless"}
PROMTOOL = shutil.which("promtool")

#: The labels of each metric's series, and the values of each label.
Series = Dict[str, Dict[str, Set[str]]]


def queries() -> List[Tuple[str, str]]:
    """Returns the name and the query of each panel and alert."""
    dashboard = json.loads(DASHBOARD.read_text())
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    found = [(panel["title"], target["expr"]) for panel in panels for target in panel["targets"]]
    return found + [(rule["alert"], rule["expr"]) for rule in rules()]


def rules() -> List[Dict[str, Any]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


@pytest.fixture(scope="module")
def text() -> Iterator[str]:
    """Yields the metrics of a server that completed a request, refused another, and answered one over HTTP."""
    if local.weir_program() is None:
        pytest.skip("no weir program found: set WEIR_BIN or run `cargo build`")
    with local.Server("--http-listen", "127.0.0.1:0") as server, Client(server.address, timeout=local.TIMEOUT) as client:
        client.generate("the history of", max_chars=8, seed=1)
        with pytest.raises(WeirError):
            client.generate("the history of", max_chars=8, model="none")
        urllib.request.urlopen(f"http://{server.listener('playground')}/health", timeout=local.TIMEOUT).close()
        with urllib.request.urlopen(f"http://{server.admin}/metrics", timeout=local.TIMEOUT) as answer:
            yield answer.read().decode()


@pytest.fixture(scope="module")
def series(text: str) -> Series:
    found: Series = {name: {label: set() for label in labels} for name, labels in PROMETHEUS.items()}
    for name, labels in re.findall(r"^(\w+)(?:\{(.*)\})? \S+$", text, re.MULTILINE):
        values = found.setdefault(name, {label: set() for label in TARGET})
        for label, value in re.findall(r'(\w+)="([^"]*)"', labels):
            values.setdefault(label, set()).add(value)
    return found


def problems(query: str, series: Series) -> List[str]:
    """Returns the metrics, labels and values of a query that the server does not have."""
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\b(?:by|on) \([^)]*\)", " ", query)
    # Names that no parenthesis follows are metrics: functions are called.
    metrics = set(re.findall(r"[a-zA-Z_:][\w:]*\b(?!\s*\()", bare)) - WORDS
    found = [f"no metric {name}" for name in metrics - set(series)]
    used = {label for name in metrics & set(series) for label in series[name]}
    for labels in re.findall(r"\b(?:by|on) \(([^)]*)\)", query):
        found += [f"no label {label}" for label in re.split(r",\s*", labels) if label not in used]
    for name, selector in re.findall(r"([\w:]+)\{([^}]*)\}", query):
        for label, operator, value in re.findall(r'(\w+)\s*(=~|!=|!~|=)\s*"([^"]*)"', selector):
            values = series.get(name, {}).get(label)
            if values is None:
                found.append(f"{name} has no label {label}")
            elif operator == "=" and value not in (CODES if label == "code" else values):
                found.append(f"{name} has no {label} {value}")
    return found if metrics else ["no metric"]


def test_queries_use_metrics_and_labels_of_the_server(series: Series) -> None:
    assert len(series) > 60 and len(queries()) > 50
    wrong = {f"{name}: {query}": found for name, query in queries() if (found := problems(query, series))}
    assert wrong == {}


@pytest.mark.parametrize(
    "query",
    [
        "sum by (model_name) (rate(weir_num_requests[5m]))",
        "rate(weir:prompt_tokens_total[5m])",
        'weir_num_requests_running{model="a"}',
        "sum by (model) (weir_num_requests_running)",
        'weir_credential_reloads_total{result="failed"}',
        "weir_time_to_first_token_seconds",
        "histogram_quantile(0.5, 1)",
    ],
)
def test_wrong_queries_are_found(query: str, series: Series) -> None:
    assert problems(query, series)


def test_every_variable_is_defined() -> None:
    dashboard = DASHBOARD.read_text()
    defined = {variable["name"] for variable in json.loads(dashboard)["templating"]["list"]}
    used = set(re.findall(r"\$\{?([a-z]\w+)", dashboard))
    assert used == defined


def test_panels_are_described_and_do_not_overlap() -> None:
    taken: Set[Tuple[int, int]] = set()
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    for panel in panels:
        assert panel["type"] == "row" or panel["description"].endswith(".")
        place = panel["gridPos"]
        columns = range(place["x"], place["x"] + place["w"])
        cells = {(x, y) for x in columns for y in range(place["y"], place["y"] + place["h"])}
        assert columns[-1] < 24 and not cells & taken
        taken |= cells


def test_every_alert_is_documented_and_tested() -> None:
    names = [rule["alert"] for rule in rules()]
    page = (local.ROOT / "docs/deploy.md").read_text()
    assert re.findall(r"^\| `(Weir\w+)` \|", page, re.MULTILINE) == names
    raised: Set[str] = set()
    quiet: Set[str] = set()
    for group in yaml.safe_load(ALERTS.with_name("alerts_test.yaml").read_text())["tests"]:
        for test in group["alert_rule_test"]:
            (raised if test.get("exp_alerts") else quiet).add(test["alertname"])
    assert raised == quiet == set(names)
    for rule in rules():
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert set(rule["annotations"]) == {"summary", "description"}


def test_promtool(text: str, tmp_path: Path) -> None:
    if PROMTOOL is None:
        assert os.environ.get("WEIR_REQUIRE_PROMTOOL") != "1", "promtool is required but not installed"
        pytest.skip("promtool is not installed")

    def promtool(*arguments: str, given: str = "") -> "subprocess.CompletedProcess[str]":
        command = [str(PROMTOOL), *arguments]
        return subprocess.run(command, input=given, capture_output=True, text=True, timeout=local.TIMEOUT)

    checked = promtool("check", "metrics", given=text)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
    assert promtool("check", "metrics", given=text.replace("weir_", "weir:")).returncode != 0
    assert promtool("check", "rules", str(ALERTS)).returncode == 0
    tested = promtool("test", "rules", str(ALERTS.with_name("alerts_test.yaml")))
    assert tested.returncode == 0, tested.stderr
    # The syntax of the dashboard's queries, with Grafana's variables filled in.
    exprs = [re.sub(r"\$\w+", "x", query.replace("$__rate_interval", "5m")) for _, query in queries()]
    recorded = [{"record": f"panel:{index}", "expr": expr} for index, expr in enumerate(exprs)]
    file = tmp_path / "rules.yaml"
    file.write_text(json.dumps({"groups": [{"name": "panels", "rules": recorded}]}))
    syntax = promtool("check", "rules", str(file))
    assert syntax.returncode == 0, syntax.stderr
    file.write_text(json.dumps({"groups": [{"name": "panels", "rules": [{"record": "a:b", "expr": "sum by (a (b)"}]}]}))
    assert promtool("check", "rules", str(file)).returncode != 0
