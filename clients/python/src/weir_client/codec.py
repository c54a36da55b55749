"""`compress` and `decompress`: texts without loss, as bytes that a model predicts."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass
from typing import IO, Any, AsyncIterator, Dict, Generic, Iterable, Iterator, Optional, Tuple, Type, TypeVar, Union

from google.protobuf.message import Message
from typing_extensions import Unpack

from ._call import Caller, EventStream, Method
from ._call_aio import AsyncCaller, AsyncEventStream
from ._convert import convert
from ._proto import codec_pb2 as pb
from ._request import fill
from ._settings import CallOptions

#: Bytes in memory.
Buffer = Union[bytes, bytearray, memoryview]
#: Bytes: in one piece, in parts, in a file at a path, or in an open binary file. A text may be a `str`.
Source = Union[str, Buffer, Iterable[Buffer], "os.PathLike[str]", IO[bytes]]

COMPRESS = Method("/weir.v1.Codec/Compress", pb.CompressRequest, pb.CompressResponse)
DECOMPRESS = Method("/weir.v1.Codec/Decompress", pb.DecompressRequest, pb.DecompressResponse)

# Bytes in one message: far below the server's message limit.
_PIECE = 1 << 16
# Parts of fewer bytes are joined, because a server closes a connection with too many small messages. A part that arrives a second
# after the last message is sent at once, so that the server sees progress.
_SMALL = 1 << 10
_SLOW_SECONDS = 1.0

Sent = TypeVar("Sent", bound=Message)


class CompressOptions(CallOptions, total=False):
    """Options in addition to the text. An option that is absent or None takes the server's default."""

    #: Optional if exactly one model of the server can answer the call.
    model: Optional[str]
    #: Rewrite the text with the model's normaliser before it is compressed.
    normalise: Optional[bool]
    #: Maximum symbols of a block.
    block_chars: Optional[int]
    #: (length, stride): the windows in which the model reads a block.
    windows: Optional[Tuple[int, int]]
    #: Bytes of the text, which the header then states.
    text_bytes: Optional[int]
    #: -8 to 7; 0 by default.
    priority: Optional[int]


class DecompressOptions(CallOptions, total=False):
    """Options in addition to the data."""

    #: Optional if exactly one model of the server can answer the call.
    model: Optional[str]
    #: -8 to 7; 0 by default.
    priority: Optional[int]


@dataclass(frozen=True)
class CodecSummary:
    """The last message of a call: its totals."""

    text_bytes: int
    #: Symbols of the text.
    chars: int
    compressed_bytes: int
    blocks: int
    #: Size of the compressed data in bits per symbol; None for an empty text.
    bits_per_char: Optional[float]


class _Events:
    """Collects the messages of one response."""

    def __init__(self, field: str) -> None:
        self._field = field
        self.summary: Optional[CodecSummary] = None

    @property
    def complete(self) -> bool:
        return self.summary is not None

    def take(self, response: Any) -> Optional[bytes]:
        event = response.WhichOneof("event")
        if event == self._field:
            piece: bytes = getattr(response, event)
            return piece
        if event == "summary":
            self.summary = convert(CodecSummary, response.summary)
        return None


class CodecStream(EventStream[Any, bytes, _Events]):
    """Iterates over the bytes of the output. Decompressed bytes are right only once the iteration has ended without an error."""

    @property
    def summary(self) -> Optional[CodecSummary]:
        """The last message; None until all bytes have arrived."""
        return self._events.summary


class AsyncCodecStream(AsyncEventStream[Any, bytes, _Events]):
    """Iterates over the bytes of the output. Decompressed bytes are right only once the iteration has ended without an error."""

    @property
    def summary(self) -> Optional[CodecSummary]:
        """The last message; None until all bytes have arrived."""
        return self._events.summary


def _cut(part: bytes) -> Iterator[bytes]:
    for start in range(0, len(part), _PIECE):
        yield part[start : start + _PIECE]


def _parts(source: Any) -> Iterator[bytes]:
    if isinstance(source, str):
        yield from _cut(source.encode())
    elif isinstance(source, (bytes, bytearray, memoryview)):
        yield from _cut(bytes(source))
    elif isinstance(source, os.PathLike):
        with open(source, "rb") as file:
            yield from _parts(file)
    elif hasattr(source, "read"):
        while part := source.read(_PIECE):
            yield part
    else:
        yield from _joined(source)


def _joined(parts: Iterable[Buffer]) -> Iterator[bytes]:
    """Yields the bytes of all parts, in few messages."""
    held = bytearray()
    sent = time.monotonic()
    for part in parts:
        if not isinstance(part, (bytes, bytearray, memoryview)):
            raise TypeError(f"expected parts of type bytes, found {type(part).__name__}")
        held += part
        if len(held) >= _SMALL or time.monotonic() - sent > _SLOW_SECONDS:
            yield from _cut(bytes(held))
            held.clear()
            sent = time.monotonic()
    yield from _cut(bytes(held))


