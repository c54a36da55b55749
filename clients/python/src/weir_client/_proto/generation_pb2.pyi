from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_MAX_CHARS: _ClassVar[FinishReason]
    FINISH_REASON_MAX_SEGMENTS: _ClassVar[FinishReason]
    FINISH_REASON_STOP: _ClassVar[FinishReason]
    FINISH_REASON_MAX_CONTEXT: _ClassVar[FinishReason]
    FINISH_REASON_END_OF_TEXT: _ClassVar[FinishReason]
    FINISH_REASON_CONSTRAINT: _ClassVar[FinishReason]
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_MAX_CHARS: FinishReason
FINISH_REASON_MAX_SEGMENTS: FinishReason
FINISH_REASON_STOP: FinishReason
FINISH_REASON_MAX_CONTEXT: FinishReason
FINISH_REASON_END_OF_TEXT: FinishReason
FINISH_REASON_CONSTRAINT: FinishReason

class GenerateRequest(_message.Message):
    __slots__ = ("model", "prompt", "sampling", "stopping", "stream", "details", "boundary_mode", "priority", "prompt_ids", "resume_text", "resume_ids", "speculate", "constraint", "boundary_threshold")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    STOPPING_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    BOUNDARY_MODE_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    PROMPT_IDS_FIELD_NUMBER: _ClassVar[int]
    RESUME_TEXT_FIELD_NUMBER: _ClassVar[int]
    RESUME_IDS_FIELD_NUMBER: _ClassVar[int]
    SPECULATE_FIELD_NUMBER: _ClassVar[int]
    CONSTRAINT_FIELD_NUMBER: _ClassVar[int]
    BOUNDARY_THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    model: str
    prompt: str
    sampling: Sampling
    stopping: Stopping
    stream: Streaming
    details: Details
    boundary_mode: str
    priority: int
    prompt_ids: _containers.RepeatedScalarFieldContainer[int]
    resume_text: str
    resume_ids: _containers.RepeatedScalarFieldContainer[int]
    speculate: str
    constraint: Constraint
    boundary_threshold: float
    def __init__(self, model: _Optional[str] = ..., prompt: _Optional[str] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., stopping: _Optional[_Union[Stopping, _Mapping]] = ..., stream: _Optional[_Union[Streaming, _Mapping]] = ..., details: _Optional[_Union[Details, _Mapping]] = ..., boundary_mode: _Optional[str] = ..., priority: _Optional[int] = ..., prompt_ids: _Optional[_Iterable[int]] = ..., resume_text: _Optional[str] = ..., resume_ids: _Optional[_Iterable[int]] = ..., speculate: _Optional[str] = ..., constraint: _Optional[_Union[Constraint, _Mapping]] = ..., boundary_threshold: _Optional[float] = ...) -> None: ...

class Constraint(_message.Message):
    __slots__ = ("regex", "choice", "json_schema", "json_object", "grammar", "end_when_complete")
    REGEX_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    JSON_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    JSON_OBJECT_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    END_WHEN_COMPLETE_FIELD_NUMBER: _ClassVar[int]
    regex: str
    choice: Choice
    json_schema: str
    json_object: bool
    grammar: str
    end_when_complete: bool
    def __init__(self, regex: _Optional[str] = ..., choice: _Optional[_Union[Choice, _Mapping]] = ..., json_schema: _Optional[str] = ..., json_object: bool = ..., grammar: _Optional[str] = ..., end_when_complete: bool = ...) -> None: ...

class Choice(_message.Message):
    __slots__ = ("texts",)
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    texts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, texts: _Optional[_Iterable[str]] = ...) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed", "logit_bias", "presence_penalty", "frequency_penalty")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    seed: int
    logit_bias: _containers.RepeatedCompositeFieldContainer[LogitBias]
    presence_penalty: float
    frequency_penalty: float
    def __init__(self, temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., min_p: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., seed: _Optional[int] = ..., logit_bias: _Optional[_Iterable[_Union[LogitBias, _Mapping]]] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ...) -> None: ...

class LogitBias(_message.Message):
    __slots__ = ("text", "id", "bias")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    BIAS_FIELD_NUMBER: _ClassVar[int]
    text: str
    id: int
    bias: float
    def __init__(self, text: _Optional[str] = ..., id: _Optional[int] = ..., bias: _Optional[float] = ...) -> None: ...

