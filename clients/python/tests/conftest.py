"""What several tests need. Those that need a server are skipped where there is none to start, and say so."""

from __future__ import annotations

from typing import Iterator

import local
import pytest

from weir_client import Client


@pytest.fixture(scope="session")
def weir_installed() -> None:
    """Skips where there is no weir."""
    program = local.weir_program()
    if program is None:
        pytest.skip("no weir to test with: set WEIR_BIN, or run `cargo build`")


@pytest.fixture(scope="session")
def server(weir_installed: None) -> Iterator[local.Server]:
    """One server for all tests that want nothing special."""
    with local.Server() as server:
        yield server


@pytest.fixture
def weir(server: local.Server) -> Iterator[Client]:
    """A client of it."""
    with Client(server.address, timeout=local.SOON) as client:
        yield client
