"""Tests failures: the errors that the client raises, and retries."""

from __future__ import annotations

import asyncio
import threading
import time
import traceback
from types import SimpleNamespace
from typing import Any, List, Optional

import grpc
import local
import pytest
from scripted import Fail, Scripted, finished, piece, started

from weir_client import AsyncClient, Client, Piece, Retry, WeirError
from weir_client._proto import generation_pb2 as pb
from weir_client._retry import Attempts

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
COMPLETE = [started(), piece("a "), piece("text"), finished()]
FAST_RETRY = Retry(attempts=4, first_delay=0.01, longest_delay=1.0)


def generate(fake: Scripted, kind: str, **options: Any) -> str:
    """Returns the text that the blocking or the asyncio client receives."""
    settings: Any = {"retry": options.pop("retry", FAST_RETRY)}

    async def ask() -> str:
        async with AsyncClient(fake.address, **settings) as client:
            return (await client.generate("a", **options)).text

    if kind == "asyncio":
        return asyncio.run(ask())
    with Client(fake.address, **settings) as client:
        return client.generate("a", **options).text


both = pytest.mark.parametrize("kind", ["blocking", "asyncio"])


@both
@pytest.mark.parametrize(
    "failure",
    [[Fail(UNAVAILABLE)], [Fail(UNAVAILABLE, 0.01)], [Fail(EXHAUSTED, 0.01)], [started(), Fail(UNAVAILABLE)]],
)
def test_retry_before_the_first_character(kind: str, failure: List[Any]) -> None:
    with Scripted(failure, failure, COMPLETE) as fake:
        assert generate(fake, kind) == "a text"
        assert len(fake.received) == 3


@both
@pytest.mark.parametrize(
    "failure",
    [
        [Fail(EXHAUSTED)],
        [Fail(EXHAUSTED, 30.0)],
        [Fail(grpc.StatusCode.INTERNAL, 0.01)],
        [Fail(grpc.StatusCode.INVALID_ARGUMENT)],
        [started(), piece("a "), Fail(UNAVAILABLE, 0.01)],
        [started(), finished(), Fail(UNAVAILABLE, 0.01)],
    ],
)
def test_no_retry_after_the_first_character_or_for_permanent_errors(kind: str, failure: List[Any]) -> None:
    with Scripted(failure, COMPLETE) as fake:
        with pytest.raises(WeirError) as error:
            generate(fake, kind)
        assert len(fake.received) == 1
        assert (error.value.code, error.value.message, error.value.request_id) == (
            failure[-1].code,
            "scripted",
            "scripted-1",
        )
        assert error.value.retry_after == pytest.approx(failure[-1].retry_after)


@both
def test_attempts_are_bounded(kind: str) -> None:
    with Scripted(*[[Fail(UNAVAILABLE)]] * 9) as fake:
        with pytest.raises(WeirError):
            generate(fake, kind)
        assert len(fake.received) == 4
        with pytest.raises(WeirError):
            generate(fake, kind, retry=Retry(attempts=1))
        assert len(fake.received) == 5


@both
def test_the_deadline_covers_all_attempts(kind: str) -> None:
    patient = Retry(attempts=4, first_delay=0.01, longest_delay=5.0)
    with Scripted(*[[Fail(EXHAUSTED, 1.5)]] * 9) as fake:
        with pytest.raises(WeirError) as error:
            generate(fake, kind, timeout=2.5, retry=patient)
        assert error.value.code is EXHAUSTED
        timeouts = [seconds for _, seconds in fake.received if seconds is not None]
        # The client starts no pause that would end after the deadline, which is the case for the first one if it is slow.
        # gRPC rounds a timeout of some seconds up to hundredths.
        assert 1 <= len(timeouts) <= 2 and timeouts[0] <= 2.51
        assert timeouts[1:] == [] or timeouts[1] < timeouts[0] - 1.25


