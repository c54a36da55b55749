"""Tests blocking and asyncio summaries with a real server: every kind of document, events and failures."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any, AsyncIterator, Callable, Iterator, List

import grpc
import local
import pytest
import summarizer

from weir_client import (
    AsyncClient,
    Client,
    Progress,
    Selected,
    SummaryFinishReason,
    SummaryPart,
    SummaryPiece,
    WeirError,
)
from weir_client._document import AsyncDocumentUpload, DocumentUpload
from weir_client._proto import summarization_pb2 as pb

DOCUMENT = "the café is pooling, the rest is going on and on, and so it is with the river. "


@pytest.fixture(scope="session")
def reader(weir_installed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[local.Server]:
    """A server with one summarization model."""
    model = summarizer.make(tmp_path_factory.mktemp("summarizer"))
    with local.Server("--threads", "1", model=model) as server:
        yield server


def parts() -> Iterator[str]:
    """Yields the document letter by letter."""
    yield from DOCUMENT


def path(folder: Path) -> Path:
    """Writes the document to a file and returns its path."""
    file = folder / "document"
    file.write_text(DOCUMENT, encoding="utf-8")
    return file


KINDS: "dict[str, Callable[[Path], Any]]" = {
    "text": lambda folder: DOCUMENT,
    "list": lambda folder: [DOCUMENT[:7], "", DOCUMENT[7:]],
    "iterator": lambda folder: parts(),
    "path": path,
    "file of text": lambda folder: path(folder).open(encoding="utf-8"),
    "file of bytes": lambda folder: path(folder).open("rb"),
    "memory": lambda folder: io.StringIO(DOCUMENT),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_document_gives_the_same_summary(reader: local.Server, tmp_path: Path, kind: str) -> None:
    with Client(reader.address, timeout=local.TIMEOUT) as weir:
        plain = weir.summarize(DOCUMENT)
        answer = weir.summarize(KINDS[kind](tmp_path))
    assert answer.text == plain.text == plain.hypotheses[0].text != ""
    assert answer.usage.document_tokens == plain.usage.document_tokens
    assert answer.reason in (SummaryFinishReason.END_OF_TEXT, SummaryFinishReason.MAX_TOKENS)

    async def ask() -> str:
        async with AsyncClient(reader.address, timeout=local.TIMEOUT) as weir:
            return (await weir.summarize(KINDS[kind](tmp_path))).text

    assert asyncio.run(ask()) == plain.text


def test_asynchronous_parts(reader: local.Server) -> None:
    async def later() -> AsyncIterator[str]:
        for part in parts():
            await asyncio.sleep(0)
            yield part

    async def ask() -> str:
        async with AsyncClient(reader.address, timeout=local.TIMEOUT) as weir:
            return (await weir.summarize(later())).text

    with Client(reader.address, timeout=local.TIMEOUT) as weir:
        assert asyncio.run(ask()) == weir.summarize(DOCUMENT).text


def test_many_small_parts_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    letters = "a weir pools a stream " * 300

    async def later() -> AsyncIterator[str]:
        for letter in letters:
            yield letter

    async def sent() -> List[str]:
        upload = AsyncDocumentUpload(pb.SummarizeOptions(), later())
        return [request.chunk.text async for request in upload.begin()]

    # The first message has the options. The others have at least 1,024 characters, unless the parts arrive slowly.
    blocking = [request.chunk.text for request in DocumentUpload(pb.SummarizeOptions(), iter(letters)).begin()]
    for messages in (blocking, asyncio.run(sent())):
        assert "".join(messages) == letters and len(messages) <= 1 + len(letters) // 1024 + 3
    monkeypatch.setattr("weir_client._document._SLOW_SECONDS", -1.0)
    slow = [request.chunk.text for request in DocumentUpload(pb.SummarizeOptions(), iter(["a", "b"])).begin()]
    assert slow == ["", "a", "b"]


def test_events_arrive_in_order(reader: local.Server) -> None:
    with Client(reader.address, timeout=local.TIMEOUT) as weir, weir.summarize_stream(DOCUMENT) as stream:
        assert (stream.started, stream.finished) == (None, None)
        events = list(stream)
        finished = stream.finished
    assert finished is not None and stream.started is not None and stream.started.model == "summarizer"
    # The server sends progress and each selection while it reads the document. A selection replaces the progress that the client has
    # not read yet. The text follows all other events.
    is_text = [isinstance(event, SummaryPiece) for event in events]
    assert is_text == sorted(is_text)
    assert all(isinstance(event, (Progress, Selected, SummaryPiece)) for event in events)
    assert "".join(event.text for event in events if isinstance(event, SummaryPiece)) == finished.hypotheses[0].text
    kept = [event for event in events if isinstance(event, Selected)]
    assert [event.layer for event in kept] == [0, 1] and kept[0].tokens >= kept[1].tokens > 0
    assert all(text in DOCUMENT for event in kept for text in event.texts(DOCUMENT))
    assert len(finished.timing.layers) == 3 and finished.timing.total_ns > 0

    async def ask() -> str:
        async with AsyncClient(reader.address, timeout=local.TIMEOUT) as weir:
            async with weir.summarize_stream(DOCUMENT) as stream:
                return "".join([event.text async for event in stream if isinstance(event, SummaryPiece)])

    assert asyncio.run(ask()) == finished.hypotheses[0].text


def test_options_and_a_repeated_document(reader: local.Server) -> None:
    with Client(reader.address, timeout=local.TIMEOUT) as weir:
        first = weir.summarize(DOCUMENT, beam_size=3, hypotheses=3, min_tokens=4, max_tokens=6)
        assert len(first.hypotheses) == 3 and 5 <= len(first.hypotheses[0].ids) <= 7
        assert first.document_id is not None
        again = weir.summarize(document_id=first.document_id, beam_size=3, min_tokens=4, max_tokens=6)
        assert again.text == first.text and again.usage.cached_tokens == first.usage.document_tokens
        drawn = [weir.summarize(DOCUMENT, beam_size=1, seed=seed, temperature=1.0).text for seed in (1, 1, 2)]
        assert drawn[0] == drawn[1] != drawn[2]
        drawn = [
            weir.summarize(DOCUMENT, beam_size=1, seed=1, temperature=1.0, repetition_penalty=penalty).text
            for penalty in (1.0, 50.0)
        ]
        assert drawn[0] != drawn[1]
        documents = weir.model().documents
        assert documents is not None and (documents.search_rules, documents.early_stopping) == ("fairseq", "false")
        cut = weir.summarize(DOCUMENT * 50, cut=True)
        assert cut.usage.cut and cut.usage.document_tokens == 256


def test_a_long_document_in_parts(reader: local.Server) -> None:
    document = DOCUMENT * 20
    with Client(reader.address, timeout=local.TIMEOUT) as weir:
        with weir.summarize_stream(document, long_documents="chunk", max_tokens=4) as stream:
            events = list(stream)
            finished = stream.finished
        whole = weir.summarize(document, long_documents="chunk", max_tokens=4)
        fits = weir.summarize(DOCUMENT, long_documents="chunk", max_tokens=4)
        assert (fits.parts, fits.text) == ((), weir.summarize(DOCUMENT, max_tokens=4).text)
        for options in ({"long_documents": "refuse"}, {"long_documents": "chunk", "cut": True}):
            with pytest.raises(WeirError) as error:
                weir.summarize(document, **options)
            assert error.value.reason in ("TOO_LONG", "EXCLUSIVE_OPTIONS")
        assert weir.summarize(document, long_documents="cut").usage.cut
        with pytest.raises(ValueError, match="long_documents: expected one of refuse, cut, chunk, found 'all'"):
            weir.summarize(document, long_documents="all")
    parts = [event for event in events if isinstance(event, SummaryPart)]
    assert finished is not None and tuple(parts) == whole.parts and len(parts) > 1
    assert [part.summary for part in finished.parts] == [part.summary for part in parts]
    covered = 0
    for part in (part for part in parts if part.round == 1):
        assert part.byte_start <= covered < part.byte_end and part.round_bytes == len(document.encode())
        assert [kept.layer for kept in part.selected] == [0, 1]
        spans = [span for kept in part.selected for span in kept.spans]
        assert all(part.byte_start <= span.byte_start < span.byte_end <= part.byte_end for span in spans)
        covered = part.byte_end
    assert covered >= len(document.encode().rstrip())
    assert whole.usage.document_tokens > sum(part.document_tokens for part in parts)
    assert whole.document_id is None and not whole.usage.cut

    async def ask() -> str:
        async with AsyncClient(reader.address, timeout=local.TIMEOUT) as weir:
            return (await weir.summarize(document, long_documents="chunk", max_tokens=4)).text

    assert asyncio.run(ask()) == whole.text != ""


def test_an_extract(reader: local.Server) -> None:
    document = "A weir pools a stream. The mill stands still, and its wheel is dry. Water flows on."
    with Client(reader.address, timeout=local.TIMEOUT) as weir:
        summary = weir.summarize(document, mode="extract", sentences=2)
        whole = weir.summarize(document * 20, mode="extract", long_documents="chunk")
        with pytest.raises(WeirError, match="options.beam_size: expected no value"):
            weir.summarize(document, mode="extract", beam_size=2)
        with pytest.raises(ValueError, match="mode: expected one of abstract, extract, found 'quote'"):
            weir.summarize(document, mode="quote")
    texts = [document.encode()[span.byte_start : span.byte_end].decode() for span in summary.sentences]
    assert (len(texts), summary.text) == (2, " ".join(texts)) and all(text.endswith(".") for text in texts)
    assert len(whole.sentences) == 3 and len(whole.parts) > 1


def test_invalid_documents_and_options(reader: local.Server, tmp_path: Path) -> None:
    def broken() -> Iterator[str]:
        yield "the beginning "
        raise RuntimeError("no more")

    with Client(reader.address, timeout=local.TIMEOUT) as weir:
        for document, options, reason in [
            (DOCUMENT, {"max_tokens": 0}, "BAD_OPTION"),
            (DOCUMENT * 50, {}, "TOO_LONG"),
            ("", {}, "BAD_OPTION"),
            (None, {"document_id": "nobody's"}, "UNKNOWN_DOCUMENT"),
            # This model's search follows fairseq, which has neither option.
            (DOCUMENT, {"early_stopping": True}, "BAD_OPTION"),
            (DOCUMENT, {"early_stopping": "never"}, "BAD_OPTION"),
            (DOCUMENT, {"repetition_penalty": 1.5}, "BAD_OPTION"),
        ]:
            with pytest.raises(WeirError) as error:
                weir.summarize(document, **options)  # type: ignore[arg-type]
            assert error.value.reason == reason
        for arguments in [{}, {"document": DOCUMENT, "document_id": "a"}]:
            with pytest.raises(ValueError, match="expected either a document or the document_id of an earlier call"):
                weir.summarize(**arguments)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="unknown option 'beam'; available: beam_size"):
            weir.summarize(DOCUMENT, beam=3)  # type: ignore[call-arg]
        # An error from reading the document reaches the caller unchanged.
        with pytest.raises(RuntimeError, match="no more"):
            weir.summarize(broken())
        with pytest.raises(FileNotFoundError):
            weir.summarize(tmp_path / "nothing")
        with pytest.raises(TypeError, match="document: expected parts of type str, found int"):
            weir.summarize([1, 2])  # type: ignore[list-item]
        (tmp_path / "latin").write_bytes(b"caf\xe9 ")
        with pytest.raises(UnicodeDecodeError):
            weir.summarize(tmp_path / "latin")

    async def ask(document: Any) -> None:
        async with AsyncClient(reader.address, timeout=local.TIMEOUT) as weir:
            await weir.summarize(document)

    with pytest.raises(RuntimeError, match="no more"):
        asyncio.run(ask(broken()))
    with pytest.raises(FileNotFoundError):
        asyncio.run(ask(tmp_path / "nothing"))


def test_a_model_that_reads_no_documents(weir: Client) -> None:
    with pytest.raises(WeirError) as error:
        weir.summarize(DOCUMENT)
    assert (error.value.code, error.value.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "WRONG_KIND_OF_MODEL")
