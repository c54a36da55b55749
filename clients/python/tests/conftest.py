"""Shared fixtures. Tests that need a server are skipped if no weir program is found."""

from __future__ import annotations

import time
from typing import Iterator

import local
import pytest

from weir_client import Client


@pytest.fixture(scope="session")
def weir_installed() -> None:
    """Skips the test if no weir program is found."""
    program = local.weir_program()
    if program is None:
        pytest.skip("no weir program found: set WEIR_BIN or run `cargo build`")


@pytest.fixture(scope="session")
def server(weir_installed: None) -> Iterator[local.Server]:
    """A server that all tests without special flags share."""
    # The report needs a calibration, however short.
    with local.Server(calibration=200) as server:
        with Client(server.address, timeout=local.TIMEOUT) as client:
            while any(report.calibration_pending for report in client.report()):
                time.sleep(0.02)
        yield server


@pytest.fixture
def weir(server: local.Server) -> Iterator[Client]:
    """A client of the shared server."""
    with Client(server.address, timeout=local.TIMEOUT) as client:
        yield client
