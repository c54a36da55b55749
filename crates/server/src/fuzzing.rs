//! Entry points of the fuzz targets for requests: each accepts any bytes, and must not panic. Compiled for tests and fuzz targets
//! only.

use crate::{
    completion_request::{CompletionRequest, Path, Surface, parse_json},
    grpc::{
        convert::{generate_job, long_documents, score_job, segment_job, summary_options},
        editing::{failed, offset, rules, splices},
    },
    http::{editing, open_inference::InferenceRequest},
    middleware::limits::WholeMessages,
    open_inference::request::InferRequest,
};
use prost::{Message, Name};
use std::sync::{Arc, LazyLock};
use tonic::codegen::Bytes;
use weir_engine::{constraint::ConstraintCompiler, edited_text::EditedText, editing::MAX_SCORED_BYTES};
use weir_kernels::error::{Error, Result};
use weir_models::{
    contract::{BoundaryMode, Card, SearchRules},
    text::{TextNormaliser, Vocabulary},
};
use weir_proto::{
    codec::decode_bounded,
    v1::{self, edit_request::Action, summarize_request::Part},
};

/// Reads the body of a completion request over HTTP, and converts it to jobs of both kinds of models.
pub fn completion_request(data: &[u8]) {
    let Ok(request) = CompletionRequest::parse(data, Path::Completions) else { return };
    if let Ok(requests) = request.generate_requests() {
        requests.for_each(generate);
    }
    let summaries = request.summarize_requests("model", 1, SearchRules::Fairseq).unwrap_or_default();
    summaries.into_iter().flatten().for_each(summarize);
}

/// Reads the body of a summary request over HTTP, and converts it to the messages of a call.
pub fn summary_request(data: &[u8]) {
    let messages = CompletionRequest::parse(data, Path::Summaries).and_then(|request| request.summary_messages());
    messages.unwrap_or_default().into_iter().for_each(summarize);
}

/// Receives a body of gRPC messages in parts whose size the first byte gives. The same bytes must come out.
pub fn message_framing(data: &[u8]) {
    let Some((&size, body)) = data.split_first() else { return };
    let mut messages = WholeMessages::new(MAX_FRAMED);
    let mut received = Vec::new();
    for part in body.chunks(usize::from(size).max(1)) {
        messages.push(Bytes::copy_from_slice(part));
        received.extend(messages.pop().unwrap_or_default());
        assert!(body.starts_with(&received), "other bytes came out");
    }
    received.extend(messages.take_rest().unwrap_or_default());
    assert!(messages.is_empty() && received == body, "bytes are missing");
}

/// Reads a request of the Open Inference Protocol as a message and as JSON, with its tensors, and converts it to a job.
pub fn inference_request(data: &[u8]) {
    let json = parse_json::<InferenceRequest>(data, "the body").ok();
    let json = json.map(|request| request.into_message(String::new(), String::new()));
    let messages = decode_bounded(&mut &data[..]).into_iter().chain(json);
    let Some(card) = CARDS.last() else { return };
    let requests = messages.filter_map(|message| InferRequest::parse(message, card, Surface::Inference).ok());
    requests.for_each(|request| generate(request.generate));
}

/// Reads the messages of an editing session over a WebSocket, one in each line, and applies them to the session's text.
pub fn edit_messages(data: &[u8]) {
    let messages = data.split(|byte| *byte == b'\n').filter_map(editing::check_request);
    edit(messages).iter().for_each(editing::check_response);
}

/// Maximum bytes of a message in [`message_framing`]. Longer ones pass at once.
const MAX_FRAMED: usize = 1 << 10;

/// Models of characters and of bytes.
static CARDS: LazyLock<Vec<Card>> = LazyLock::new(|| {
    let letters = Vocabulary::from_symbols(&[" ", "a", "b", "c"], TextNormaliser::Text8).ok();
    let ended = Vocabulary::byte_level_with_end(3, TextNormaliser::None).ok();
    let bytes = Vocabulary::byte_level(TextNormaliser::None);
    let vocabularies = letters.into_iter().chain(ended).chain([bytes]);
    let boundary_modes = vec![BoundaryMode::Threshold, BoundaryMode::Sampled];
    vocabularies.map(|all| Card { boundary_modes: boundary_modes.clone(), ..Card::for_tests(all) }).collect()
});

/// Reads a request of `weir.v1`, of a kind that the first byte selects, and converts it to a job.
pub fn grpc_request(data: &[u8]) {
    let Some((kind, encoded)) = data.split_first() else { return };
    match kind % 4 {
        0 => decode(encoded).into_iter().for_each(generate),
        1 => decode(encoded).into_iter().for_each(score),
        2 => decode(encoded).into_iter().for_each(segment),
        _ => decode(encoded).into_iter().for_each(summarize),
    }
}

