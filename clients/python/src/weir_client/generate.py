"""`generate` and `stream`: text that continues a prompt."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union, cast

from typing_extensions import TypedDict, Unpack

from ._call import Caller, EventStream, Frame, Framed, Method, incomplete_response
from ._call_aio import AsyncCaller, AsyncEventStream
from ._convert import convert
from ._proto import generation_pb2 as pb
from ._request import fill, fill_biases, fill_form, text_of
from ._resumption import Resumption
from ._settings import CallOptions
from ._types import Character, LevelUsage, Timing, Usage

METHOD = Method("/weir.v1.Generation/Generate", pb.GenerateRequest, pb.GenerateResponse)


class SamplingOptions(TypedDict, total=False):
    """How `generate` and `summarize` choose what comes next: the options in the message `Sampling`."""

    #: At 0 the server takes the most probable symbol. The checkpoint's by default, else 1.
    temperature: Optional[float]
    top_k: Optional[int]
    top_p: Optional[float]
    min_p: Optional[float]
    repetition_penalty: Optional[float]
    presence_penalty: Optional[float]
    frequency_penalty: Optional[float]
    #: If absent, the server draws a seed and returns it.
    seed: Optional[int]
    #: Bias that the server adds to the logit of a symbol, by the symbol's text or id.
    logit_bias: Optional[Mapping[Union[str, int], float]]


class FormOptions(TypedDict, total=False):
    """The form that the text must have, in `generate` and `summarize`: the message `Constraint`."""

    #: At most one of these five: a regular expression that all of it matches,
    regex: Optional[str]
    #: texts of which it is one,
    choice: Optional[Sequence[str]]
    #: the JSON schema that it satisfies, as a text or as `json.dumps` takes it,
    json_schema: Union[None, str, bool, Mapping[str, Any]]
    #: any JSON object,
    json_object: Optional[bool]
    #: or a Lark grammar.
    grammar: Optional[str]


# The submessage of the request that holds each option of the form.
FORM_SUBMESSAGES = dict.fromkeys(FormOptions.__annotations__, "constraint")
# The submessage of the request that holds each option of sampling. `fill_biases` sets the biases.
SAMPLING_SUBMESSAGES = {name: "sampling" for name in SamplingOptions.__annotations__ if name != "logit_bias"}

# The submessage of the request that holds each option.
_SUBMESSAGES = {
    "model": "",
    "boundary_mode": "",
    "boundary_threshold": "",
    "priority": "",
    "prompt_ids": "",
    "resume_text": "",
    "resume_ids": "",
    "speculate": "",
    **FORM_SUBMESSAGES,
    "end_when_complete": "constraint",
    **SAMPLING_SUBMESSAGES,
    **dict.fromkeys(["max_chars", "min_chars", "max_segments", "stop", "include_stop", "ignore_eos"], "stopping"),
    **dict.fromkeys(["coalesce_chars", "per_segment"], "stream"),
    **dict.fromkeys(["echo", "logprobs", "top_logprobs", "boundaries", "ids"], "details"),
}
# Minimum symbols of a message for `generate`, which returns the complete text and needs no smaller messages.
_LARGE_PIECES = 256


class GenerateOptions(CallOptions, SamplingOptions, FormOptions, total=False):
    """Options in addition to the prompt. An option that is absent or None takes the server's default."""

    #: Optional if exactly one model of the server can answer the call.
    model: Optional[str]
    #: Maximum number of symbols to generate; 256 by default.
    max_chars: Optional[int]
    min_chars: Optional[int]
    max_segments: Optional[int]
    #: Generation ends when the model generates one of these strings. One that it cannot generate never matches.
    stop: Union[None, str, Sequence[str]]
    include_stop: Optional[bool]
    ignore_eos: Optional[bool]
    #: Whether a complete text ends where the model would leave its form. By default for `choice` and JSON.
    end_when_complete: Optional[bool]
    #: One of the model's `boundary_modes`.
    boundary_mode: Optional[str]
    #: Entropy in nats above which a segment ends, in a model with a `boundary_threshold`.
    boundary_threshold: Optional[float]
    #: -8 to 7; 0 by default.
    priority: Optional[int]
    #: "auto", "off" or a number from 1 to 16: how the server guesses symbols. The text does not depend on it.
    speculate: Union[str, int, None]
    #: The prompt as ids of the vocabulary. The prompt's text must then be empty.
    prompt_ids: Optional[Sequence[int]]
    #: Continue a stream that breaks, as if it had not: with a new call that has the same seed and the text so far.
    resume: Optional[bool]
    #: The text that an earlier stream of the same request has sent. The server sends the rest. Needs that stream's `seed`.
    resume_text: Optional[str]
    #: The same as ids, for any model.
    resume_ids: Optional[Sequence[int]]
    #: Return the prompt before the text.
    echo: Optional[bool]
    #: Return the log-probability of each symbol.
    logprobs: Optional[bool]
    #: Return this many of the most probable symbols at the position of each symbol.
    top_logprobs: Optional[int]
    #: Return for each symbol whether a segment ends with it.
    boundaries: Optional[bool]
    #: Return the id of each symbol.
    ids: Optional[bool]
    #: Minimum number of symbols in a piece.
    coalesce_chars: Optional[int]
    #: Send one segment in each piece.
    per_segment: Optional[bool]


