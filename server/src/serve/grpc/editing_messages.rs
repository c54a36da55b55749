//! The messages of `Edit`, converted from and to what the session takes and returns.

use super::pieces::character;
use crate::{
    decode::{
        completion::{Completion, CompletionEnd, CompletionRules},
        edited_text::Splice,
    },
    engine::editing::{Completions, Scores},
    error::{Error, Result},
    serve::status::{code_name, status},
    text::Vocabulary,
};
use tonic_types::StatusExt;
use weir_proto::v1::{self, document_closed::Reason, edit_request::Action, edit_response::Event};

/// Default of `complete.max_chars`.
const MAX_CHARS: u32 = 32;
/// Maximum splices of a message.
pub(in crate::serve) const MAX_SPLICES: usize = 256;

/// Returns the id of a request for completions or scores.
pub(in crate::serve) fn request_id(message: &v1::EditRequest) -> Option<u64> {
    match &message.action {
        Some(Action::Complete(complete)) => Some(complete.id),
        Some(Action::Score(score)) => Some(score.id),
        _ => None,
    }
}

/// Returns the splices of a message. Fails if they are too many, and for an offset that no text has.
pub(super) fn splices(message: v1::SpliceDocument) -> Result<Vec<Splice>> {
    let splice = |(index, v1::TextSplice { start_byte, end_byte, text })| {
        let in_item = |error| Error::InItem { list: "splice.splices", index, error: Box::new(error) };
        let start = offset("start_byte", start_byte).map_err(in_item)?;
        let end = offset("end_byte", end_byte).map_err(in_item)?;
        Ok(Splice { range: start..end, text })
    };
    check_splice_count(message.splices.len())?;
    message.splices.into_iter().enumerate().map(splice).collect()
}

/// Fails if a message has more than [`MAX_SPLICES`].
pub(in crate::serve) fn check_splice_count(count: usize) -> Result<()> {
    if count > MAX_SPLICES {
        let bound = format!("at most {MAX_SPLICES} in a message");
        return Err(Error::bad_option("splice.splices", count.to_string(), bound));
    }
    Ok(())
}

/// Narrows an offset. Fails if it is larger than any text.
pub(super) fn offset(field: &'static str, offset: u64) -> Result<usize> {
    let too_large = |_| Error::bad_option(field, offset.to_string(), "an offset in the text");
    usize::try_from(offset).map_err(too_large)
}

/// Returns the rules of a search. Fails for an unknown end.
pub(super) fn rules(message: &v1::CompleteDocument) -> Result<CompletionRules> {
    let number = message.until.unwrap_or_default();
    let unknown = |_| Error::bad_option("complete.until", number.to_string(), "a value of Until");
    let end = match v1::Until::try_from(number).map_err(unknown)? {
        v1::Until::Unspecified | v1::Until::Word => CompletionEnd::Word,
        v1::Until::Line => CompletionEnd::Line,
        v1::Until::Segment => CompletionEnd::Segment,
        v1::Until::MaxChars => CompletionEnd::Length,
    };
    let size = |count: u32| usize::try_from(count).unwrap_or(usize::MAX);
    let max_chars = size(message.max_chars.unwrap_or(MAX_CHARS));
    Ok(CompletionRules { count: size(message.count.unwrap_or(1)), end, max_chars })
}

fn response(event: Event) -> v1::EditResponse {
    v1::EditResponse { event: Some(event) }
}

pub(super) fn applied(revision: u64, bytes: usize, normalized: usize) -> v1::EditResponse {
    let text_bytes = bytes as u64;
    response(Event::Applied(v1::DocumentApplied { revision, text_bytes, normalized_chars: normalized as u64 }))
}

pub(super) fn stale(id: u64) -> v1::EditResponse {
    response(Event::Stale(v1::StaleRequest { id }))
}

pub(super) fn closed(reason: Reason) -> v1::EditResponse {
    response(Event::Closed(v1::DocumentClosed { reason: reason.into() }))
}

/// Returns the answer to a `complete`, without its duration.
pub(super) fn completions(
    id: u64,
    revision: u64,
    found: Completions,
    vocabulary: &Vocabulary,
) -> v1::DocumentCompletions {
    let count = |chars: usize| u32::try_from(chars).unwrap_or(u32::MAX);
    let item = |Completion { symbols, logprob, boundaries }: Completion| v1::CompletionItem {
        text: vocabulary.decode(&symbols),
        logprob,
        chars: count(symbols.len()),
        boundaries: boundaries.into_iter().map(count).collect(),
    };
    v1::DocumentCompletions {
        id,
        revision,
        items: found.items.into_iter().map(item).collect(),
        cut: found.is_cut,
        reused_chars: found.reused as u64,
        recomputed_chars: found.recomputed as u64,
        distributions: count(found.distributions),
        reused_distributions: count(found.reused_distributions),
        duration_ns: 0,
    }
}

/// Returns the answer to a `score`, without its duration.
pub(super) fn scores(id: u64, revision: u64, scored: Scores, vocabulary: &Vocabulary) -> v1::DocumentScores {
    let Scores { characters, start_bytes, recomputed } = scored;
    v1::DocumentScores {
        id,
        revision,
        characters: characters.into_iter().map(|symbol| character(symbol, true, vocabulary)).collect(),
        recomputed_chars: recomputed as u64,
        duration_ns: 0,
        start_bytes: start_bytes.into_iter().map(|start| start as u64).collect(),
    }
}

/// Returns the answer to a message that was refused, or to a request that failed.
pub(in crate::serve) fn failed(id: Option<u64>, error: &Error) -> v1::EditResponse {
    let status = status(error, "");
    let details = status.get_error_details();
    let violation = details.bad_request().and_then(|bad| bad.field_violations.first());
    response(Event::Failed(v1::EditFailure {
        id,
        code: code_name(status.code()).to_owned(),
        reason: details.error_info().map(|info| info.reason.clone()).unwrap_or_default(),
        message: status.message().to_owned(),
        field: violation.map(|violation| violation.field.clone()),
    }))
}
