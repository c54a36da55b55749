//! Values of a server's responses in the types and the words of the engine.

use crate::decode::usage::{LevelCounts, Timing, Usage};
use weir_proto::v1::{self, FinishReason, Finished, LevelUsage};

/// Returns why a generation ended, by the name that commands print.
pub(super) fn reason_name(finished: &Finished) -> &'static str {
    match finished.reason() {
        FinishReason::MaxChars => "max_chars",
        FinishReason::MaxSegments => "max_segments",
        FinishReason::Stop => "stop",
        FinishReason::MaxContext => "max_context",
        FinishReason::EndOfText => "end_of_text",
        FinishReason::Unspecified => "end",
    }
}

/// Returns the counts of a request's response, whose levels of chunking are `levels`.
pub(super) fn usage(wire: Option<v1::Usage>, levels: &[LevelUsage]) -> Usage {
    let wire = wire.unwrap_or_default();
    Usage {
        prompt_chars: size(wire.prompt_chars),
        cached_chars: size(wire.cached_chars),
        generated_chars: size(wire.generated_chars),
        prompt_segments: size(wire.prompt_segments),
        generated_segments: size(wire.generated_segments),
        nxt_steps: size(wire.nxt_steps),
        resumed_chars: size(wire.resumed_chars),
        drafted_chars: size(wire.drafted_chars),
        accepted_chars: size(wire.accepted_chars),
        levels: level_counts(levels, |level| level.chunks),
    }
}

fn level_counts(levels: &[LevelUsage], count: impl Fn(&LevelUsage) -> u64) -> LevelCounts {
    let counts: Vec<usize> = levels.iter().map(|level| size(count(level))).collect();
    LevelCounts::from(&*counts)
}

/// Returns the times of a request's response, whose levels of chunking are `levels`.
pub(super) fn timing(wire: Option<v1::Timing>, levels: &[LevelUsage]) -> Timing {
    let wire = wire.unwrap_or_default();
    Timing {
        queue_ns: wire.queue_ns,
        prefill_ns: wire.prefill_ns,
        time_to_first_char_ns: wire.time_to_first_char_ns,
        decode_ns: wire.decode_ns,
        total_ns: wire.total_ns,
        steps: wire.steps,
        wait_steps: wire.wait_steps,
        middle_steps: wire.middle_steps,
        level_steps: level_counts(levels, |level| level.middle_steps),
        middle_ns: wire.middle_ns,
        unpooled: None,
    }
}

/// Narrows a count. Supported machines have at least 32 bits.
pub(super) fn size(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::options;

    #[test]
    fn reasons_have_the_names_of_the_engine() {
        use FinishReason::{EndOfText, MaxChars, MaxContext, MaxSegments, Stop, Unspecified};
        let pairs = [
            (MaxChars, options::FinishReason::MaxChars),
            (MaxSegments, options::FinishReason::MaxSegments),
            (Stop, options::FinishReason::Stop(0)),
            (MaxContext, options::FinishReason::MaxContext),
            (EndOfText, options::FinishReason::EndOfText),
            (Unspecified, options::FinishReason::End),
        ];
        for (wire, engine) in pairs {
            let finished = Finished { reason: wire.into(), ..Default::default() };
            assert_eq!(reason_name(&finished), engine.name());
        }
    }
}
