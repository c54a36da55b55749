"""Uploads a document to the server in pieces, from a text, an iterable of texts, or a file."""

from __future__ import annotations

import asyncio
import codecs
import os
from typing import IO, Any, AsyncIterable, AsyncIterator, Iterable, Iterator, Optional, Union

from ._proto import summarization_pb2 as pb

#: What a document may come as: its text, parts of it, a file's path, or a file that is open, for text or for UTF-8.
Document = Union[str, Iterable[str], "os.PathLike[str]", IO[str], IO[bytes]]
#: The same, or parts that come one after the other.
AsyncDocument = Union[Document, AsyncIterable[str]]

# Characters of a message: far below what a server takes, and far more than a message costs.
_PIECE = 1 << 16


def _cut(text: str) -> Iterator[str]:
    for start in range(0, len(text), _PIECE):
        yield text[start : start + _PIECE]


def _read(file: Any) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    while part := file.read(_PIECE):
        yield decoder.decode(part) if isinstance(part, bytes) else part
    # an incomplete code point at the end of the file is an error
    yield decoder.decode(b"", True)


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
        for part in document:
            if not isinstance(part, str):
                raise TypeError(f"document: a part of it is {type(part).__name__}, not str")
            yield from _cut(part)


def _next(parts: Iterator[str]) -> Optional[str]:
    return next(parts, None)


class _Sending:
    """The common part of the blocking and the asyncio upload."""

    def __init__(self, options: pb.SummarizeOptions, document: Any) -> None:
        self._options, self._document = options, document
        #: The error that reading the document raised, if any.
        self.failure: Optional[BaseException] = None

    @property
    def repeatable(self) -> bool:
        """Whether the whole document can be read again."""
        return self._document is None or isinstance(self._document, (str, os.PathLike))

    def _first(self) -> pb.SummarizeRequest:
        return pb.SummarizeRequest(options=self._options)


def _chunk(text: str) -> pb.SummarizeRequest:
    return pb.SummarizeRequest(chunk=pb.DocumentChunk(text=text))


class Sending(_Sending):
    """Sends a document from gRPC's thread."""

    def begin(self) -> Iterator[pb.SummarizeRequest]:
        """Yields the messages of the upload."""
        yield self._first()
        try:
            if self._document is not None:
                yield from (_chunk(text) for text in _parts(self._document) if text)
        except Exception as error:
            self.failure = error
            raise


class AsyncSending(_Sending):
    """Sends a document from the event loop. Separate threads read files and iterables."""

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
            async for part in self._document:
                for text in _cut(part):
                    yield text
            return
        parts = _parts(self._document)
        while (read := await asyncio.to_thread(_next, parts)) is not None:
            yield read