class FinishReason(enum.Enum):
    """Why a text ended."""

    #: A reason that this client does not know.
    UNSPECIFIED = 0
    MAX_CHARS = 1
    MAX_SEGMENTS = 2
    STOP = 3
    MAX_CONTEXT = 4
    END_OF_TEXT = 5
    CONSTRAINT = 6

    @classmethod
    def _missing_(cls, value: object) -> FinishReason:
        return cls.UNSPECIFIED


@dataclass(frozen=True)
class Started:
    """The scheduler has admitted the request to the running batch."""

    #: Identifies the call in the server's log.
    request_id: str
    model: str
    prompt_chars: int
    #: Symbols of the prompt that came from the segment cache and needed no computation.
    cached_chars: int
    #: Unicode characters of the prompt. In a model of tokens or bytes, `prompt_chars` counts those.
    prompt_text_chars: Optional[int]
    #: As in `usage`.
    normalized_chars: Optional[int]
    #: The seed of all random draws. `resume_text` needs it.
    seed: Optional[int]
    #: Symbols of `resume_text` or `resume_ids`.
    resumed_chars: int


@dataclass(frozen=True)
class Piece:
    """The next part of the text."""

    text: str
    #: The symbols of the text, if the caller set `logprobs`, `top_logprobs` or `boundaries`.
    characters: Tuple[Character, ...]
    #: True if this piece is part of the echoed prompt.
    prompt: bool
    #: Ids of the piece's symbols, if the caller set `ids`.
    ids: Tuple[int, ...] = ()


@dataclass(frozen=True)
class Finished:
    """How a text ended."""

    reason: FinishReason
    matched_stop: Optional[str]
    #: The same request with this seed gives the same text.
    seed: int
    usage: Usage
    timing: Timing
    #: The levels of a model whose segments nest, outermost first; empty for other models.
    levels: Tuple[LevelUsage, ...]


@dataclass(frozen=True)
class Generated:
    """A complete text."""

    #: The generated text, without the prompt.
    text: str
    #: The symbols of the text, if the caller set `logprobs`, `top_logprobs` or `boundaries`.
    characters: Tuple[Character, ...]
    #: The prompt as it was sent, if the caller set `echo`.
    prompt: Optional[str]
    prompt_characters: Tuple[Character, ...]
    request_id: str
    model: str
    reason: FinishReason
    matched_stop: Optional[str]
    seed: int
    usage: Usage
    timing: Timing
    #: The levels of a model whose segments nest, outermost first; empty for other models.
    levels: Tuple[LevelUsage, ...]