class Stopping(_message.Message):
    __slots__ = ("max_chars", "min_chars", "max_segments", "stop", "include_stop", "ignore_eos")
    MAX_CHARS_FIELD_NUMBER: _ClassVar[int]
    MIN_CHARS_FIELD_NUMBER: _ClassVar[int]
    MAX_SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_STOP_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    max_chars: int
    min_chars: int
    max_segments: int
    stop: _containers.RepeatedScalarFieldContainer[str]
    include_stop: bool
    ignore_eos: bool
    def __init__(self, max_chars: _Optional[int] = ..., min_chars: _Optional[int] = ..., max_segments: _Optional[int] = ..., stop: _Optional[_Iterable[str]] = ..., include_stop: bool = ..., ignore_eos: bool = ...) -> None: ...

class Streaming(_message.Message):
    __slots__ = ("coalesce_chars", "per_segment")
    COALESCE_CHARS_FIELD_NUMBER: _ClassVar[int]
    PER_SEGMENT_FIELD_NUMBER: _ClassVar[int]
    coalesce_chars: int
    per_segment: bool
    def __init__(self, coalesce_chars: _Optional[int] = ..., per_segment: bool = ...) -> None: ...

class Details(_message.Message):
    __slots__ = ("echo", "logprobs", "top_logprobs", "boundaries", "ids")
    ECHO_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    BOUNDARIES_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    echo: bool
    logprobs: bool
    top_logprobs: int
    boundaries: bool
    ids: bool
    def __init__(self, echo: bool = ..., logprobs: bool = ..., top_logprobs: _Optional[int] = ..., boundaries: bool = ..., ids: bool = ...) -> None: ...

class GenerateResponse(_message.Message):
    __slots__ = ("started", "piece", "finished")
    STARTED_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    started: Started
    piece: Piece
    finished: Finished
    def __init__(self, started: _Optional[_Union[Started, _Mapping]] = ..., piece: _Optional[_Union[Piece, _Mapping]] = ..., finished: _Optional[_Union[Finished, _Mapping]] = ...) -> None: ...

class Started(_message.Message):
    __slots__ = ("request_id", "model", "prompt_chars", "cached_chars", "prompt_text_chars", "normalized_chars", "seed", "resumed_chars")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PROMPT_CHARS_FIELD_NUMBER: _ClassVar[int]
    CACHED_CHARS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TEXT_CHARS_FIELD_NUMBER: _ClassVar[int]
    NORMALIZED_CHARS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    RESUMED_CHARS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    model: str
    prompt_chars: int
    cached_chars: int
    prompt_text_chars: int
    normalized_chars: int
    seed: int
    resumed_chars: int
    def __init__(self, request_id: _Optional[str] = ..., model: _Optional[str] = ..., prompt_chars: _Optional[int] = ..., cached_chars: _Optional[int] = ..., prompt_text_chars: _Optional[int] = ..., normalized_chars: _Optional[int] = ..., seed: _Optional[int] = ..., resumed_chars: _Optional[int] = ...) -> None: ...

