"""Tests a weir server with promptfoo, whose configuration on the page changes only the address and the model's name.

Skipped where promptfoo is not installed: npm installs more than 400 packages for it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import local
import pages
import pytest


def evaluate(folder: Path, configuration: str) -> Any:
    """Runs promptfoo with this configuration; returns its report and exit status."""
    program = shutil.which("promptfoo")
    if program is None:
        pytest.skip("promptfoo is not installed")
    (folder / "promptfooconfig.yaml").write_text(configuration)
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("WEIR_", "OPENAI_", "PROMPTFOO_"))}
    environment.update(PROMPTFOO_DISABLE_TELEMETRY="1", PROMPTFOO_DISABLE_UPDATE="1", PROMPTFOO_CONFIG_DIR=str(folder / "home"))
    command = [program, "eval", "--no-cache", "--output", "report.json"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=4 * local.TIMEOUT)
    assert (folder / "report.json").is_file(), done.stdout + done.stderr
    return json.loads((folder / "report.json").read_text())["results"], done.returncode


def test_example_of_the_page(http_server: Any, tmp_path: Path) -> None:
    configuration = pages.example("docs/clients.md", "yaml", "promptfooconfig", http_server.url)
    report, status = evaluate(tmp_path, configuration)
    counts = report["stats"]
    assert (status, counts["successes"], counts["failures"], counts["errors"]) == (0, 1, 0, 0)
    response = report["results"][0]["response"]
    assert len(response["output"]) == 40
    assert (response["tokenUsage"]["prompt"], response["tokenUsage"]["completion"]) == (len("the history of the city"), 40)


def test_refusals_have_the_servers_message(http_server: Any, tmp_path: Path) -> None:
    configuration = pages.example("docs/clients.md", "yaml", "promptfooconfig", http_server.url)
    report, status = evaluate(tmp_path, configuration.replace(local.MODEL.name, "nobody"))
    assert status != 0 and report["stats"]["errors"] == 1
    assert f'model: expected one of {local.MODEL.name}, found "nobody"' in report["results"][0]["error"].replace('\\"', '"')
