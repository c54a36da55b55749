"""`edit`: a session that completes and scores a document while it changes."""

from __future__ import annotations

import asyncio
import contextlib
import queue
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, Coroutine, Dict, Iterable, Mapping, Optional, Set, Tuple, Type, TypeVar, Union

import grpc
import grpc.aio
from typing_extensions import Literal, Unpack

from ._call import Caller, ClientState, Method, incomplete_response
from ._call_aio import AsyncCaller, SentStatus, is_cancelled
from ._convert import convert
from ._errors import FieldViolation, WeirError
from ._mixups import add_remedy
from ._proto import editing_pb2 as pb
from ._request import fill, fill_form, text_of
from ._settings import CallOptions, Settings
from ._types import Character
from .generate import FORM_SUBMESSAGES, FormOptions

if TYPE_CHECKING:
    from typing_extensions import Self

METHOD = Method("/weir.v1.Editing/Edit", pb.EditRequest, pb.EditResponse)

Result = TypeVar("Result")
Until = Literal["word", "line", "segment", "max_chars"]

_OPEN = dict.fromkeys(["model", "priority"], "")
_UNTIL: Dict[str, Any] = {
    "word": pb.UNTIL_WORD,
    "line": pb.UNTIL_LINE,
    "segment": pb.UNTIL_SEGMENT,
    "max_chars": pb.UNTIL_MAX_CHARS,
}


class EditOptions(CallOptions, total=False):
    """Options in addition to the text. `timeout` limits the whole session; without it the session has no limit."""

    #: Optional if exactly one model of the server can answer the call.
    model: Optional[str]
    #: -8 to 7; 0 by default.
    priority: Optional[int]


@dataclass(frozen=True)
class DocumentApplied:
    """The server has applied a change of the text."""

    revision: int
    #: Bytes of the text in UTF-8.
    text_bytes: int
    #: Characters of the new text that the model's normaliser replaces or drops.
    normalized_chars: int


@dataclass(frozen=True)
class CompletionItem:
    """A completion of the text before the cursor."""

    text: str
    #: Natural logarithm of its probability, including that it ends where it does.
    logprob: float
    chars: int
    #: Indexes of its symbols with which a segment ends or begins.
    boundaries: Tuple[int, ...]


@dataclass(frozen=True)
class DocumentCompletions:
    """The most probable completions, best first."""

    id: int
    #: Revision of the text that was completed.
    revision: int
    items: Tuple[CompletionItem, ...]
    #: True if the search ended at its limit before it had found all of them.
    cut: bool
    #: Symbols before the cursor that came from the segment cache.
    reused_chars: int
    recomputed_chars: int
    #: Distributions that the search computed, needed or not.
    distributions: int
    duration_ns: int
    #: Distributions that earlier searches of the session had computed.
    reused_distributions: int


@dataclass(frozen=True)
class DocumentScores:
    """The scores of a part of the text."""

    revision: int
    #: The symbols that the model reads: the normalised text.
    characters: Tuple[Character, ...]
    #: For each of them the index in the document's text of the character from which it comes.
    starts: Tuple[int, ...]
    recomputed_chars: int
    duration_ns: int


class _Document:
    """The text of a session, and its messages. Offsets of callers count characters; the server's count bytes of UTF-8."""

    def __init__(self, text: str, options: EditOptions) -> None:
        self._text = text_of("text", text)
        self._options = options
        self._revision = 0
        # Number of the last splice that was sent: the server may have refused it.
        self._last_revision = 0
        self._requests = 0
        self._opening = pb.EditRequest(open=pb.OpenDocument(text=text))
        fields = {name: value for name, value in options.items() if name not in CallOptions.__annotations__}
        fill(self._opening.open, fields, _OPEN)

    @property
    def text(self) -> str:
        """The text as the server has it."""
        return self._text

    @property
    def revision(self) -> int:
        """Number of the text's revision: 0 until the first splice."""
        return self._revision

    def _byte(self, name: str, offset: int) -> int:
        if not 0 <= offset <= len(self._text):
            raise ValueError(f"{name}: expected 0 to {len(self._text)}, the characters of the text, found {offset}")
        return len(self._text[:offset].encode())

    def _splicing(self, start: int, end: int, text: str) -> pb.EditRequest:
        splice = pb.TextSplice(
            start_byte=self._byte("start", start), end_byte=self._byte("end", end), text=text_of("text", text)
        )
        self._last_revision += 1
        return pb.EditRequest(splice=pb.SpliceDocument(revision=self._last_revision, splices=[splice]))

    def _spliced(self, start: int, end: int, text: str) -> None:
        """Makes the change that the server has applied."""
        self._text = self._text[:start] + text + self._text[end:]
        self._revision = self._last_revision

    def _completing(
        self,
        cursor: Optional[int],
        count: Optional[int],
        until: Optional[Until],
        max_chars: Optional[int],
        form: Mapping[str, Any],
    ) -> pb.EditRequest:
        if until is not None and until not in _UNTIL:
            raise ValueError(f"until: expected one of {', '.join(_UNTIL)}, found {until!r}")
        at = self._byte("cursor", len(self._text) if cursor is None else cursor)
        request = pb.EditRequest(complete=pb.CompleteDocument(id=self._next_id(), cursor_byte=at))
        fields = {"count": count, "until": None if until is None else _UNTIL[until], "max_chars": max_chars}
        fill(request.complete, fields, dict.fromkeys(fields, ""))
        form = dict(form)
        fill_form(request.complete, form)
        fill(request.complete, form, FORM_SUBMESSAGES)
        return request

    def _scoring(self, start: int, end: Optional[int]) -> pb.EditRequest:
        stop = self._byte("end", len(self._text) if end is None else end)
        score = pb.ScoreDocument(id=self._next_id(), start_byte=self._byte("start", start), end_byte=stop)
        return pb.EditRequest(score=score)

    def _next_id(self) -> int:
        self._requests += 1
        return self._requests


