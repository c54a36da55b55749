"""Checks that the configuration fragments of `docs/deploy.md` are valid."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import List

import local
import pytest
import yaml

from weir_client import Client

GUIDE = (local.ROOT / "docs/deploy.md").read_text()


def fragments(language: str) -> List[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)


def test_nginx_accepts_affinity(tmp_path: Path) -> None:
    nginx = shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")
    if nginx is None:
        assert os.environ.get("WEIR_REQUIRE_PROXIES") != "1", "nginx is required but not installed"
        pytest.skip("nginx is not installed")
    balance, mapping = fragments("nginx")
    text = (local.ROOT / "deploy/nginx.conf").read_text()
    assert text.count("least_conn;") == text.count("http {\n") == 1

    def accepts(text: str) -> bool:
        file = tmp_path / "nginx.conf"
        file.write_text(text)
        command = [nginx, "-t", "-p", str(tmp_path), "-c", str(file)]
        return subprocess.run(command, capture_output=True, timeout=local.TIMEOUT).returncode == 0

    assert accepts(text.replace("least_conn;", balance).replace("http {\n", "http {\n" + mapping))
    assert not accepts(text.replace("least_conn;", balance))


def test_the_other_fragments() -> None:
    (prometheus,) = fragments("yaml")
    assert set(yaml.safe_load(prometheus)) == {"scrape_configs", "rule_files"}
    (python,) = fragments("python")
    with eval(python, {"Client": Client}) as client:
        assert isinstance(client, Client)


def test_the_header_of_other_clients() -> None:
    """The header that the guide describes for other clients is the one that the Python client sends."""
    with Client(affinity_chars=5) as client:
        assert client._settings.metadata("the history", {}) == (
            ("weir-affinity", hashlib.sha256(b"the h").hexdigest()[:16]),
        )
