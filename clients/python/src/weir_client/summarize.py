"""`summarize` and `summarize_stream`: summaries of documents."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Tuple, Union

from typing_extensions import Unpack

from ._call import Caller, EventStream, Frame, Framed, Method, broken_off
from ._call_aio import AsyncCaller, AsyncEventStream
from ._convert import convert
from ._document import AsyncDocument, AsyncSending, Document, Sending
from ._proto import summarization_pb2 as pb
from ._request import fill, fill_biases
from ._settings import CallOptions

METHOD = Method("/weir.v1.Summarization/Summarize", pb.SummarizeRequest, pb.SummarizeResponse)

_OWN = ["model", "beam_size", "length_penalty", "min_tokens", "max_tokens", "no_repeat_ngram", "hypotheses", "cut"]
_PLACES = {
    **dict.fromkeys([*_OWN, "document_id", "priority", "hard_topk"], ""),
    **dict.fromkeys(["temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed"], "sampling"),
}


class SummarizeOptions(CallOptions, total=False):
    """Options in addition to the document. An option that is absent or None takes the checkpoint's default."""

    #: Optional if the server has exactly one model.
    model: Optional[str]
    #: 1 is greedy search.
    beam_size: Optional[int]
    length_penalty: Optional[float]
    min_tokens: Optional[int]
    max_tokens: Optional[int]
    #: Length of the token n-grams that must not repeat; 0 disables the rule.
    no_repeat_ngram: Optional[int]
    #: Number of hypotheses to return, best first; 1 by default.
    hypotheses: Optional[int]
    #: Summarize the beginning of a document that is longer than the model reads.
    cut: Optional[bool]
    #: The `finished.document_id` of an earlier call; replaces the document.
    document_id: Optional[str]
    #: -8 to 7; 0 by default.
    priority: Optional[int]
    hard_topk: Optional[bool]
    #: Setting this option or one of the sampling options below samples `beam_size` independent texts.
    temperature: Optional[float]
    top_k: Optional[int]
    top_p: Optional[float]
    min_p: Optional[float]
    repetition_penalty: Optional[float]
    seed: Optional[int]
    #: Bias added to the logits of a symbol, given as text or as id.
    logit_bias: Optional[Mapping[Union[str, int], float]]


class SummaryFinishReason(enum.Enum):
    """Why a summary ended."""

    #: A reason that this client does not know.
    UNSPECIFIED = 0
    END_OF_TEXT = 1
    MAX_TOKENS = 2

    @classmethod
    def _missing_(cls, value: object) -> SummaryFinishReason:
        return cls.UNSPECIFIED


@dataclass(frozen=True)
class SummaryStarted:
    """The scheduler has admitted the request to the running batch."""

    #: Identifies the call in the server's log.
    request_id: str
    model: str
    #: Tokens of the document that need not be encoded: all or none.
    cached_tokens: int


@dataclass(frozen=True)
class Progress:
    """How far the document has been read."""

    #: What comes next: "waiting", "layer", "memory" or "done".
    stage: str
    #: The encoder's layer, from 0, if one comes next.
    layer: Optional[int]
    tokens_read: int
    blocks_encoded: int
    #: Known once the whole document has come.
    blocks_total: Optional[int]


@dataclass(frozen=True)
class Span:
    """A part of the document, in bytes of its UTF-8; the end is that after the last."""

    byte_start: int
    byte_end: int
    #: The mean of its tokens' scores.
    score: float


@dataclass(frozen=True)
class Selected:
    """The spans of the document that a pooling layer kept."""

    #: The encoder's layer behind which it stands, from 0.
    layer: int
    spans: Tuple[Span, ...]
    #: Tokens that were kept.
    tokens: int

    def texts(self, document: str) -> Tuple[str, ...]:
        """The spans as they read in the document."""
        encoded = document.encode()
        return tuple(encoded[one.byte_start : one.byte_end].decode(errors="replace") for one in self.spans)


@dataclass(frozen=True)
class SummaryPiece:
    """The next part of the summary; it is final."""

    text: str


@dataclass(frozen=True)
class Hypothesis:
    """An alternative text for the summary."""

    text: str
    ids: Tuple[int, ...]
    score: float
    #: Of each token, natural.
    logprobs: Tuple[float, ...]


@dataclass(frozen=True)
class SummaryUsage:
    """Counts of processed tokens; `summarization.proto` describes each."""

    document_tokens: int
    cached_tokens: int
    cut: bool
    summary_tokens: int
    vectors: int
    cross_attention_bytes: int
    unpooled_cross_attention_bytes: int


@dataclass(frozen=True)
class EncoderLayer:
    """A layer of the encoder, with its pooling."""

    #: Vectors that came in.
    length: int
    ns: int


