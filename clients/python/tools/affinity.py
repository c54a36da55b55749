#!/usr/bin/env python3
"""Measures the gain in segment-cache hits when prompts with a common prefix go to one replica.

    python tools/affinity.py            # needs HAProxy and a weir program, see local.py

Conversations run in turns through HAProxy with `deploy/haproxy.cfg` and two replicas on this machine. Each prompt is the
conversation before this turn and a new turn. Each balancing method gets the same conversations and new replicas: once with
caches that hold all conversations, once with caches that hold about half of them. The table lists the share of prompt
characters that came from a cache, the number of computed characters, and the time to the first character at the clients.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import functools
import os
import random
import statistics
import time
from dataclasses import dataclass
from typing import List, Sequence

import local

from weir_client import Client

TEXT = (local.ROOT / "src/report/english.txt").read_text()
# Characters of a prompt in the affinity digest: fewer than any conversation begins with.
PREFIX = 200

BOUND = "    hash-balance-factor 150"


@dataclass(frozen=True)
class Plan:
    """The number and the lengths of the conversations."""

    conversations: int
    turns: int
    #: Characters at the beginning of a conversation.
    opening: int = 400
    #: Characters that the user adds in each turn.
    question: int = 120
    #: Characters that the server generates in each turn.
    answer: int = 40
    clients: int = 4


@dataclass(frozen=True)
class Method:
    """A method of choosing the replica."""

    name: str
    affinity: bool
    #: Replacements in haproxy.cfg: old text, new text.
    changes: Sequence[Sequence[str]] = ()


METHODS = [
    Method("round robin", False, [("balance leastconn", "balance roundrobin")]),
    Method("fewest streams", False),
    Method("`weir-affinity`", True),
    Method("the same, `hash-balance-factor 150`", True, [("    hash-type consistent", f"    hash-type consistent\n{BOUND}")]),
]


@dataclass(frozen=True)
class Figures:
    """The result of one run."""

    hits: float
    queries: float
    first_char_ms: List[float]
    seconds: float

    def row(self, name: str) -> str:
        """Returns a row of the table."""
        cuts = statistics.quantiles(self.first_char_ms, n=20)
        computed = self.queries - self.hits
        return (
            f"| {name} | {self.hits / self.queries:.1%} | {computed:,.0f} "
            f"| {statistics.median(self.first_char_ms):.1f} | {cuts[-1]:.1f} | {self.seconds:.1f} |"
        )


class Conversation:
    """A conversation whose user turns are slices of an English text."""

    def __init__(self, number: int, plan: Plan) -> None:
        start = number * len(TEXT) // plan.conversations
        self._text = TEXT[start:] + TEXT[:start]
        self._plan = plan
        self._number = number
        self._used = plan.opening
        self._prompt = self._text[: self._used]

    def turn(self, client: Client) -> float:
        """Runs one turn and returns the milliseconds to the first character."""
        begun = time.perf_counter()
        with client.stream(self._prompt, max_chars=self._plan.answer, seed=self._number) as stream:
            pieces = [next(stream).text]
            first = (time.perf_counter() - begun) * 1e3
            pieces += [piece.text for piece in stream]
        self._prompt += "".join(pieces) + " " + self._text[self._used : self._used + self._plan.question]
        self._used += self._plan.question
        return first


def run(plan: Plan, method: Method, cache: str) -> Figures:
    """Runs all conversations in rounds of one turn each. The order of a round is random."""
    flags = ["--late-headers", "--threads", "1", "--kv-memory", "1GiB", "--cache-memory", cache]
    server = functools.partial(local.Server, *flags, calibration=2000)
    with server() as a, server() as b, local.Haproxy([a, b], method.changes) as proxy:
        with Client(proxy.address, timeout=600, affinity_chars=PREFIX if method.affinity else None) as client:
            client.wait_until_serving()
            while any(report.calibration_pending for report in client.report()):
                time.sleep(0.1)
            conversations = [Conversation(n, plan) for n in range(plan.conversations)]
            order = random.Random(1)
            first: List[float] = []
            begun = time.perf_counter()
            with concurrent.futures.ThreadPoolExecutor(plan.clients) as clients:
                for _ in range(plan.turns):
                    order.shuffle(conversations)
                    first += clients.map(lambda conversation: conversation.turn(client), conversations)
            seconds = time.perf_counter() - begun
        hits, queries = (
            sum(server.metric(f"prefix_cache_{name}_total") for server in (a, b)) for name in ("hits", "queries")
        )
    return Figures(hits, queries, first, seconds)


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description="Cache hits with and without affinity.")
    parser.add_argument("--conversations", type=int, default=24)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--caches", default="512MiB,160MiB", help="cache sizes of each replica, separated by commas")
    args = parser.parse_args()
    plan = Plan(args.conversations, args.turns)
    print(f"{plan}, {os.cpu_count()} cores, {local.MODEL.name}")
    for cache in args.caches.split(","):
        print(f"\ncache of each replica: {cache}\n")
        print("| replica chosen by | from the cache | characters computed | first character, median ms | 95 % | seconds |")
        print("|---|---|---|---|---|---|")
        for method in METHODS:
            print(run(plan, method, cache).row(method.name), flush=True)


if __name__ == "__main__":
    main()
