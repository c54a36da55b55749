"""Tests every call, blocking and asyncio, with a real server."""

from __future__ import annotations

import asyncio
import math
import re
import time
from typing import Any, List, Tuple

import grpc
import local
import pytest

from weir_client import AsyncClient, Client, FinishReason, ReportWindow, WeirError
from weir_client._proto import generation_pb2 as pb
from weir_client._request import fill

PROMPT = "the history of the city"


def test_complete_text(weir: Client) -> None:
    answer = weir.generate(PROMPT, max_chars=30, seed=5)
    assert len(answer.text) == 30
    assert answer.reason is FinishReason.MAX_CHARS
    assert answer.model == "hourglass-whitespace-english"
    assert answer.request_id
    assert (answer.prompt, answer.characters, answer.matched_stop) == (None, (), None)
    assert (answer.usage.prompt_chars, answer.usage.generated_chars, answer.seed) == (len(PROMPT), 30, 5)
    assert answer.timing.total_ns >= answer.timing.decode_ns > 0
    assert weir.generate(PROMPT, max_chars=30, seed=5).text == answer.text
    assert weir.generate(PROMPT, max_chars=30, seed=6).text != answer.text


def test_pieces_form_the_complete_text(weir: Client) -> None:
    complete = weir.generate(PROMPT, max_chars=50, seed=5).text
    stream = weir.stream(PROMPT, max_chars=50, seed=5, per_segment=True)
    assert (stream.started, stream.finished) == (None, None)
    pieces = [next(stream)]
    assert stream.started is not None and stream.started.prompt_chars == len(PROMPT)
    pieces += stream
    assert "".join(piece.text for piece in pieces) == complete
    assert all(piece.text.endswith(" ") for piece in pieces[:-1])
    assert stream.finished is not None and stream.finished.usage.generated_segments >= len(pieces) - 1
    assert list(stream) == []


def test_requested_characters(weir: Client) -> None:
    answer = weir.generate(PROMPT, max_chars=40, seed=5, echo=True, logprobs=True, top_logprobs=3, boundaries=True)
    assert answer.prompt == PROMPT
    assert "".join(character.text for character in answer.prompt_characters) == PROMPT
    assert answer.prompt_characters[0].logprob is None
    assert "".join(character.text for character in answer.characters) == answer.text
    for character in answer.characters:
        assert character.logprob is not None and character.logprob <= 0
        assert len(character.top) == 3 and character.top[0].logprob >= character.top[1].logprob
    # The boundary after the last character is unknown until another character follows.
    known = answer.characters[:-1]
    assert [character.boundary for character in known] == [character.text == " " for character in known]


def test_options_reach_the_server(weir: Client) -> None:
    stopped = weir.generate(PROMPT, max_chars=500, seed=5, stop="e", include_stop=True)
    assert (stopped.reason, stopped.matched_stop) == (FinishReason.STOP, "e")
    assert stopped.text.endswith("e") and stopped.text.count("e") == 1
    two = weir.generate(PROMPT, max_chars=500, seed=5, stop=["t", "a"])
    assert two.matched_stop in ("t", "a") and not {"t", "a"} & set(two.text)
    assert weir.generate(PROMPT, max_chars=8, temperature=0, logit_bias={"z": 1000.0}).text == "z" * 8
    assert weir.generate(PROMPT, max_chars=8, temperature=0, logit_bias={0: 1000.0}).text == " " * 8
    segments = weir.generate(PROMPT, max_chars=500, max_segments=2, priority=3, boundary_mode="given", top_k=5)
    assert segments.reason is FinishReason.MAX_SEGMENTS


def test_texts_have_the_form(weir: Client) -> None:
    letters = weir.generate(PROMPT, max_chars=50, regex="[abc]{3} (the|an)", seed=2)
    assert re.fullmatch("[abc]{3} (the|an)", letters.text)
    assert letters.reason is FinishReason.CONSTRAINT and letters.usage.forced_chars > 0
    assert weir.generate(PROMPT, choice=["the end", "no"], seed=2).text in ("the end", "no")
    with pytest.raises(ValueError, match="regex and choice exclude each other: give one"):
        weir.generate(PROMPT, regex="a", choice=["b"])
    with pytest.raises(TypeError, match="choice: expected a list, found str"):
        weir.generate(PROMPT, choice="b")
    schemas: List[Any] = [{"type": "object", "if": {}}, '{"type": "object", "if": {}}']
    for schema in schemas:
        with pytest.raises(WeirError, match='Unimplemented keys: \\["if"\\]'):
            weir.generate(PROMPT, json_schema=schema)


