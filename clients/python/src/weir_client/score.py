"""`score` and `score_chunks`: the probability of a text under a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple

from typing_extensions import Unpack

from ._call import Caller, EventStream, Method, incomplete_response
from ._call_aio import AsyncCaller, AsyncEventStream
from ._convert import convert
from ._proto import generation_pb2 as pb
from ._request import fill, text_of
from ._settings import CallOptions
from ._types import Character, LevelUsage, Timing, Usage

METHOD = Method("/weir.v1.Generation/Score", pb.ScoreRequest, pb.ScoreResponse)

_SUBMESSAGES = dict.fromkeys(
    ["model", "top_logprobs", "boundary_mode", "boundary_threshold", "seed", "priority", "ids", "exact_logprobs"], ""
)


class ScoreOptions(CallOptions, total=False):
    """Options in addition to the text. An option that is absent or None takes the server's default."""

    #: Optional if exactly one model of the server can answer the call.
    model: Optional[str]
    #: Return this many of the most probable symbols at each position.
    top_logprobs: Optional[int]
    #: One of the model's `boundary_modes`.
    boundary_mode: Optional[str]
    #: Entropy in nats above which a segment ends, in a model with a `boundary_threshold`.
    boundary_threshold: Optional[float]
    #: Seed of the random number generator of boundary mode "sampled".
    seed: Optional[int]
    #: -8 to 7; 0 by default.
    priority: Optional[int]
    #: Ids of the text's symbols, instead of the text, which then is empty.
    ids: Optional[Sequence[int]]
    #: Compute `renormalized_bits`, for models with special symbols.
    exact_logprobs: Optional[bool]
    #: (length, stride): score the text in windows of `length` symbols, each of which scores `stride` symbols. The text may
    #: be longer than the model's longest sequence.
    windows: Optional[Tuple[int, int]]


@dataclass(frozen=True)
class ScoreSummary:
    """The score of a text, without its symbols."""

    #: Mean over the scored symbols; None if no symbol was scored.
    bits_per_char: Optional[float]
    #: Number of symbols that have a log-probability.
    scored_chars: int
    seed: int
    usage: Usage
    timing: Timing
    #: Bits of the marks that end segments, divided by the number of scored symbols; for models that generate such marks.
    nxt_bits_per_char: Optional[float]
    #: Bits of the scored symbols, divided by the bytes of their text in UTF-8.
    bits_per_byte: Optional[float]
    #: The levels of a model whose segments nest, outermost first; empty for other models.
    levels: Tuple[LevelUsage, ...]
    #: Bits of the text and its end, with probabilities renormalized over the symbols that a text can contain and its end.
    renormalized_bits: Optional[float]
    #: Symbols per segment over all windows, including symbols that are read again as context.
    window_shortening_factor: Optional[float]


@dataclass(frozen=True)
class Score:
    """The score of a text, with its symbols."""

    #: Symbols in the order of the text, each with log-probability and boundary.
    characters: Tuple[Character, ...]
    bits_per_char: Optional[float]
    scored_chars: int
    seed: int
    usage: Usage
    timing: Timing
    nxt_bits_per_char: Optional[float]
    #: Bits of the scored symbols, divided by the bytes of their text in UTF-8.
    bits_per_byte: Optional[float]
    #: The levels of a model whose segments nest, outermost first; empty for other models.
    levels: Tuple[LevelUsage, ...]
    #: Bits of the text and its end, with probabilities renormalized over the symbols that a text can contain and its end.
    renormalized_bits: Optional[float]
    #: Symbols per segment over all windows, including symbols that are read again as context.
    window_shortening_factor: Optional[float]


class _Events:
    """Collects the messages of one response."""

    def __init__(self) -> None:
        self.summary: Optional[ScoreSummary] = None

    @property
    def complete(self) -> bool:
        return self.summary is not None

    def take(self, response: pb.ScoreResponse) -> Optional[Tuple[Character, ...]]:
        event = response.WhichOneof("event")
        if event == "chunk":
            return tuple(convert(Character, character) for character in response.chunk.characters)
        if event == "summary":
            self.summary = convert(ScoreSummary, response.summary)
        return None

    def collect(self, chunks: List[Tuple[Character, ...]]) -> Score:
        if self.summary is None:
            raise incomplete_response()
        return Score(characters=tuple(character for chunk in chunks for character in chunk), **vars(self.summary))


class ScoreStream(EventStream[pb.ScoreResponse, Tuple[Character, ...], _Events]):
    """Iterates over runs of a text's symbols. Closing the stream, or leaving its `with`, cancels the call."""

    @property
    def summary(self) -> Optional[ScoreSummary]:
        """The last message; None until all have arrived."""
        return self._events.summary


class AsyncScoreStream(AsyncEventStream[pb.ScoreResponse, Tuple[Character, ...], _Events]):
    """Iterates over runs of a text's symbols. Closing the stream, or leaving its `async with`, cancels the call."""

    @property
    def summary(self) -> Optional[ScoreSummary]:
        """The last message; None until all have arrived."""
        return self._events.summary


class ScoreCalls(Caller):
    """The calls of this module."""

    def score(self, text: str, **options: Unpack[ScoreOptions]) -> Score:
        """Returns bits per symbol, and each symbol's log-probability and boundary. Raises `WeirError`."""
        with self.score_chunks(text, **options) as stream:
            return stream._events.collect(list(stream))

    def score_chunks(self, text: str, **options: Unpack[ScoreOptions]) -> ScoreStream:
        """Streams the score in runs of at most 512 symbols, for texts too long to keep all symbols in memory."""
        return ScoreStream(self._start(METHOD, _request(text, options), text, options), _Events())


class AsyncScoreCalls(AsyncCaller):
    """The calls of this module, for asyncio."""

    async def score(self, text: str, **options: Unpack[ScoreOptions]) -> Score:
        """Returns bits per symbol, and each symbol's log-probability and boundary. Raises `WeirError`."""
        async with self.score_chunks(text, **options) as stream:
            return stream._events.collect([chunk async for chunk in stream])

    def score_chunks(self, text: str, **options: Unpack[ScoreOptions]) -> AsyncScoreStream:
        """Streams the score in runs of at most 512 symbols, for texts too long to keep all symbols in memory."""
        return AsyncScoreStream(self._start(METHOD, _request(text, options), text, options), _Events())


def _request(text: str, options: ScoreOptions) -> pb.ScoreRequest:
    request = pb.ScoreRequest(text=text_of("text", text))
    fields: Dict[str, Any] = {name: value for name, value in options.items() if name not in CallOptions.__annotations__}
    windows = fields.pop("windows", None)
    if windows is not None:
        request.windows.length, request.windows.stride = windows
    fill(request, fields, _SUBMESSAGES)
    return request
