"""A router of completions in front of replicas on this machine, for tests and measurements.

A `Policy` picks the replica of each request, as the endpoint picker of a Kubernetes inference gateway does.
"""

from __future__ import annotations

import http.client
import itertools
import json
import re
import threading
import time
import urllib.request
from collections import OrderedDict
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Dict, List, Optional, Sequence, Tuple, Type

#: Seconds between two reads of a replica's metrics, as in llm-d's picker.
SCRAPE_SECONDS = 0.05


@dataclass
class Load:
    """What the metrics of a replica say: requests that wait and that run, and the share of the key-value memory in use."""

    waiting: float = 0.0
    running: float = 0.0
    kv_usage: float = 0.0


def load_of(metrics: str) -> Load:
    """Reads the text of `/metrics`."""

    def total(name: str) -> float:
        return sum(map(float, re.findall(rf"^weir_{name}\{{[^}}]*\}} (\S+)$", metrics, re.MULTILINE)))

    return Load(total("num_requests_waiting"), total("num_requests_running"), total("kv_cache_usage_ratio"))


class Policy:
    """Picks replicas in turn."""

    name = "round robin"

    def __init__(self, replicas: int) -> None:
        self.loads = [Load() for _ in range(replicas)]
        self._turns = itertools.cycle(range(replicas))

    def pick(self, prompt: str) -> int:
        return next(self._turns)


class LeastQueue(Policy):
    """Picks a replica with the fewest requests, as its metrics count them. Among equals it takes turns."""

    name = "least queue"

    def pick(self, prompt: str) -> int:
        first = next(self._turns)
        order = [(first + turn) % len(self.loads) for turn in range(len(self.loads))]
        picked = min(order, key=lambda replica: self.loads[replica].waiting + self.loads[replica].running)
        # The next read of the metrics replaces this.
        self.loads[picked].running += 1
        return picked


def fewest_first(counts: List[float]) -> List[float]:
    """Scores replicas by a count as llm-d does: 1 for the least and 0 for the most, or 1 for all if they are equal."""
    least, most = min(counts), max(counts)
    return [(most - count) / (most - least) if most > least else 1.0 for count in counts]


class PrefixAffinity(Policy):
    """Weighs the share of a prompt's blocks that a replica has been sent before against its load.

    The blocks and the scorers are those of `deploy/kubernetes/gateway`.
    """

    name = "prefix affinity"
    #: Characters of a block: 64 of the picker's tokens, of four characters each.
    block = 256
    #: Blocks that are remembered of each replica.
    capacity = 64
    weights = {
        "prefix-cache-scorer": 3,
        "queue-scorer": 2,
        "running-requests-size-scorer": 2,
        "kv-cache-utilization-scorer": 1,
    }

    def __init__(self, replicas: int) -> None:
        super().__init__(replicas)
        self._sent: List[OrderedDict[int, None]] = [OrderedDict() for _ in range(replicas)]

    def pick(self, prompt: str) -> int:
        hashes: List[int] = []
        for start in range(0, len(prompt), self.block):
            hashes.append(hash((hashes[-1] if hashes else 0, prompt[start : start + self.block])))
        known = [sum(1 for _ in itertools.takewhile(sent.__contains__, hashes)) for sent in self._sent]
        scores = {
            "prefix-cache-scorer": [count / max(len(hashes), 1) for count in known],
            "queue-scorer": fewest_first([load.waiting for load in self.loads]),
            "running-requests-size-scorer": fewest_first([load.running for load in self.loads]),
            "kv-cache-utilization-scorer": [1 - load.kv_usage for load in self.loads],
        }
        replicas = range(len(self.loads))
        totals = [sum(self.weights[name] * each[replica] for name, each in scores.items()) for replica in replicas]
        first = next(self._turns)
        picked = max(replicas, key=lambda replica: (totals[replica], -((replica - first) % len(totals))))
        sent = self._sent[picked]
        for block in hashes:
            sent[block] = None
            sent.move_to_end(block)
        while len(sent) > self.capacity:
            sent.popitem(last=False)
        return picked


class HttpRouter:
    """Forwards completions to the HTTP ports `replicas`, each to the one that `policy` picks."""

    def __init__(self, replicas: Sequence[str], policy: Policy) -> None:
        self._replicas = replicas
        self._policy = policy
        self._lock = threading.Lock()
        self._ended = threading.Event()
        router = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                router._forward(self)

            def log_message(self, format: str, *args: object) -> None:
                """Logs nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address = "127.0.0.1:{}".format(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        for index in range(len(replicas)):
            threading.Thread(target=self._scrape, args=[index], daemon=True).start()

    def _scrape(self, index: int) -> None:
        while not self._ended.wait(SCRAPE_SECONDS):
            try:
                with urllib.request.urlopen(f"http://{self._replicas[index]}/metrics", timeout=1) as answer:
                    load = load_of(answer.read().decode())
            except OSError:
                continue
            with self._lock:
                self._policy.loads[index] = load

    def _forward(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers["content-length"]))
        prompt = str(json.loads(body)["prompt"])
        with self._lock:
            picked = self._policy.pick(prompt)
        connection = http.client.HTTPConnection(self._replicas[picked], timeout=600)
        connection.request("POST", request.path, body, {"content-type": "application/json"})
        answer = connection.getresponse()
        request.send_response(answer.status)
        request.end_headers()
        while part := answer.read1(1 << 16):
            request.wfile.write(part)
            request.wfile.flush()
        connection.close()

    def __enter__(self) -> HttpRouter:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self._ended.set()
        self._server.shutdown()
        self._server.server_close()


def stream_completion(address: str, body: Dict[str, object]) -> Tuple[float, str]:
    """Streams a completion. Returns the seconds to its first character, and its text."""
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=600)
    begun = time.perf_counter()
    encoded = json.dumps({**body, "stream": True})
    connection.request("POST", "/v1/completions", encoded, {"content-type": "application/json"})
    answer = connection.getresponse()
    first: Optional[float] = None
    text = ""
    for line in answer:
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        if "error" in event:
            raise RuntimeError(event["error"])
        text += "".join(choice["text"] for choice in event["choices"])
        if text and first is None:
            first = time.perf_counter() - begun
    connection.close()
    if first is None:
        raise RuntimeError(f"the completion has no character: status {answer.status}")
    return first, text
