"""`score` and `score_chunks`: how probable a text is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple

from typing_extensions import Unpack

from ._call import Caller, EventStream, Method, broken_off
from ._call_aio import AsyncCaller, AsyncEventStream
from ._convert import convert
from ._proto import generation_pb2 as pb
from ._request import fill, text_of
from ._settings import CallOptions
from ._types import Character, Timing, Usage

METHOD = Method("/weir.v1.Generation/Score", pb.ScoreRequest, pb.ScoreResponse)

_PLACES = dict.fromkeys(["model", "top_logprobs", "boundary_mode", "seed", "priority"], "")


class ScoreOptions(CallOptions, total=False):
    """Options in addition to the text. An option that is absent or None takes the server's default."""

    #: Optional if the server has exactly one model.
    model: Optional[str]
    #: This many of the most probable symbols at each place.
    top_logprobs: Optional[int]
    #: One of the model's `boundary_modes`.
    boundary_mode: Optional[str]
    #: Of the draws of boundary mode "sampled".
    seed: Optional[int]
    #: -8 to 7; 0 by default.
    priority: Optional[int]
    #: (length, stride): score the text, which may be far longer than the model's longest sequence, in windows of that
    #: length, each scoring that many characters.
    windows: Optional[Tuple[int, int]]


@dataclass(frozen=True)
class ScoreSummary:
    """A text's figures."""

    #: The mean over the scored characters; None if nothing was scored.
    bits_per_char: Optional[float]
    #: Characters that have a log-probability.
    scored_chars: int
    seed: int
    usage: Usage
    timing: Timing
    #: The bits of the marks that end segments, by the number of scored characters; for models that write such marks.
    nxt_bits_per_char: Optional[float]


@dataclass(frozen=True)
class Score:
    """A text's figures, and its characters."""

    #: In the order of the text, each with log-probability and boundary.
    characters: Tuple[Character, ...]
    bits_per_char: Optional[float]
    scored_chars: int
    seed: int
    usage: Usage
    timing: Timing
    nxt_bits_per_char: Optional[float]


class _Events:
    """Collects the messages of one answer."""

    def __init__(self) -> None:
        self.summary: Optional[ScoreSummary] = None

    @property
    def complete(self) -> bool:
        return self.summary is not None

    def take(self, response: pb.ScoreResponse) -> Optional[Tuple[Character, ...]]:
        event = response.WhichOneof("event")
        if event == "chunk":
            return tuple(convert(Character, one) for one in response.chunk.characters)
        if event == "summary":
            self.summary = convert(ScoreSummary, response.summary)
        return None

    def whole(self, chunks: List[Tuple[Character, ...]]) -> Score:
        if self.summary is None:
            raise broken_off()
        return Score(characters=tuple(one for chunk in chunks for one in chunk), **vars(self.summary))


class ScoreStream(EventStream[pb.ScoreResponse, Tuple[Character, ...], _Events]):
    """A text's characters in chunks. Closing it, or leaving its `with`, cancels the call."""

    @property
    def summary(self) -> Optional[ScoreSummary]:
        """The last message; None until all chunks have arrived."""
        return self._events.summary


class AsyncScoreStream(AsyncEventStream[pb.ScoreResponse, Tuple[Character, ...], _Events]):
    """A text's characters in chunks. Closing it, or leaving its `async with`, cancels the call."""

    @property
    def summary(self) -> Optional[ScoreSummary]:
        """The last message; None until all chunks have arrived."""
        return self._events.summary


class ScoreCalls(Caller):
    """The calls of this module."""

    def score(self, text: str, **options: Unpack[ScoreOptions]) -> Score:
        """Returns bits per character, and each character's log-probability and boundary. Raises `WeirError`."""
        with self.score_chunks(text, **options) as stream:
            return stream._events.whole(list(stream))

    def score_chunks(self, text: str, **options: Unpack[ScoreOptions]) -> ScoreStream:
        """Streams the score in chunks of at most 512 characters, for texts too long to keep all characters in memory."""
        return ScoreStream(self._start(METHOD, _request(text, options), text, options), _Events())


class AsyncScoreCalls(AsyncCaller):
    """The calls of this module, for asyncio."""

    async def score(self, text: str, **options: Unpack[ScoreOptions]) -> Score:
        """Returns bits per character, and each character's log-probability and boundary. Raises `WeirError`."""
        async with self.score_chunks(text, **options) as stream:
            return stream._events.whole([chunk async for chunk in stream])

    def score_chunks(self, text: str, **options: Unpack[ScoreOptions]) -> AsyncScoreStream:
        """Streams the score in chunks of at most 512 characters, for texts too long to keep all characters in memory."""
        return AsyncScoreStream(self._start(METHOD, _request(text, options), text, options), _Events())


def _request(text: str, options: ScoreOptions) -> pb.ScoreRequest:
    request = pb.ScoreRequest(text=text_of("text", text))
    ours: Dict[str, Any] = {name: value for name, value in options.items() if name not in CallOptions.__annotations__}
    windows = ours.pop("windows", None)
    if windows is not None:
        request.windows.length, request.windows.stride = windows
    fill(request, ours, _PLACES)
    return request