class _Events(Frame[Started, Finished]):
    """Collects the messages of one response, and of those that continue it."""

    def __init__(self, resumption: Optional[Resumption] = None) -> None:
        super().__init__()
        self._resumption = resumption

    def take(self, response: pb.GenerateResponse) -> Optional[Piece]:
        event = response.WhichOneof("event")
        if event == "piece":
            piece = convert(Piece, response.piece)
            if self._resumption is None:
                return piece
            if not self._resumption.take(response.piece):
                return None
            return piece if self._resumption.lists_ids else replace(piece, ids=())
        if event == "started":
            if self._resumption is not None:
                self._resumption.begin(response.started)
            self.started = convert(Started, response.started)
        elif event == "finished":
            self.finished = convert(Finished, response.finished)
        return None

    def collect(self, pieces: List[Piece], echo: bool) -> Generated:
        if self.started is None or self.finished is None:
            raise incomplete_response()
        parts: Dict[bool, str] = {}
        characters: Dict[bool, Tuple[Character, ...]] = {}
        for of_prompt in (False, True):
            selected = [piece for piece in pieces if piece.prompt is of_prompt]
            parts[of_prompt] = "".join(piece.text for piece in selected)
            characters[of_prompt] = tuple(character for piece in selected for character in piece.characters)
        return Generated(
            text=parts[False],
            characters=characters[False],
            prompt=parts[True] if echo else None,
            prompt_characters=characters[True],
            request_id=self.started.request_id,
            model=self.started.model,
            **vars(self.finished),
        )


class Stream(EventStream[pb.GenerateResponse, Piece, _Events], Framed[Started, Finished]):
    """Iterates over the pieces of a text. Closing the stream, or leaving its `with`, cancels the call."""


class AsyncStream(AsyncEventStream[pb.GenerateResponse, Piece, _Events], Framed[Started, Finished]):
    """Iterates over the pieces of a text. Closing the stream, or leaving its `async with`, cancels the call."""


class GenerateCalls(Caller):
    """The calls of this module."""

    def generate(self, prompt: str, **options: Unpack[GenerateOptions]) -> Generated:
        """Returns the complete text, with usage and timing. Raises `WeirError`."""
        with self.stream(prompt, **_with_large_pieces(options)) as stream:
            return stream._events.collect(list(stream), bool(options.get("echo")))

    def stream(self, prompt: str, **options: Unpack[GenerateOptions]) -> Stream:
        """Streams the text in pieces. The call starts with the first piece; iterating raises `WeirError`."""
        request = _request(prompt, options)
        if not options.get("resume"):
            return Stream(self._start(METHOD, request, prompt, options), _Events())
        resumption = Resumption(request)
        return Stream(self._start(METHOD, request, prompt, options, resumption.rest), _Events(resumption))


class AsyncGenerateCalls(AsyncCaller):
    """The calls of this module, for asyncio."""

    async def generate(self, prompt: str, **options: Unpack[GenerateOptions]) -> Generated:
        """Returns the complete text, with usage and timing. Raises `WeirError`."""
        async with self.stream(prompt, **_with_large_pieces(options)) as stream:
            return stream._events.collect([piece async for piece in stream], bool(options.get("echo")))

    def stream(self, prompt: str, **options: Unpack[GenerateOptions]) -> AsyncStream:
        """Streams the text in pieces. The call starts with the first piece; iterating raises `WeirError`."""
        request = _request(prompt, options)
        if not options.get("resume"):
            return AsyncStream(self._start(METHOD, request, prompt, options), _Events())
        resumption = Resumption(request)
        return AsyncStream(self._start(METHOD, request, prompt, options, resumption.rest), _Events(resumption))


def _with_large_pieces(options: GenerateOptions) -> GenerateOptions:
    if options.get("coalesce_chars") is None and not options.get("per_segment"):
        return cast(GenerateOptions, {**options, "coalesce_chars": _LARGE_PIECES})
    return options


def _request(prompt: str, options: GenerateOptions) -> pb.GenerateRequest:
    request = pb.GenerateRequest(prompt=text_of("prompt", prompt))
    fields: Dict[str, Any] = {name: value for name, value in options.items() if name not in CallOptions.__annotations__}
    fields.pop("resume", None)
    fill_biases(request, fields.pop("logit_bias", None))
    if isinstance(fields.get("stop"), str):
        fields["stop"] = [fields["stop"]]
    if type(fields.get("speculate")) is int:
        fields["speculate"] = str(fields["speculate"])
    fill_form(request, fields)
    fill(request, fields, _SUBMESSAGES)
    return request