class Piece(_message.Message):
    __slots__ = ("text", "characters", "prompt", "ids")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    CHARACTERS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    text: str
    characters: _containers.RepeatedCompositeFieldContainer[Character]
    prompt: bool
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, text: _Optional[str] = ..., characters: _Optional[_Iterable[_Union[Character, _Mapping]]] = ..., prompt: bool = ..., ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Character(_message.Message):
    __slots__ = ("text", "logprob", "boundary", "boundary_probability", "top", "id", "nxt_logprob", "chunk_depth", "raw_bytes", "ends_text", "constraint_mass", "boundary_entropy")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    BOUNDARY_FIELD_NUMBER: _ClassVar[int]
    BOUNDARY_PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    NXT_LOGPROB_FIELD_NUMBER: _ClassVar[int]
    CHUNK_DEPTH_FIELD_NUMBER: _ClassVar[int]
    RAW_BYTES_FIELD_NUMBER: _ClassVar[int]
    ENDS_TEXT_FIELD_NUMBER: _ClassVar[int]
    CONSTRAINT_MASS_FIELD_NUMBER: _ClassVar[int]
    BOUNDARY_ENTROPY_FIELD_NUMBER: _ClassVar[int]
    text: str
    logprob: float
    boundary: bool
    boundary_probability: float
    top: _containers.RepeatedCompositeFieldContainer[Alternative]
    id: int
    nxt_logprob: float
    chunk_depth: int
    raw_bytes: bytes
    ends_text: bool
    constraint_mass: float
    boundary_entropy: float
    def __init__(self, text: _Optional[str] = ..., logprob: _Optional[float] = ..., boundary: bool = ..., boundary_probability: _Optional[float] = ..., top: _Optional[_Iterable[_Union[Alternative, _Mapping]]] = ..., id: _Optional[int] = ..., nxt_logprob: _Optional[float] = ..., chunk_depth: _Optional[int] = ..., raw_bytes: _Optional[bytes] = ..., ends_text: bool = ..., constraint_mass: _Optional[float] = ..., boundary_entropy: _Optional[float] = ...) -> None: ...

class Alternative(_message.Message):
    __slots__ = ("text", "logprob", "id", "raw_bytes")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    RAW_BYTES_FIELD_NUMBER: _ClassVar[int]
    text: str
    logprob: float
    id: int
    raw_bytes: bytes
    def __init__(self, text: _Optional[str] = ..., logprob: _Optional[float] = ..., id: _Optional[int] = ..., raw_bytes: _Optional[bytes] = ...) -> None: ...

class Finished(_message.Message):
    __slots__ = ("reason", "matched_stop", "seed", "usage", "timing", "levels")
    REASON_FIELD_NUMBER: _ClassVar[int]
    MATCHED_STOP_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    LEVELS_FIELD_NUMBER: _ClassVar[int]
    reason: FinishReason
    matched_stop: str
    seed: int
    usage: Usage
    timing: Timing
    levels: _containers.RepeatedCompositeFieldContainer[LevelUsage]
    def __init__(self, reason: _Optional[_Union[FinishReason, str]] = ..., matched_stop: _Optional[str] = ..., seed: _Optional[int] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., timing: _Optional[_Union[Timing, _Mapping]] = ..., levels: _Optional[_Iterable[_Union[LevelUsage, _Mapping]]] = ...) -> None: ...

