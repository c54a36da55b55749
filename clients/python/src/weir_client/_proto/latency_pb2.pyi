from . import generation_pb2 as _generation_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ReportWindow(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REPORT_WINDOW_UNSPECIFIED: _ClassVar[ReportWindow]
    REPORT_WINDOW_SINCE_LOAD: _ClassVar[ReportWindow]
    REPORT_WINDOW_SINCE_RESET: _ClassVar[ReportWindow]
    REPORT_WINDOW_LAST_MINUTE: _ClassVar[ReportWindow]
REPORT_WINDOW_UNSPECIFIED: ReportWindow
REPORT_WINDOW_SINCE_LOAD: ReportWindow
REPORT_WINDOW_SINCE_RESET: ReportWindow
REPORT_WINDOW_LAST_MINUTE: ReportWindow

class GetReportRequest(_message.Message):
    __slots__ = ("model", "window")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    model: str
    window: ReportWindow
    def __init__(self, model: _Optional[str] = ..., window: _Optional[_Union[ReportWindow, str]] = ...) -> None: ...

class GetReportResponse(_message.Message):
    __slots__ = ("models",)
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[ModelReport]
    def __init__(self, models: _Optional[_Iterable[_Union[ModelReport, _Mapping]]] = ...) -> None: ...

class ModelReport(_message.Message):
    __slots__ = ("model", "family", "shape", "dtype", "sha256", "generation", "pooled", "window", "window_ns", "texts", "estimated_gain", "estimate_missing", "cache", "summaries", "twin_gain", "calibration_pending")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    FAMILY_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    POOLED_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    WINDOW_NS_FIELD_NUMBER: _ClassVar[int]
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    ESTIMATED_GAIN_FIELD_NUMBER: _ClassVar[int]
    ESTIMATE_MISSING_FIELD_NUMBER: _ClassVar[int]
    CACHE_FIELD_NUMBER: _ClassVar[int]
    SUMMARIES_FIELD_NUMBER: _ClassVar[int]
    TWIN_GAIN_FIELD_NUMBER: _ClassVar[int]
    CALIBRATION_PENDING_FIELD_NUMBER: _ClassVar[int]
    model: str
    family: str
    shape: str
    dtype: str
    sha256: str
    generation: int
    pooled: bool
    window: ReportWindow
    window_ns: int
    texts: MeasuredTexts
    estimated_gain: EstimatedGain
    estimate_missing: str
    cache: CacheEffect
    summaries: MeasuredSummaries
    twin_gain: TwinGain
    calibration_pending: bool
    def __init__(self, model: _Optional[str] = ..., family: _Optional[str] = ..., shape: _Optional[str] = ..., dtype: _Optional[str] = ..., sha256: _Optional[str] = ..., generation: _Optional[int] = ..., pooled: bool = ..., window: _Optional[_Union[ReportWindow, str]] = ..., window_ns: _Optional[int] = ..., texts: _Optional[_Union[MeasuredTexts, _Mapping]] = ..., estimated_gain: _Optional[_Union[EstimatedGain, _Mapping]] = ..., estimate_missing: _Optional[str] = ..., cache: _Optional[_Union[CacheEffect, _Mapping]] = ..., summaries: _Optional[_Union[MeasuredSummaries, _Mapping]] = ..., twin_gain: _Optional[_Union[TwinGain, _Mapping]] = ..., calibration_pending: bool = ...) -> None: ...

class MeasuredTexts(_message.Message):
    __slots__ = ("requests", "failed", "prompt_chars", "cached_chars", "generated_chars", "middle_steps_run", "middle_steps_skipped", "shortening_factor", "steps", "rows_per_step", "rows_per_middle_step", "time_to_first_char", "plain_gap", "boundary_gap", "segment", "queue", "prefill", "total", "levels")
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    PROMPT_CHARS_FIELD_NUMBER: _ClassVar[int]
    CACHED_CHARS_FIELD_NUMBER: _ClassVar[int]
    GENERATED_CHARS_FIELD_NUMBER: _ClassVar[int]
    MIDDLE_STEPS_RUN_FIELD_NUMBER: _ClassVar[int]
    MIDDLE_STEPS_SKIPPED_FIELD_NUMBER: _ClassVar[int]
    SHORTENING_FACTOR_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    ROWS_PER_STEP_FIELD_NUMBER: _ClassVar[int]
    ROWS_PER_MIDDLE_STEP_FIELD_NUMBER: _ClassVar[int]
    TIME_TO_FIRST_CHAR_FIELD_NUMBER: _ClassVar[int]
    PLAIN_GAP_FIELD_NUMBER: _ClassVar[int]
    BOUNDARY_GAP_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    PREFILL_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    LEVELS_FIELD_NUMBER: _ClassVar[int]
    requests: int
    failed: int
    prompt_chars: int
    cached_chars: int
    generated_chars: int
    middle_steps_run: int
    middle_steps_skipped: int
    shortening_factor: float
    steps: int
    rows_per_step: float
    rows_per_middle_step: float
    time_to_first_char: LatencyHistogram
    plain_gap: LatencyHistogram
    boundary_gap: LatencyHistogram
    segment: LatencyHistogram
    queue: LatencyHistogram
    prefill: LatencyHistogram
    total: LatencyHistogram
    levels: _containers.RepeatedCompositeFieldContainer[_generation_pb2.LevelUsage]
    def __init__(self, requests: _Optional[int] = ..., failed: _Optional[int] = ..., prompt_chars: _Optional[int] = ..., cached_chars: _Optional[int] = ..., generated_chars: _Optional[int] = ..., middle_steps_run: _Optional[int] = ..., middle_steps_skipped: _Optional[int] = ..., shortening_factor: _Optional[float] = ..., steps: _Optional[int] = ..., rows_per_step: _Optional[float] = ..., rows_per_middle_step: _Optional[float] = ..., time_to_first_char: _Optional[_Union[LatencyHistogram, _Mapping]] = ..., plain_gap: _Optional[_Union[LatencyHistogram, _Mapping]] = ..., boundary_gap: _Optional[_Union[LatencyHistogram, _Mapping]] = ..., segment: _Optional[_Union[LatencyHistogram, _Mapping]] = ..., queue: _Optional[_Union[LatencyHistogram, _Mapping]] = ..., prefill: _Optional[_Union[LatencyHistogram, _Mapping]] = ..., total: _Optional[_Union[LatencyHistogram, _Mapping]] = ..., levels: _Optional[_Iterable[_Union[_generation_pb2.LevelUsage, _Mapping]]] = ...) -> None: ...

class LatencyHistogram(_message.Message):
    __slots__ = ("count", "mean_ns", "min_ns", "p50_ns", "p90_ns", "p99_ns", "p999_ns", "max_ns", "bars")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    MEAN_NS_FIELD_NUMBER: _ClassVar[int]
    MIN_NS_FIELD_NUMBER: _ClassVar[int]
    P50_NS_FIELD_NUMBER: _ClassVar[int]
    P90_NS_FIELD_NUMBER: _ClassVar[int]
    P99_NS_FIELD_NUMBER: _ClassVar[int]
    P999_NS_FIELD_NUMBER: _ClassVar[int]
    MAX_NS_FIELD_NUMBER: _ClassVar[int]
    BARS_FIELD_NUMBER: _ClassVar[int]
    count: int
    mean_ns: int
    min_ns: int
    p50_ns: int
    p90_ns: int
    p99_ns: int
    p999_ns: int
    max_ns: int
    bars: _containers.RepeatedCompositeFieldContainer[LatencyBar]
    def __init__(self, count: _Optional[int] = ..., mean_ns: _Optional[int] = ..., min_ns: _Optional[int] = ..., p50_ns: _Optional[int] = ..., p90_ns: _Optional[int] = ..., p99_ns: _Optional[int] = ..., p999_ns: _Optional[int] = ..., max_ns: _Optional[int] = ..., bars: _Optional[_Iterable[_Union[LatencyBar, _Mapping]]] = ...) -> None: ...

class LatencyBar(_message.Message):
    __slots__ = ("from_ns", "below_ns", "count")
    FROM_NS_FIELD_NUMBER: _ClassVar[int]
    BELOW_NS_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    from_ns: int
    below_ns: int
    count: int
    def __init__(self, from_ns: _Optional[int] = ..., below_ns: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...

class EstimatedGain(_message.Message):
    __slots__ = ("requests", "measured_prefill_ns", "unpooled_prefill_estimate_ns", "measured_decode_ns", "unpooled_decode_estimate_ns", "prefill_gain_estimate", "decode_gain_estimate", "gain_estimate", "calibration")
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    MEASURED_PREFILL_NS_FIELD_NUMBER: _ClassVar[int]
    UNPOOLED_PREFILL_ESTIMATE_NS_FIELD_NUMBER: _ClassVar[int]
    MEASURED_DECODE_NS_FIELD_NUMBER: _ClassVar[int]
    UNPOOLED_DECODE_ESTIMATE_NS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_GAIN_ESTIMATE_FIELD_NUMBER: _ClassVar[int]
    DECODE_GAIN_ESTIMATE_FIELD_NUMBER: _ClassVar[int]
    GAIN_ESTIMATE_FIELD_NUMBER: _ClassVar[int]
    CALIBRATION_FIELD_NUMBER: _ClassVar[int]
    requests: int
    measured_prefill_ns: int
    unpooled_prefill_estimate_ns: int
    measured_decode_ns: int
    unpooled_decode_estimate_ns: int
    prefill_gain_estimate: float
    decode_gain_estimate: float
    gain_estimate: float
    calibration: Calibration
    def __init__(self, requests: _Optional[int] = ..., measured_prefill_ns: _Optional[int] = ..., unpooled_prefill_estimate_ns: _Optional[int] = ..., measured_decode_ns: _Optional[int] = ..., unpooled_decode_estimate_ns: _Optional[int] = ..., prefill_gain_estimate: _Optional[float] = ..., decode_gain_estimate: _Optional[float] = ..., gain_estimate: _Optional[float] = ..., calibration: _Optional[_Union[Calibration, _Mapping]] = ...) -> None: ...

class Calibration(_message.Message):
    __slots__ = ("made_unix_s", "took_ns", "steps", "fewest_samples", "spread", "doubt")
    MADE_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    TOOK_NS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    FEWEST_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    SPREAD_FIELD_NUMBER: _ClassVar[int]
    DOUBT_FIELD_NUMBER: _ClassVar[int]
    made_unix_s: int
    took_ns: int
    steps: _containers.RepeatedCompositeFieldContainer[CalibratedStep]
    fewest_samples: int
    spread: float
    doubt: str
    def __init__(self, made_unix_s: _Optional[int] = ..., took_ns: _Optional[int] = ..., steps: _Optional[_Iterable[_Union[CalibratedStep, _Mapping]]] = ..., fewest_samples: _Optional[int] = ..., spread: _Optional[float] = ..., doubt: _Optional[str] = ...) -> None: ...

class CalibratedStep(_message.Message):
    __slots__ = ("rows", "chars", "context", "context_segments", "segments", "samples", "symbol_ns", "middle_ns", "finish_ns", "plain_symbol_ns", "plain_finish_ns", "spread")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    CHARS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    SYMBOL_NS_FIELD_NUMBER: _ClassVar[int]
    MIDDLE_NS_FIELD_NUMBER: _ClassVar[int]
    FINISH_NS_FIELD_NUMBER: _ClassVar[int]
    PLAIN_SYMBOL_NS_FIELD_NUMBER: _ClassVar[int]
    PLAIN_FINISH_NS_FIELD_NUMBER: _ClassVar[int]
    SPREAD_FIELD_NUMBER: _ClassVar[int]
    rows: int
    chars: int
    context: int
    context_segments: int
    segments: int
    samples: int
    symbol_ns: int
    middle_ns: int
    finish_ns: int
    plain_symbol_ns: int
    plain_finish_ns: int
    spread: float
    def __init__(self, rows: _Optional[int] = ..., chars: _Optional[int] = ..., context: _Optional[int] = ..., context_segments: _Optional[int] = ..., segments: _Optional[int] = ..., samples: _Optional[int] = ..., symbol_ns: _Optional[int] = ..., middle_ns: _Optional[int] = ..., finish_ns: _Optional[int] = ..., plain_symbol_ns: _Optional[int] = ..., plain_finish_ns: _Optional[int] = ..., spread: _Optional[float] = ...) -> None: ...

class CacheEffect(_message.Message):
    __slots__ = ("hits", "misses", "looked_up_chars", "found_chars", "shared_bytes", "prefill_spared_estimate_ns")
    HITS_FIELD_NUMBER: _ClassVar[int]
    MISSES_FIELD_NUMBER: _ClassVar[int]
    LOOKED_UP_CHARS_FIELD_NUMBER: _ClassVar[int]
    FOUND_CHARS_FIELD_NUMBER: _ClassVar[int]
    SHARED_BYTES_FIELD_NUMBER: _ClassVar[int]
    PREFILL_SPARED_ESTIMATE_NS_FIELD_NUMBER: _ClassVar[int]
    hits: int
    misses: int
    looked_up_chars: int
    found_chars: int
    shared_bytes: int
    prefill_spared_estimate_ns: int
    def __init__(self, hits: _Optional[int] = ..., misses: _Optional[int] = ..., looked_up_chars: _Optional[int] = ..., found_chars: _Optional[int] = ..., shared_bytes: _Optional[int] = ..., prefill_spared_estimate_ns: _Optional[int] = ...) -> None: ...

class MeasuredSummaries(_message.Message):
    __slots__ = ("requests", "failed", "cached_documents", "document_tokens", "summary_tokens", "queue", "upload", "encode", "time_to_first_token", "decode", "decode_per_token", "total", "layers", "cross_attention_bytes", "unpooled_cross_attention_bytes", "kept_share")
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    CACHED_DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_TOKENS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_FIELD_NUMBER: _ClassVar[int]
    ENCODE_FIELD_NUMBER: _ClassVar[int]
    TIME_TO_FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    DECODE_FIELD_NUMBER: _ClassVar[int]
    DECODE_PER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    CROSS_ATTENTION_BYTES_FIELD_NUMBER: _ClassVar[int]
    UNPOOLED_CROSS_ATTENTION_BYTES_FIELD_NUMBER: _ClassVar[int]
    KEPT_SHARE_FIELD_NUMBER: _ClassVar[int]
    requests: int
    failed: int
    cached_documents: int
    document_tokens: int
    summary_tokens: int
    queue: LatencyHistogram
    upload: LatencyHistogram
    encode: LatencyHistogram
    time_to_first_token: LatencyHistogram
    decode: LatencyHistogram
    decode_per_token: LatencyHistogram
    total: LatencyHistogram
    layers: _containers.RepeatedCompositeFieldContainer[EncoderLayerReport]
    cross_attention_bytes: int
    unpooled_cross_attention_bytes: int
    kept_share: KeptShares
    def __init__(self, requests: _Optional[int] = ..., failed: _Optional[int] = ..., cached_documents: _Optional[int] = ..., document_tokens: _Optional[int] = ..., summary_tokens: _Optional[int] = ..., queue: _Optional[_Union[LatencyHistogram, _Mapping]] = ..., upload: _Optional[_Union[LatencyHistogram, _Mapping]] = ..., encode: _Optional[_Union[LatencyHistogram, _Mapping]] = ..., time_to_first_token: _Optional[_Union[LatencyHistogram, _Mapping]] = ..., decode: _Optional[_Union[LatencyHistogram, _Mapping]] = ..., decode_per_token: _Optional[_Union[LatencyHistogram, _Mapping]] = ..., total: _Optional[_Union[LatencyHistogram, _Mapping]] = ..., layers: _Optional[_Iterable[_Union[EncoderLayerReport, _Mapping]]] = ..., cross_attention_bytes: _Optional[int] = ..., unpooled_cross_attention_bytes: _Optional[int] = ..., kept_share: _Optional[_Union[KeptShares, _Mapping]] = ...) -> None: ...

class KeptShares(_message.Message):
    __slots__ = ("count", "mean", "min", "p10", "p50", "p90", "max")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    MEAN_FIELD_NUMBER: _ClassVar[int]
    MIN_FIELD_NUMBER: _ClassVar[int]
    P10_FIELD_NUMBER: _ClassVar[int]
    P50_FIELD_NUMBER: _ClassVar[int]
    P90_FIELD_NUMBER: _ClassVar[int]
    MAX_FIELD_NUMBER: _ClassVar[int]
    count: int
    mean: float
    min: float
    p10: float
    p50: float
    p90: float
    max: float
    def __init__(self, count: _Optional[int] = ..., mean: _Optional[float] = ..., min: _Optional[float] = ..., p10: _Optional[float] = ..., p50: _Optional[float] = ..., p90: _Optional[float] = ..., max: _Optional[float] = ...) -> None: ...

class TwinGain(_message.Message):
    __slots__ = ("twin", "encode", "decode_per_token", "cross_attention_bytes")
    TWIN_FIELD_NUMBER: _ClassVar[int]
    ENCODE_FIELD_NUMBER: _ClassVar[int]
    DECODE_PER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    CROSS_ATTENTION_BYTES_FIELD_NUMBER: _ClassVar[int]
    twin: str
    encode: MedianGain
    decode_per_token: MedianGain
    cross_attention_bytes: float
    def __init__(self, twin: _Optional[str] = ..., encode: _Optional[_Union[MedianGain, _Mapping]] = ..., decode_per_token: _Optional[_Union[MedianGain, _Mapping]] = ..., cross_attention_bytes: _Optional[float] = ...) -> None: ...

class MedianGain(_message.Message):
    __slots__ = ("ratio", "low", "high", "count", "twin_count")
    RATIO_FIELD_NUMBER: _ClassVar[int]
    LOW_FIELD_NUMBER: _ClassVar[int]
    HIGH_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    TWIN_COUNT_FIELD_NUMBER: _ClassVar[int]
    ratio: float
    low: float
    high: float
    count: int
    twin_count: int
    def __init__(self, ratio: _Optional[float] = ..., low: _Optional[float] = ..., high: _Optional[float] = ..., count: _Optional[int] = ..., twin_count: _Optional[int] = ...) -> None: ...

class EncoderLayerReport(_message.Message):
    __slots__ = ("vectors", "took_ns")
    VECTORS_FIELD_NUMBER: _ClassVar[int]
    TOOK_NS_FIELD_NUMBER: _ClassVar[int]
    vectors: int
    took_ns: int
    def __init__(self, vectors: _Optional[int] = ..., took_ns: _Optional[int] = ...) -> None: ...