@both
def test_closing_a_client_ends_its_calls(kind: str) -> None:
    is_closed = threading.Event()

    def read(client: Client) -> None:
        stream = client.stream("a", resume=True)
        assert next(stream).text == "a "
        closing = threading.Timer(0.05, client.close)
        closing.start()
        try:
            next(stream)
        finally:
            closing.join()

    async def main(address: str) -> None:
        client = AsyncClient(address, retry=FAST_RETRY)
        stream = client.stream("a", resume=True)
        assert (await anext(stream)).text == "a "
        waiting = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0.05)
        await client.close()
        await waiting

    async def anext(stream: Any) -> Piece:
        received: Piece = await stream.__anext__()
        return received

    with Scripted([started(), piece("a ", ids=True), is_closed, finished()]) as fake:
        try:
            with pytest.raises(WeirError, match="CANCELLED: the client is closed"):
                if kind == "asyncio":
                    asyncio.run(main(fake.address))
                else:
                    client = Client(fake.address, retry=FAST_RETRY)
                    read(client)
        finally:
            is_closed.set()
        assert len(fake.received) == 1
    if kind == "blocking":
        with pytest.raises(WeirError, match="the client is closed"):
            client.generate("a")


def test_the_timeout_of_a_stream_counts_from_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    with monkeypatch.context() as patched:
        patched.setattr("weir_client._retry.time.monotonic", lambda: now)
        attempts = Attempts(Retry(), 10.0)
        now = 150.0
        assert attempts.remaining() == 10.0
        now = 154.0
        assert attempts.remaining() == 6.0


@both
def test_incomplete_response_is_an_error(kind: str) -> None:
    with Scripted([started(), piece("a ")]) as fake:
        with pytest.raises(WeirError, match="UNKNOWN: the response ended before its last message"):
            generate(fake, kind)


@both
def test_messages_longer_than_the_grpc_default(kind: str) -> None:
    long = "a" * (5 << 20)
    with Scripted([started(), piece(long), finished()]) as fake:
        assert generate(fake, kind) == long


def test_pauses_follow_retry_after() -> None:
    def pauses(retry: Retry, retry_after: Optional[float]) -> List[float]:
        error = WeirError(UNAVAILABLE, "")
        error.retry_after = retry_after
        attempts = Attempts(retry, None)
        return [attempts.pause_after(error, begun=False) for _ in range(retry.attempts - 1)]

    for _ in range(50):
        assert all(2.0 <= pause <= 2.4 for pause in pauses(Retry(), 2.0))
        assert all(9.9 <= pause <= 10.0 for pause in pauses(Retry(), 9.9))
        for number, pause in enumerate(pauses(Retry(attempts=40), None)):
            longest = min(0.1 * 2.0**number, 10.0)
            assert longest / 2 <= pause <= longest


@pytest.mark.parametrize("wrong", [{"attempts": 0}, {"first_delay": -1.0}, {"first_delay": 3.0, "longest_delay": 2.0}])
def test_bounds_of_retries(wrong: Any) -> None:
    with pytest.raises(ValueError, match="attempts|first_delay"):
        Retry(**wrong)


def test_headers_of_a_call() -> None:
    with Scripted(*[COMPLETE] * 5) as fake:
        with Client(fake.address, api_key="k" * 16, affinity_chars=4) as client:
            client.generate("the first")
            client.generate("the second", metadata=[("traceparent", "00-0-0-00")])
            client.generate("another")
            client.generate("another", affinity="the ")
        with Client(fake.address) as client:
            client.generate("the first")
    headers = [dict(metadata) for metadata, _ in fake.received]
    digests = [call.get("weir-affinity") for call in headers]
    assert digests[0] == digests[1] == digests[3] != digests[2]
    assert digests[0] is not None and len(digests[0]) == 16
    assert digests[4] is None
    assert [call.get("authorization") for call in headers] == ["Bearer " + "k" * 16] * 4 + [None]
    assert headers[1]["traceparent"] == "00-0-0-00"
    with pytest.raises(ValueError, match="affinity_chars: expected at least 1, found 0"):
        Client(affinity_chars=0)


def test_field_violations_of_a_bad_request(weir: Client) -> None:
    with pytest.raises(WeirError) as refused:
        weir.generate("a", top_p=3.0)
    error = refused.value
    assert (error.code, error.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "BAD_OPTION")
    assert error.details["bound"] == "0 to 1"
    (violation,) = error.field_violations
    assert violation.field == "sampling.top_p" and "0 to 1" in violation.description
    assert error.request_id is not None and str(error).endswith(f"(request {error.request_id})")


