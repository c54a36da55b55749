"""Tests completions over HTTP and calls that stream their requests through the proxies of `deploy/`.

`tests/weir/deploy.rs` checks which other gRPC calls are lost when a replica dies.
"""

from __future__ import annotations

import http.client
import json
import os
import queue
import socket
import statistics
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Iterator, List, Tuple

import local
import pytest
import summarizer
from proxies import Proxy, Replica, program

from weir_client import Client, Generated, Progress, Retry

MODEL = local.MODEL.name
PROMPT = "the history of the city of "
# Shortens the time-out of buffered requests, which must not apply to calls that stream their requests.
SHORT_BUFFERING = [("60s", "1s")]
# Longer than the time-out in SHORT_BUFFERING.
PAUSE = 1.5


def weir() -> None:
    """Skips the test if no weir program is found."""
    if local.weir_program() is None:
        pytest.skip("no weir program found: set WEIR_BIN or run `cargo build`")


def installed(name: str) -> str:
    """Returns the proxy's name, or skips the test if it is not installed."""
    if program(name) is None:
        assert os.environ.get("WEIR_REQUIRE_PROXIES") != "1", f"{name} is required but not installed"
        pytest.skip(f"{name} is not installed")
    return name


@pytest.fixture(params=["haproxy", "nginx"])
def name(request: Any) -> str:
    """The name of each proxy in turn."""
    return installed(request.param)


@pytest.fixture(scope="module")
def replicas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[List[Replica]]:
    """Two replicas that no test stops, with the model that most tests use and a summarization model."""
    weir()
    flags = ["--model", str(summarizer.make(tmp_path_factory.mktemp("models")))]
    with Replica(*flags) as first, Replica(*flags) as second:
        yield [first, second]


@pytest.fixture
def pair() -> Iterator[List[Replica]]:
    """Two replicas that a test may stop, each with few rows."""
    weir()
    with Replica("--rows", "2") as first, Replica("--rows", "2") as second:
        yield [first, second]


def wait(proxy: Proxy) -> None:
    """Waits until a call through the proxy reaches a ready replica."""
    with Client(proxy.address, timeout=local.TIMEOUT) as client:
        client.wait_until_serving()


def test_an_open_stream_is_answered(name: str, replicas: List[Replica]) -> None:
    """Triton's client keeps its stream open between requests: each is answered before the next is sent."""
    numpy, triton = pytest.importorskip("numpy"), pytest.importorskip("tritonclient.grpc")

    def tensor(name: str, value: Any, kind: str) -> Any:
        tensor = triton.InferInput(name, [1], kind)
        tensor.set_data_from_numpy(numpy.array([value], dtype=bool if kind == "BOOL" else numpy.object_))
        return tensor

    inputs = [
        tensor("text_input", PROMPT.encode(), "BYTES"),
        tensor("stream", True, "BOOL"),
        tensor("sampling_parameters", b'{"max_tokens": 5}', "BYTES"),
    ]
    answers: "queue.Queue[Tuple[Any, Any]]" = queue.Queue()
    with Proxy(name, replicas, SHORT_BUFFERING) as proxy:
        wait(proxy)
        with triton.InferenceServerClient(proxy.address) as client:
            client.start_stream(lambda result, error: answers.put((result, error)))
            for number in range(2):
                client.async_stream_infer(MODEL, inputs, request_id=str(number))
                last = False
                while not last:
                    result, error = answers.get(timeout=local.TIMEOUT)
                    assert error is None and result.get_response().id == str(number)
                    last = result.get_response().parameters["triton_final_response"].bool_param
                time.sleep(PAUSE)
            client.stop_stream()