/// Converts a `Generate` to a job of each model.
fn generate(request: v1::GenerateRequest) {
    for card in CARDS.iter() {
        let compiler = ConstraintCompiler::new(Arc::clone(&card.vocabulary));
        generate_job(request.clone(), card, |constraint| compiler.compile(constraint)).ok();
    }
}

fn score(request: v1::ScoreRequest) {
    for card in CARDS.iter() {
        score_job(&request, card).ok();
    }
}

fn segment(request: v1::SegmentRequest) {
    for card in CARDS.iter() {
        segment_job(&request, card).ok();
    }
}

/// Converts the options of a `Summarize` for each model.
fn summarize(request: v1::SummarizeRequest) {
    if let Some(Part::Options(options)) = request.part {
        long_documents(&options).ok();
        for card in CARDS.iter() {
            summary_options(&options, card).ok();
        }
    }
}

/// Decodes a message within its bound. A message that was decoded can be encoded, and is then decoded to the same.
fn decode<M: Message + Name + Default>(encoded: &[u8]) -> Option<M> {
    let message: M = decode_bounded(&mut &encoded[..]).ok()?;
    let again = message.encode_to_vec();
    let same = M::decode(&again[..]).is_ok_and(|decoded| decoded.encode_to_vec() == again);
    assert!(same, "{} changes when it is encoded and decoded: {encoded:?}", M::full_name());
    Some(message)
}

/// Maximum bytes of a text in [`edit`].
const MAX_EDITED: usize = 1 << 10;

/// Applies the messages of an editing session to its text. Returns the answers to wrong ones, which must change nothing.
fn edit(messages: impl Iterator<Item = v1::EditRequest>) -> Vec<v1::EditResponse> {
    let mut document = None;
    let taken = messages.filter_map(|message| message.action).map(|action| {
        let before = document.clone();
        let taken = take_edit(action, &mut document);
        assert!(taken.is_ok() || document == before, "a wrong message changed the text");
        assert!(document.as_ref().is_none_or(|text| text.text().len() <= MAX_EDITED), "the text is too long");
        taken
    });
    taken.filter_map(|taken| taken.err()).map(|error| failed(None, &error)).collect()
}

fn take_edit(action: Action, document: &mut Option<EditedText>) -> Result<()> {
    match (action, document) {
        (Action::Open(open), document @ None) => {
            *document = Some(EditedText::new(open.text, open.revision, MAX_EDITED)?);
        }
        (Action::Splice(message), Some(text)) => {
            let revision = message.revision;
            let splices = splices(message)?;
            // The server checks before it reserves memory, and applies later.
            let checked = text.check(revision, &splices);
            let applied = text.apply(revision, &splices);
            assert_eq!(checked.is_ok(), applied.is_ok(), "splices are checked as they are applied");
            applied?;
        }
        (Action::Complete(complete), Some(text)) => {
            text.check_offset("complete.cursor_byte", offset("complete.cursor_byte", complete.cursor_byte)?)?;
            let rules = rules(&complete)?;
            CARDS.iter().try_for_each(|card| rules.validate(card))?;
        }
        (Action::Score(score), Some(text)) => {
            let start = offset("score.start_byte", score.start_byte)?;
            let end = offset("score.end_byte", score.end_byte)?;
            text.check_offset("score.start_byte", start)?;
            text.check_offset("score.end_byte", end)?;
            if end <= start || end - start > MAX_SCORED_BYTES {
                let bound = format!("1 to {MAX_SCORED_BYTES} bytes after start_byte, {start}");
                return Err(Error::bad_option("score.end_byte", end.to_string(), bound));
            }
            // The server reads the text of a range that passes.
            assert!(text.text().get(start..end).is_some(), "a range that passes has no text");
        }
        _ => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// Runs an entry on the kept corpus of a target, and on the beginnings of each input.
    fn run_corpus(target: &str, entry: fn(&[u8])) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fuzz/corpus").join(target);
        let mut count = 0;
        for file in folder.read_dir().unwrap() {
            let input = std::fs::read(file.unwrap().path()).unwrap();
            entry(&input);
            (0..input.len().min(256)).for_each(|end| entry(&input[..end]));
            count += 1;
        }
        assert!(count > 5, "only {count} inputs in {}", folder.display());
    }

    #[test]
    fn the_kept_corpora_pass() {
        for (target, entry) in [
            ("edit", edit_messages as fn(&[u8])),
            ("grpc", grpc_request),
            ("openai", completion_request),
            ("summaries", summary_request),
            ("framing", message_framing),
            ("open_inference", inference_request),
        ] {
            run_corpus(target, entry);
        }
    }
}
