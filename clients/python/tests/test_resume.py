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


@both
def test_cut_connections_do_not_change_a_text(server: local.Server, kind: str) -> None:
    options: Any = {"seed": 5, "max_chars": 400, "logprobs": True, "coalesce_chars": 1}
    whole = generate(server.address, kind, **options)
    before = server.metric("resumed_requests_total")
    dice = random.Random(5)
    with CuttingProxy(server.address, lambda: dice.randint(2000, 6000)) as proxy:
        cut = generate(proxy.address, kind, **options, resume=True)
        assert proxy.cuts > 0
    assert (cut.text, cut.characters, cut.reason, cut.seed) == (whole.text, whole.characters, whole.reason, 5)
    assert cut.usage.generated_chars == whole.usage.generated_chars == 400
    assert 0 < cut.usage.resumed_chars < 400
    assert server.metric("resumed_requests_total") > before
