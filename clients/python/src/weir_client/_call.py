"""One call, whatever it is: sent, tried again, its answers given out, ended. Blocking here; `_call_aio` is the twin."""

from __future__ import annotations

import time
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, Dict, Generic, Iterator, Optional, Protocol, Type, TypeVar

import grpc
from google.protobuf.message import Message

from ._errors import WeirError
from ._retry import Attempts, Retry
from ._settings import CallOptions, Metadata, Settings

if TYPE_CHECKING:
    from typing_extensions import Self

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)
Item = TypeVar("Item")
Taken = TypeVar("Taken", contravariant=True)
Given = TypeVar("Given", covariant=True)
Begin = TypeVar("Begin")
End = TypeVar("End")


@dataclass(frozen=True)
class Method(Generic[Request, Response]):
    """A method of the server."""

    path: str
    request: Type[Request]
    response: Type[Response]


class Events(Protocol[Taken, Given]):
    """What the messages of one answer come to."""

    @property
    def complete(self) -> bool:
        """Whether the last message has come."""

    def take(self, response: Taken) -> Optional[Given]:
        """What a message gives to the reader; None if nothing."""


#: What reads the messages of one answer.
Reader = TypeVar("Reader", bound=Events[Any, Any])


class Told(Generic[Begin, End]):
    """How an answer begins and ends, as far as its messages have told."""

    def __init__(self) -> None:
        self.started: Optional[Begin] = None
        self.finished: Optional[End] = None

    @property
    def complete(self) -> bool:
        return self.finished is not None


class Framed(Generic[Begin, End]):
    """A stream, of either kind, whose answer tells how it begins and ends."""

    # A `Told[Begin, End]`: the stream's reader, whose type its other base knows.
    _events: Any

    @property
    def started(self) -> Optional[Begin]:
        """There from the first of what is iterated over."""
        started: Optional[Begin] = self._events.started
        return started

    @property
    def finished(self) -> Optional[End]:
        """There once all of it has come."""
        finished: Optional[End] = self._events.finished
        return finished


def broken_off() -> WeirError:
    """An answer without its last message, and without an error."""
    return WeirError(grpc.StatusCode.UNKNOWN, "the answer broke off")


class Upload(Protocol[Given]):
    """A request of many messages."""

    @property
    def repeatable(self) -> bool:
        """Whether it can be sent again."""

    @property
    def failure(self) -> Optional[BaseException]:
        """What kept it from being sent: not the server's fault, and not the way's."""

    def begin(self) -> Given:
        """Its messages, from the first on."""


class Caller:
    """A channel and how to call on it. The calls themselves are classes that build on this one."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        credentials, options = settings.credentials(), settings.options()
        if credentials is None:
            self._channel = grpc.insecure_channel(settings.target(), options)
        else:
            self._channel = grpc.secure_channel(settings.target(), credentials, options)
        self._methods: Dict[str, Any] = {}

    def close(self) -> None:
        """Ends the connection, and the calls on it."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()

    def _unary(
        self, method: Method[Request, Response], request: Request, text: Optional[str], call: CallOptions
    ) -> Response:
        """One message for one message."""
        attempts = Attempts(self._settings.retry, self._settings.call_timeout(call))
        metadata = self._settings.metadata(text, call)
        stub = self._stub(method, self._channel.unary_unary)
        while True:
            try:
                response: Response = stub(request, timeout=attempts.remaining(), metadata=metadata)
                return response
            except grpc.RpcError as error:
                time.sleep(attempts.pause_after(WeirError.of(error), begun=False))

    def _start(
        self,
        method: Method[Request, Response],
        request: Request,
        text: Optional[str],
        call: CallOptions,
    ) -> Open[Response]:
        """Many messages for one. Nothing is sent before the first of them is asked for."""
        attempts = Attempts(self._settings.retry, self._settings.call_timeout(call))
        stub = self._stub(method, self._channel.unary_stream)
        return Open(stub, lambda: request, self._settings.metadata(text, call), attempts)

    def _start_upload(
        self,
        method: Method[Request, Response],
        upload: Upload[Iterator[Request]],
        call: CallOptions,
    ) -> Open[Response]:
        """Many messages for many. Nothing is sent before the first of the answer is asked for."""
        retry = self._settings.retry if upload.repeatable else Retry(attempts=1)
        attempts = Attempts(retry, self._settings.call_timeout(call))
        stub = self._stub(method, self._channel.stream_stream)
        return Open(stub, upload.begin, self._settings.metadata(None, call), attempts, upload)

    def _stub(self, method: Method[Request, Response], kind: Any) -> Any:
        if method.path not in self._methods:
            self._methods[method.path] = kind(
                method.path,
                request_serializer=method.request.SerializeToString,
                response_deserializer=method.response.FromString,
            )
        return self._methods[method.path]


class Open(Generic[Response]):
    """An answer of many messages that may have to be asked for more than once."""

    def __init__(
        self,
        stub: Any,
        request: Callable[[], Any],
        metadata: Metadata,
        attempts: Attempts,
        upload: Optional[Upload[Any]] = None,
    ) -> None:
        self._stub, self._request, self._metadata, self._attempts = stub, request, metadata, attempts
        self._upload = upload
        self._call: Optional[Any] = None
        self._closed = False

    def next(self, begun: bool) -> Optional[Response]:
        """The next message, or None at the end. `begun`: whether the reader has got anything; then nothing is repeated."""
        while not self._closed:
            try:
                if self._call is None:
                    self._call = self._stub(
                        self._request(), timeout=self._attempts.remaining(), metadata=self._metadata
                    )
                response: Response = next(self._call)
                return response
            except StopIteration:
                self._closed = True
            except grpc.RpcError as error:
                if self._closed:
                    break
                self._call = None
                if self._upload is not None and self._upload.failure is not None:
                    self._closed = True
                    raise self._upload.failure from None
                time.sleep(self._pause_after(WeirError.of(error), begun))
        return None

    def _pause_after(self, error: WeirError, begun: bool) -> float:
        try:
            return self._attempts.pause_after(error, begun)
        except WeirError:
            self._closed = True
            raise

    def close(self) -> None:
        """Cancels the call, if it is not over."""
        self._closed = True
        if self._call is not None:
            self._call.cancel()


class EventStream(Generic[Response, Item, Reader]):
    """An iterator over what the messages of an answer give. Closing it, or dropping it, cancels the call."""

    def __init__(self, answer: Open[Response], events: Reader) -> None:
        self._answer = answer
        self._events = events
        self._begun = False
        self._closed = False

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        while (response := self._answer.next(self._begun)) is not None:
            item: Optional[Item] = self._events.take(response)
            self._begun = self._begun or item is not None or self._events.complete
            if item is not None:
                return item
        if not self._events.complete and not self._closed:
            self.close()
            raise broken_off()
        raise StopIteration

    def close(self) -> None:
        """Cancels the call; the server gives the request's place to another within a step."""
        self._closed = True
        self._answer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if not self._closed:
            self.close()
