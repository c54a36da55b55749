"""The three commands of the README for people who only measure, run as they stand but for the build, and shorter."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import local
import pytest

README = (local.ROOT / "README.md").read_text()
# What the measurement is cut down to, so that it takes seconds.
SHORT = ["--warm-up", "0s", "--concurrency", "1", "--from", "5", "--to", "5", "--output-chars", "8"]


def test_the_three_commands(tmp_path: Path) -> None:
    found = re.search(r"^Only here to measure\?.*?^```sh\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    assert found is not None
    build, serve, measure = found.group(1).splitlines()
    assert build == "cargo build --release --workspace"
    program = local.weir_program()
    tester = program and program.with_name("weir-loadtest")
    if program is None or tester is None or not tester.is_file():
        pytest.skip("no weir, or no weir-loadtest beside it: run `cargo build --workspace`")
    (tmp_path / "target/release").mkdir(parents=True)
    for built in (program, tester):
        (tmp_path / "target/release" / built.name).symlink_to(built.resolve())
    (tmp_path / "models").symlink_to(local.ROOT / "models")
    assert serve == "target/release/weir serve &"
    line = [str(tmp_path / "target/release/weir"), "serve", "--listen", "127.0.0.1:0"]
    server = local.Program(line, folder=tmp_path)
    try:
        address = server.says(r"listening on (\S+)")
        command = measure.replace("weir-loadtest report", f"weir-loadtest report {address}")
        command = command.replace("--duration 10s", "--duration 1s")
        assert command != measure and shutil.which("bash") is not None
        environment = {key: value for key, value in os.environ.items() if not key.startswith("WEIR_")}
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", f"{command} {' '.join(SHORT)}"],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            timeout=4 * local.SOON,
        )
        assert done.returncode == 0, done.stderr
        assert "hourglass-whitespace-english" in done.stdout
        page = (tmp_path / "latency-report.html").read_text()
        assert page.endswith("</html>") and "my machine" in page and "hourglass-whitespace-english" in page
    finally:
        server.stop()