class LevelUsage(_message.Message):
    __slots__ = ("chunks", "shortening_factor", "middle_steps")
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    SHORTENING_FACTOR_FIELD_NUMBER: _ClassVar[int]
    MIDDLE_STEPS_FIELD_NUMBER: _ClassVar[int]
    chunks: int
    shortening_factor: float
    middle_steps: int
    def __init__(self, chunks: _Optional[int] = ..., shortening_factor: _Optional[float] = ..., middle_steps: _Optional[int] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("prompt_chars", "cached_chars", "generated_chars", "prompt_segments", "generated_segments", "shortening_factor", "nxt_steps", "prompt_text_chars", "generated_text_chars", "normalized_chars", "resumed_chars", "drafted_chars", "accepted_chars", "forced_chars")
    PROMPT_CHARS_FIELD_NUMBER: _ClassVar[int]
    CACHED_CHARS_FIELD_NUMBER: _ClassVar[int]
    GENERATED_CHARS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    GENERATED_SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    SHORTENING_FACTOR_FIELD_NUMBER: _ClassVar[int]
    NXT_STEPS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TEXT_CHARS_FIELD_NUMBER: _ClassVar[int]
    GENERATED_TEXT_CHARS_FIELD_NUMBER: _ClassVar[int]
    NORMALIZED_CHARS_FIELD_NUMBER: _ClassVar[int]
    RESUMED_CHARS_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_CHARS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_CHARS_FIELD_NUMBER: _ClassVar[int]
    FORCED_CHARS_FIELD_NUMBER: _ClassVar[int]
    prompt_chars: int
    cached_chars: int
    generated_chars: int
    prompt_segments: int
    generated_segments: int
    shortening_factor: float
    nxt_steps: int
    prompt_text_chars: int
    generated_text_chars: int
    normalized_chars: int
    resumed_chars: int
    drafted_chars: int
    accepted_chars: int
    forced_chars: int
    def __init__(self, prompt_chars: _Optional[int] = ..., cached_chars: _Optional[int] = ..., generated_chars: _Optional[int] = ..., prompt_segments: _Optional[int] = ..., generated_segments: _Optional[int] = ..., shortening_factor: _Optional[float] = ..., nxt_steps: _Optional[int] = ..., prompt_text_chars: _Optional[int] = ..., generated_text_chars: _Optional[int] = ..., normalized_chars: _Optional[int] = ..., resumed_chars: _Optional[int] = ..., drafted_chars: _Optional[int] = ..., accepted_chars: _Optional[int] = ..., forced_chars: _Optional[int] = ...) -> None: ...

class Timing(_message.Message):
    __slots__ = ("queue_ns", "prefill_ns", "time_to_first_char_ns", "decode_ns", "total_ns", "steps", "middle_steps", "middle_ns", "wait_steps", "unpooled_estimate_ns", "gain_estimate", "unpooled_prefill_estimate_ns", "unpooled_decode_estimate_ns")
    QUEUE_NS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_NS_FIELD_NUMBER: _ClassVar[int]
    TIME_TO_FIRST_CHAR_NS_FIELD_NUMBER: _ClassVar[int]
    DECODE_NS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_NS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    MIDDLE_STEPS_FIELD_NUMBER: _ClassVar[int]
    MIDDLE_NS_FIELD_NUMBER: _ClassVar[int]
    WAIT_STEPS_FIELD_NUMBER: _ClassVar[int]
    UNPOOLED_ESTIMATE_NS_FIELD_NUMBER: _ClassVar[int]
    GAIN_ESTIMATE_FIELD_NUMBER: _ClassVar[int]
    UNPOOLED_PREFILL_ESTIMATE_NS_FIELD_NUMBER: _ClassVar[int]
    UNPOOLED_DECODE_ESTIMATE_NS_FIELD_NUMBER: _ClassVar[int]
    queue_ns: int
    prefill_ns: int
    time_to_first_char_ns: int
    decode_ns: int
    total_ns: int
    steps: int
    middle_steps: int
    middle_ns: int
    wait_steps: int
    unpooled_estimate_ns: int
    gain_estimate: float
    unpooled_prefill_estimate_ns: int
    unpooled_decode_estimate_ns: int
    def __init__(self, queue_ns: _Optional[int] = ..., prefill_ns: _Optional[int] = ..., time_to_first_char_ns: _Optional[int] = ..., decode_ns: _Optional[int] = ..., total_ns: _Optional[int] = ..., steps: _Optional[int] = ..., middle_steps: _Optional[int] = ..., middle_ns: _Optional[int] = ..., wait_steps: _Optional[int] = ..., unpooled_estimate_ns: _Optional[int] = ..., gain_estimate: _Optional[float] = ..., unpooled_prefill_estimate_ns: _Optional[int] = ..., unpooled_decode_estimate_ns: _Optional[int] = ...) -> None: ...

class ScoreRequest(_message.Message):
    __slots__ = ("model", "text", "top_logprobs", "boundary_mode", "seed", "priority", "windows", "ids", "exact_logprobs", "boundary_threshold")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    BOUNDARY_MODE_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    WINDOWS_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    EXACT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    BOUNDARY_THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    model: str
    text: str
    top_logprobs: int
    boundary_mode: str
    seed: int
    priority: int
    windows: Windows
    ids: _containers.RepeatedScalarFieldContainer[int]
    exact_logprobs: bool
    boundary_threshold: float
    def __init__(self, model: _Optional[str] = ..., text: _Optional[str] = ..., top_logprobs: _Optional[int] = ..., boundary_mode: _Optional[str] = ..., seed: _Optional[int] = ..., priority: _Optional[int] = ..., windows: _Optional[_Union[Windows, _Mapping]] = ..., ids: _Optional[_Iterable[int]] = ..., exact_logprobs: bool = ..., boundary_threshold: _Optional[float] = ...) -> None: ...

class Windows(_message.Message):
    __slots__ = ("length", "stride")
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    STRIDE_FIELD_NUMBER: _ClassVar[int]
    length: int
    stride: int
    def __init__(self, length: _Optional[int] = ..., stride: _Optional[int] = ...) -> None: ...

class ScoreResponse(_message.Message):
    __slots__ = ("chunk", "summary")
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    chunk: ScoreChunk
    summary: ScoreSummary
    def __init__(self, chunk: _Optional[_Union[ScoreChunk, _Mapping]] = ..., summary: _Optional[_Union[ScoreSummary, _Mapping]] = ...) -> None: ...

class ScoreChunk(_message.Message):
    __slots__ = ("characters", "exact_logprobs")
    CHARACTERS_FIELD_NUMBER: _ClassVar[int]
    EXACT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    characters: _containers.RepeatedCompositeFieldContainer[Character]
    exact_logprobs: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, characters: _Optional[_Iterable[_Union[Character, _Mapping]]] = ..., exact_logprobs: _Optional[_Iterable[float]] = ...) -> None: ...

