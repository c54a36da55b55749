"""`segment`: cuts a text into the segments of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Optional, Sequence, Tuple

from typing_extensions import Unpack

from ._call import Caller, Method
from ._call_aio import AsyncCaller
from ._convert import convert
from ._proto import generation_pb2 as pb
from ._request import fill, text_of
from ._settings import CallOptions
from ._types import LevelUsage, Timing, Usage

METHOD = Method("/weir.v1.Generation/Segment", pb.SegmentRequest, pb.SegmentResponse)

_SUBMESSAGES = dict.fromkeys(["model", "boundary_mode", "boundary_threshold", "seed", "priority", "ids"], "")


class SegmentOptions(CallOptions, total=False):
    """Options in addition to the text. An option that is absent or None takes the server's default."""

    #: Optional if exactly one model of the server can answer the call.
    model: Optional[str]
    #: One of the model's `boundary_modes`.
    boundary_mode: Optional[str]
    #: Entropy in nats above which a segment ends, in a model with a `boundary_threshold`.
    boundary_threshold: Optional[float]
    #: Seed of the random number generator of boundary mode "sampled".
    seed: Optional[int]
    #: -8 to 7; 0 by default.
    priority: Optional[int]
    #: Ids of the text's symbols, instead of the text, which then is empty.
    ids: Optional[Sequence[int]]


@dataclass(frozen=True)
class Segment:
    """A part of a text that the model pools into one vector. Offsets count from 0; ends are exclusive."""

    text: str
    #: Byte offsets in the UTF-8 of the normalised text.
    byte_start: int
    byte_end: int
    #: Offsets in symbols.
    char_start: int
    char_end: int
    #: Output of the boundary predictor for the segment's last symbol, or, in an H-Net, its first. 0 to 1;
    #: not calibrated.
    boundary_probability: Optional[float]
    #: True if the text ended before the segment.
    open: bool
    #: Number of levels at which a segment begins with the first symbol. 0 in other models.
    chunk_depth: int
    #: Entropy in nats after the last symbol, if entropies decide boundaries.
    boundary_entropy: Optional[float]


@dataclass(frozen=True)
class BoundaryLevel:
    """The boundaries of one level of segments."""

    #: One number for each symbol in the outermost level, and for each segment of the level around it in the others. 1 if a
    #: segment of this level begins with it, otherwise 0.
    boundaries: Tuple[int, ...]


@dataclass(frozen=True)
class Segmentation:
    """A text and its segments."""

    #: The normalised text that the model read.
    text: str
    segments: Tuple[Segment, ...]
    seed: int
    usage: Usage
    timing: Timing
    #: The levels of a model whose segments nest, outermost first; empty for other models.
    levels: Tuple[LevelUsage, ...]
    #: The boundaries of each of these levels.
    boundary_levels: Tuple[BoundaryLevel, ...]


class SegmentCalls(Caller):
    """The call of this module."""

    def segment(self, text: str, **options: Unpack[SegmentOptions]) -> Segmentation:
        """Returns the segments of a text. Raises `WeirError`, also for a model that does not pool."""
        return convert(Segmentation, self._unary(METHOD, _request(text, options), text, options))


class AsyncSegmentCalls(AsyncCaller):
    """The call of this module, for asyncio."""

    async def segment(self, text: str, **options: Unpack[SegmentOptions]) -> Segmentation:
        """Returns the segments of a text. Raises `WeirError`, also for a model that does not pool."""
        answer = await self._unary(METHOD, _request(text, options), text, options)
        return convert(Segmentation, answer)


def _request(text: str, options: SegmentOptions) -> pb.SegmentRequest:
    request = pb.SegmentRequest(text=text_of("text", text))
    fields: Dict[str, Any] = {name: value for name, value in options.items() if name not in CallOptions.__annotations__}
    fill(request, fields, _SUBMESSAGES)
    return request
