"""Tests texts whose replicas die while they are generated: each goes on at another replica, as if nothing had happened.

With WEIR_STORMS=1 the load is 50 streams, of which one of three replicas dies each second for 20 seconds.
"""

from __future__ import annotations

import os
import random
import threading
import time
from typing import Dict, List

import local
from router import HttpRouter, LeastQueue, PrefixAffinity, TcpRouter, stream_completion

from weir_client import Client, Retry

LONG = os.environ.get("WEIR_STORMS") == "1"
STREAMS = 50 if LONG else 8
KILLS = 20 if LONG else 3
FLAGS = ["--threads", "1", "--rows", "64", "--kv-memory", "256MiB"]
CHARS = 300
# A replica that has just started may be killed while it loads: attempts cost nothing, and the router waits for a live one.
RETRY = Retry(attempts=50, first_delay=0.05, longest_delay=1.0)


class Replicas:
    """Three servers with fixed addresses."""

    def __init__(self) -> None:
        self._servers = [local.Server(*FLAGS) for _ in range(3)]
        self.addresses = [server.address for server in self._servers]
        self._starts: List[threading.Thread] = []
        self._alive = set(range(3))
        self._order = random.Random(7)

    def kill_one(self) -> None:
        """Kills a replica that lives, and starts it again at its address in the background."""
        while not self._alive:
            time.sleep(0.01)
        number = self._order.choice(sorted(self._alive))
        self._alive.remove(number)
        self._servers[number].end(killed=True)
        self._starts.append(threading.Thread(target=self._start, args=[number]))
        self._starts[-1].start()

    def _start(self, number: int) -> None:
        self._servers[number].stop()
        self._servers[number] = local.Server(*FLAGS, listen=self.addresses[number])
        self._alive.add(number)

    def stop(self) -> None:
        for start in self._starts:
            start.join()
        for server in self._servers:
            server.stop()


def test_every_text_survives_the_death_of_its_replica(weir_installed: None) -> None:
    prompts = [
        f"{chr(97 + number % 26)} history of the city number {'x' * (number // 26)} " for number in range(STREAMS)
    ]
    options = [
        {"seed": number, "temperature": 0.8, "max_chars": CHARS, "coalesce_chars": 8} for number in range(STREAMS)
    ]
    replicas = Replicas()
    undisturbed: Dict[int, str] = {}
    resumed: List[int] = []
    wrong: List[str] = []
    ended = threading.Event()

    def generate(number: int, address: str) -> None:
        with Client(address, retry=RETRY, timeout=600) as client:
            undisturbed[number] = client.generate(prompts[number], **options[number]).text  # type: ignore[arg-type]
            begin.wait()
            while not ended.is_set():
                answer = client.generate(prompts[number], resume=True, **options[number])  # type: ignore[arg-type]
                resumed.append(answer.usage.resumed_chars)
                if answer.text != undisturbed[number]:
                    wrong.append(f"{number}: {answer.text!r}, not {undisturbed[number]!r}")

    def guarded(number: int, address: str) -> None:
        try:
            generate(number, address)
        except Exception as error:
            wrong.append(f"{number}: {error!r}")
            begin.abort()

    begin = threading.Barrier(STREAMS + 1)
    try:
        with TcpRouter(replicas.addresses) as router:
            threads = [threading.Thread(target=guarded, args=[n, router.listen()]) for n in range(STREAMS)]
            for thread in threads:
                thread.start()
            begin.wait(600)
            for _ in range(KILLS):
                time.sleep(1)
                replicas.kill_one()
            ended.set()
            for thread in threads:
                thread.join(600)
            assert not any(thread.is_alive() for thread in threads)
            broken = router.broken
    finally:
        ended.set()
        replicas.stop()
    assert wrong == []
    assert len(undisturbed) == STREAMS and broken >= KILLS
    continued = sum(chars > 0 for chars in resumed)
    print(f"{len(resumed)} texts, {broken} broken connections, {continued} texts continued at another replica")
    assert continued >= KILLS, (len(resumed), broken)


def test_the_fewest_requests_decide_unless_a_beginning_is_cached() -> None:
    least = LeastQueue(3)
    least.loads = [2.0, 0.0, 1.0]
    # Each pick counts until the metrics are read again.
    assert [least.pick("") for _ in range(4)] == [1, 1, 2, 0]
    prefix = PrefixAffinity(3)
    first = prefix.pick("a" * 1024)
    assert prefix.pick("b" * 1024) != first
    prefix.loads = [4.0, 4.0, 4.0]
    assert prefix.pick("a" * 1024 + "c" * 100) == first
    # A fifth of the blocks is not worth the longest queue.
    prefix.loads = [float(replica == first) for replica in range(3)]
    assert prefix.pick("a" * 256 + "d" * 1024) != first


def test_a_prompt_goes_where_its_beginning_is_cached(weir_installed: None) -> None:
    flags = [*FLAGS, "--http-listen", "127.0.0.1:0", "--http-metrics", "--cache-memory", "64MiB"]
    with local.Server(*flags) as one, local.Server(*flags) as two:
        with HttpRouter([server.listener("playground") for server in (one, two)], PrefixAffinity(2)) as router:
            for number in range(6):
                prompt = "the city has walls " * 60 + "and gates " * number
                assert stream_completion(router.address, {"prompt": prompt, "max_tokens": 2, "seed": 1})[1]
        queries = [server.metric("prefix_cache_queries_total") for server in (one, two)]
        hits = [server.metric("prefix_cache_hits_total") for server in (one, two)]
    assert min(queries) == 0 and max(hits) > 0.7 * max(queries)
