"""Sends a call, retries it, yields its responses and closes it. Blocking; `_call_aio` is the asyncio version."""

from __future__ import annotations

import time
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, Dict, Generic, Iterator, Optional, Protocol, Type, TypeVar

import grpc
from google.protobuf.message import Message

from ._errors import WeirError
from ._mixups import add_remedy
from ._retry import Attempts, Retry
from ._settings import CallOptions, Metadata, Settings

if TYPE_CHECKING:
    from typing_extensions import Self

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)
Item = TypeVar("Item")
Received = TypeVar("Received", contravariant=True)
Produced = TypeVar("Produced", covariant=True)
Begin = TypeVar("Begin")
End = TypeVar("End")


@dataclass(frozen=True)
class Method(Generic[Request, Response]):
    """A method of the server."""

    path: str
    request: Type[Request]
    response: Type[Response]


class Events(Protocol[Received, Produced]):
    """Converts the messages of one response into items."""

    @property
    def complete(self) -> bool:
        """True once the last message has arrived."""

    def take(self, response: Received) -> Optional[Produced]:
        """Returns the item in a message, or None if the message has no item."""


#: Converts the messages of one response into items.
Reader = TypeVar("Reader", bound=Events[Any, Any])


class Frame(Generic[Begin, End]):
    """Holds the first and the last message of a response once they arrive."""

    def __init__(self) -> None:
        self.started: Optional[Begin] = None
        self.finished: Optional[End] = None

    @property
    def complete(self) -> bool:
        return self.finished is not None


class Framed(Generic[Begin, End]):
    """A blocking or asyncio stream whose response has a first and a last message."""

    # The stream's reader, a `Frame[Begin, End]`. The stream's other base class declares its type.
    _events: Any

    @property
    def started(self) -> Optional[Begin]:
        """The first message; None before the first item arrives."""
        started: Optional[Begin] = self._events.started
        return started

    @property
    def finished(self) -> Optional[End]:
        """The last message; None until the stream ends."""
        finished: Optional[End] = self._events.finished
        return finished


def incomplete_response() -> WeirError:
    """Returns the error for a response that ends without its last message and without an error."""
    return WeirError(grpc.StatusCode.UNKNOWN, "the response ended before its last message")


class ClientState:
    """The state of a client that its calls share."""

    def __init__(self) -> None:
        self.closed = False

    def check(self) -> None:
        """Raises `WeirError` if the client is closed."""
        if self.closed:
            raise WeirError(grpc.StatusCode.CANCELLED, "the client is closed")


def pause_after(attempts: Attempts, error: WeirError, begun: bool, settings: Settings) -> float:
    """Returns the seconds to wait before the next attempt. If none follows, raises the error with its likely cause."""
    try:
        return attempts.pause_after(error, begun)
    except WeirError:
        if not begun:
            add_remedy(error, settings)
        raise


class Upload(Protocol[Produced]):
    """A request of many messages."""

    @property
    def repeatable(self) -> bool:
        """True if a retry can send the request again."""

    @property
    def failure(self) -> Optional[BaseException]:
        """The error that reading the document raised, if any. Never an error of the server or the connection."""

    def begin(self) -> Produced:
        """Returns the request's messages, from the first."""


