"""The asyncio version of `_call`."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import TYPE_CHECKING, Any, AsyncIterator, Callable, Coroutine, Dict, Generic, Optional, Type, TypeVar

import grpc
import grpc.aio

from ._call import ClientState, Item, Method, Reader, Request, Response, Upload, incomplete_response
from ._errors import WeirError
from ._mixups import add_remedy
from ._retry import Attempts, Retry
from ._settings import CallOptions, Metadata, Settings

if TYPE_CHECKING:
    from typing_extensions import Self

Result = TypeVar("Result")


async def pause_after(attempts: Attempts, error: WeirError, begun: bool, settings: Settings) -> float:
    """Returns the seconds to wait before the next attempt. If none follows, raises the error with its likely cause."""
    try:
        return attempts.pause_after(error, begun)
    except WeirError:
        if not begun:
            await asyncio.get_running_loop().run_in_executor(None, add_remedy, error, settings)
        raise


def is_cancelled() -> bool:
    """Returns True if the running task was cancelled. Always False before Python 3.11, which does not record it.

    There a task that is cancelled while the client closes raises `WeirError`.
    """
    task = asyncio.current_task()
    cancelling = getattr(task, "cancelling", None)
    return cancelling is not None and cancelling() > 0


# What gRPC's asyncio API reports instead of the server's status if a message could not be sent because the call had ended.
_FAILED_WRITE = (grpc.StatusCode.INTERNAL, "Internal error from Core")
# Maximum seconds to wait for the server's status after that.
_STATUS_TIMEOUT = 2.0


class SentStatus:
    """The status with which the server ended a call. A failed write replaces it in the call (grpc/grpc#36066)."""

    def __init__(self, call: Any) -> None:
        self._error: Optional[grpc.aio.AioRpcError] = None
        self._received = asyncio.Event()
        call.add_done_callback(self._record)

    def _record(self, call: Any) -> None:
        """Keeps the status that the call has now, unless a failed write set it."""
        code, details = _result(call.code()), _result(call.details())
        if code is None or (code, details) == _FAILED_WRITE:
            return
        initial, trailing = _result(call.initial_metadata()), _result(call.trailing_metadata())
        self._error = grpc.aio.AioRpcError(code, initial, trailing, details)
        self._received.set()

    async def replace(self, error: grpc.RpcError) -> grpc.RpcError:
        """Returns the server's status for an error that a failed write caused, and other errors as they are."""
        call: Any = error
        if (call.code(), call.details()) != _FAILED_WRITE:
            return error
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._received.wait(), _STATUS_TIMEOUT)
        return self._error or error


def _result(coroutine: Coroutine[Any, Any, Result]) -> Optional[Result]:
    """Returns the result of a coroutine that need not wait; None if it would."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: Result = stop.value
        return result
    coroutine.close()
    return None


class AsyncCaller:
    """Opens a channel and sends calls on it, for asyncio."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._credentials = settings.credentials()
        # The first call opens it: a channel belongs to the event loop, which may start after the client is created.
        self._opened: Optional[grpc.aio.Channel] = None
        self._methods: Dict[str, Any] = {}
        self._state = ClientState()

    @property
    def _channel(self) -> grpc.aio.Channel:
        self._state.check()
        if self._opened is None:
            target, options = self._settings.target(), self._settings.options()
            if self._credentials is None:
                self._opened = grpc.aio.insecure_channel(target, options)
            else:
                self._opened = grpc.aio.secure_channel(target, self._credentials, options)
        return self._opened

    async def close(self) -> None:
        """Closes the channel and cancels its calls, which raise `WeirError`."""
        self._state.closed = True
        if self._opened is not None:
            await self._opened.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        await self.close()

    async def _unary(
        self, method: Method[Request, Response], request: Request, text: Optional[str], call: CallOptions
    ) -> Response:
        """Sends one message and returns one message."""
        attempts = Attempts(self._settings.retry, self._settings.call_timeout(call))
        metadata = self._settings.metadata(text, call)
        stub = self._stub(method, self._channel.unary_unary)
        while True:
            self._state.check()
            try:
                response: Response = await stub(request, timeout=attempts.remaining(), metadata=metadata)
                return response
            except asyncio.CancelledError:
                # gRPC raises it for the calls of a channel that is closed.
                if not is_cancelled():
                    self._state.check()
                raise
            except grpc.RpcError as error:
                self._state.check()
                await asyncio.sleep(await pause_after(attempts, WeirError.of(error), False, self._settings))

    def _start(
        self,
        method: Method[Request, Response],
        request: Request,
        text: Optional[str],
        call: CallOptions,
        rest: Optional[Callable[[], Request]] = None,
    ) -> AsyncResponseStream[Response]:
        """Sends one message and returns a stream. The call starts when the caller requests the first message.

        After a broken response, `rest` returns the message that requests the rest of it.
        """
        attempts = Attempts(self._settings.retry, self._settings.call_timeout(call), resumes=rest is not None)
        stub = self._stub(method, self._channel.unary_stream)
        metadata = self._settings.metadata(text, call)
        return AsyncResponseStream(stub, rest or (lambda: request), metadata, attempts, self._settings, self._state)

    def _start_upload(
        self,
        method: Method[Request, Response],
        upload: Upload[AsyncIterator[Request]],
        call: CallOptions,
    ) -> AsyncResponseStream[Response]:
        """Sends many messages and returns a stream. The call starts when the caller requests the first message."""
        retry = self._settings.retry if upload.repeatable else Retry(attempts=1)
        attempts = Attempts(retry, self._settings.call_timeout(call))
        stub = self._stub(method, self._channel.stream_stream)
        metadata = self._settings.metadata(None, call)
        return AsyncResponseStream(stub, upload.begin, metadata, attempts, self._settings, self._state, upload)

    def _stub(self, method: Method[Request, Response], kind: Any) -> Any:
        if method.path not in self._methods:
            self._methods[method.path] = kind(
                method.path,
                request_serializer=method.request.SerializeToString,
                response_deserializer=method.response.FromString,
            )
        return self._methods[method.path]