class ScoreSummary(_message.Message):
    __slots__ = ("bits_per_char", "scored_chars", "seed", "usage", "timing", "nxt_bits_per_char", "bits_per_byte", "levels", "renormalized_bits", "window_shortening_factor")
    BITS_PER_CHAR_FIELD_NUMBER: _ClassVar[int]
    SCORED_CHARS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    NXT_BITS_PER_CHAR_FIELD_NUMBER: _ClassVar[int]
    BITS_PER_BYTE_FIELD_NUMBER: _ClassVar[int]
    LEVELS_FIELD_NUMBER: _ClassVar[int]
    RENORMALIZED_BITS_FIELD_NUMBER: _ClassVar[int]
    WINDOW_SHORTENING_FACTOR_FIELD_NUMBER: _ClassVar[int]
    bits_per_char: float
    scored_chars: int
    seed: int
    usage: Usage
    timing: Timing
    nxt_bits_per_char: float
    bits_per_byte: float
    levels: _containers.RepeatedCompositeFieldContainer[LevelUsage]
    renormalized_bits: float
    window_shortening_factor: float
    def __init__(self, bits_per_char: _Optional[float] = ..., scored_chars: _Optional[int] = ..., seed: _Optional[int] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., timing: _Optional[_Union[Timing, _Mapping]] = ..., nxt_bits_per_char: _Optional[float] = ..., bits_per_byte: _Optional[float] = ..., levels: _Optional[_Iterable[_Union[LevelUsage, _Mapping]]] = ..., renormalized_bits: _Optional[float] = ..., window_shortening_factor: _Optional[float] = ...) -> None: ...

class SegmentRequest(_message.Message):
    __slots__ = ("model", "text", "boundary_mode", "seed", "priority", "ids", "boundary_threshold")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    BOUNDARY_MODE_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    BOUNDARY_THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    model: str
    text: str
    boundary_mode: str
    seed: int
    priority: int
    ids: _containers.RepeatedScalarFieldContainer[int]
    boundary_threshold: float
    def __init__(self, model: _Optional[str] = ..., text: _Optional[str] = ..., boundary_mode: _Optional[str] = ..., seed: _Optional[int] = ..., priority: _Optional[int] = ..., ids: _Optional[_Iterable[int]] = ..., boundary_threshold: _Optional[float] = ...) -> None: ...

class SegmentResponse(_message.Message):
    __slots__ = ("text", "segments", "seed", "usage", "timing", "levels", "boundary_levels")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    LEVELS_FIELD_NUMBER: _ClassVar[int]
    BOUNDARY_LEVELS_FIELD_NUMBER: _ClassVar[int]
    text: str
    segments: _containers.RepeatedCompositeFieldContainer[Segment]
    seed: int
    usage: Usage
    timing: Timing
    levels: _containers.RepeatedCompositeFieldContainer[LevelUsage]
    boundary_levels: _containers.RepeatedCompositeFieldContainer[BoundaryLevel]
    def __init__(self, text: _Optional[str] = ..., segments: _Optional[_Iterable[_Union[Segment, _Mapping]]] = ..., seed: _Optional[int] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., timing: _Optional[_Union[Timing, _Mapping]] = ..., levels: _Optional[_Iterable[_Union[LevelUsage, _Mapping]]] = ..., boundary_levels: _Optional[_Iterable[_Union[BoundaryLevel, _Mapping]]] = ...) -> None: ...

