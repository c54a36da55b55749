from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ListModelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListModelsResponse(_message.Message):
    __slots__ = ("models",)
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[Model]
    def __init__(self, models: _Optional[_Iterable[_Union[Model, _Mapping]]] = ...) -> None: ...

class GetModelRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class Model(_message.Message):
    __slots__ = ("name", "family", "shape", "parameters", "vocabulary", "training_length", "pooled", "boundary_modes", "dtype", "sha256", "limits", "documents", "exactness", "tolerance", "scope", "boundary_threshold")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FAMILY_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_FIELD_NUMBER: _ClassVar[int]
    TRAINING_LENGTH_FIELD_NUMBER: _ClassVar[int]
    POOLED_FIELD_NUMBER: _ClassVar[int]
    BOUNDARY_MODES_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    EXACTNESS_FIELD_NUMBER: _ClassVar[int]
    TOLERANCE_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    BOUNDARY_THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    name: str
    family: str
    shape: str
    parameters: int
    vocabulary: Vocabulary
    training_length: int
    pooled: bool
    boundary_modes: _containers.RepeatedScalarFieldContainer[str]
    dtype: str
    sha256: str
    limits: Limits
    documents: Documents
    exactness: str
    tolerance: float
    scope: str
    boundary_threshold: float
    def __init__(self, name: _Optional[str] = ..., family: _Optional[str] = ..., shape: _Optional[str] = ..., parameters: _Optional[int] = ..., vocabulary: _Optional[_Union[Vocabulary, _Mapping]] = ..., training_length: _Optional[int] = ..., pooled: bool = ..., boundary_modes: _Optional[_Iterable[str]] = ..., dtype: _Optional[str] = ..., sha256: _Optional[str] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., documents: _Optional[_Union[Documents, _Mapping]] = ..., exactness: _Optional[str] = ..., tolerance: _Optional[float] = ..., scope: _Optional[str] = ..., boundary_threshold: _Optional[float] = ...) -> None: ...

class Documents(_message.Message):
    __slots__ = ("max_tokens", "max_summary_tokens", "padded", "poolings", "beam_size", "length_penalty", "min_tokens", "max_summary_tokens_default", "no_repeat_ngram", "search_rules", "early_stopping", "repetition_penalty", "prefix")
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_SUMMARY_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PADDED_FIELD_NUMBER: _ClassVar[int]
    POOLINGS_FIELD_NUMBER: _ClassVar[int]
    BEAM_SIZE_FIELD_NUMBER: _ClassVar[int]
    LENGTH_PENALTY_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_SUMMARY_TOKENS_DEFAULT_FIELD_NUMBER: _ClassVar[int]
    NO_REPEAT_NGRAM_FIELD_NUMBER: _ClassVar[int]
    SEARCH_RULES_FIELD_NUMBER: _ClassVar[int]
    EARLY_STOPPING_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    max_tokens: int
    max_summary_tokens: int
    padded: bool
    poolings: _containers.RepeatedCompositeFieldContainer[PoolingStep]
    beam_size: int
    length_penalty: float
    min_tokens: int
    max_summary_tokens_default: int
    no_repeat_ngram: int
    search_rules: str
    early_stopping: str
    repetition_penalty: float
    prefix: str
    def __init__(self, max_tokens: _Optional[int] = ..., max_summary_tokens: _Optional[int] = ..., padded: bool = ..., poolings: _Optional[_Iterable[_Union[PoolingStep, _Mapping]]] = ..., beam_size: _Optional[int] = ..., length_penalty: _Optional[float] = ..., min_tokens: _Optional[int] = ..., max_summary_tokens_default: _Optional[int] = ..., no_repeat_ngram: _Optional[int] = ..., search_rules: _Optional[str] = ..., early_stopping: _Optional[str] = ..., repetition_penalty: _Optional[float] = ..., prefix: _Optional[str] = ...) -> None: ...

class PoolingStep(_message.Message):
    __slots__ = ("layer", "length_before", "length_after")
    LAYER_FIELD_NUMBER: _ClassVar[int]
    LENGTH_BEFORE_FIELD_NUMBER: _ClassVar[int]
    LENGTH_AFTER_FIELD_NUMBER: _ClassVar[int]
    layer: int
    length_before: int
    length_after: int
    def __init__(self, layer: _Optional[int] = ..., length_before: _Optional[int] = ..., length_after: _Optional[int] = ...) -> None: ...