def test_a_document_is_read_while_it_is_sent(name: str, replicas: List[Replica]) -> None:
    """Sends the second part a while after an event has reported that the server read the first part."""
    read = threading.Event()

    def parts() -> Iterator[str]:
        yield "the river runs past the mill. " * 3
        assert read.wait(local.TIMEOUT), "no event arrived for the first part"
        time.sleep(PAUSE)
        yield "and under the old bridge. "

    kinds = []
    with Proxy(name, replicas, SHORT_BUFFERING) as proxy, Client(proxy.address, timeout=local.TIMEOUT) as client:
        client.wait_until_serving()
        for event in client.summarize_stream(parts(), model="summarizer", max_tokens=9):
            kinds.append(type(event))
            read.set()
    assert kinds[0] is Progress and kinds[-1] is not Progress


def post(address: str, body: Any, **headers: str) -> http.client.HTTPResponse:
    """Posts a completion and returns the response once its headers have arrived."""
    connection = http.client.HTTPConnection(address, timeout=local.TIMEOUT)
    text = body if isinstance(body, bytes) else json.dumps({"model": MODEL, **body}).encode()
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request("POST", "/v1/completions", text, {"content-type": "application/json", **headers})
    return connection.getresponse()


def events(answer: http.client.HTTPResponse) -> Iterator[str]:
    """Yields the texts of a stream; raises if the stream breaks off."""
    assert answer.status == 200, answer.read()
    while (line := answer.readline().strip()) != b"data: [DONE]":
        assert line or not answer.isclosed(), "the stream ended before [DONE]"
        if line:
            yield json.loads(line[len(b"data: ") :])["choices"][0]["text"]


def test_a_completion_arrives_incrementally(name: str, replicas: List[Replica]) -> None:
    with Proxy(name, replicas) as proxy:
        wait(proxy)
        answer = post(proxy.http, {"prompt": PROMPT, "max_tokens": 400, "stream": True, "ignore_eos": True})
        text = ""
        times = [time.monotonic()]
        for piece in events(answer):
            text += piece
            times.append(time.monotonic())
    assert len(text) == 400
    gaps = [after - before for before, after in zip(times, times[1:])]
    # If a proxy collected events, most gaps would be near zero and a few would be long.
    assert statistics.median(gaps) * len(gaps) > 0.1 * sum(gaps), gaps


def test_a_disconnected_client_keeps_no_row(name: str, replicas: List[Replica]) -> None:
    def generated() -> float:
        return sum(replica.metric("generation_tokens_total") for replica in replicas)

    with Proxy(name, replicas) as proxy:
        wait(proxy)
        before = generated()
        answer = post(proxy.http, {"prompt": PROMPT, "max_tokens": 4000, "stream": True, "ignore_eos": True})
        next(events(answer))
        answer.close()
        deadline = time.monotonic() + local.TIMEOUT
        while any(replica.metric("num_requests_running") for replica in replicas):
            assert time.monotonic() < deadline, "a row is still taken after the client disconnected"
        assert generated() - before < 2000


def test_the_server_itself_refuses_a_long_request(name: str, replicas: List[Replica]) -> None:
    with Proxy(name, replicas) as proxy:
        wait(proxy)
        answer = post(proxy.http, {"prompt": "a" * 5_000_000})
        assert answer.status == 413 and "4194304" in json.loads(answer.read())["error"]["message"]


# Characters of a completion.
LENGTH = 300


