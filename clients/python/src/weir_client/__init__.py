"""Client for weir, an inference server for character-level language models that pool their own input.

`Client` blocks, `AsyncClient` is for asyncio; both have the same calls. Whatever fails raises `WeirError`.
"""

from ._errors import FieldViolation, WeirError
from ._retry import Retry
from ._settings import Tls
from ._types import Alternative, Character, Timing, Usage
from .client import AsyncClient, Client
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

__all__ = [
    "Alternative",
    "AsyncClient",
    "AsyncScoreStream",
    "AsyncStream",
    "CacheEffect",
    "CalibratedStep",
    "Calibration",
    "Character",
    "Client",
    "Documents",
    "EncoderLayerReport",
    "EstimatedGain",
    "FieldViolation",
    "FinishReason",
    "Finished",
    "GenerateOptions",
    "Generated",
    "LatencyBar",
    "LatencyHistogram",
    "Limits",
    "MeasuredSummaries",
    "MeasuredTexts",
    "Model",
    "ModelReport",
    "Piece",
    "PoolingStep",
    "ReportWindow",
    "Retry",
    "Score",
    "ScoreOptions",
    "ScoreStream",
    "ScoreSummary",
    "Segment",
    "SegmentOptions",
    "Segmentation",
    "Started",
    "Stream",
    "Timing",
    "Tls",
    "Usage",
    "Vocabulary",
    "WeirError",
]
