#!/usr/bin/env python3
"""Measures what the choice of the replica is worth: hits in the segment cache, and the time to the first character.

    python tools/affinity.py [--json FILE]            # needs a weir program, see local.py

Four replicas on this machine serve one load through `router.py`, which chooses the replica of each request in turn, by the fewest
requests, or by the prompt's prefix as `deploy/kubernetes/gateway` does. Half of the load are editing sessions: a document, and after
each change of its end a completion of a few characters. The other half are questions behind shared prompts. Each way to choose gets
the same requests, and new replicas.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import functools
import json
import os
import platform
import random
import statistics
import time
from pathlib import Path
from typing import Any, Dict, List, Type

import local
from router import HttpRouter, LeastQueue, Policy, PrefixAffinity, stream_completion

WORDS = (local.ROOT / "src/report/english.txt").read_text().split()
REPLICAS = 4
POLICIES: List[Type[Policy]] = [Policy, LeastQueue, PrefixAffinity]
#: Editing sessions and shared prompts, with the characters of each at first.
SESSIONS = 16
DOCUMENT = 1200
SHARED = 8
PREAMBLE = 1000
#: Characters of a question, and of its answer and of a completion.
QUESTION = 60
ANSWER = 24
COMPLETION = 8


def text(order: random.Random, chars: int) -> str:
    """Returns words in random order."""
    return " ".join(order.choices(WORDS, k=chars))[:chars]


def requests(rounds: int) -> List[List[str]]:
    """Returns the prompts of each round, one for each session and as many questions."""
    order = random.Random(1)
    documents = [text(order, DOCUMENT) for _ in range(SESSIONS)]
    preambles = [text(order, PREAMBLE) for _ in range(SHARED)]
    all_rounds = []
    for _ in range(rounds):
        for number, document in enumerate(documents):
            # The writer deletes some characters and types others.
            kept = document[: len(document) - order.randrange(20)]
            documents[number] = kept + text(order, order.randrange(20, 60))
        questions = [order.choice(preambles) + text(order, QUESTION) for _ in range(SESSIONS)]
        prompts = documents + questions
        order.shuffle(prompts)
        all_rounds.append(prompts)
    return all_rounds


def measure(policy: Type[Policy], rounds: int, clients: int, cache: str) -> Dict[str, Any]:
    """Runs the load against new replicas."""
    flags = ["--threads", "1", "--http-listen", "127.0.0.1:0", "--http-metrics", "--cache-memory", cache]
    server = functools.partial(local.Server, *flags, "--kv-memory", "1GiB", model=local.DEFAULT)
    servers = [server() for _ in range(REPLICAS)]
    try:
        with HttpRouter([one.listener("playground") for one in servers], policy(REPLICAS)) as router:

            def ask(prompt: str) -> float:
                # A questioner reads an answer, a writer a completion.
                chars = COMPLETION if len(prompt) >= DOCUMENT else ANSWER
                body: Dict[str, object] = {"prompt": prompt, "max_tokens": chars, "seed": 1}
                return stream_completion(router.address, body)[0] * 1e3

            first: List[float] = []
            begun = time.perf_counter()
            with concurrent.futures.ThreadPoolExecutor(clients) as pool:
                for prompts in requests(rounds):
                    first += pool.map(ask, prompts)
            seconds = time.perf_counter() - begun
        hits, queries = (
            sum(one.metric(f"prefix_cache_{name}_total") for one in servers) for name in ("hits", "queries")
        )
    finally:
        for one in servers:
            one.stop()
    cuts = statistics.quantiles(first, n=100)
    return {
        "policy": policy.name,
        "requests": len(first),
        "hit_rate": round(hits / queries, 4),
        "first_character_p50_ms": round(statistics.median(first), 2),
        "first_character_p99_ms": round(cuts[98], 2),
        "seconds": round(seconds, 2),
    }


def main() -> None:
    """Prints the table, and writes the figures."""
    parser = argparse.ArgumentParser(description="What the choice of the replica is worth.")
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--cache-memory", default="512MiB")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--note", default="", help="what else ran on the machine")
    args = parser.parse_args()
    figures = [measure(policy, args.rounds, args.clients, args.cache_memory) for policy in POLICIES]
    print("| replica chosen by | from the cache | first character, median ms | 99 % |\n|---|---|---|---|")
    for row in figures:
        times = f"{row['first_character_p50_ms']:.1f} | {row['first_character_p99_ms']:.0f}"
        print(f"| {row['policy']} | {row['hit_rate']:.0%} | {times} |")
    if args.json:
        machine = f"{os.cpu_count()} cores, {platform.machine()}"
        load = {
            "rounds": args.rounds,
            "clients": args.clients,
            "replicas": REPLICAS,
            "cache_memory": args.cache_memory,
            "block_chars": PrefixAffinity.block,
        }
        whole = {"model": local.DEFAULT.name, "machine": machine, "note": args.note, **load, "policies": figures}
        args.json.write_text(json.dumps(whole, indent=2) + "\n")


if __name__ == "__main__":
    main()