def test_a_number_of_guesses_is_a_number_or_a_text(weir: Client) -> None:
    expected = weir.generate(PROMPT, max_chars=8, seed=1, speculate="off").text
    assert weir.generate(PROMPT, max_chars=8, seed=1, speculate=4).text == expected
    for wrong in (17, "seventeen"):
        with pytest.raises(WeirError, match="speculate: expected"):
            weir.generate(PROMPT, speculate=wrong)


def test_invalid_options(weir: Client) -> None:
    with pytest.raises(TypeError, match="unknown option 'max_tokens'; available: boundaries, boundary_mode"):
        weir.generate(PROMPT, max_tokens=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="max_chars: "):
        weir.stream(PROMPT, max_chars="many")  # type: ignore[arg-type]
    for value in (None, 5):
        with pytest.raises(TypeError, match="prompt: expected a str, found "):
            weir.generate(value)  # type: ignore
    with pytest.raises(ValueError, match="max_chars: "):
        weir.stream(PROMPT, max_chars=-1)
    wrong: List[Tuple[Any, str, Any]] = [
        (TypeError, "stop: expected a list, found int", {"stop": 7}),
        (TypeError, "prompt_ids: expected a list, found str", {"prompt_ids": "a"}),
        (TypeError, "temperature: ", {"temperature": [1]}),
        (TypeError, "max_chars: ", {"max_chars": (1,)}),
        (ValueError, "model: ", {"model": "\ud800"}),
        (ValueError, "stop: ", {"stop": ["\ud800"]}),
    ]
    for kind, message, options in wrong:
        with pytest.raises(kind, match=message):
            weir.stream(PROMPT, **options)
    request = pb.GenerateRequest()
    for ids in (range(2), b"ab", [3]):
        fill(request, {"prompt_ids": ids}, {"prompt_ids": ""})
    assert list(request.prompt_ids) == [0, 1, 97, 98, 3]


def test_score(weir: Client) -> None:
    text = "a weir pools a stream and lets it flow on"
    score = weir.score(text, top_logprobs=1)
    assert "".join(character.text for character in score.characters) == text
    logprobs = [character.logprob for character in score.characters if character.logprob is not None]
    assert len(logprobs) == score.scored_chars == len(text) - 1
    assert score.bits_per_char == pytest.approx(-sum(logprobs) / len(logprobs) / math.log(2), rel=1e-6)
    assert all(len(character.top) == 1 for character in score.characters[1:])


def test_long_score_arrives_in_chunks(weir: Client) -> None:
    text = "the river runs past the mill and under the old stone bridge " * 150
    assert len(text) > weir.model().limits.max_symbols
    with pytest.raises(WeirError) as refused:
        weir.score(text)
    assert (refused.value.code, refused.value.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "TOO_LONG")
    stream = weir.score_chunks(text, windows=(256, 256))
    sizes = [len(chunk) for chunk in stream]
    summary = stream.summary
    assert max(sizes) <= 512 and sum(sizes) == len(text)
    assert summary is not None and summary.scored_chars == len(text) - 1


def test_segments(weir: Client) -> None:
    answer = weir.segment("A weir, pools a STREAM")
    assert answer.text == "a weir pools a stream"
    assert answer.usage.normalized_chars == len("A, ") + len("STREAM")
    assert [segment.text for segment in answer.segments] == ["a ", "weir ", "pools ", "a ", "stream"]
    assert [segment.open for segment in answer.segments] == [False] * 4 + [True]
    encoded = answer.text.encode()
    assert b"".join(encoded[segment.byte_start : segment.byte_end] for segment in answer.segments) == encoded


def test_models(weir: Client) -> None:
    (model,) = weir.models()
    assert model == weir.model() == weir.model("hourglass-whitespace-english")
    assert (model.vocabulary.size, model.vocabulary.normaliser, len(model.vocabulary.symbols)) == (27, "text8", 27)
    assert model.pooled and model.boundary_modes == ("given",) and model.limits.rows == 32
    with pytest.raises(WeirError) as unknown:
        weir.model("nobody")
    assert unknown.value.code is grpc.StatusCode.NOT_FOUND


def test_health(weir: Client) -> None:
    weir.wait_until_serving()
    assert weir.serving() and weir.serving("")
    with pytest.raises(WeirError) as unknown:
        weir.serving("nobody")
    assert unknown.value.code is grpc.StatusCode.NOT_FOUND
    with Client("127.0.0.1:9") as nowhere, pytest.raises(WeirError) as late:
        nowhere.wait_until_serving(timeout=0.3)
    assert late.value.code is grpc.StatusCode.DEADLINE_EXCEEDED


