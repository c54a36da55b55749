//! The usage, timing and finish reason of a job as messages, and conversions of counts and durations.

use crate::decode::{
    options::FinishReason,
    usage::{LevelUsage, Timing, Usage},
};
use std::time::Duration;
use weir_proto::v1;

pub(super) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Narrows a count. A limit beyond 32 bits is no limit.
pub(super) fn count(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

pub(super) fn usage(usage: Usage) -> v1::Usage {
    v1::Usage {
        prompt_chars: usage.prompt_chars as u64,
        cached_chars: usage.cached_chars as u64,
        generated_chars: usage.generated_chars as u64,
        prompt_segments: usage.prompt_segments as u64,
        generated_segments: usage.generated_segments as u64,
        shortening_factor: usage.shortening_factor(),
        nxt_steps: usage.nxt_steps as u64,
        prompt_text_chars: None,
        generated_text_chars: None,
        normalized_chars: None,
        resumed_chars: usage.resumed_chars as u64,
        drafted_chars: usage.drafted_chars as u64,
        accepted_chars: usage.accepted_chars as u64,
    }
}

pub(super) fn timing(timing: Timing) -> v1::Timing {
    let unpooled = timing.unpooled.map(|unpooled| unpooled.prefill_ns.saturating_add(unpooled.decode_ns));
    let measured = timing.prefill_ns.saturating_add(timing.decode_ns);
    v1::Timing {
        queue_ns: timing.queue_ns,
        prefill_ns: timing.prefill_ns,
        time_to_first_char_ns: timing.time_to_first_char_ns,
        decode_ns: timing.decode_ns,
        total_ns: timing.total_ns,
        steps: timing.steps,
        wait_steps: timing.wait_steps,
        middle_steps: timing.middle_steps,
        middle_ns: timing.middle_ns,
        unpooled_estimate_ns: unpooled,
        gain_estimate: unpooled.filter(|_| measured > 0).map(|unpooled| unpooled as f64 / measured as f64),
        unpooled_prefill_estimate_ns: timing.unpooled.map(|unpooled| unpooled.prefill_ns),
        unpooled_decode_estimate_ns: timing.unpooled.map(|unpooled| unpooled.decode_ns),
    }
}

/// Returns the levels of a model with several levels of chunking.
pub(super) fn levels(usage: &Usage, timing: &Timing) -> Vec<v1::LevelUsage> {
    usage.by_level(timing).into_iter().map(level).collect()
}

pub(super) fn level(level: LevelUsage) -> v1::LevelUsage {
    v1::LevelUsage {
        chunks: level.chunks as u64,
        shortening_factor: level.shortening_factor,
        middle_steps: level.middle_steps as u64,
    }
}

pub(super) fn reason(reason: &FinishReason) -> v1::FinishReason {
    match reason {
        FinishReason::MaxChars => v1::FinishReason::MaxChars,
        FinishReason::MaxSegments => v1::FinishReason::MaxSegments,
        FinishReason::Stop(_) => v1::FinishReason::Stop,
        FinishReason::MaxContext => v1::FinishReason::MaxContext,
        FinishReason::EndOfText => v1::FinishReason::EndOfText,
        FinishReason::End => v1::FinishReason::Unspecified,
    }
}
