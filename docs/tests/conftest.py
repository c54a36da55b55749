"""Fixtures for the tests of other projects' clients."""

from __future__ import annotations

from pathlib import Path
from typing import Iterator

import environment
import local
import pytest


class HttpServer(local.Server):
    """A server of the model that most tests use that also listens for HTTP. `url` is its address, without a path."""

    def __init__(self) -> None:
        super().__init__("--threads", "1", "--http-listen", "127.0.0.1:0")
        self.url = "http://{}".format(self.listener("playground"))


@pytest.fixture(scope="module")
def http_server() -> Iterator[HttpServer]:
    if local.weir_program() is None:
        pytest.skip("no weir program found: set WEIR_BIN or run `cargo build`")
    with HttpServer() as server:
        yield server


@pytest.fixture(scope="session")
def client_programs() -> Path:
    """Returns the programs' folder of the environment with the large clients."""
    return environment.programs()