@pytest.mark.parametrize("how", ["killed", "terminated"])
def test_no_completion_without_a_character_is_lost(name: str, pair: List[Replica], how: str) -> None:
    is_over = threading.Event()

    def ask(seed: int) -> str:
        text = ""
        try:
            body = {"prompt": PROMPT, "max_tokens": LENGTH, "stream": True, "seed": seed, "ignore_eos": True}
            for piece in events(post(proxy.http, body)):
                text += piece
            return "complete" if len(text) == LENGTH else f"lost: {text}"
        except (AssertionError, OSError, ValueError, http.client.HTTPException) as error:
            return "cut" if text else f"lost: {error!r}"

    def ask_until_over(seed: int) -> List[str]:
        outcomes = [ask(seed)]
        while not is_over.is_set():
            outcomes.append(ask(seed))
        return outcomes

    def busy(replica: Replica) -> bool:
        return replica.metric("num_requests_waiting") >= 1 and replica.metric("generation_tokens_total") >= 40

    with Proxy(name, pair) as proxy, ThreadPoolExecutor(32) as threads:
        wait(proxy)
        early = [threads.submit(ask_until_over, seed) for seed in range(16)]
        try:
            deadline = time.monotonic() + local.TIMEOUT
            while not all(map(busy, pair)):
                assert time.monotonic() < deadline, "both replicas are never busy"
            pair[0].end(killed=how == "killed")
        finally:
            is_over.set()
        late = [threads.submit(ask, seed) for seed in range(16)]
        outcomes = [outcome for future in early for outcome in future.result()]
        # Only texts that had begun at the replica are cut, and only if it did not shut down.
        assert set(outcomes) <= ({"complete", "cut"} if how == "killed" else {"complete"}), outcomes
        assert [future.result() for future in late] == ["complete"] * 16
        # Without a replica, the error has the form that OpenAI's clients expect.
        for replica in pair:
            replica.stop()
        answer = post(proxy.http, {"prompt": PROMPT})
        error = json.loads(answer.read())["error"]
        assert (answer.status, answer.headers["retry-after"], error["code"]) == (503, "1", "unavailable")


# Streams, and replicas of three that die under them.
STREAMS = 50 if os.environ.get("WEIR_LONG_RUNS") == "1" else 20
KILLS = 20 if os.environ.get("WEIR_LONG_RUNS") == "1" else 5
# The second replica in each proxy's file.
SECOND = {
    "haproxy": "server b 127.0.0.1:50052 port 9092 check-proto h1\n",
    "nginx": "server 127.0.0.1:50052 max_fails=3 fail_timeout=2s;\n",
}


def test_texts_go_on_at_other_replicas(name: str) -> None:
    """Each second a replica dies, and starts again: every text is as if nothing had happened."""
    weir()
    second = SECOND[name]
    third = second.replace(" b ", " c ").replace("50052", "50053").replace("9092", "9093")
    replicas = [Replica() for _ in range(3)]
    # A replica that just started may die before it answers, and two may be away.
    retry = Retry(attempts=50, first_delay=0.05, longest_delay=1.0)
    options: Any = {"max_chars": LENGTH, "temperature": 0.8, "coalesce_chars": 8, "ignore_eos": True}
    is_over = threading.Event()

    def ask(seed: int, resume: bool = False) -> Generated:
        return client.generate(f"{chr(97 + seed % 26)} {PROMPT}", seed=seed, resume=resume, **options)

    def ask_until_over(seed: int) -> List[Generated]:
        texts = []
        while not is_over.is_set():
            texts.append(ask(seed, resume=True))
        return texts

    def start_again(number: int) -> None:
        replicas[number].stop()
        replicas[number] = Replica(listen=replicas[number].address, admin=replicas[number].admin)

    try:
        with Proxy(name, replicas, [(second, second + third)]) as proxy:
            wait(proxy)
            with Client(proxy.address, timeout=local.TIMEOUT, retry=retry) as client, ThreadPoolExecutor(64) as threads:
                undisturbed = list(threads.map(ask, range(STREAMS)))
                asked = [threads.submit(ask_until_over, seed) for seed in range(STREAMS)]
                starts: List[Future[None]] = []
                try:
                    for number in range(KILLS):
                        time.sleep(1)
                        if number >= 3:
                            starts[number - 3].result(local.TIMEOUT)
                        replicas[number % 3].end(killed=True)
                        starts.append(threads.submit(start_again, number % 3))
                finally:
                    is_over.set()
                texts = [future.result() for future in asked]
    finally:
        for replica in replicas:
            replica.stop()
    for whole, parts in zip(undisturbed, texts):
        assert {(part.text, part.reason) for part in parts} == {(whole.text, whole.reason)}
    resumed = sum(part.usage.resumed_chars > 0 for parts in texts for part in parts)
    print(f"{name}: {sum(map(len, texts))} texts, {resumed} of them resumed at another replica")
    assert resumed >= KILLS


