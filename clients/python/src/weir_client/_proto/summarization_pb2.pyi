from . import generation_pb2 as _generation_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SummaryMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SUMMARY_MODE_UNSPECIFIED: _ClassVar[SummaryMode]
    SUMMARY_MODE_ABSTRACT: _ClassVar[SummaryMode]
    SUMMARY_MODE_EXTRACT: _ClassVar[SummaryMode]

class LongDocuments(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LONG_DOCUMENTS_UNSPECIFIED: _ClassVar[LongDocuments]
    LONG_DOCUMENTS_REFUSE: _ClassVar[LongDocuments]
    LONG_DOCUMENTS_CUT: _ClassVar[LongDocuments]
    LONG_DOCUMENTS_CHUNK: _ClassVar[LongDocuments]

class SummaryFinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SUMMARY_FINISH_REASON_UNSPECIFIED: _ClassVar[SummaryFinishReason]
    SUMMARY_FINISH_REASON_END_OF_TEXT: _ClassVar[SummaryFinishReason]
    SUMMARY_FINISH_REASON_MAX_TOKENS: _ClassVar[SummaryFinishReason]
SUMMARY_MODE_UNSPECIFIED: SummaryMode
SUMMARY_MODE_ABSTRACT: SummaryMode
SUMMARY_MODE_EXTRACT: SummaryMode
LONG_DOCUMENTS_UNSPECIFIED: LongDocuments
LONG_DOCUMENTS_REFUSE: LongDocuments
LONG_DOCUMENTS_CUT: LongDocuments
LONG_DOCUMENTS_CHUNK: LongDocuments
SUMMARY_FINISH_REASON_UNSPECIFIED: SummaryFinishReason
SUMMARY_FINISH_REASON_END_OF_TEXT: SummaryFinishReason
SUMMARY_FINISH_REASON_MAX_TOKENS: SummaryFinishReason

class SummarizeRequest(_message.Message):
    __slots__ = ("options", "chunk")
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    options: SummarizeOptions
    chunk: DocumentChunk
    def __init__(self, options: _Optional[_Union[SummarizeOptions, _Mapping]] = ..., chunk: _Optional[_Union[DocumentChunk, _Mapping]] = ...) -> None: ...

class DocumentChunk(_message.Message):
    __slots__ = ("text", "ids")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    text: str
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, text: _Optional[str] = ..., ids: _Optional[_Iterable[int]] = ...) -> None: ...

class SummarizeOptions(_message.Message):
    __slots__ = ("model", "beam_size", "length_penalty", "min_tokens", "max_tokens", "no_repeat_ngram", "hypotheses", "sampling", "cut", "document_id", "priority", "hard_topk", "early_stopping", "repetition_penalty", "long_documents", "kept_tokens", "mode", "sentences", "constraint")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    BEAM_SIZE_FIELD_NUMBER: _ClassVar[int]
    LENGTH_PENALTY_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NO_REPEAT_NGRAM_FIELD_NUMBER: _ClassVar[int]
    HYPOTHESES_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_ID_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    HARD_TOPK_FIELD_NUMBER: _ClassVar[int]
    EARLY_STOPPING_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    LONG_DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    KEPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    SENTENCES_FIELD_NUMBER: _ClassVar[int]
    CONSTRAINT_FIELD_NUMBER: _ClassVar[int]
    model: str
    beam_size: int
    length_penalty: float
    min_tokens: int
    max_tokens: int
    no_repeat_ngram: int
    hypotheses: int
    sampling: _generation_pb2.Sampling
    cut: bool
    document_id: str
    priority: int
    hard_topk: bool
    early_stopping: str
    repetition_penalty: float
    long_documents: LongDocuments
    kept_tokens: bool
    mode: SummaryMode
    sentences: int
    constraint: _generation_pb2.Constraint
    def __init__(self, model: _Optional[str] = ..., beam_size: _Optional[int] = ..., length_penalty: _Optional[float] = ..., min_tokens: _Optional[int] = ..., max_tokens: _Optional[int] = ..., no_repeat_ngram: _Optional[int] = ..., hypotheses: _Optional[int] = ..., sampling: _Optional[_Union[_generation_pb2.Sampling, _Mapping]] = ..., cut: bool = ..., document_id: _Optional[str] = ..., priority: _Optional[int] = ..., hard_topk: bool = ..., early_stopping: _Optional[str] = ..., repetition_penalty: _Optional[float] = ..., long_documents: _Optional[_Union[LongDocuments, str]] = ..., kept_tokens: bool = ..., mode: _Optional[_Union[SummaryMode, str]] = ..., sentences: _Optional[int] = ..., constraint: _Optional[_Union[_generation_pb2.Constraint, _Mapping]] = ...) -> None: ...

