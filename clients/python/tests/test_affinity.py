"""Tests `weir-affinity` and HAProxy with `deploy/haproxy.cfg`: the choice of a replica, and calls lost with a replica."""

from __future__ import annotations

import os
import threading
from typing import Iterator, List

import local
import pytest

from weir_client import Client, Retry, WeirError

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


@pytest.mark.parametrize("how", ["killed", "terminated"])
def test_no_request_without_a_character_is_lost(replicas: List[local.Server], how: str) -> None:
    outcomes: List[str] = []

    def ask(prompt: str) -> None:
        text = ""
        try:
            with Client(proxy.address, affinity_chars=20, retry=Retry(attempts=1), timeout=local.TIMEOUT) as client:
                for piece in client.stream(prompt, max_chars=600, coalesce_chars=1):
                    text += piece.text
            outcomes.append("complete")
        except WeirError as error:
            outcomes.append("cut" if text else f"lost: {error}")

    with local.Haproxy(replicas) as proxy:
        with Client(proxy.address, timeout=local.TIMEOUT) as client:
            client.wait_until_serving()
        early = [threading.Thread(target=ask, args=[prompt]) for prompt in conversations(24)]
        for thread in early:
            thread.start()
        while not all(map(_busy, replicas)):
            assert any(thread.is_alive() for thread in early), "all requests ended before both replicas were busy"
        replicas[0].end(killed=how == "killed")
        late = [threading.Thread(target=ask, args=[prompt]) for prompt in conversations(24)]
        for thread in late:
            thread.start()
        for thread in [*early, *late]:
            thread.join()
    assert [outcome for outcome in outcomes if outcome.startswith("lost")] == []
    # A replica runs two requests at once.
    assert outcomes.count("cut") <= (2 if how == "killed" else 0), outcomes
    assert outcomes.count("complete") + outcomes.count("cut") == len(outcomes) == 48, outcomes


def _busy(server: local.Server) -> bool:
    """Returns True once requests wait and the clients of the running requests have received characters."""
    return server.metric("num_requests_waiting") >= 1 and server.metric("generation_tokens_total") >= 40