class BoundaryLevel(_message.Message):
    __slots__ = ("boundaries",)
    BOUNDARIES_FIELD_NUMBER: _ClassVar[int]
    boundaries: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, boundaries: _Optional[_Iterable[int]] = ...) -> None: ...

class Segment(_message.Message):
    __slots__ = ("text", "byte_start", "byte_end", "char_start", "char_end", "boundary_probability", "open", "chunk_depth", "boundary_entropy")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    BYTE_START_FIELD_NUMBER: _ClassVar[int]
    BYTE_END_FIELD_NUMBER: _ClassVar[int]
    CHAR_START_FIELD_NUMBER: _ClassVar[int]
    CHAR_END_FIELD_NUMBER: _ClassVar[int]
    BOUNDARY_PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    CHUNK_DEPTH_FIELD_NUMBER: _ClassVar[int]
    BOUNDARY_ENTROPY_FIELD_NUMBER: _ClassVar[int]
    text: str
    byte_start: int
    byte_end: int
    char_start: int
    char_end: int
    boundary_probability: float
    open: bool
    chunk_depth: int
    boundary_entropy: float
    def __init__(self, text: _Optional[str] = ..., byte_start: _Optional[int] = ..., byte_end: _Optional[int] = ..., char_start: _Optional[int] = ..., char_end: _Optional[int] = ..., boundary_probability: _Optional[float] = ..., open: bool = ..., chunk_depth: _Optional[int] = ..., boundary_entropy: _Optional[float] = ...) -> None: ...

class CheckRequest(_message.Message):
    __slots__ = ("model", "text", "threshold", "alternatives", "max_words", "priority")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    ALTERNATIVES_FIELD_NUMBER: _ClassVar[int]
    MAX_WORDS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    model: str
    text: str
    threshold: float
    alternatives: int
    max_words: int
    priority: int
    def __init__(self, model: _Optional[str] = ..., text: _Optional[str] = ..., threshold: _Optional[float] = ..., alternatives: _Optional[int] = ..., max_words: _Optional[int] = ..., priority: _Optional[int] = ...) -> None: ...

class CheckResponse(_message.Message):
    __slots__ = ("words", "cut", "compared_words", "usage", "timing", "duration_ns")
    WORDS_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    COMPARED_WORDS_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    DURATION_NS_FIELD_NUMBER: _ClassVar[int]
    words: _containers.RepeatedCompositeFieldContainer[CheckedWord]
    cut: bool
    compared_words: int
    usage: Usage
    timing: Timing
    duration_ns: int
    def __init__(self, words: _Optional[_Iterable[_Union[CheckedWord, _Mapping]]] = ..., cut: bool = ..., compared_words: _Optional[int] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., timing: _Optional[_Union[Timing, _Mapping]] = ..., duration_ns: _Optional[int] = ...) -> None: ...

class CheckedWord(_message.Message):
    __slots__ = ("text", "start_byte", "end_byte", "start_utf16", "end_utf16", "logprob", "alternatives")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    START_BYTE_FIELD_NUMBER: _ClassVar[int]
    END_BYTE_FIELD_NUMBER: _ClassVar[int]
    START_UTF16_FIELD_NUMBER: _ClassVar[int]
    END_UTF16_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    ALTERNATIVES_FIELD_NUMBER: _ClassVar[int]
    text: str
    start_byte: int
    end_byte: int
    start_utf16: int
    end_utf16: int
    logprob: float
    alternatives: _containers.RepeatedCompositeFieldContainer[WordAlternative]
    def __init__(self, text: _Optional[str] = ..., start_byte: _Optional[int] = ..., end_byte: _Optional[int] = ..., start_utf16: _Optional[int] = ..., end_utf16: _Optional[int] = ..., logprob: _Optional[float] = ..., alternatives: _Optional[_Iterable[_Union[WordAlternative, _Mapping]]] = ...) -> None: ...

class WordAlternative(_message.Message):
    __slots__ = ("text", "logprob")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    text: str
    logprob: float
    def __init__(self, text: _Optional[str] = ..., logprob: _Optional[float] = ...) -> None: ...