def _scores(scores: pb.DocumentScores, text: str) -> DocumentScores:
    """Converts scores of `text`."""
    starts = []
    encoded, byte, place = text.encode(), 0, 0
    for start in scores.start_bytes:
        place += len(encoded[byte:start].decode())
        byte = start
        starts.append(place)
    return DocumentScores(
        revision=scores.revision,
        characters=tuple(convert(Character, character) for character in scores.characters),
        starts=tuple(starts),
        recomputed_chars=scores.recomputed_chars,
        duration_ns=scores.duration_ns,
    )


def _answer(response: pb.EditResponse) -> Tuple[Optional[int], Union[Any, WeirError]]:
    """Returns a message's request id, or None for a change of the text, and its content or error."""
    event = response.WhichOneof("event")
    if event == "applied":
        return None, convert(DocumentApplied, response.applied)
    if event == "completions":
        return response.completions.id, convert(DocumentCompletions, response.completions)
    if event == "scores":
        return response.scores.id, response.scores
    if event == "stale":
        overtaken = WeirError(grpc.StatusCode.ABORTED, "a later splice overtook the request")
        overtaken.reason = "STALE"
        return response.stale.id, overtaken
    if event == "failed":
        return _failure(response.failed)
    reason = response.closed.reason
    known = pb.DocumentClosed.Reason.values()
    # A newer server may have other reasons.
    name = pb.DocumentClosed.Reason.Name(reason).replace("REASON_", "") if reason in known else f"REASON_{reason}"
    closed = WeirError(grpc.StatusCode.UNAVAILABLE, f"the server closed the session: {name}; open the document again")
    closed.reason = name
    return None, closed


def _failure(failure: pb.EditFailure) -> Tuple[Optional[int], WeirError]:
    code = getattr(grpc.StatusCode, failure.code, grpc.StatusCode.UNKNOWN)
    error = WeirError(code, failure.message)
    error.reason = failure.reason or None
    if failure.HasField("field"):
        error.field_violations = (FieldViolation(failure.field, failure.message),)
    return failure.id if failure.HasField("id") else None, error


