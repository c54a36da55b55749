"""Types that several calls return. The server's `.proto` files describe each field."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Tuple


@dataclass(frozen=True)
class Alternative:
    """One of the most probable symbols at a position."""

    text: str
    #: Natural.
    logprob: float
    id: int


@dataclass(frozen=True)
class Character:
    """One symbol of the model's vocabulary."""

    #: A symbol that is no text on its own, such as a byte of a longer code point, is shown as its escape.
    text: str
    #: Natural; None if not asked for, or if nothing stands before it.
    logprob: Optional[float]
    #: Whether a segment ends with it; None if not asked for, or not known.
    boundary: Optional[bool]
    #: The boundary predictor's output, 0 to 1; not calibrated.
    boundary_probability: Optional[float]
    #: Best first, if asked for.
    top: Tuple[Alternative, ...]
    id: int
    #: The log-probability of the mark that ends its segment, where the model writes such marks.
    nxt_logprob: Optional[float]


@dataclass(frozen=True)
class Usage:
    """Counts of processed characters. A character is one symbol of the vocabulary."""

    prompt_chars: int
    #: Of the prompt's, those that needed no computation.
    cached_chars: int
    generated_chars: int
    prompt_segments: int
    generated_segments: int
    #: Characters per closed segment; None if none was closed.
    shortening_factor: Optional[float]
    nxt_steps: int


@dataclass(frozen=True)
class Timing:
    """Where the time went, in nanoseconds, and how many steps it took."""

    queue_ns: int
    prefill_ns: int
    time_to_first_char_ns: int
    decode_ns: int
    total_ns: int
    steps: int
    middle_steps: int
    middle_ns: int
    wait_steps: int
    #: Estimated, not measured: prefill and decoding without pooling; None where the server has no estimate.
    unpooled_estimate_ns: Optional[int]
    #: Estimated: that, by what they did take.
    gain_estimate: Optional[float]
    unpooled_prefill_estimate_ns: Optional[int]
    unpooled_decode_estimate_ns: Optional[int]
