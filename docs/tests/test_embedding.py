"""Checks docs/embedding.md: its example is that of the crate's documentation, and the features add the crates that it counts."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Set

import local
import pytest

PAGE = local.ROOT / "docs/embedding.md"
# Crates that only a server or a command needs.
SERVER = {"axum", "h2", "hyper", "opentelemetry", "prometheus-client", "rustls", "tonic", "tower", "weir-client", "weir-proto"}
COMMAND = {"clap", "indicatif", "rustls-native-certs", "toml", "tracing-subscriber", "ureq"}
# A newer version of a dependency may bring a few crates.
TOLERANCE = 5


def crates(*features: str) -> Set[str]:
    """Returns the crates, with their versions, of a build with these features."""
    if shutil.which("cargo") is None:
        pytest.skip("cargo is not installed")
    command = ["cargo", "tree", "--package", "weir", "--edges", "normal,build", "--prefix", "none", "--no-dedupe", "--offline", "--locked"]
    command += ["--no-default-features", "--features", ",".join(features)]
    listed = subprocess.run(command, cwd=local.ROOT, capture_output=True, text=True, timeout=local.TIMEOUT)
    assert listed.returncode == 0, listed.stderr
    return {" ".join(line.split()[:2]) for line in listed.stdout.splitlines()}


def names(listed: Set[str]) -> Set[str]:
    return {crate.split()[0] for crate in listed}


def test_the_page_shows_the_example_that_cargo_test_runs() -> None:
    (shown,) = re.findall(r"^```rust\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    example = re.search(r"^//! ```\n(.*?)^//! ```$", Path(local.ROOT / "src/lib.rs").read_text(), re.MULTILINE | re.DOTALL)
    assert example is not None
    lines = [re.sub(r"^//! ?", "", line) for line in example[1].splitlines()]
    assert shown.splitlines() == [line for line in lines if not line.startswith("# ")]


def test_the_engine_needs_no_crate_of_a_server_or_a_command() -> None:
    engine, server, command = names(crates()), names(crates("server")), names(crates("cli"))
    assert not engine & (SERVER | COMMAND | {"candle-core"})
    # The lists name crates that exist, or the other checks would pass without meaning.
    assert SERVER - {"axum"} <= server and not server & COMMAND
    assert SERVER | COMMAND <= command and "candle-core" not in command


@pytest.mark.skipif(sys.platform != "linux", reason="the page counts the crates of a build on Linux")
def test_the_page_counts_the_crates_of_each_feature() -> None:
    rows = re.findall(r"^\| (none|all four|`\w+`) \|.*\| (\d+) \|$", PAGE.read_text(), re.MULTILINE)
    assert len(rows) == 6
    for name, count in rows:
        features = {"none": [], "all four": ["candle", "cli"]}.get(name, [name.strip("`")])
        assert abs(len(crates(*features)) - int(count)) <= TOLERANCE, name