class Caller:
    """Opens a channel and sends calls on it. Subclasses define the calls."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        credentials, options = settings.credentials(), settings.options()
        if credentials is None:
            self._channel = grpc.insecure_channel(settings.target(), options)
        else:
            self._channel = grpc.secure_channel(settings.target(), credentials, options)
        self._methods: Dict[str, Any] = {}
        self._state = ClientState()

    def close(self) -> None:
        """Closes the channel and cancels its calls, which raise `WeirError`."""
        self._state.closed = True
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
        """Sends one message and returns one message."""
        attempts = Attempts(self._settings.retry, self._settings.call_timeout(call))
        metadata = self._settings.metadata(text, call)
        stub = self._stub(method, self._channel.unary_unary)
        while True:
            self._state.check()
            try:
                response: Response = stub(request, timeout=attempts.remaining(), metadata=metadata)
                return response
            except grpc.RpcError as error:
                self._state.check()
                time.sleep(pause_after(attempts, WeirError.of(error), False, self._settings))

    def _start(
        self,
        method: Method[Request, Response],
        request: Request,
        text: Optional[str],
        call: CallOptions,
        rest: Optional[Callable[[], Request]] = None,
    ) -> ResponseStream[Response]:
        """Sends one message and returns a stream. The call starts when the caller requests the first message.

        After a broken response, `rest` returns the message that requests the rest of it.
        """
        attempts = Attempts(self._settings.retry, self._settings.call_timeout(call), resumes=rest is not None)
        stub = self._stub(method, self._channel.unary_stream)
        metadata = self._settings.metadata(text, call)
        return ResponseStream(stub, rest or (lambda: request), metadata, attempts, self._settings, self._state)

    def _start_upload(
        self,
        method: Method[Request, Response],
        upload: Upload[Iterator[Request]],
        call: CallOptions,
    ) -> ResponseStream[Response]:
        """Sends many messages and returns a stream. The call starts when the caller requests the first message."""
        retry = self._settings.retry if upload.repeatable else Retry(attempts=1)
        attempts = Attempts(retry, self._settings.call_timeout(call))
        stub = self._stub(method, self._channel.stream_stream)
        metadata = self._settings.metadata(None, call)
        return ResponseStream(stub, upload.begin, metadata, attempts, self._settings, self._state, upload)

    def _stub(self, method: Method[Request, Response], kind: Any) -> Any:
        if method.path not in self._methods:
            self._methods[method.path] = kind(
                method.path,
                request_serializer=method.request.SerializeToString,
                response_deserializer=method.response.FromString,
            )
        return self._methods[method.path]


class ResponseStream(Generic[Response]):
    """A response of many messages. Retries a failed call."""

    def __init__(
        self,
        stub: Any,
        request: Callable[[], Any],
        metadata: Metadata,
        attempts: Attempts,
        settings: Settings,
        state: ClientState,
        upload: Optional[Upload[Any]] = None,
    ) -> None:
        self._stub, self._request, self._metadata, self._attempts = stub, request, metadata, attempts
        self._settings = settings
        self._state = state
        self._upload = upload
        self._call: Optional[Any] = None
        self._closed = False

    def next(self, begun: bool) -> Optional[Response]:
        """Returns the next message, or None at the end. Retries no call if `begun`, unless a retry continues it.

        `begun` is true if the caller has received an item.
        """
        while not self._closed:
            self._state.check()
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
                self._state.check()
                time.sleep(self._pause_after(WeirError.of(error), begun))
        return None

    def progressed(self) -> None:
        """Records that the caller received an item."""
        self._attempts.received()

    def resume(self, error: WeirError) -> bool:
        """Waits before another attempt, after a response that ended with `error`. Returns False if it cannot continue."""
        if not self._attempts.resumes:
            return False
        time.sleep(self._pause_after(error, begun=True))
        self._call, self._closed = None, False
        return True

    def _pause_after(self, error: WeirError, begun: bool) -> float:
        try:
            return pause_after(self._attempts, error, begun, self._settings)
        except WeirError:
            self._closed = True
            raise

    def close(self) -> None:
        """Cancels the call if it is still running."""
        self._closed = True
        if self._call is not None:
            self._call.cancel()


class EventStream(Generic[Response, Item, Reader]):
    """Iterates over the items of a response. Closing or dropping the iterator cancels the call."""

    def __init__(self, response: ResponseStream[Response], events: Reader) -> None:
        self._response = response
        self._events = events
        self._begun = False
        self._closed = False

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        while True:
            while (message := self._response.next(self._begun)) is not None:
                item: Optional[Item] = self._events.take(message)
                self._begun = self._begun or item is not None or self._events.complete
                if item is not None:
                    self._response.progressed()
                    return item
            if self._events.complete or self._closed:
                raise StopIteration
            if not self._response.resume(incomplete_response()):
                self.close()
                raise incomplete_response()
            if self._closed:
                self._response.close()

    def close(self) -> None:
        """Cancels the call; the server frees the request's row within one step."""
        self._closed = True
        self._response.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if not self._closed:
            self.close()