@dataclass(frozen=True)
class SummaryTiming:
    """Where the time went, in nanoseconds; `summarization.proto` describes each."""

    queue_ns: int
    upload_ns: int
    encode_rest_ns: int
    blocks_at_end: int
    blocks: int
    layers: Tuple[EncoderLayer, ...]
    memory_ns: int
    time_to_first_token_ns: int
    decode_ns: int
    decode_ns_per_token: Optional[int]
    total_ns: int


@dataclass(frozen=True)
class SummaryFinished:
    """How a summary ended."""

    reason: SummaryFinishReason
    #: Lets the same caller request another summary without sending the document again; None if the server did not keep it.
    document_id: Optional[str]
    #: Best first.
    hypotheses: Tuple[Hypothesis, ...]
    usage: SummaryUsage
    timing: SummaryTiming


@dataclass(frozen=True)
class Summary:
    """A whole summary."""

    text: str
    #: What each pooling of the model has kept of the document, in the order of the layers.
    selected: Tuple[Selected, ...]
    request_id: str
    model: str
    reason: SummaryFinishReason
    document_id: Optional[str]
    hypotheses: Tuple[Hypothesis, ...]
    usage: SummaryUsage
    timing: SummaryTiming


SummaryEvent = Union[Progress, Selected, SummaryPiece]


class _Events(Frame[SummaryStarted, SummaryFinished]):
    """Collects the messages of one answer."""

    def take(self, response: pb.SummarizeResponse) -> Optional[SummaryEvent]:
        event = response.WhichOneof("event")
        if event == "progress":
            return convert(Progress, response.progress)
        if event == "selected":
            return convert(Selected, response.selected)
        if event == "piece":
            return convert(SummaryPiece, response.piece)
        if event == "started":
            self.started = convert(SummaryStarted, response.started)
        elif event == "finished":
            self.finished = convert(SummaryFinished, response.finished)
        return None

    def whole(self, events: List[SummaryEvent]) -> Summary:
        if self.started is None or self.finished is None:
            raise broken_off()
        return Summary(
            text="".join(one.text for one in events if isinstance(one, SummaryPiece)),
            selected=tuple(one for one in events if isinstance(one, Selected)),
            request_id=self.started.request_id,
            model=self.started.model,
            **vars(self.finished),
        )


class SummaryStream(EventStream[pb.SummarizeResponse, SummaryEvent, _Events], Framed[SummaryStarted, SummaryFinished]):
    """A summary as it is made: `Progress` while the document is read and, as soon as a pooling has chosen, what was
    `Selected`; then pieces of text."""


class AsyncSummaryStream(
    AsyncEventStream[pb.SummarizeResponse, SummaryEvent, _Events], Framed[SummaryStarted, SummaryFinished]
):
    """A summary as it is made: `Progress` while the document is read and, as soon as a pooling has chosen, what was
    `Selected`; then pieces of text."""


class SummarizeCalls(Caller):
    """The calls of this module."""

    def summarize(self, document: Optional[Document] = None, **options: Unpack[SummarizeOptions]) -> Summary:
        """The whole summary. The document is sent in pieces: a text, an iterable of texts, a path, or an open file.

        Raises `WeirError`, and whatever reading the document raises. A document that can be read but once is not sent again.
        """
        with self.summarize_stream(document, **options) as stream:
            return stream._events.whole(list(stream))

    def summarize_stream(
        self, document: Optional[Document] = None, **options: Unpack[SummarizeOptions]
    ) -> SummaryStream:
        """The same as it is made. The call begins when the first event is asked for; iterating raises `WeirError`."""
        upload = Sending(_request(document, options), document)
        return SummaryStream(self._start_upload(METHOD, upload, options), _Events())


class AsyncSummarizeCalls(AsyncCaller):
    """The calls of this module, for asyncio."""

    async def summarize(
        self, document: Optional[AsyncDocument] = None, **options: Unpack[SummarizeOptions]
    ) -> Summary:
        """The whole summary. The document is sent in pieces: a text, an iterable of texts, a path, or an open file.

        Raises `WeirError`, and whatever reading the document raises. A document that can be read but once is not sent again.
        """
        async with self.summarize_stream(document, **options) as stream:
            return stream._events.whole([event async for event in stream])

    def summarize_stream(
        self, document: Optional[AsyncDocument] = None, **options: Unpack[SummarizeOptions]
    ) -> AsyncSummaryStream:
        """The same as it is made. The call begins when the first event is asked for; iterating raises `WeirError`."""
        upload = AsyncSending(_request(document, options), document)
        return AsyncSummaryStream(self._start_upload(METHOD, upload, options), _Events())


def _request(document: Optional[object], options: SummarizeOptions) -> pb.SummarizeOptions:
    if (document is None) == (options.get("document_id") is None):
        raise ValueError("give a document, or the document_id of one that was sent before")
    request = pb.SummarizeOptions()
    ours: Dict[str, Any] = {name: value for name, value in options.items() if name not in CallOptions.__annotations__}
    fill_biases(request, ours.pop("logit_bias", None))
    fill(request, ours, _PLACES)
    return request