class Vocabulary(_message.Message):
    __slots__ = ("size", "symbols", "bytes", "normaliser", "first_byte", "marks", "pieces")
    class MarksEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    SIZE_FIELD_NUMBER: _ClassVar[int]
    SYMBOLS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    NORMALISER_FIELD_NUMBER: _ClassVar[int]
    FIRST_BYTE_FIELD_NUMBER: _ClassVar[int]
    MARKS_FIELD_NUMBER: _ClassVar[int]
    PIECES_FIELD_NUMBER: _ClassVar[int]
    size: int
    symbols: _containers.RepeatedScalarFieldContainer[str]
    bytes: bool
    normaliser: str
    first_byte: int
    marks: _containers.ScalarMap[str, int]
    pieces: bool
    def __init__(self, size: _Optional[int] = ..., symbols: _Optional[_Iterable[str]] = ..., bytes: bool = ..., normaliser: _Optional[str] = ..., first_byte: _Optional[int] = ..., marks: _Optional[_Mapping[str, int]] = ..., pieces: bool = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("max_symbols", "rows", "queue", "chunk", "message_bytes", "concurrent_streams", "stop_strings", "stop_symbols", "top_logprobs", "logit_bias", "coalesce_chars", "boundary_wait", "queued_symbols", "stall_ns", "cache_bytes", "highest_priority", "lowest_priority", "header_bytes", "pending_resets", "error_resets", "connections", "handshake_ns", "request_memory_bytes", "upload_ns", "events", "step_ns", "keepalive_interval_ns", "keepalive_timeout_ns", "windowed_symbols", "document_bytes", "document_keep_ns", "calls", "connections_per_address", "connection_idle_ns", "connection_age_ns", "connection_age_grace_ns", "request_work", "request_time_ns", "response_bytes", "tokenization_workers")
    MAX_SYMBOLS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CONCURRENT_STREAMS_FIELD_NUMBER: _ClassVar[int]
    STOP_STRINGS_FIELD_NUMBER: _ClassVar[int]
    STOP_SYMBOLS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    COALESCE_CHARS_FIELD_NUMBER: _ClassVar[int]
    BOUNDARY_WAIT_FIELD_NUMBER: _ClassVar[int]
    QUEUED_SYMBOLS_FIELD_NUMBER: _ClassVar[int]
    STALL_NS_FIELD_NUMBER: _ClassVar[int]
    CACHE_BYTES_FIELD_NUMBER: _ClassVar[int]
    HIGHEST_PRIORITY_FIELD_NUMBER: _ClassVar[int]
    LOWEST_PRIORITY_FIELD_NUMBER: _ClassVar[int]
    HEADER_BYTES_FIELD_NUMBER: _ClassVar[int]
    PENDING_RESETS_FIELD_NUMBER: _ClassVar[int]
    ERROR_RESETS_FIELD_NUMBER: _ClassVar[int]
    CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    HANDSHAKE_NS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_NS_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    STEP_NS_FIELD_NUMBER: _ClassVar[int]
    KEEPALIVE_INTERVAL_NS_FIELD_NUMBER: _ClassVar[int]
    KEEPALIVE_TIMEOUT_NS_FIELD_NUMBER: _ClassVar[int]
    WINDOWED_SYMBOLS_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_KEEP_NS_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    CONNECTIONS_PER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    CONNECTION_IDLE_NS_FIELD_NUMBER: _ClassVar[int]
    CONNECTION_AGE_NS_FIELD_NUMBER: _ClassVar[int]
    CONNECTION_AGE_GRACE_NS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_WORK_FIELD_NUMBER: _ClassVar[int]
    REQUEST_TIME_NS_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOKENIZATION_WORKERS_FIELD_NUMBER: _ClassVar[int]
    max_symbols: int
    rows: int
    queue: int
    chunk: int
    message_bytes: int
    concurrent_streams: int
    stop_strings: int
    stop_symbols: int
    top_logprobs: int
    logit_bias: int
    coalesce_chars: int
    boundary_wait: int
    queued_symbols: int
    stall_ns: int
    cache_bytes: int
    highest_priority: int
    lowest_priority: int
    header_bytes: int
    pending_resets: int
    error_resets: int
    connections: int
    handshake_ns: int
    request_memory_bytes: int
    upload_ns: int
    events: int
    step_ns: int
    keepalive_interval_ns: int
    keepalive_timeout_ns: int
    windowed_symbols: int
    document_bytes: int
    document_keep_ns: int
    calls: int
    connections_per_address: int
    connection_idle_ns: int
    connection_age_ns: int
    connection_age_grace_ns: int
    request_work: int
    request_time_ns: int
    response_bytes: int
    tokenization_workers: int
    def __init__(self, max_symbols: _Optional[int] = ..., rows: _Optional[int] = ..., queue: _Optional[int] = ..., chunk: _Optional[int] = ..., message_bytes: _Optional[int] = ..., concurrent_streams: _Optional[int] = ..., stop_strings: _Optional[int] = ..., stop_symbols: _Optional[int] = ..., top_logprobs: _Optional[int] = ..., logit_bias: _Optional[int] = ..., coalesce_chars: _Optional[int] = ..., boundary_wait: _Optional[int] = ..., queued_symbols: _Optional[int] = ..., stall_ns: _Optional[int] = ..., cache_bytes: _Optional[int] = ..., highest_priority: _Optional[int] = ..., lowest_priority: _Optional[int] = ..., header_bytes: _Optional[int] = ..., pending_resets: _Optional[int] = ..., error_resets: _Optional[int] = ..., connections: _Optional[int] = ..., handshake_ns: _Optional[int] = ..., request_memory_bytes: _Optional[int] = ..., upload_ns: _Optional[int] = ..., events: _Optional[int] = ..., step_ns: _Optional[int] = ..., keepalive_interval_ns: _Optional[int] = ..., keepalive_timeout_ns: _Optional[int] = ..., windowed_symbols: _Optional[int] = ..., document_bytes: _Optional[int] = ..., document_keep_ns: _Optional[int] = ..., calls: _Optional[int] = ..., connections_per_address: _Optional[int] = ..., connection_idle_ns: _Optional[int] = ..., connection_age_ns: _Optional[int] = ..., connection_age_grace_ns: _Optional[int] = ..., request_work: _Optional[int] = ..., request_time_ns: _Optional[int] = ..., response_bytes: _Optional[int] = ..., tokenization_workers: _Optional[int] = ...) -> None: ...
