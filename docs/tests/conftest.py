"""Fixtures for the tests of other projects' clients."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Iterator

import environment
import local
import pytest


PACKAGES = Path(__file__).with_name("npm")


class HttpServer(local.Server):
    """A server that also listens for HTTP, by default of the model that most tests use. `url` is its address, without a path."""

    def __init__(self, model: Path = local.MODEL) -> None:
        super().__init__("--threads", "1", "--http-listen", "127.0.0.1:0", model=model)
        self.url = "http://{}".format(self.listener("playground"))


@pytest.fixture(scope="module")
def http_server() -> Iterator[HttpServer]:
    if local.weir_program() is None:
        pytest.skip("no weir program found: set WEIR_BIN or run `cargo build`")
    with HttpServer() as server:
        yield server


@pytest.fixture(scope="module")
def t5_server() -> Iterator[HttpServer]:
    """Starts a server of a T5, which reads the prompt as a document."""
    if local.weir_program() is None:
        pytest.skip("no weir program found: set WEIR_BIN or run `cargo build`")
    with HttpServer(local.T5) as server:
        yield server


@pytest.fixture(scope="session")
def client_programs() -> Path:
    """Returns the programs' folder of the environment with the large clients."""
    return environment.programs()


@pytest.fixture(scope="session")
def npm_packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with the packages of npm."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node or npm is not installed")
    installed = tmp_path_factory.mktemp("npm")
    for file in PACKAGES.iterdir():
        shutil.copy(file, installed)
    command = ["npm", "ci", "--no-audit", "--no-fund", "--loglevel=error"]
    done = subprocess.run(command, cwd=installed, capture_output=True, text=True, timeout=4 * local.TIMEOUT)
    if done.returncode != 0:
        pytest.skip(f"npm cannot install the packages: {done.stderr}")
    return installed
