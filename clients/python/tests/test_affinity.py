"""Tests `weir-affinity` and HAProxy with `deploy/haproxy.cfg`: the choice of a replica.

`tests/weir/deploy.rs` checks which calls are lost with a replica.
"""

from __future__ import annotations

import os
from typing import Iterator, List

import local
import pytest

from weir_client import Client

FLAGS = ["--late-headers", "--rows", "2", "--threads", "1", "--kv-memory", "64MiB"]
BEGINNING = "the history of the city of "


@pytest.fixture
def replicas(weir_installed: None) -> Iterator[List[local.Server]]:
    """Two servers; skips the test if the proxy is not installed."""
    if local.haproxy_program() is None:
        assert os.environ.get("WEIR_REQUIRE_PROXIES") != "1", "HAProxy is required but not installed"
        pytest.skip("HAProxy is not installed")
    with local.Server(*FLAGS, drain=60) as first, local.Server(*FLAGS, drain=60) as second:
        yield [first, second]


def conversations(count: int) -> List[str]:
    """Returns texts with different beginnings."""
    return [f"{chr(97 + n)} {BEGINNING}{chr(97 + n)} and what became of it " for n in range(count)]


def test_prompts_with_a_common_prefix_reach_one_replica(replicas: List[local.Server]) -> None:
    with local.Haproxy(replicas) as proxy, Client(proxy.address, affinity_chars=20, timeout=local.TIMEOUT) as client:
        client.wait_until_serving()
        prompts = conversations(12)
        for prompt in prompts:
            assert client.generate(prompt, max_chars=5).usage.cached_chars == 0
        for prompt in prompts:
            usage = client.generate(prompt + "in the end", max_chars=5).usage
            assert usage.cached_chars >= len(prompt) - 1
        # Both replicas served some of them.
        queries = [server.metric("prefix_cache_queries_total") for server in replicas]
        assert min(queries) > 0