def test_closing_a_stream_cancels_it(server: local.Server, weir: Client) -> None:
    def start_and(end: str) -> None:
        stream = weir.stream(PROMPT, max_chars=8000, coalesce_chars=1)
        next(stream)
        assert server.metric("num_requests_running") >= 1
        if end == "close":
            stream.close()
            assert list(stream) == []
        # Otherwise the stream is dropped when this function returns.

    for end in ("close", "drop"):
        start_and(end)
        deadline = time.monotonic() + local.TIMEOUT
        while server.metric("num_requests_running") > 0:
            assert time.monotonic() < deadline, end
            time.sleep(0.01)
    assert server.metric("generation_tokens_total") < 16000


def test_deadline(weir: Client) -> None:
    with pytest.raises(WeirError) as late:
        for _ in weir.stream(PROMPT, max_chars=8000, timeout=0.2):
            pass
    assert late.value.code is grpc.StatusCode.DEADLINE_EXCEEDED


def test_asyncio_client_returns_the_same_results(server: local.Server, weir: Client) -> None:
    async def ask() -> None:
        async with AsyncClient(server.address, timeout=local.TIMEOUT) as client:
            await client.wait_until_serving()
            assert await client.serving()
            texts = await asyncio.gather(*(client.generate(PROMPT, max_chars=30, seed=seed) for seed in range(6)))
            assert [text.text for text in texts] == [weir.generate(PROMPT, max_chars=30, seed=n).text for n in range(6)]
            stream = client.stream(PROMPT, max_chars=30, seed=1)
            assert "".join([piece.text async for piece in stream]) == texts[1].text
            assert stream.started is not None and stream.finished is not None
            assert stream.finished.reason is FinishReason.MAX_CHARS
            assert (await client.score(PROMPT)).bits_per_char == weir.score(PROMPT).bits_per_char
            chunks = client.score_chunks(PROMPT)
            assert sum([len(chunk) async for chunk in chunks]) == len(PROMPT) and chunks.summary is not None
            assert (await client.segment(PROMPT)).segments == weir.segment(PROMPT).segments
            assert await client.models() == weir.models() and await client.model() == weir.model()
            with pytest.raises(WeirError) as refused:
                await client.generate(PROMPT, top_p=3.0)
            assert refused.value.field_violations[0].field == "sampling.top_p"
            with pytest.raises(WeirError) as refused:
                await client.segment(PROMPT, model="nobody")
            assert refused.value.code is grpc.StatusCode.NOT_FOUND

    asyncio.run(ask())


def test_closing_an_asynchronous_stream_cancels_it(server: local.Server) -> None:
    async def ask() -> None:
        async with AsyncClient(server.address) as client:
            async with client.stream(PROMPT, max_chars=8000, coalesce_chars=1) as stream:
                await stream.__anext__()
            assert [piece async for piece in stream] == []
            # Cancelling the task cancels its call.
            task = asyncio.create_task(client.generate(PROMPT, max_chars=8000))
            await asyncio.sleep(0.1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            while server.metric("num_requests_running") > 0:
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(ask(), local.TIMEOUT))


def test_report_separates_measured_from_estimated(weir: Client, server: local.Server) -> None:
    answer = weir.generate(PROMPT, max_chars=30, seed=5)
    (report,) = weir.report()
    assert report.model == "hourglass-whitespace-english"
    assert (report.window, report.pooled, report.summaries) == (ReportWindow.SINCE_LOAD, True, None)
    texts, gain = report.texts, report.estimated_gain
    assert texts is not None and texts.requests > 0 and texts.generated_chars >= 30
    first = texts.time_to_first_char
    assert first.min_ns <= first.p50_ns <= first.max_ns and sum(bar.count for bar in first.bars) == first.count
    assert gain is not None and gain.requests > 0 and gain.calibration.steps
    timing = answer.timing
    assert timing.unpooled_estimate_ns is not None and timing.gain_estimate is not None
    took = timing.prefill_ns + timing.decode_ns
    assert math.isclose(timing.gain_estimate, timing.unpooled_estimate_ns / took)

    async def asynchronously() -> int:
        async with AsyncClient(server.address, timeout=local.TIMEOUT) as client:
            (report,) = await client.report(report_model, ReportWindow.LAST_MINUTE)
            return report.texts.requests if report.texts else 0

    report_model = report.model
    assert 0 < asyncio.run(asynchronously())
    with pytest.raises(WeirError) as caught:
        weir.report("nothing")
    assert caught.value.code is grpc.StatusCode.NOT_FOUND
