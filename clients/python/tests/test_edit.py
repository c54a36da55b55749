"""Tests editing sessions, blocking and asyncio, with a real server."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from typing import Any, Callable, List

import grpc
import local
import pytest

from weir_client import AsyncClient, Client, WeirError
from weir_client._proto import editing_pb2 as pb

TEXT = "the history of the ci"


def test_a_document_is_edited(weir: Client) -> None:
    with weir.edit(TEXT) as document:
        completions = document.complete(count=3, until="word")
        assert [item.text for item in completions.items][0] == "ty" and len(completions.items) == 3
        assert completions.items[0].logprob > completions.items[2].logprob
        # Other tests may have left the beginning in the cache.
        assert completions.revision == 0 and completions.recomputed_chars > 0
        assert completions.reused_chars + completions.recomputed_chars == len(TEXT)
        applied = document.splice(len(TEXT), len(TEXT), "t")
        assert (applied.revision, applied.text_bytes, applied.normalized_chars) == (1, len(TEXT) + 1, 0)
        again = document.complete(until="word")
        assert [item.text for item in again.items] == ["y"] and again.reused_chars > 0
        assert (document.text, document.revision) == (TEXT + "t", 1)
        # The cursor may stand anywhere, and completions may end elsewhere.
        assert all(len(item.text) == 2 for item in document.complete(4, count=4, until="max_chars", max_chars=2).items)
    with pytest.raises(ValueError, match="closed"):
        document.complete()


def test_offsets_count_characters_of_the_text(weir: Client) -> None:
    document = weir.edit("Écluse")
    applied = document.splice(1, 6, "té 1")
    assert (document.text, applied.text_bytes, applied.normalized_chars) == ("Été 1", 7, 2)
    scores = document.score()
    # The model reads `ete one `.
    assert "".join(character.text for character in scores.characters) == "ete one "
    assert scores.starts == (0, 1, 2, 3, 4, 4, 4, 4) and scores.revision == 1
    assert document.score(1, 3).starts == (1, 2)
    document.close()


def test_errors_leave_the_session_open(weir: Client) -> None:
    with weir.edit("a") as document:
        with pytest.raises(ValueError, match="end: expected 0 to 1, the characters of the text, found 2"):
            document.splice(0, 2, "")
        with pytest.raises(ValueError, match="until: expected one of word, line, segment, max_chars"):
            document.complete(until="page")  # type: ignore[arg-type]
        with pytest.raises(WeirError) as failed:
            document.complete(count=17)
        error = failed.value
        assert (error.code, error.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "BAD_OPTION")
        assert [violation.field for violation in error.field_violations] == ["complete.count"]
        with pytest.raises(WeirError, match="start_byte"):
            document.splice(1, 0, "b")
        assert (document.text, document.revision) == ("a", 0)
        applied = document.splice(1, 1, "b")
        assert document.text == "ab"
        assert document.revision == applied.revision == document.complete().revision > 0
    with pytest.raises(WeirError) as unknown:
        weir.edit("a", model="nobody").complete()
    assert unknown.value.reason == "UNKNOWN_MODEL"
    with pytest.raises(TypeError, match="unknown option 'prompt'; available: model, priority"):
        weir.edit("a", prompt="b")  # type: ignore[call-arg]


def test_asyncio_sessions(server: local.Server) -> None:
    async def main() -> None:
        async with AsyncClient(server.address) as weir:
            async with weir.edit(TEXT, timeout=local.TIMEOUT) as document:
                both = await asyncio.gather(document.complete(count=2), document.complete(4, until="max_chars", max_chars=1))
                assert both[0].items[0].text == "ty" and len(both[1].items[0].text) == 1
                # A splice overtakes what is in progress, unless that was answered before.
                running = asyncio.ensure_future(document.score())
                await asyncio.sleep(0)
                await document.splice(0, 3, "a")
                try:
                    assert (await running).revision == 0
                except WeirError as error:
                    assert (error.code, error.reason) == (grpc.StatusCode.ABORTED, "STALE")
                assert document.text == "a history of the ci"
                with pytest.raises(WeirError, match="complete.count"):
                    await document.complete(count=17)
                assert (await document.score(0, 2)).starts == (0, 1)
            with pytest.raises(ValueError, match="closed"):
                await document.complete()
            with pytest.raises(WeirError) as unknown:
                async with weir.edit(model="nobody"):
                    pass
            assert unknown.value.reason == "UNKNOWN_MODEL"

    asyncio.run(main())


def test_a_cancelled_request_leaves_the_session_open(server: local.Server) -> None:
    async def main() -> None:
        async with AsyncClient(server.address) as weir, weir.edit(TEXT, timeout=local.TIMEOUT) as document:
            for turns in range(4):
                for ask in (document.complete, document.score):
                    cancelled = asyncio.ensure_future(ask())
                    # The task is cancelled before, while or after the request is written.
                    for _ in range(turns):
                        await asyncio.sleep(0)
                    cancelled.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await cancelled
                    await document.splice(0, 0, "a")
            assert document.text == 8 * "a" + TEXT and document.revision == 8

    asyncio.run(main())


def test_closing_ends_a_session_that_is_being_opened() -> None:
    async def main() -> None:
        # A server that accepts connections and sends nothing.
        silent = await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0)
        port = silent.sockets[0].getsockname()[1]
        client = AsyncClient(f"127.0.0.1:{port}")
        session, unopened = client.edit("a"), client.edit("a")
        opening = asyncio.ensure_future(session.__aenter__())
        await asyncio.sleep(0.1)
        await client.close()
        with pytest.raises(WeirError, match="CANCELLED"):
            await asyncio.wait_for(opening, local.TIMEOUT)
        silent.close()
        with pytest.raises(WeirError, match="the client is closed"):
            await unopened.__aenter__()
        with pytest.raises(WeirError, match="the client is closed"):
            client.edit("a")

    asyncio.run(main())
    client = Client("127.0.0.1:1")
    client.close()
    with pytest.raises(WeirError, match="the client is closed"), client.edit("a"):
        pass


def test_an_address_that_cannot_be_resolved_raises() -> None:
    async def main() -> None:
        async with AsyncClient("a..b:50051") as weir, weir.edit("a", timeout=local.TIMEOUT):
            pass

    with pytest.raises(WeirError):
        asyncio.run(main())
    with pytest.raises(WeirError), Client("a..b:50051") as weir, weir.edit("a", timeout=local.TIMEOUT):
        pass


def _scripted(answers: List[pb.EditResponse]) -> Any:
    """Starts a server that sends one answer for each message, and then closes the session."""

    def edit(requests: Any, context: grpc.ServicerContext) -> Any:
        for answer, _ in zip(answers, requests):
            yield answer
        next(requests)
        yield pb.EditResponse(closed=pb.DocumentClosed(reason=pb.DocumentClosed.REASON_DRAINING))

    return _serve(edit)


def _serve(edit: Callable[[Any, grpc.ServicerContext], Any]) -> Any:
    """Returns a server whose `Edit` is this function."""
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(2))
    handler = grpc.stream_stream_rpc_method_handler(
        edit, request_deserializer=pb.EditRequest.FromString, response_serializer=pb.EditResponse.SerializeToString
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("weir.v1.Editing", {"Edit": handler}),))
    return server


def test_a_cancelled_splice_changes_the_text_when_the_server_has_applied_it() -> None:
    received: List[pb.EditRequest] = []
    is_released = threading.Event()

    def answers(requests: Any, _context: grpc.ServicerContext) -> Any:
        for request in requests:
            received.append(request)
            if len(received) == 2:
                assert is_released.wait(local.TIMEOUT)
            yield APPLIED

    server = _serve(answers)
    address = "127.0.0.1:{}".format(server.add_insecure_port("127.0.0.1:0"))
    server.start()

    async def main() -> None:
        async with AsyncClient(address) as weir, weir.edit("a") as document:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(document.splice(0, 1, "éc"), 0.1)
            assert (document.text, document.revision) == ("a", 0)
            # A splice that waits for the one before is not sent when it is cancelled.
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(document.splice(0, 0, "x"), 0.01)
            is_released.set()
            await document.splice(2, 2, "d")
            assert (document.text, document.revision) == ("écd", 2)

    try:
        asyncio.run(main())
    finally:
        is_released.set()
        server.stop(None).wait()
    splices = [(request.splice.revision, *request.splice.splices) for request in received[1:]]
    assert splices == [
        (1, pb.TextSplice(start_byte=0, end_byte=1, text="éc")),
        (2, pb.TextSplice(start_byte=3, end_byte=3, text="d")),
    ]


APPLIED = pb.EditResponse(applied=pb.DocumentApplied())
STALE = pb.EditResponse(stale=pb.StaleRequest(id=1))


@pytest.mark.parametrize(
    ("answers", "code", "reason"),
    [
        ([APPLIED, STALE], grpc.StatusCode.ABORTED, "STALE"),
        ([APPLIED], grpc.StatusCode.UNAVAILABLE, "DRAINING"),
    ],
)
def test_requests_without_an_answer_raise(answers: List[Any], code: Any, reason: str) -> None:
    server = _scripted(answers)
    address = "127.0.0.1:{}".format(server.add_insecure_port("127.0.0.1:0"))
    server.start()

    async def main() -> None:
        async with AsyncClient(address) as weir, weir.edit("a") as document:
            await document.complete()

    try:
        with Client(address) as weir, weir.edit("a") as document:
            with pytest.raises(WeirError) as blocking:
                document.complete()
            for _ in range(2):
                # A session that ended keeps its reason.
                with pytest.raises(WeirError) as ended:
                    document.complete()
                assert ended.value.reason == "DRAINING"
        with pytest.raises(WeirError) as awaited:
            asyncio.run(main())
    finally:
        server.stop(None).wait()
    for raised in (blocking, awaited):
        assert (raised.value.code, raised.value.reason) == (code, reason)
