"""Client for weir, an inference server for character-level language models that pool their own input.

`Client` blocks and `AsyncClient` is for asyncio; both have the same calls. A call that fails raises `WeirError`.
"""

from ._errors import FieldViolation, WeirError
from ._retry import Retry
from ._settings import Tls
from ._types import Alternative, Character, Timing, Usage
from .client import AsyncClient, Client
from .codec import AsyncCodecStream, CodecStream, CodecSummary, CompressOptions, DecompressOptions
from .generate import AsyncStream, Finished, FinishReason, Generated, GenerateOptions, Piece, Started, Stream
from .models import Documents, Limits, Model, PoolingStep, Vocabulary
from .report import (
    CacheEffect,
    CalibratedStep,
    Calibration,
    EncoderLayerReport,
    EstimatedGain,
    LatencyBar,
    LatencyHistogram,
    MeasuredSummaries,
    MeasuredTexts,
    ModelReport,
    ReportWindow,
)
from .score import AsyncScoreStream, Score, ScoreOptions, ScoreStream, ScoreSummary
from .segment import Segment, Segmentation, SegmentOptions
from .summarize import (
    AsyncSummaryStream,
    EncoderLayer,
    Hypothesis,
    Progress,
    Selected,
    Span,
    SummarizeOptions,
    Summary,
    SummaryFinished,
    SummaryFinishReason,
    SummaryPiece,
    SummaryStarted,
    SummaryStream,
    SummaryTiming,
    SummaryUsage,
)

__all__ = [
    "Alternative",
    "AsyncClient",
    "AsyncCodecStream",
    "AsyncScoreStream",
    "AsyncStream",
    "AsyncSummaryStream",
    "CacheEffect",
    "CalibratedStep",
    "Calibration",
    "Character",
    "Client",
    "CodecStream",
    "CodecSummary",
    "CompressOptions",
    "DecompressOptions",
    "Documents",
    "EncoderLayer",
    "EncoderLayerReport",
    "EstimatedGain",
    "FieldViolation",
    "FinishReason",
    "Finished",
    "GenerateOptions",
    "Generated",
    "Hypothesis",
    "LatencyBar",
    "LatencyHistogram",
    "Limits",
    "MeasuredSummaries",
    "MeasuredTexts",
    "Model",
    "ModelReport",
    "Piece",
    "PoolingStep",
    "Progress",
    "ReportWindow",
    "Retry",
    "Score",
    "ScoreOptions",
    "ScoreStream",
    "ScoreSummary",
    "Segment",
    "SegmentOptions",
    "Segmentation",
    "Selected",
    "Span",
    "Started",
    "Stream",
    "SummarizeOptions",
    "Summary",
    "SummaryFinishReason",
    "SummaryFinished",
    "SummaryPiece",
    "SummaryStarted",
    "SummaryStream",
    "SummaryTiming",
    "SummaryUsage",
    "Timing",
    "Tls",
    "Usage",
    "Vocabulary",
    "WeirError",
]
