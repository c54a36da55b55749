"""Tests the choice of a replica: `weir-affinity` behind HAProxy with `deploy/haproxy.cfg`, and the router of `tools/affinity.py`.

`tests/weir/deploy.rs` checks which calls are lost with a replica.
"""

from __future__ import annotations

import os
from typing import Iterator, List

import local
import pytest
from router import HttpRouter, LeastQueue, Load, PrefixAffinity, stream_completion

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


def test_the_fewest_requests_decide_unless_a_beginning_is_cached() -> None:
    least = LeastQueue(3)
    least.loads = [Load(running=2), Load(), Load(waiting=1)]
    # Each pick counts until the metrics are read again.
    assert [least.pick("") for _ in range(4)] == [1, 1, 2, 0]
    prefix = PrefixAffinity(3)
    first = prefix.pick("a" * 1024)
    assert prefix.pick("b" * 1024) != first
    prefix.loads = [Load(running=4) for _ in range(3)]
    assert prefix.pick("a" * 1024 + "c" * 100) == first
    # A fifth of the blocks is not worth the longest queue, nor the most requests.
    for letter, busy in (("d", Load(waiting=1)), ("e", Load(running=1))):
        prefix.loads = [busy if replica == first else Load() for replica in range(3)]
        assert prefix.pick("a" * 256 + letter * 1024) != first
    prefix.loads = [Load(kv_usage=0.5), Load(kv_usage=0.5), Load(kv_usage=0.25)]
    assert [prefix.pick("") for _ in range(2)] == [2, 2]


def test_a_prompt_goes_where_its_beginning_is_cached(weir_installed: None) -> None:
    flags = ["--threads", "1", "--http-listen", "127.0.0.1:0", "--http-metrics", "--cache-memory", "64MiB"]
    with local.Server(*flags) as one, local.Server(*flags) as two:
        with HttpRouter([server.listener("playground") for server in (one, two)], PrefixAffinity(2)) as router:
            for number in range(6):
                prompt = "the city has walls " * 60 + "and gates " * number
                assert stream_completion(router.address, {"prompt": prompt, "max_tokens": 2, "seed": 1})[1]
        queries = [server.metric("prefix_cache_queries_total") for server in (one, two)]
        hits = [server.metric("prefix_cache_hits_total") for server in (one, two)]
    assert min(queries) == 0 and max(hits) > 0.7 * max(queries)
