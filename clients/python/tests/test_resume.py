"""Tests `resume=True`: a text that goes on after its stream broke."""

from __future__ import annotations

import asyncio
import random
from typing import Any, List

import grpc
import local
import pytest
from cutting_proxy import CuttingProxy
from scripted import Fail, Scripted, finished, piece, started

from weir_client import AsyncClient, Client, Generated, Piece, Retry, WeirError
from weir_client._proto import generation_pb2 as pb

FAST = Retry(attempts=2, first_delay=0.01, longest_delay=1.0)
BROKEN = Fail(grpc.StatusCode.UNAVAILABLE)
both = pytest.mark.parametrize("kind", ["blocking", "asyncio"])


def generate(address: str, kind: str, retry: Retry = FAST, **options: Any) -> Generated:
    async def ask() -> Generated:
        async with AsyncClient(address, retry=retry, timeout=local.TIMEOUT) as client:
            return await client.generate("the ", **options)

    if kind == "asyncio":
        return asyncio.run(ask())
    with Client(address, retry=retry, timeout=local.TIMEOUT) as client:
        return client.generate("the ", **options)


@both
@pytest.mark.parametrize(
    "broken",
    [
        [BROKEN],
        [Fail(grpc.StatusCode.UNKNOWN, by_server=False)],
        [Fail(grpc.StatusCode.INTERNAL, by_server=False)],
        [Fail(grpc.StatusCode.CANCELLED, by_server=False)],
        [],
    ],
)
def test_a_broken_stream_goes_on(kind: str, broken: List[Any]) -> None:
    parts: List[List[Any]] = [
        [started(), piece("a", ids=True), piece(" b", ids=True), *broken],
        [started(3), *broken],
        [started(3), piece("c", ids=True), finished()],
    ]
    with Scripted(*parts) as fake:
        assert generate(fake.address, kind, Retry(attempts=3, first_delay=0.01), resume=True).text == "a bc"
        first, second, third = fake.requests
    assert first.sampling.HasField("seed") and first.details.ids and not first.resume_ids
    first.resume_ids.extend(b"a b")
    assert second == first and third == first


@both
def test_attempts_count_from_the_last_piece(kind: str) -> None:
    parts: List[List[Any]] = [[started(count), piece("x", ids=True), BROKEN] for count in range(6)]
    with Scripted(*parts, [BROKEN], [BROKEN]) as fake:
        with pytest.raises(WeirError, match="UNAVAILABLE"):
            generate(fake.address, kind, resume=True)
        assert len(fake.requests) == 7
        assert bytes(fake.requests[-1].resume_ids) == b"x" * 6


@both
@pytest.mark.parametrize("broken", [[BROKEN], []])
@pytest.mark.parametrize("text", ["", "ab"])
def test_attempts_without_a_piece_are_bounded(kind: str, broken: List[Any], text: str) -> None:
    begun: List[List[Any]] = [[started(), piece(text, ids=True), *broken]] if text else []
    endless: List[List[Any]] = [[started(len(text)), *broken] for _ in range(20)]
    with Scripted(*begun, *endless) as fake:
        with pytest.raises(WeirError, match="UNKNOWN: the response ended" if not broken else "UNAVAILABLE"):
            generate(fake.address, kind, Retry(attempts=3, first_delay=0.01), resume=True)
        # The attempt that brought a piece is the first of three.
        assert len(fake.requests) == 3


@both
def test_an_incomplete_character_at_the_end_arrives_once(kind: str) -> None:
    # The byte without text, and the character that stands for it once the text has ended.
    byte = pb.GenerateResponse(piece=pb.Piece(ids=[0xC3]))
    end = piece("\ufffd")
    parts: List[List[Any]] = [
        [started(), piece("a", ids=True), byte, end, BROKEN],
        [started(2), end, BROKEN],
        [started(2), end, finished()],
    ]
    with Scripted(*parts) as fake:
        assert generate(fake.address, kind, Retry(attempts=3, first_delay=0.01), resume=True).text == "a\ufffd"
        for request in fake.requests[1:]:
            assert (bytes(request.resume_ids), request.resume_text) == (b"a\xc3", "")


