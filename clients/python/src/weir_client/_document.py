"""Uploads a document to the server in pieces, from a text, an iterable of texts, or a file."""

from __future__ import annotations

import asyncio
import codecs
import os
import time
from typing import IO, Any, AsyncIterable, AsyncIterator, Iterable, Iterator, List, Optional, Union

from ._proto import summarization_pb2 as pb

#: A document: its text, its parts, the path of a UTF-8 file, or an open file of text or of UTF-8 bytes.
Document = Union[str, Iterable[str], "os.PathLike[str]", IO[str], IO[bytes]]
#: A document for asyncio, which may also be an asynchronous iterable of parts.
AsyncDocument = Union[Document, AsyncIterable[str]]

# Characters in one message: far below the server's message limit, and enough to make the cost of a message negligible.
_PIECE = 1 << 16
# Parts of fewer characters are joined, because a server closes a connection with too many small messages. A part that arrives a
# second after the last message is sent at once, so that the server sees progress.
_SMALL = 1 << 10
_SLOW_SECONDS = 1.0


def _cut(text: str) -> Iterator[str]:
    for start in range(0, len(text), _PIECE):
        yield text[start : start + _PIECE]


def _read(file: Any) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    while part := file.read(_PIECE):
        yield decoder.decode(part) if isinstance(part, bytes) else part
    # Raises if the file ends in an incomplete code point.
    yield decoder.decode(b"", True)


class _Joiner:
    """Joins small parts of a document."""

    def __init__(self) -> None:
        self._held: List[str] = []
        self._length = 0
        self._sent = time.monotonic()

    def push(self, part: Any) -> Iterator[str]:
        """Adds a part. Yields the text to send now, in parts that fit into one message."""
        if not isinstance(part, str):
            raise TypeError(f"document: expected parts of type str, found {type(part).__name__}")
        self._held.append(part)
        self._length += len(part)
        if self._length >= _SMALL or time.monotonic() - self._sent > _SLOW_SECONDS:
            yield from self.finish()

    def finish(self) -> Iterator[str]:
        """Yields the rest."""
        text = "".join(self._held)
        self._held.clear()
        self._length = 0
        self._sent = time.monotonic()
        yield from _cut(text)


def _parts(document: Document) -> Iterator[str]:
    """Yields the document's text in parts that fit into one message."""
    if isinstance(document, str):
        yield from _cut(document)
    elif isinstance(document, os.PathLike):
        with open(document, "rb") as file:
            yield from _read(file)
    elif hasattr(document, "read"):
        yield from _read(document)
    else:
        joiner = _Joiner()
        for part in document:
            yield from joiner.push(part)
        yield from joiner.finish()


def _next(parts: Iterator[str]) -> Optional[str]:
    return next(parts, None)


class _DocumentUpload:
    """The common part of the blocking and the asyncio upload."""

    def __init__(self, options: pb.SummarizeOptions, document: Any) -> None:
        self._options, self._document = options, document
        #: The error that reading the document raised, if any.
        self.failure: Optional[BaseException] = None

    @property
    def repeatable(self) -> bool:
        """True if the whole document can be read again."""
        return self._document is None or isinstance(self._document, (str, os.PathLike))

    def _first(self) -> pb.SummarizeRequest:
        return pb.SummarizeRequest(options=self._options)


def _chunk(text: str) -> pb.SummarizeRequest:
    return pb.SummarizeRequest(chunk=pb.DocumentChunk(text=text))


class DocumentUpload(_DocumentUpload):
    """Uploads a document from gRPC's thread."""

    def begin(self) -> Iterator[pb.SummarizeRequest]:
        """Yields the messages of the upload."""
        yield self._first()
        try:
            if self._document is not None:
                yield from (_chunk(text) for text in _parts(self._document) if text)
        except Exception as error:
            self.failure = error
            raise


class AsyncDocumentUpload(_DocumentUpload):
    """Uploads a document from the event loop. Separate threads read files and iterables."""

    async def begin(self) -> AsyncIterator[pb.SummarizeRequest]:
        """Yields the messages of the upload."""
        yield self._first()
        try:
            if self._document is not None:
                async for text in self._texts():
                    if text:
                        yield _chunk(text)
        except Exception as error:
            self.failure = error
            raise

    async def _texts(self) -> AsyncIterator[str]:
        if isinstance(self._document, AsyncIterable):
            joiner = _Joiner()
            async for part in self._document:
                for text in joiner.push(part):
                    yield text
            for text in joiner.finish():
                yield text
            return
        parts = _parts(self._document)
        while (piece := await asyncio.to_thread(_next, parts)) is not None:
            yield piece
