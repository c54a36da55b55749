#!/usr/bin/env python3
"""Measures how the segment caches gain when prompts with a common prefix go to one replica.

    python tools/affinity.py            # needs HAProxy and a weir, see local.py

Conversations run in turns through HAProxy with `deploy/haproxy.cfg` and two replicas on this machine. Each prompt is the
whole conversation so far and a new turn. Each way of choosing the replica gets the same conversations and new replicas: once
with caches that hold all conversations, once with caches that hold about half of them. The table lists the share of prompt
characters that came from a cache, how many were computed, and the time to the first character at the clients.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import random
import statistics
import time
from dataclasses import dataclass
from typing import List, Sequence

import local

from weir_client import Client

TEXT = (local.ROOT / "benches/english.txt").read_text()
# What the clients know each other's prompts by: less than any of them begins with.
PREFIX = 200

BOUND = "    hash-balance-factor 150"


@dataclass(frozen=True)
class Plan:
    """The conversations to hold."""

    conversations: int
    turns: int
    #: Characters that a conversation begins with, that its user adds each turn, and that are generated.
    begins: int = 400
    asks: int = 120
    answer: int = 40
    clients: int = 4


@dataclass(frozen=True)
class Way:
    """A way of choosing the replica."""

    name: str
    affinity: bool
    #: What differs from haproxy.cfg.
    changes: Sequence[Sequence[str]] = ()


WAYS = [
    Way("round robin", False, [("balance leastconn", "balance roundrobin")]),
    Way("fewest streams", False),
    Way("`weir-affinity`", True),
    Way("the same, `hash-balance-factor 150`", True, [("    hash-type consistent", f"    hash-type consistent\n{BOUND}")]),
]


@dataclass(frozen=True)
class Figures:
    """The result of one run."""

    hits: float
    queries: float
    first_char_ms: List[float]
    seconds: float

    def row(self, name: str) -> str:
        """A line of the table."""
        cuts = statistics.quantiles(self.first_char_ms, n=20)
        computed = self.queries - self.hits
        return (
            f"| {name} | {self.hits / self.queries:.1%} | {computed:,.0f} "
            f"| {statistics.median(self.first_char_ms):.1f} | {cuts[-1]:.1f} | {self.seconds:.1f} |"
        )


class Conversation:
    """One that goes on; a slice of English for what its user says."""

    def __init__(self, number: int, plan: Plan) -> None:
        start = number * len(TEXT) // plan.conversations
        self._text, self._plan, self._number = (TEXT[start:] + TEXT[:start]), plan, number
        self._said = plan.begins
        self._prompt = self._text[: self._said]

    def turn(self, client: Client) -> float:
        """Milliseconds to the first character."""
        begun = time.perf_counter()
        with client.stream(self._prompt, max_chars=self._plan.answer, seed=self._number) as stream:
            pieces = [next(stream).text]
            first = (time.perf_counter() - begun) * 1e3
            pieces += [piece.text for piece in stream]
        self._prompt += "".join(pieces) + " " + self._text[self._said : self._said + self._plan.asks]
        self._said += self._plan.asks
        return first


def hold(plan: Plan, way: Way, cache: str) -> Figures:
    """All conversations, in rounds of one turn each, in an order that is drawn for each round."""
    flags = ["--late-headers", "--threads", "1", "--kv-memory", "1GiB", "--cache-memory", cache]
    with local.Server(*flags) as a, local.Server(*flags) as b, local.Haproxy([a, b], way.changes) as proxy:
        with Client(proxy.address, timeout=600, affinity_chars=PREFIX if way.affinity else None) as client:
            client.wait_until_serving()
            conversations, order = [Conversation(n, plan) for n in range(plan.conversations)], random.Random(1)
            first: List[float] = []
            begun = time.perf_counter()
            with concurrent.futures.ThreadPoolExecutor(plan.clients) as clients:
                for _ in range(plan.turns):
                    order.shuffle(conversations)
                    first += clients.map(lambda one: one.turn(client), conversations)
            seconds = time.perf_counter() - begun
        hits, queries = (
            sum(one.metric(f"prefix_cache_{name}_total") for one in (a, b)) for name in ("hits", "queries")
        )
    return Figures(hits, queries, first, seconds)


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description="Cache hits with and without affinity.")
    parser.add_argument("--conversations", type=int, default=24)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--caches", default="512MiB,160MiB", help="of each replica, with commas in between")
    args = parser.parse_args()
    plan = Plan(args.conversations, args.turns)
    print(f"{plan}, {os.cpu_count()} cores, {local.MODEL.name}")
    for cache in args.caches.split(","):
        print(f"\ncache of each replica: {cache}\n")
        print("| replica chosen by | from the cache | characters computed | first character, median ms | 95 % | seconds |")
        print("|---|---|---|---|---|---|")
        for way in WAYS:
            print(hold(plan, way, cache).row(way.name), flush=True)


if __name__ == "__main__":
    main()
