"""Compares the table of clients in docs/clients.md with the versions that the tests install."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Dict

import pages

HERE = Path(__file__).parent
TABLE = re.compile(r"^\| \[?`([\w-]+)`(?:\]\([^)]+\))? \| ([\d.]+) \| (PyPI|npm) \| ([^|]+) \|$", re.MULTILINE)
# Only .ci/clients installs these.
LARGE = {"promptfoo", "guidellm", "aiperf"}


def pinned() -> Dict[str, str]:
    """Returns the version of each package that the tests or .ci/clients install."""
    files = [HERE / name for name in ("requirements.txt", "clients-requirements.txt", "large-clients-requirements.txt")]
    pattern = re.compile(r"^([\w-]+)(?:\[\w+\])?==([\d.]+)", re.MULTILINE)
    result = dict(pair for file in files for pair in pattern.findall(file.read_text()))
    (promptfoo,) = re.findall(r"^PROMPTFOO=([\d.]+)$", (HERE.parents[1] / ".ci/clients").read_text(), re.MULTILINE)
    return {**result, "promptfoo": promptfoo, **json.loads((HERE / "npm/package.json").read_text())["dependencies"]}


def test_the_table_has_the_installed_versions() -> None:
    page = pages.text("docs/clients.md")
    rows = {name: (version, tests) for name, version, _, tests in TABLE.findall(page)}
    assert len(rows) == 10 and LARGE < set(rows)
    versions = pinned()
    for name, (version, tests) in rows.items():
        assert version == versions[name], name
        assert tests.startswith("where it is installed") == (name in LARGE), name