@both
def test_a_repeated_end_is_no_progress(kind: str) -> None:
    end = piece("\ufffd")
    parts: List[List[Any]] = [[started(1), end, BROKEN] for _ in range(20)]
    with Scripted([started(), piece("a", ids=True), end, BROKEN], *parts) as fake:
        with pytest.raises(WeirError, match="UNAVAILABLE"):
            generate(fake.address, kind, Retry(attempts=3, first_delay=0.01), resume=True)
        assert len(fake.requests) == 3


def test_many_ids_are_resumed_as_text_unless_the_caller_resumed_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weir_client._resumption._MAX_IDS", 2)
    for resumed, ids, text in [([], b"", "abc"), ([120], b"xabc", "")]:
        parts: List[List[Any]] = [
            [started(len(resumed)), piece("abc", ids=True), BROKEN],
            [started(len(resumed) + 3), finished()],
        ]
        with Scripted(*parts) as fake:
            assert generate(fake.address, "blocking", resume=True, seed=1, resume_ids=resumed).text == "abc"
            assert (bytes(fake.requests[1].resume_ids), fake.requests[1].resume_text) == (ids, text)


@both
def test_errors_of_the_server_are_not_resumed(kind: str) -> None:
    for code in (grpc.StatusCode.INTERNAL, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.INVALID_ARGUMENT):
        with Scripted([started(), piece("a", ids=True), Fail(code)]) as fake:
            with pytest.raises(WeirError, match=code.name):
                generate(fake.address, kind, resume=True)
            assert len(fake.requests) == 1


@both
def test_a_server_that_cannot_resume_starts_no_second_text(kind: str) -> None:
    with Scripted([started(), piece("a"), BROKEN], [started(), piece("a"), finished()]) as fake:
        with pytest.raises(WeirError, match="UNIMPLEMENTED: resume: the server cannot continue a text"):
            generate(fake.address, kind, resume=True)
        assert fake.requests[1].resume_text == "a"


def test_options_of_a_resumed_text() -> None:
    parts: List[List[Any]] = [
        [started(1), piece("b", ids=True), BROKEN],
        [started(2), piece("c", ids=True), finished()],
    ]
    with Scripted(*parts) as fake, Client(fake.address, retry=FAST) as client:
        pieces = list(client.stream("the ", resume=True, resume_text="a", seed=7, ids=True))
        assert pieces == [Piece("b", (), False, (98,)), Piece("c", (), False, (99,))]
        assert [request.resume_text for request in fake.requests] == ["a", "ab"]
        assert [request.sampling.seed for request in fake.requests] == [7, 7]
        with pytest.raises(ValueError, match="resume: expected no echo"):
            client.stream("the ", resume=True, echo=True)
    # The server rejects this: without the first part's seed it would draw other characters.
    with Scripted([started(1), finished()]) as fake, Client(fake.address, retry=FAST) as client:
        client.generate("the ", resume=True, resume_text="a")
        assert not fake.requests[0].sampling.HasField("seed")


@both
def test_cut_connections_do_not_change_a_text(server: local.Server, kind: str) -> None:
    options: Any = {"seed": 5, "max_chars": 400, "logprobs": True, "coalesce_chars": 1}
    whole = generate(server.address, kind, **options)
    before = server.metric("resumed_requests_total")
    rng = random.Random(5)
    with CuttingProxy(server.address, lambda: rng.randint(4000, 9000)) as proxy:
        # a connection may be cut before its first piece
        cut = generate(proxy.address, kind, Retry(attempts=8, first_delay=0.01, longest_delay=1.0), **options, resume=True)
        assert proxy.cuts > 0
    assert (cut.text, cut.characters, cut.reason, cut.seed) == (whole.text, whole.characters, whole.reason, 5)
    assert cut.usage.generated_chars == whole.usage.generated_chars == 400
    # the last cut may come after the last character
    assert 0 < cut.usage.resumed_chars <= 400
    assert server.metric("resumed_requests_total") > before
