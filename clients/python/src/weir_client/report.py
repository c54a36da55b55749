"""`report`: measured latencies of the server's models, and estimated latencies without pooling."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Optional, Tuple

from typing_extensions import Unpack

from ._call import Caller, Method
from ._call_aio import AsyncCaller
from ._convert import convert
from ._proto import latency_pb2 as pb
from ._settings import CallOptions
from ._types import LevelUsage

METHOD = Method("/weir.v1.Latency/GetReport", pb.GetReportRequest, pb.GetReportResponse)


class ReportWindow(enum.Enum):
    """The period that a report covers."""

    UNSPECIFIED = 0
    #: From the load of the model.
    SINCE_LOAD = 1
    #: From the last reset by an operator.
    SINCE_RESET = 2
    #: The last 60 to 70 seconds.
    LAST_MINUTE = 3

    @classmethod
    def _missing_(cls, value: object) -> ReportWindow:
        return cls.UNSPECIFIED


@dataclass(frozen=True)
class LatencyBar:
    """One bucket of a histogram."""

    from_ns: int
    #: Exclusive.
    below_ns: int
    count: int


@dataclass(frozen=True)
class LatencyHistogram:
    """A histogram of measured times, each with two significant digits."""

    count: int
    mean_ns: int
    min_ns: int
    p50_ns: int
    p90_ns: int
    p99_ns: int
    p999_ns: int
    max_ns: int
    #: The buckets that are not empty.
    bars: Tuple[LatencyBar, ...]


@dataclass(frozen=True)
class MeasuredTexts:
    """Measurements of generated texts; `latency.proto` describes each field."""

    requests: int
    failed: int
    prompt_chars: int
    cached_chars: int
    generated_chars: int
    #: One sample for each closed segment.
    middle_steps_run: int
    #: Symbols that closed no segment.
    middle_steps_skipped: int
    shortening_factor: Optional[float]
    steps: int
    rows_per_step: Optional[float]
    rows_per_middle_step: Optional[float]
    time_to_first_char: LatencyHistogram
    plain_gap: LatencyHistogram
    boundary_gap: LatencyHistogram
    segment: LatencyHistogram
    queue: LatencyHistogram
    prefill: LatencyHistogram
    total: LatencyHistogram
    #: One for each level of a model whose segments nest, outermost first.
    levels: Tuple[LevelUsage, ...]


@dataclass(frozen=True)
class CalibratedStep:
    """A step of `rows` rows with `chars` symbols each. Times are medians."""

    rows: int
    chars: int
    context: int
    context_segments: int
    segments: int
    samples: int
    symbol_ns: int
    middle_ns: int
    finish_ns: int
    #: The parts before and after the middle layers in a step that skips them, if that was timed.
    plain_symbol_ns: Optional[int]
    plain_finish_ns: Optional[int]
    #: The interquartile range of the total time, divided by the median.
    spread: float


@dataclass(frozen=True)
class Calibration:
    """The model's own steps, timed while nothing else ran."""

    made_unix_s: int
    took_ns: int
    steps: Tuple[CalibratedStep, ...]
    #: The smallest number of timings of any step.
    fewest_samples: int
    #: The median spread of the steps.
    spread: float
    #: The reason for which an estimate from this table is unreliable; None if it is reliable.
    doubt: Optional[str]


@dataclass(frozen=True)
class EstimatedGain:
    """An estimate, not a measurement. Fields with `measured` in their names are measurements for comparison."""

    requests: int
    measured_prefill_ns: int
    unpooled_prefill_estimate_ns: int
    measured_decode_ns: int
    unpooled_decode_estimate_ns: int
    prefill_gain_estimate: Optional[float]
    decode_gain_estimate: Optional[float]
    gain_estimate: Optional[float]
    #: The source of the estimate.
    calibration: Calibration


@dataclass(frozen=True)
class CacheEffect:
    """The computation that the segment cache saved."""

    hits: int
    misses: int
    looked_up_chars: int
    found_chars: int
    shared_bytes: int
    #: Estimated: time to compute the cached symbols at the measured speed of the computed symbols.
    prefill_spared_estimate_ns: Optional[int]


@dataclass(frozen=True)
class EncoderLayerReport:
    """The input size and the time of an encoder layer."""

    vectors: int
    took_ns: int


@dataclass(frozen=True)
class KeptShares:
    """Shares of documents' tokens that the last pooling kept."""

    count: int
    mean: float
    min: float
    p10: float
    p50: float
    p90: float
    max: float


@dataclass(frozen=True)
class MedianGain:
    """The baseline's median divided by the model's."""

    ratio: float
    #: The ends of an interval. None if a model has too few times.
    low: Optional[float]
    high: Optional[float]
    count: int
    twin_count: int


@dataclass(frozen=True)
class TwinGain:
    """Measured gain over the same weights, served with pooling turned off; `latency.proto` describes each field."""

    twin: str
    encode: Optional[MedianGain]
    decode_per_token: Optional[MedianGain]
    cross_attention_bytes: Optional[float]


@dataclass(frozen=True)
class MeasuredSummaries:
    """Measurements of summaries; `latency.proto` describes each field."""

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
    layers: Tuple[EncoderLayerReport, ...]
    cross_attention_bytes: int
    #: Not measured: bytes that the same documents would need without pooling, computed from the model's shape.
    unpooled_cross_attention_bytes: int
    #: None if the model pools without selecting tokens.
    kept_share: Optional[KeptShares]


@dataclass(frozen=True)
class ModelReport:
    """The report of one model."""

    model: str
    family: str
    shape: str
    dtype: str
    sha256: str
    generation: int
    pooled: bool
    window: ReportWindow
    window_ns: int
    #: None for a model that summarizes documents.
    texts: Optional[MeasuredTexts]
    #: None if there is no estimate; `estimate_missing` gives the reason.
    estimated_gain: Optional[EstimatedGain]
    estimate_missing: Optional[str]
    cache: Optional[CacheEffect]
    #: None for a model that continues a prompt.
    summaries: Optional[MeasuredSummaries]
    #: None if the server does not serve the model's unpooled baseline.
    twin_gain: Optional[TwinGain]
    #: True until the server has timed the model's steps. Requests that end before have no estimate.
    calibration_pending: bool


def _request(model: Optional[str], window: ReportWindow) -> pb.GetReportRequest:
    return pb.GetReportRequest(model=model, window=f"REPORT_WINDOW_{window.name}")


class ReportCalls(Caller):
    """The calls of this module."""

    def report(
        self,
        model: Optional[str] = None,
        window: ReportWindow = ReportWindow.SINCE_LOAD,
        **options: Unpack[CallOptions],
    ) -> Tuple[ModelReport, ...]:
        """Returns a report of each model, or of the named model. Raises `WeirError`."""
        answer = self._unary(METHOD, _request(model, window), None, options)
        return tuple(convert(ModelReport, model) for model in answer.models)


class AsyncReportCalls(AsyncCaller):
    """The calls of this module, for asyncio."""

    async def report(
        self,
        model: Optional[str] = None,
        window: ReportWindow = ReportWindow.SINCE_LOAD,
        **options: Unpack[CallOptions],
    ) -> Tuple[ModelReport, ...]:
        """Returns a report of each model, or of the named model. Raises `WeirError`."""
        answer = await self._unary(METHOD, _request(model, window), None, options)
        return tuple(convert(ModelReport, model) for model in answer.models)