@pytest.mark.parametrize("sender", ["the client", "the proxy"])
def test_prompts_with_a_common_prefix_use_one_cache(pair: List[Replica], sender: str) -> None:
    """The affinity header comes from the client, or from the line of haproxy-http.cfg that computes it from the prompt."""
    line = "# http-request set-header weir-affinity"
    changes = [] if sender == "the client" else [(line, line[2:]), ("bytes(0,200)", "bytes(0,20)")]

    def cached(prompt: str) -> int:
        headers = {"weir_affinity": prompt[:20]} if sender == "the client" else {}
        answer = json.loads(post(proxy.http, {"prompt": prompt, "max_tokens": 5}, **headers).read())
        return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

    with Proxy(installed("haproxy"), pair, changes) as proxy:
        wait(proxy)
        prompts = [f"{chr(97 + n)} {PROMPT}{chr(97 + n)} and what became of it " for n in range(12)]
        assert [cached(prompt) for prompt in prompts] == [0] * 12
        assert all(cached(prompt + "in the end") >= len(prompt) - 1 for prompt in prompts)
        # Both replicas served some of them.
        assert min(replica.metric("prefix_cache_queries_total") for replica in pair) > 0
        # A request without a prompt, or with several prompts, goes to any replica.
        assert post(proxy.http, {}).status == 400
        assert post(proxy.http, {"prompt": [PROMPT, PROMPT], "max_tokens": 5}).status == 200


class EditSocket:
    """A WebSocket of `/v1/edit`, with only what the test needs: short text messages, and no pings."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=local.TIMEOUT)
        self._file = self._socket.makefile("rb")
        fields = ["upgrade: websocket", "connection: Upgrade", "sec-websocket-version: 13", "sec-websocket-key: " + "A" * 22 + "=="]
        head = [f"GET /v1/edit HTTP/1.1\r\nhost: {address}", f"origin: http://{address}", *fields, "\r\n"]
        self._socket.sendall("\r\n".join(head).encode())
        self.head = b"".join(iter(self._file.readline, b"\r\n")).decode()

    def send(self, message: Any) -> None:
        """Sends a message of at most 125 bytes, masked with zeros."""
        data = json.dumps(message).encode()
        self._socket.sendall(bytes([0x81, 0x80 | len(data), 0, 0, 0, 0]) + data)

    def receive(self) -> bytes:
        """Returns the next frame's data."""
        length = self._file.read(2)[1]
        if length == 126:
            length = int.from_bytes(self._file.read(2), "big")
        return self._file.read(length)

    def close(self) -> None:
        """Closes the connection."""
        self._file.close()
        self._socket.close()


def test_a_websocket_passes_and_ends_with_its_replica(name: str, pair: List[Replica]) -> None:
    """A session through a proxy is closed when its replica shuts down, and another one opens on the other replica."""
    with Proxy(name, pair, SHORT_BUFFERING) as proxy:
        wait(proxy)
        session = EditSocket(proxy.http)
        assert session.head.startswith("HTTP/1.1 101 "), session.head
        session.send({"open": {"text": PROMPT}})
        applied = {"revision": 0, "text_bytes": len(PROMPT), "normalized_chars": 0}
        assert json.loads(session.receive()) == {"applied": applied}
        # Longer than the time-out of requests.
        time.sleep(PAUSE)
        session.send({"complete": {"id": 1, "cursor_byte": len(PROMPT)}})
        assert json.loads(session.receive())["completions"]["items"]
        holder = next(replica for replica in pair if replica.metric("edit_sessions") > 0)
        holder.end(killed=False)
        assert json.loads(session.receive()) == {"closed": {"reason": "draining"}}
        assert session.receive()[:2] == (1001).to_bytes(2, "big")
        session.close()
        again = EditSocket(proxy.http)
        assert again.head.startswith("HTTP/1.1 101 "), again.head
        again.send({"open": {"text": PROMPT}})
        assert "applied" in json.loads(again.receive())
        again.close()