class EditSession(_Document):
    """A document that is edited. The session opens at the start of its `with`, or with the first call; one thread may use it.

    A connection error ends the session: open a new one with its `text`.
    """

    def __init__(self, stub: Any, settings: Settings, state: ClientState, text: str, options: EditOptions) -> None:
        self._call: Optional[Any] = None
        self._closed = False
        self._state = state
        # The error that ended the session.
        self._failure: Optional[WeirError] = None
        super().__init__(text, options)
        self._stub, self._settings, self._metadata = stub, settings, settings.metadata(text, options)
        self._queue: queue.SimpleQueue[Optional[pb.EditRequest]] = queue.SimpleQueue()

    def splice(self, start: int, end: int, text: str) -> DocumentApplied:
        """Replaces the characters from `start` to `end`, exclusive. Raises `WeirError` and leaves the text unchanged."""
        self._begin()
        applied: DocumentApplied = self._ask(None, self._splicing(start, end, text))
        self._spliced(start, end, text)
        return applied

    def complete(
        self,
        cursor: Optional[int] = None,
        *,
        count: Optional[int] = None,
        until: Optional[Until] = None,
        max_chars: Optional[int] = None,
        **form: Unpack[FormOptions],
    ) -> DocumentCompletions:
        """Returns the `count` most probable completions at `cursor`, by default the end of the text. Raises `WeirError`.

        With a form, such as `regex`, a completion ends where it has the form, and `until` must be None.
        """
        self._begin()
        request = self._completing(cursor, count, until, max_chars, form)
        completions: DocumentCompletions = self._ask(request.complete.id, request)
        return completions

    def score(self, start: int = 0, end: Optional[int] = None) -> DocumentScores:
        """Returns the log-probability of each symbol from `start` to `end`. Raises `WeirError`."""
        self._begin()
        request = self._scoring(start, end)
        return _scores(self._ask(request.score.id, request), self._text)

    def close(self) -> None:
        """Ends the session."""
        self._closed = True
        if self._call is not None:
            self._queue.put(None)
            self._call.cancel()

    def _begin(self) -> None:
        if self._closed:
            raise ValueError("the session is closed")
        if self._call is None:
            requests: Iterable[pb.EditRequest] = iter(self._queue.get, None)
            self._state.check()
            self._call = self._stub(requests, timeout=self._options.get("timeout"), metadata=self._metadata)
            self._ask(None, self._opening)

    def _ask(self, key: Optional[int], request: pb.EditRequest) -> Any:
        """Sends a message and returns its answer."""
        self._queue.put(request)
        call = self._call
        while call is not None and self._failure is None:
            try:
                response = next(call)
                found, answer = _answer(response)
            except StopIteration:
                self._failure = incomplete_response()
            except grpc.RpcError as error:
                self._failure = WeirError.of(error)
                add_remedy(self._failure, self._settings)
            else:
                if isinstance(answer, WeirError):
                    if response.WhichOneof("event") == "closed":
                        self._failure = answer
                    raise answer
                if found == key:
                    return answer
        # The same error may be raised again.
        raise (self._failure or incomplete_response()).with_traceback(None)

    def __enter__(self) -> Self:
        try:
            self._begin()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if not self._closed:
            self.close()


def _retrieve(done: asyncio.Future[Any]) -> None:
    """Marks an error as retrieved: the task that asked may be gone, and asyncio logs errors that no task awaits."""
    if not done.cancelled():
        done.exception()


async def _shielded(work: Coroutine[Any, Any, Result]) -> Result:
    """Runs `work` to its end, even if the caller is cancelled."""
    task = asyncio.ensure_future(work)
    task.add_done_callback(_retrieve)
    return await asyncio.shield(task)


