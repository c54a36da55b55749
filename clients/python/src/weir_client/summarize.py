"""`summarize` and `summarize_stream`: summaries of documents."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple, Union

from typing_extensions import Unpack

from ._call import Caller, EventStream, Frame, Framed, Method, incomplete_response
from ._call_aio import AsyncCaller, AsyncEventStream
from ._convert import convert
from ._document import AsyncDocument, AsyncDocumentUpload, Document, DocumentUpload
from ._proto import summarization_pb2 as pb
from ._request import fill, fill_biases, fill_form
from ._settings import CallOptions
from .generate import FORM_SUBMESSAGES, SAMPLING_SUBMESSAGES, FormOptions, SamplingOptions

METHOD = Method("/weir.v1.Summarization/Summarize", pb.SummarizeRequest, pb.SummarizeResponse)

_SEARCH = ["model", "beam_size", "length_penalty", "min_tokens", "max_tokens", "no_repeat_ngram", "hypotheses", "cut"]
_RULES = ["early_stopping", "repetition_penalty"]
_REST = ["document_id", "priority", "hard_topk", "long_documents", "kept_tokens", "mode", "sentences"]
_SUBMESSAGES = {
    **SAMPLING_SUBMESSAGES,
    **FORM_SUBMESSAGES,
    # Last, because a search applies the repetition penalty as well.
    **dict.fromkeys([*_SEARCH, *_RULES, *_REST], ""),
}


class SummarizeOptions(CallOptions, SamplingOptions, FormOptions, total=False):
    """Options in addition to the document. An option that is absent or None takes the checkpoint's default.

    If an option of `SamplingOptions` other than `repetition_penalty` is set, the server samples `beam_size` independent texts.
    `repetition_penalty` makes tokens that the summary already contains less likely; 1 changes nothing. A search by the rules of
    fairseq takes only 1.
    """

    #: Optional if exactly one model of the server can answer the call.
    model: Optional[str]
    #: 1 is greedy search.
    beam_size: Optional[int]
    length_penalty: Optional[float]
    min_tokens: Optional[int]
    max_tokens: Optional[int]
    #: Length of the token n-grams that must not repeat; 0 disables the rule.
    no_repeat_ngram: Optional[int]
    #: When a beam search by the rules of transformers stops: True, False or "never".
    early_stopping: Union[bool, str, None]
    #: Number of hypotheses to return, best first; 1 by default.
    hypotheses: Optional[int]
    #: Summarize the beginning of a document that exceeds the model's length.
    cut: Optional[bool]
    #: How to treat a document that exceeds the model's length: "refuse", "cut", or "chunk", which summarizes its parts.
    long_documents: Optional[str]
    #: "abstract" for text that the model writes, or "extract" for sentences of the document.
    mode: Optional[str]
    #: Maximum sentences of an extract; 3 by default, or any number if `max_tokens` is set.
    sentences: Optional[int]
    #: The `finished.document_id` of an earlier call; replaces the document.
    document_id: Optional[str]
    #: -8 to 7; 0 by default.
    priority: Optional[int]
    hard_topk: Optional[bool]
    #: Also return `Selected.kept`.
    kept_tokens: Optional[bool]


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
    #: Tokens of the document that came from the document cache: all or none.
    cached_tokens: int


@dataclass(frozen=True)
class Progress:
    """Progress of the server in reading and encoding the document."""

    #: The next stage: "waiting", "layer", "memory" or "done".
    stage: str
    #: The encoder layer, counted from 0, if `stage` is "layer".
    layer: Optional[int]
    tokens_read: int
    blocks_encoded: int
    #: None until the whole document has arrived.
    blocks_total: Optional[int]
    #: Bytes of the document from its start to the end of the last token received so far.
    document_bytes: Optional[int] = None
    #: True once the document has exceeded the model's limit. Its rest, after `document_bytes`, will not be read.
    cut: bool = False


@dataclass(frozen=True)
class Span:
    """A part of the document, as byte offsets in its UTF-8; the end is exclusive."""

    byte_start: int
    byte_end: int
    #: Mean of the scores of the span's tokens; for a sentence of an extract, the score by which it was chosen.
    score: float


@dataclass(frozen=True)
class KeptToken:
    """A token that a pooling layer kept."""

    #: Index of the token in the document, counted from 0.
    position: int
    score: float


@dataclass(frozen=True)
class Selected:
    """The spans of the document that a pooling layer kept."""

    #: The encoder layer that precedes the pooling, counted from 0. For MrT5, the layer before which its gate deletes tokens.
    layer: int
    spans: Tuple[Span, ...]
    #: Number of kept tokens.
    tokens: int
    #: The kept tokens in the order in which the next layer reads them; empty without `kept_tokens`.
    kept: Tuple[KeptToken, ...]

    def texts(self, document: str) -> Tuple[str, ...]:
        """Returns the text of each span."""
        encoded = document.encode()
        return tuple(encoded[span.byte_start : span.byte_end].decode(errors="replace") for span in self.spans)


@dataclass(frozen=True)
class SummaryPart:
    """A part of a document that is longer than the model reads, and its summary."""

    #: The round, from 1. Round 1 reads the document, and each later round the joined summaries of the round before.
    round: int
    #: Number of the part in its round, from 1.
    part: int
    #: Offset of the first byte in the UTF-8 of the round's text.
    byte_start: int
    #: Offset after the last byte that the model read.
    byte_end: int
    #: Bytes of the round's text.
    round_bytes: int
    document_tokens: int
    summary_tokens: int
    summary: str
    #: The spans of the round's text that each pooling kept. Empty in `SummaryFinished.parts`.
    selected: Tuple[Selected, ...] = ()


@dataclass(frozen=True)
class SummaryPiece:
    """The next part of the summary. Later pieces do not change it."""

    text: str


@dataclass(frozen=True)
class Hypothesis:
    """An alternative text for the summary."""

    text: str
    ids: Tuple[int, ...]
    score: float
    #: Natural log-probability of each token.
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
    document_bytes: Optional[int] = None


@dataclass(frozen=True)
class EncoderLayer:
    """An encoder layer and the pooling after it."""

    #: Number of input vectors.
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
    encode_ns: int = 0
    #: Share of the document's tokens that the last pooling kept. None if the model pools without selecting tokens.
    kept_share: Optional[float] = None
    cross_attention_bytes: int = 0
    unpooled_cross_attention_bytes: int = 0


@dataclass(frozen=True)
class SummaryFinished:
    """The last message of a summary."""

    reason: SummaryFinishReason
    #: With this id the same caller can request another summary without an upload. None if the server did not keep the document.
    document_id: Optional[str]
    #: The hypotheses, best first.
    hypotheses: Tuple[Hypothesis, ...]
    usage: SummaryUsage
    timing: SummaryTiming
    #: The parts of a document that was summarized in parts.
    parts: Tuple[SummaryPart, ...] = ()
    #: The sentences of an extract, in the order of the document.
    sentences: Tuple[Span, ...] = ()


@dataclass(frozen=True)
class Summary:
    """A complete summary."""

    text: str
    #: The spans that each pooling of the model kept, in the order of the layers.
    selected: Tuple[Selected, ...]
    request_id: str
    model: str
    reason: SummaryFinishReason
    document_id: Optional[str]
    hypotheses: Tuple[Hypothesis, ...]
    usage: SummaryUsage
    timing: SummaryTiming
    #: The parts of a document that was summarized in parts, with what the poolings kept of each.
    parts: Tuple[SummaryPart, ...] = ()
    #: The sentences of an extract, in the order of the document.
    sentences: Tuple[Span, ...] = ()


SummaryEvent = Union[Progress, Selected, SummaryPart, SummaryPiece]


class _Events(Frame[SummaryStarted, SummaryFinished]):
    """Collects the messages of one response."""

    def take(self, response: pb.SummarizeResponse) -> Optional[SummaryEvent]:
        event = response.WhichOneof("event")
        if event == "progress":
            return convert(Progress, response.progress)
        if event == "selected":
            return convert(Selected, response.selected)
        if event == "part":
            return convert(SummaryPart, response.part)
        if event == "piece":
            return convert(SummaryPiece, response.piece)
        if event == "started":
            self.started = convert(SummaryStarted, response.started)
        elif event == "finished":
            self.finished = convert(SummaryFinished, response.finished)
        return None

    def collect(self, events: List[SummaryEvent]) -> Summary:
        if self.started is None or self.finished is None:
            raise incomplete_response()
        return Summary(
            text="".join(event.text for event in events if isinstance(event, SummaryPiece)),
            selected=tuple(event for event in events if isinstance(event, Selected)),
            request_id=self.started.request_id,
            model=self.started.model,
            **{
                **vars(self.finished),
                "parts": tuple(event for event in events if isinstance(event, SummaryPart)),
            },
        )


class SummaryStream(EventStream[pb.SummarizeResponse, SummaryEvent, _Events], Framed[SummaryStarted, SummaryFinished]):
    """Iterates over the events of a summary.

    The server sends `Progress` while it reads the document, `Selected` after each pooling, then the pieces of the text. With
    `long_documents="chunk"` a `SummaryPart` for each part precedes them.
    """


class AsyncSummaryStream(
    AsyncEventStream[pb.SummarizeResponse, SummaryEvent, _Events], Framed[SummaryStarted, SummaryFinished]
):
    """Iterates over the events of a summary.

    The server sends `Progress` while it reads the document, `Selected` after each pooling, then the pieces of the text. With
    `long_documents="chunk"` a `SummaryPart` for each part precedes them.
    """


class SummarizeCalls(Caller):
    """The calls of this module."""

    def summarize(self, document: Optional[Document] = None, **options: Unpack[SummarizeOptions]) -> Summary:
        """Uploads a document in pieces and returns its complete summary.

        The document is a text, an iterable of texts, a path, or an open file. Raises `WeirError`, and any error that reading
        the document raises. Only a text or a path is sent again for a retry: an iterable or a file can be read only once.
        """
        with self.summarize_stream(document, **options) as stream:
            return stream._events.collect(list(stream))

    def summarize_stream(
        self, document: Optional[Document] = None, **options: Unpack[SummarizeOptions]
    ) -> SummaryStream:
        """Streams the events of a summary. The call starts with the first event; iterating raises `WeirError`."""
        upload = DocumentUpload(_request(document, options), document)
        return SummaryStream(self._start_upload(METHOD, upload, options), _Events())


class AsyncSummarizeCalls(AsyncCaller):
    """The calls of this module, for asyncio."""

    async def summarize(
        self, document: Optional[AsyncDocument] = None, **options: Unpack[SummarizeOptions]
    ) -> Summary:
        """Uploads a document in pieces and returns its complete summary.

        The document is a text, an iterable of texts, a path, or an open file. Raises `WeirError`, and any error that reading
        the document raises. Only a text or a path is sent again for a retry: an iterable or a file can be read only once.
        """
        async with self.summarize_stream(document, **options) as stream:
            return stream._events.collect([event async for event in stream])

    def summarize_stream(
        self, document: Optional[AsyncDocument] = None, **options: Unpack[SummarizeOptions]
    ) -> AsyncSummaryStream:
        """Streams the events of a summary. The call starts with the first event; iterating raises `WeirError`."""
        upload = AsyncDocumentUpload(_request(document, options), document)
        return AsyncSummaryStream(self._start_upload(METHOD, upload, options), _Events())


def _request(document: Optional[object], options: SummarizeOptions) -> pb.SummarizeOptions:
    if (document is None) == (options.get("document_id") is None):
        raise ValueError("expected either a document or the document_id of an earlier call")
    request = pb.SummarizeOptions()
    fields: Dict[str, Any] = {name: value for name, value in options.items() if name not in CallOptions.__annotations__}
    if isinstance(fields.get("early_stopping"), bool):
        fields["early_stopping"] = str(fields["early_stopping"]).lower()
    fields["long_documents"] = _choice("long_documents", fields.get("long_documents"), pb.LongDocuments)
    fields["mode"] = _choice("mode", fields.get("mode"), pb.SummaryMode)
    fill_biases(request, fields.pop("logit_bias", None))
    fill_form(request, fields)
    fill(request, fields, _SUBMESSAGES)
    return request


def _choice(field: str, name: Any, choices: Any) -> Optional[int]:
    """Returns the number of an enum's value for its name, such as "chunk". Raises ValueError for an unknown name."""
    if name is None:
        return None
    # The first value is the unspecified one. The names of all begin with the name of the enum.
    prefix = choices.Name(0)[: -len("UNSPECIFIED")]
    numbers = {known[len(prefix) :].lower(): number for known, number in choices.items() if number}
    if name not in numbers:
        raise ValueError(f"{field}: expected one of {', '.join(numbers)}, found {name!r}")
    number: int = numbers[name]
    return number
