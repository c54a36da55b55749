"""Types that several calls return. The server's `.proto` files describe each field."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Tuple


@dataclass(frozen=True)
class Alternative:
    """One of the most probable symbols at a position."""

    text: str
    #: Natural logarithm of the probability.
    logprob: float
    id: int
    #: Bytes of a symbol that is not text on its own; None for every other symbol.
    raw_bytes: Optional[bytes]


@dataclass(frozen=True)
class Character:
    """One symbol of the model's vocabulary."""

    #: A symbol that is not text on its own, such as one byte of a longer code point, appears as its escape.
    text: str
    #: Natural logarithm of the probability. None if not requested, or if the symbol has no context.
    logprob: Optional[float]
    #: True if a segment ends with this symbol, or, in an H-Net, begins with it. None if not requested or
    #: not yet known.
    boundary: Optional[bool]
    #: Output of the boundary predictor, 0 to 1; not calibrated.
    boundary_probability: Optional[float]
    #: The most probable symbols at this position, best first, if requested.
    top: Tuple[Alternative, ...]
    id: int
    #: Log-probability of the mark that ends the symbol's segment, for models that generate such marks.
    nxt_logprob: Optional[float]
    #: Number of levels at which a segment begins with this symbol, if boundaries were requested. 0 in other models.
    chunk_depth: int
    #: Bytes of a symbol that is not text on its own; None for every other symbol.
    raw_bytes: Optional[bytes]
    #: True for the symbol with which the model ended its text. It has no text.
    ends_text: bool
    #: Probability of all symbols that the form of the text allows here, if log-probabilities were requested.
    constraint_mass: Optional[float] = None
    #: Entropy in nats of the prediction that decides whether a segment ends, if entropies decide.
    boundary_entropy: Optional[float] = None


@dataclass(frozen=True)
class Usage:
    """Counts of processed symbols. A symbol is a character, a byte or a token."""

    prompt_chars: int
    #: Symbols of the prompt that came from the segment cache and needed no computation.
    cached_chars: int
    generated_chars: int
    prompt_segments: int
    generated_segments: int
    #: Symbols per closed segment; None if none was closed.
    shortening_factor: Optional[float]
    nxt_steps: int
    #: Unicode characters of the prompt or text. `generate` and `score` set it.
    prompt_text_chars: Optional[int]
    #: Unicode characters of the generated text. `generate` sets it.
    generated_text_chars: Optional[int]
    #: Unicode characters of the prompt or text that the normaliser replaced or dropped. `generate`, `score` and
    #: `segment` set it.
    normalized_chars: Optional[int]
    #: Generated symbols that an earlier stream had sent: `resume_text` or `resume_ids`.
    resumed_chars: int
    #: Symbols that the server guessed and fed to the model: see `speculate`.
    drafted_chars: int
    #: Guessed symbols that were right. They count as generated, too.
    accepted_chars: int
    #: Generated symbols that the form of the text forced, fed to the model together.
    forced_chars: int = 0


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
    #: Estimated, not measured: prefill and decoding without pooling. None if the server has no estimate.
    unpooled_estimate_ns: Optional[int]
    #: Estimated: `unpooled_estimate_ns` divided by the measured time of prefill and decoding.
    gain_estimate: Optional[float]
    unpooled_prefill_estimate_ns: Optional[int]
    unpooled_decode_estimate_ns: Optional[int]


@dataclass(frozen=True)
class LevelUsage:
    """One level of a model whose segments nest."""

    #: Segments of this level that begin with symbols of the prompt, the text or the generated text.
    chunks: int
    #: Symbols per segment in the outermost level; segments of the level around it per segment in the others.
    shortening_factor: float
    #: Runs of the layers inside this level.
    middle_steps: int
