//! Values of a server's responses in the words of the engine.

use weir_proto::v1::{FinishReason, Finished};

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

/// Narrows a count. Supported machines have at least 32 bits.
pub(super) fn size(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_engine::options;

    #[test]
    fn reasons_have_the_names_of_the_engine() {
        use FinishReason::EndOfText;
        use FinishReason::MaxChars;
        use FinishReason::MaxContext;
        use FinishReason::MaxSegments;
        use FinishReason::Stop;
        use FinishReason::Unspecified;
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