class SummarizeResponse(_message.Message):
    __slots__ = ("started", "progress", "selected", "piece", "finished", "part")
    STARTED_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    SELECTED_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    started: SummaryStarted
    progress: Progress
    selected: Selected
    piece: SummaryPiece
    finished: SummaryFinished
    part: SummaryPart
    def __init__(self, started: _Optional[_Union[SummaryStarted, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., selected: _Optional[_Union[Selected, _Mapping]] = ..., piece: _Optional[_Union[SummaryPiece, _Mapping]] = ..., finished: _Optional[_Union[SummaryFinished, _Mapping]] = ..., part: _Optional[_Union[SummaryPart, _Mapping]] = ...) -> None: ...

class SummaryPart(_message.Message):
    __slots__ = ("round", "part", "byte_start", "byte_end", "round_bytes", "document_tokens", "summary_tokens", "summary", "selected")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    BYTE_START_FIELD_NUMBER: _ClassVar[int]
    BYTE_END_FIELD_NUMBER: _ClassVar[int]
    ROUND_BYTES_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    SELECTED_FIELD_NUMBER: _ClassVar[int]
    round: int
    part: int
    byte_start: int
    byte_end: int
    round_bytes: int
    document_tokens: int
    summary_tokens: int
    summary: str
    selected: _containers.RepeatedCompositeFieldContainer[Selected]
    def __init__(self, round: _Optional[int] = ..., part: _Optional[int] = ..., byte_start: _Optional[int] = ..., byte_end: _Optional[int] = ..., round_bytes: _Optional[int] = ..., document_tokens: _Optional[int] = ..., summary_tokens: _Optional[int] = ..., summary: _Optional[str] = ..., selected: _Optional[_Iterable[_Union[Selected, _Mapping]]] = ...) -> None: ...

class SummaryStarted(_message.Message):
    __slots__ = ("request_id", "model", "cached_tokens")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    model: str
    cached_tokens: int
    def __init__(self, request_id: _Optional[str] = ..., model: _Optional[str] = ..., cached_tokens: _Optional[int] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("stage", "layer", "tokens_read", "blocks_encoded", "blocks_total", "document_bytes", "cut")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    LAYER_FIELD_NUMBER: _ClassVar[int]
    TOKENS_READ_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_ENCODED_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    stage: str
    layer: int
    tokens_read: int
    blocks_encoded: int
    blocks_total: int
    document_bytes: int
    cut: bool
    def __init__(self, stage: _Optional[str] = ..., layer: _Optional[int] = ..., tokens_read: _Optional[int] = ..., blocks_encoded: _Optional[int] = ..., blocks_total: _Optional[int] = ..., document_bytes: _Optional[int] = ..., cut: bool = ...) -> None: ...

class Selected(_message.Message):
    __slots__ = ("layer", "spans", "tokens", "kept")
    LAYER_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    layer: int
    spans: _containers.RepeatedCompositeFieldContainer[Span]
    tokens: int
    kept: _containers.RepeatedCompositeFieldContainer[KeptToken]
    def __init__(self, layer: _Optional[int] = ..., spans: _Optional[_Iterable[_Union[Span, _Mapping]]] = ..., tokens: _Optional[int] = ..., kept: _Optional[_Iterable[_Union[KeptToken, _Mapping]]] = ...) -> None: ...

class KeptToken(_message.Message):
    __slots__ = ("position", "score")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    position: int
    score: float
    def __init__(self, position: _Optional[int] = ..., score: _Optional[float] = ...) -> None: ...

class Span(_message.Message):
    __slots__ = ("byte_start", "byte_end", "score")
    BYTE_START_FIELD_NUMBER: _ClassVar[int]
    BYTE_END_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    byte_start: int
    byte_end: int
    score: float
    def __init__(self, byte_start: _Optional[int] = ..., byte_end: _Optional[int] = ..., score: _Optional[float] = ...) -> None: ...

class SummaryPiece(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...

class SummaryFinished(_message.Message):
    __slots__ = ("reason", "document_id", "hypotheses", "usage", "timing", "parts", "sentences")
    REASON_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_ID_FIELD_NUMBER: _ClassVar[int]
    HYPOTHESES_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    SENTENCES_FIELD_NUMBER: _ClassVar[int]
    reason: SummaryFinishReason
    document_id: str
    hypotheses: _containers.RepeatedCompositeFieldContainer[Hypothesis]
    usage: SummaryUsage
    timing: SummaryTiming
    parts: _containers.RepeatedCompositeFieldContainer[SummaryPart]
    sentences: _containers.RepeatedCompositeFieldContainer[Span]
    def __init__(self, reason: _Optional[_Union[SummaryFinishReason, str]] = ..., document_id: _Optional[str] = ..., hypotheses: _Optional[_Iterable[_Union[Hypothesis, _Mapping]]] = ..., usage: _Optional[_Union[SummaryUsage, _Mapping]] = ..., timing: _Optional[_Union[SummaryTiming, _Mapping]] = ..., parts: _Optional[_Iterable[_Union[SummaryPart, _Mapping]]] = ..., sentences: _Optional[_Iterable[_Union[Span, _Mapping]]] = ...) -> None: ...

class Hypothesis(_message.Message):
    __slots__ = ("text", "ids", "score", "logprobs")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    text: str
    ids: _containers.RepeatedScalarFieldContainer[int]
    score: float
    logprobs: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, text: _Optional[str] = ..., ids: _Optional[_Iterable[int]] = ..., score: _Optional[float] = ..., logprobs: _Optional[_Iterable[float]] = ...) -> None: ...

class SummaryUsage(_message.Message):
    __slots__ = ("document_tokens", "cached_tokens", "cut", "summary_tokens", "vectors", "cross_attention_bytes", "unpooled_cross_attention_bytes", "document_bytes")
    DOCUMENT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_TOKENS_FIELD_NUMBER: _ClassVar[int]
    VECTORS_FIELD_NUMBER: _ClassVar[int]
    CROSS_ATTENTION_BYTES_FIELD_NUMBER: _ClassVar[int]
    UNPOOLED_CROSS_ATTENTION_BYTES_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    document_tokens: int
    cached_tokens: int
    cut: bool
    summary_tokens: int
    vectors: int
    cross_attention_bytes: int
    unpooled_cross_attention_bytes: int
    document_bytes: int
    def __init__(self, document_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., cut: bool = ..., summary_tokens: _Optional[int] = ..., vectors: _Optional[int] = ..., cross_attention_bytes: _Optional[int] = ..., unpooled_cross_attention_bytes: _Optional[int] = ..., document_bytes: _Optional[int] = ...) -> None: ...

class SummaryTiming(_message.Message):
    __slots__ = ("queue_ns", "upload_ns", "encode_rest_ns", "blocks_at_end", "blocks", "layers", "memory_ns", "time_to_first_token_ns", "decode_ns", "decode_ns_per_token", "total_ns", "encode_ns", "kept_share", "cross_attention_bytes", "unpooled_cross_attention_bytes")
    QUEUE_NS_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_NS_FIELD_NUMBER: _ClassVar[int]
    ENCODE_REST_NS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_AT_END_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_NS_FIELD_NUMBER: _ClassVar[int]
    TIME_TO_FIRST_TOKEN_NS_FIELD_NUMBER: _ClassVar[int]
    DECODE_NS_FIELD_NUMBER: _ClassVar[int]
    DECODE_NS_PER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    TOTAL_NS_FIELD_NUMBER: _ClassVar[int]
    ENCODE_NS_FIELD_NUMBER: _ClassVar[int]
    KEPT_SHARE_FIELD_NUMBER: _ClassVar[int]
    CROSS_ATTENTION_BYTES_FIELD_NUMBER: _ClassVar[int]
    UNPOOLED_CROSS_ATTENTION_BYTES_FIELD_NUMBER: _ClassVar[int]
    queue_ns: int
    upload_ns: int
    encode_rest_ns: int
    blocks_at_end: int
    blocks: int
    layers: _containers.RepeatedCompositeFieldContainer[EncoderLayer]
    memory_ns: int
    time_to_first_token_ns: int
    decode_ns: int
    decode_ns_per_token: int
    total_ns: int
    encode_ns: int
    kept_share: float
    cross_attention_bytes: int
    unpooled_cross_attention_bytes: int
    def __init__(self, queue_ns: _Optional[int] = ..., upload_ns: _Optional[int] = ..., encode_rest_ns: _Optional[int] = ..., blocks_at_end: _Optional[int] = ..., blocks: _Optional[int] = ..., layers: _Optional[_Iterable[_Union[EncoderLayer, _Mapping]]] = ..., memory_ns: _Optional[int] = ..., time_to_first_token_ns: _Optional[int] = ..., decode_ns: _Optional[int] = ..., decode_ns_per_token: _Optional[int] = ..., total_ns: _Optional[int] = ..., encode_ns: _Optional[int] = ..., kept_share: _Optional[float] = ..., cross_attention_bytes: _Optional[int] = ..., unpooled_cross_attention_bytes: _Optional[int] = ...) -> None: ...

class EncoderLayer(_message.Message):
    __slots__ = ("length", "ns")
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    NS_FIELD_NUMBER: _ClassVar[int]
    length: int
    ns: int
    def __init__(self, length: _Optional[int] = ..., ns: _Optional[int] = ...) -> None: ...