class AsyncResponseStream(Generic[Response]):
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
        self._status: Optional[SentStatus] = None
        self._closed = False

    async def next(self, begun: bool) -> Optional[Response]:
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
                    self._status = SentStatus(self._call)
                response = await self._call.read()
                if response is not grpc.aio.EOF:
                    message: Response = response
                    return message
                self._closed = True
            except grpc.RpcError as error:
                if self._closed:
                    break
                self._call = None
                if self._upload is not None and self._upload.failure is not None:
                    self._closed = True
                    raise self._upload.failure from None
                self._state.check()
                sent = error if self._status is None else await self._status.replace(error)
                await asyncio.sleep(await self._pause_after(WeirError.of(sent), begun))
            except asyncio.CancelledError:
                # Another task closed the stream or the client, or this task was cancelled: the call is over in all cases.
                closed_elsewhere = self._closed
                self.close()
                if self._upload is not None and self._upload.failure is not None:
                    # gRPC cancels a call whose request iterator raises.
                    raise self._upload.failure from None
                if not closed_elsewhere:
                    if not is_cancelled():
                        self._state.check()
                    raise
        return None

    def progressed(self) -> None:
        """Records that the caller received an item."""
        self._attempts.received()

    async def resume(self, error: WeirError) -> bool:
        """Waits before another attempt, after a response that ended with `error`. Returns False if it cannot continue."""
        if not self._attempts.resumes:
            return False
        await asyncio.sleep(await self._pause_after(error, begun=True))
        self._call, self._closed = None, False
        return True

    async def _pause_after(self, error: WeirError, begun: bool) -> float:
        try:
            return await pause_after(self._attempts, error, begun, self._settings)
        except WeirError:
            self._closed = True
            raise

    def close(self) -> None:
        """Cancels the call if it is still running."""
        self._closed = True
        if self._call is not None:
            self._call.cancel()


class AsyncEventStream(Generic[Response, Item, Reader]):
    """Iterates asynchronously over the items of a response. Closing or dropping the iterator cancels the call."""

    def __init__(self, response: AsyncResponseStream[Response], events: Reader) -> None:
        self._response = response
        self._events = events
        self._begun = False
        self._closed = False

    def __aiter__(self) -> AsyncIterator[Item]:
        return self

    async def __anext__(self) -> Item:
        while True:
            while (message := await self._response.next(self._begun)) is not None:
                item: Optional[Item] = self._events.take(message)
                self._begun = self._begun or item is not None or self._events.complete
                if item is not None:
                    self._response.progressed()
                    return item
            if self._events.complete or self._closed:
                raise StopAsyncIteration
            if not await self._response.resume(incomplete_response()):
                await self.aclose()
                raise incomplete_response()
            if self._closed:
                self._response.close()

    async def aclose(self) -> None:
        """Cancels the call; the server frees the request's row within one step."""
        self._closed = True
        self._response.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        await self.aclose()
