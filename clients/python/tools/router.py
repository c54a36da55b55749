"""A router in front of replicas on this machine, for tests and measurements: it forwards connections, and picks a replica for each.

A connection to `listen` goes to the next replica that accepts it, and breaks when the replica dies. A request to `http` is a
completion, for which a `Policy` picks the replica, as the endpoint picker of a Kubernetes inference gateway does.
"""

from __future__ import annotations

import http.client
import itertools
import json
import re
import select
import socket
import threading
import time
import urllib.request
from collections import OrderedDict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Dict, List, Optional, Sequence, Tuple, Type

#: Seconds between two reads of a replica's metrics, as in llm-d's picker.
SCRAPE_SECONDS = 0.05
#: Seconds for which a connection waits for a replica that accepts it.
PATIENCE_SECONDS = 30.0


class TcpRouter:
    """Forwards each connection to one of `replicas`, in turn."""

    def __init__(self, replicas: Sequence[str]) -> None:
        self._turns = itertools.cycle(replicas)
        self._replicas = len(replicas)
        self._lock = threading.Lock()
        self._sockets: List[socket.socket] = []
        #: Connections that a replica broke after it had sent bytes on them.
        self.broken = 0

    def listen(self) -> str:
        """Opens a port of its own, so that a client of this process shares no connection with others; returns its address."""
        listener = socket.create_server(("127.0.0.1", 0))
        self._sockets.append(listener)
        threading.Thread(target=self._accept, args=[listener], daemon=True).start()
        return "127.0.0.1:{}".format(listener.getsockname()[1])

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            self._sockets.append(client)
            threading.Thread(target=self._forward, args=[client], daemon=True).start()

    def _connect(self) -> socket.socket:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            for _ in range(self._replicas):
                with self._lock:
                    host, _, port = next(self._turns).rpartition(":")
                try:
                    return socket.create_connection((host, int(port)), 1)
                except OSError:
                    continue
            if time.monotonic() > deadline:
                raise ConnectionError("no replica accepts connections")
            time.sleep(0.02)

    def _forward(self, client: socket.socket) -> None:
        with client, self._connect() as replica:
            replica.settimeout(None)
            other = {client: replica, replica: client}
            answered = False
            while True:
                for source in select.select([client, replica], [], [])[0]:
                    try:
                        data = source.recv(1 << 16)
                        other[source].sendall(data)
                    except OSError:
                        data = b""
                    answered |= source is replica and bool(data)
                    if not data:
                        self.broken += int(source is replica and answered)
                        return

    def __enter__(self) -> TcpRouter:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        for end in self._sockets:
            end.close()


class Policy:
    """Picks replicas in turn."""

    name = "round robin"

    def __init__(self, replicas: int) -> None:
        self.loads = [0.0] * replicas
        self._turns = itertools.cycle(range(replicas))

    def pick(self, prompt: str) -> int:
        return next(self._turns)


class LeastQueue(Policy):
    """Picks a replica with the fewest requests, as its metrics count them. Among equals it takes turns."""

    name = "least queue"

    def pick(self, prompt: str) -> int:
        first = next(self._turns)
        order = [(first + turn) % len(self.loads) for turn in range(len(self.loads))]
        picked = min(order, key=lambda replica: self.loads[replica])
        # The next read of the metrics replaces this.
        self.loads[picked] += 1
        return picked


class PrefixAffinity(LeastQueue):
    """Weighs the share of a prompt's blocks that a replica has been sent before against its requests.

    The blocks, and the weights of both scores, are those of `deploy/kubernetes/gateway`. The score of the queue is 1 for the
    replica with the fewest requests and 0 for that with the most, as the scorer of llm-d computes it.
    """

    name = "prefix affinity"
    #: Characters of a block: 64 of the picker's tokens, of four characters each.
    block = 256
    #: Blocks that are remembered of each replica.
    capacity = 64
    prefix_weight = 3.0
    queue_weight = 2.0

    def __init__(self, replicas: int) -> None:
        super().__init__(replicas)
        self._sent: List[OrderedDict[int, None]] = [OrderedDict() for _ in range(replicas)]

    def pick(self, prompt: str) -> int:
        hashes: List[int] = []
        for start in range(0, len(prompt), self.block):
            hashes.append(hash((hashes[-1] if hashes else 0, prompt[start : start + self.block])))
        known = [sum(1 for _ in itertools.takewhile(sent.__contains__, hashes)) for sent in self._sent]
        fewest, most = min(self.loads), max(self.loads)
        spread = most - fewest or 1.0

        def score(replica: int) -> float:
            queue = (most - self.loads[replica]) / spread if most > fewest else 1.0
            return self.prefix_weight * known[replica] / max(len(hashes), 1) + self.queue_weight * queue

        best = max(map(score, range(len(self.loads))))
        equals = [replica for replica in range(len(self.loads)) if score(replica) == best]
        first = next(self._turns)
        picked = min(equals, key=lambda replica: (replica - first) % len(self.loads))
        self.loads[picked] += 1
        sent = self._sent[picked]
        for block in hashes:
            sent[block] = None
            sent.move_to_end(block)
        while len(sent) > self.capacity:
            sent.popitem(last=False)
        return picked


def requests_of(metrics: str) -> float:
    """Returns the requests that wait and run, from the text of `/metrics`."""
    found = re.findall(r"^weir_num_requests_(?:waiting|running)\{[^}]*\} (\S+)$", metrics, re.MULTILINE)
    return sum(map(float, found))


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
                    requests = requests_of(answer.read().decode())
            except OSError:
                continue
            with self._lock:
                self._policy.loads[index] = requests

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