class AsyncEditSession(_Document):
    """A document that is edited, for asyncio. The session opens at the start of its `async with`.

    Calls may run concurrently. A splice ends the calls of `complete` and `score` in progress with a `WeirError` of the reason
    "STALE". A connection error ends the session: open a new one with its `text`.
    """

    def __init__(self, stub: Any, settings: Settings, state: ClientState, text: str, options: EditOptions) -> None:
        super().__init__(text, options)
        self._stub, self._settings, self._metadata = stub, settings, settings.metadata(text, options)
        self._state = state
        self._call: Optional[Any] = None
        self._reader: Optional[asyncio.Task[None]] = None
        self._waiting: Dict[Optional[int], asyncio.Future[Any]] = {}
        self._failure: Optional[WeirError] = None
        # Held while a message is made and sent, and until a change is applied: the text must not change in between.
        self._changes: Optional[asyncio.Lock] = None

    async def splice(self, start: int, end: int, text: str) -> DocumentApplied:
        """Replaces the characters from `start` to `end`, exclusive. Raises `WeirError` and leaves the text unchanged.

        A splice that was sent takes effect even if its task is cancelled. Calls that follow wait until `text` has it.
        """
        lock = self._lock()
        await lock.acquire()
        # The server may have applied it when this task is cancelled: the other task sees its answer and then releases the lock.
        return await _shielded(self._change(lock, start, end, text))

    async def _change(self, lock: asyncio.Lock, start: int, end: int, text: str) -> DocumentApplied:
        """Sends a splice and makes its change. Releases the lock."""
        try:
            answer = await self._send(None, self._splicing(start, end, text))
            applied: DocumentApplied = await answer
            self._spliced(start, end, text)
            return applied
        finally:
            lock.release()

    async def complete(
        self,
        cursor: Optional[int] = None,
        *,
        count: Optional[int] = None,
        until: Optional[Until] = None,
        max_chars: Optional[int] = None,
        **form: Unpack[FormOptions],
    ) -> DocumentCompletions:
        """Returns the `count` most probable completions at `cursor`, by default the end of the text. Raises `WeirError`.

        With a form, such as `regex`, a completion ends where it has the form, and `until` must be None.
        """

        def make() -> Tuple[int, pb.EditRequest]:
            request = self._completing(cursor, count, until, max_chars, form)
            return request.complete.id, request

        _, answer = await self._ask(make)
        completions: DocumentCompletions = await answer
        return completions

    async def score(self, start: int = 0, end: Optional[int] = None) -> DocumentScores:
        """Returns the log-probability of each symbol from `start` to `end`. Raises `WeirError`."""

        def make() -> Tuple[int, pb.EditRequest]:
            request = self._scoring(start, end)
            return request.score.id, request

        text, answer = await self._ask(make)
        return _scores(await answer, text)

    async def _ask(self, make: Callable[[], Tuple[int, pb.EditRequest]]) -> Tuple[str, asyncio.Future[Any]]:
        """Sends the message that `make` returns with its id. Returns the text at that moment and the future of the answer."""
        lock = self._lock()
        await lock.acquire()
        # gRPC cancels the call if the task that writes is cancelled. So a separate task writes, then releases the lock.
        return await _shielded(self._ask_locked(lock, make))

    async def _ask_locked(
        self, lock: asyncio.Lock, make: Callable[[], Tuple[int, pb.EditRequest]]
    ) -> Tuple[str, asyncio.Future[Any]]:
        try:
            key, request = make()
            return self._text, await self._send(key, request)
        finally:
            lock.release()

    async def aclose(self) -> None:
        """Ends the session."""
        call, reader = self._call, self._reader
        self._call = self._reader = None
        if call is not None:
            call.cancel()
        if reader is not None:
            await asyncio.gather(reader, return_exceptions=True)

    def _lock(self) -> asyncio.Lock:
        if self._changes is None:
            raise ValueError("the session is not open: use it within its `async with`")
        return self._changes

    async def _send(self, key: Optional[int], request: pb.EditRequest) -> asyncio.Future[Any]:
        """Sends a message and returns the future of its answer."""
        call = self._call
        if call is None:
            raise ValueError("the session is closed")
        if self._failure is not None:
            raise self._failure
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(_retrieve)
        self._waiting[key] = answer
        try:
            await call.write(request)
        except (grpc.RpcError, asyncio.InvalidStateError):
            # The reader reports why the call ended.
            pass
        except asyncio.CancelledError:
            # gRPC raises it, too, if the call was cancelled, which the reader reports.
            if is_cancelled() or not call.cancelled():
                raise
        return answer

    async def _read(self, call: Any, status: SentStatus) -> None:
        """Delivers answers to the waiting calls until the stream ends."""
        failure = incomplete_response()
        try:
            while (response := await call.read()) is not grpc.aio.EOF:
                key, answer = _answer(response)
                if response.WhichOneof("event") == "closed":
                    failure = answer
                    break
                waiting = self._waiting.pop(key, None)
                if waiting is None or waiting.done():
                    continue
                if isinstance(answer, WeirError):
                    waiting.set_exception(answer)
                else:
                    waiting.set_result(answer)
        except grpc.RpcError as error:
            failure = WeirError.of(error)
            with contextlib.suppress(asyncio.CancelledError):
                failure = WeirError.of(await status.replace(error))
                await asyncio.get_running_loop().run_in_executor(None, add_remedy, failure, self._settings)
        except asyncio.CancelledError:
            failure = WeirError(grpc.StatusCode.CANCELLED, "the session was closed")
        except Exception as error:
            failure = WeirError(grpc.StatusCode.UNKNOWN, f"a response cannot be read: {error}")
        finally:
            self._failure = failure
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(failure)
            self._waiting.clear()

    async def __aenter__(self) -> Self:
        self._state.check()
        self._changes = asyncio.Lock()
        self._call = self._stub(timeout=self._options.get("timeout"), metadata=self._metadata)
        reader = self._reader = asyncio.ensure_future(self._read(self._call, SentStatus(self._call)))
        opening = asyncio.ensure_future(self._send(None, self._opening))
        opening.add_done_callback(_retrieve)
        try:
            # A write that waits for a connection does not end when another task cancels the call, but the reader does.
            waits: Set[asyncio.Future[Any]] = {opening, reader}
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if not opening.done():
                raise self._failure or incomplete_response()
            await (await opening)
        except BaseException:
            opening.cancel()
            await self.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        await self.aclose()


class EditCalls(Caller):
    """The calls of this module."""

    def edit(self, text: str = "", **options: Unpack[EditOptions]) -> EditSession:
        """Returns a session that edits the document `text`, and completes and scores it while it changes."""
        stub = self._stub(METHOD, self._channel.stream_stream)
        return EditSession(stub, self._settings, self._state, text, options)


class AsyncEditCalls(AsyncCaller):
    """The calls of this module, for asyncio."""

    def edit(self, text: str = "", **options: Unpack[EditOptions]) -> AsyncEditSession:
        """Returns a session that edits the document `text`, and completes and scores it while it changes."""
        stub = self._stub(METHOD, self._channel.stream_stream)
        return AsyncEditSession(stub, self._settings, self._state, text, options)