def test_full_queue_is_retried_after_the_delay(weir_installed: None) -> None:
    with local.Server("--rows", "1", "--queue", "1", "--threads", "1") as server:
        once = Client(server.address, retry=Retry(attempts=1), timeout=local.TIMEOUT)
        patient = Client(server.address, retry=Retry(attempts=1000, longest_delay=60), timeout=local.TIMEOUT)
        with once, patient:
            once.wait_until_serving()
            streams = [once.stream("the history", max_chars=8000, seed=n, coalesce_chars=1) for n in range(2)]
            readers = [threading.Thread(target=_drain, args=[stream]) for stream in streams]
            for reader in readers:
                reader.start()
            while server.metric("num_requests_waiting") < 1:
                time.sleep(0.01)
            with pytest.raises(WeirError) as full:
                once.generate("the history", max_chars=5)
            assert (full.value.code, full.value.reason) == (EXHAUSTED, "QUEUE_FULL")
            assert full.value.retry_after is not None and full.value.retry_after > 0
            for stream in streams:
                stream.close()
            assert len(patient.generate("the history", max_chars=5).text) == 5
            for reader in readers:
                reader.join()


def _drain(stream: Any) -> None:
    for _ in stream:
        pass


def test_server_that_starts_late(weir_installed: None) -> None:
    """A retry reaches a server that starts after the first attempt."""
    with local.Server() as first:
        address = first.address
    arrived: List[str] = []
    with Client(address, retry=Retry(attempts=200, first_delay=0.05, longest_delay=0.2)) as client:
        thread = threading.Thread(target=lambda: arrived.append(client.generate("a", max_chars=5).text))
        thread.start()
        with local.Server(listen=address) as server:
            thread.join(local.TIMEOUT)
            assert server.address == address
    assert len(arrived[0]) == 5


def test_pieces_are_returned_as_they_arrive() -> None:
    with Scripted(COMPLETE) as fake, Client(fake.address) as client:
        with client.stream("a") as stream:
            assert next(stream) == Piece("a ", (), False)
            assert stream.started is not None and stream.started.model == "m"


def test_score_is_not_retried_after_a_chunk() -> None:
    chunk = pb.ScoreResponse(chunk=pb.ScoreChunk(characters=[pb.Character(text="a")]))
    summary = pb.ScoreResponse(summary=pb.ScoreSummary(scored_chars=1))
    with Scripted([Fail(UNAVAILABLE)], [chunk, summary], [chunk, Fail(UNAVAILABLE)]) as fake:
        with Client(fake.address, retry=FAST_RETRY) as client:
            assert client.score("a").scored_chars == 1
            with pytest.raises(WeirError, match="UNAVAILABLE"):
                client.score("a")
        assert len(fake.received) == 3


def test_unary_call_is_retried() -> None:
    with Scripted([Fail(UNAVAILABLE)], [pb.SegmentResponse(text="a")]) as fake:
        with Client(fake.address, retry=FAST_RETRY) as client:
            assert client.segment("a").text == "a"


@both
def test_a_missing_server_is_one_error_in_the_traceback(kind: str) -> None:
    fake: Any = SimpleNamespace(address="127.0.0.1:1")
    with pytest.raises(WeirError, match="^UNAVAILABLE: [^\n]+$") as raised:
        generate(fake, kind, retry=Retry(attempts=1))
    shown = "".join(traceback.format_exception(raised.type, raised.value, raised.tb))
    assert (shown.count("Traceback ("), shown.splitlines()[-1]) == (1, f"weir_client._errors.WeirError: {raised.value}")


def test_broken_details_hide_no_error() -> None:
    error = WeirError(UNAVAILABLE, "message")
    error._read(b"\xff\xff\xff")
    assert (str(error), error.reason) == ("UNAVAILABLE: message", None)


def test_a_status_is_kept_if_a_message_can_no_longer_be_sent() -> None:
    async def refuse(messages: Any, context: Any) -> Any:
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "refused")
        yield b""

    class Refusing(grpc.GenericRpcHandler):
        def service(self, details: Any) -> Any:
            return grpc.stream_stream_rpc_method_handler(refuse)

    async def ask() -> None:
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((Refusing(),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with AsyncClient(f"http://127.0.0.1:{port}", retry=Retry(attempts=1)) as client:
            for _ in range(50):
                with pytest.raises(WeirError, match="refused"):
                    async with client.edit("a"):
                        pass
                with pytest.raises(WeirError, match="refused"):
                    await client.summarize("a" * 100_000)
        await server.stop(None)

    asyncio.run(ask())