class _Upload(Generic[Sent]):
    """A request: its options, then its bytes."""

    def __init__(self, request: Type[Sent], field: str, options: Message, source: Any) -> None:
        self._request, self._field, self._options, self._source = request, field, options, source
        #: The error that reading the source raised, if any.
        self.failure: Optional[BaseException] = None

    @property
    def repeatable(self) -> bool:
        """True if the whole source can be read again."""
        return isinstance(self._source, (str, bytes, os.PathLike))

    def _first(self) -> Sent:
        return self._request(options=self._options)

    def _part(self, part: bytes) -> Sent:
        return self._request(**{self._field: part})


class _BlockingUpload(_Upload[Sent]):
    def begin(self) -> Iterator[Sent]:
        """Yields the messages of the request."""
        yield self._first()
        try:
            yield from (self._part(part) for part in _parts(self._source))
        except Exception as error:
            self.failure = error
            raise


class _AsyncUpload(_Upload[Sent]):
    async def begin(self) -> AsyncIterator[Sent]:
        """Yields the messages of the request. A separate thread reads the source."""
        yield self._first()
        try:
            parts = _parts(self._source)
            while (part := await asyncio.to_thread(_next, parts)) is not None:
                yield self._part(part)
        except Exception as error:
            self.failure = error
            raise


def _next(parts: Iterator[bytes]) -> Optional[bytes]:
    return next(parts, None)


def _compress_options(options: CompressOptions) -> pb.CompressOptions:
    request = pb.CompressOptions()
    fields: Dict[str, Any] = {name: value for name, value in options.items() if name not in CallOptions.__annotations__}
    windows = fields.pop("windows", None)
    if windows is not None:
        request.windows.length, request.windows.stride = windows
    fill(request, fields, dict.fromkeys(["model", "normalise", "block_chars", "text_bytes", "priority"], ""))
    return request


def _decompress_options(options: DecompressOptions) -> pb.DecompressOptions:
    request = pb.DecompressOptions()
    fields: Dict[str, Any] = {name: value for name, value in options.items() if name not in CallOptions.__annotations__}
    fill(request, fields, dict.fromkeys(["model", "priority"], ""))
    return request


class CodecCalls(Caller):
    """The calls of this module."""

    def compress(self, text: Source, **options: Unpack[CompressOptions]) -> bytes:
        """Returns the compressed text. Raises `WeirError`, and any error that reading the text raises."""
        with self.compress_stream(text, **options) as stream:
            return b"".join(stream)

    def compress_stream(self, text: Source, **options: Unpack[CompressOptions]) -> CodecStream:
        """Streams the compressed text, block by block."""
        upload = _BlockingUpload(pb.CompressRequest, "text", _compress_options(options), text)
        return CodecStream(self._start_upload(COMPRESS, upload, options), _Events("data"))

    def decompress(self, data: Source, **options: Unpack[DecompressOptions]) -> bytes:
        """Returns the text that was compressed. Raises `WeirError` for damaged data and data of another model."""
        with self.decompress_stream(data, **options) as stream:
            return b"".join(stream)

    def decompress_stream(self, data: Source, **options: Unpack[DecompressOptions]) -> CodecStream:
        """Streams the text, block by block."""
        upload = _BlockingUpload(pb.DecompressRequest, "data", _decompress_options(options), data)
        return CodecStream(self._start_upload(DECOMPRESS, upload, options), _Events("text"))


class AsyncCodecCalls(AsyncCaller):
    """The calls of this module, for asyncio."""

    async def compress(self, text: Source, **options: Unpack[CompressOptions]) -> bytes:
        """Returns the compressed text. Raises `WeirError`, and any error that reading the text raises."""
        async with self.compress_stream(text, **options) as stream:
            return b"".join([piece async for piece in stream])

    def compress_stream(self, text: Source, **options: Unpack[CompressOptions]) -> AsyncCodecStream:
        """Streams the compressed text, block by block."""
        upload = _AsyncUpload(pb.CompressRequest, "text", _compress_options(options), text)
        return AsyncCodecStream(self._start_upload(COMPRESS, upload, options), _Events("data"))

    async def decompress(self, data: Source, **options: Unpack[DecompressOptions]) -> bytes:
        """Returns the text that was compressed. Raises `WeirError` for damaged data and data of another model."""
        async with self.decompress_stream(data, **options) as stream:
            return b"".join([piece async for piece in stream])

    def decompress_stream(self, data: Source, **options: Unpack[DecompressOptions]) -> AsyncCodecStream:
        """Streams the text, block by block."""
        upload = _AsyncUpload(pb.DecompressRequest, "data", _decompress_options(options), data)
        return AsyncCodecStream(self._start_upload(DECOMPRESS, upload, options), _Events("text"))
