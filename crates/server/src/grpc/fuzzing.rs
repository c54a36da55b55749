//! Entry points of fuzz targets: conversion of requests to jobs.

use crate::grpc::{
    convert::{generate_job, long_documents, score_job, segment_job, summary_options},
    editing::{failed, offset, rules, splices},
};
use prost::{Message, Name};
use std::sync::LazyLock;
use weir_engine::{edited_text::EditedText, editing::MAX_SCORED_BYTES};
use weir_kernels::error::{Error, Result};
use weir_models::{
    contract::{BoundaryMode, Card},
    text::{TextNormaliser, Vocabulary},
};
use weir_proto::{
    codec::decode_bounded,
    v1::{self, edit_request::Action, summarize_request::Part},
};

/// Models of characters and of bytes.
pub(crate) static CARDS: LazyLock<Vec<Card>> = LazyLock::new(|| {
    let letters = Vocabulary::from_symbols(&[" ", "a", "b", "c"], TextNormaliser::Text8).ok();
    let ended = Vocabulary::byte_level_with_end(3, TextNormaliser::None).ok();
    let bytes = Vocabulary::byte_level(TextNormaliser::None);
    let vocabularies = letters.into_iter().chain(ended).chain([bytes]);
    let boundary_modes = vec![BoundaryMode::Threshold, BoundaryMode::Sampled];
    vocabularies.map(|all| Card { boundary_modes: boundary_modes.clone(), ..Card::for_tests(all) }).collect()
});

/// Reads a request, of a kind that the first byte selects, and converts it to a job.
pub(crate) fn request(data: &[u8]) {
    let Some((kind, encoded)) = data.split_first() else { return };
    match kind % 4 {
        0 => decode(encoded).into_iter().for_each(generate),
        1 => decode(encoded).into_iter().for_each(score),
        2 => decode(encoded).into_iter().for_each(segment),
        _ => decode(encoded).into_iter().for_each(summarize),
    }
}

/// Converts a `Generate` to a job of each model.
pub(crate) fn generate(request: v1::GenerateRequest) {
    for card in CARDS.iter() {
        generate_job(request.clone(), card).ok();
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
pub(crate) fn summarize(request: v1::SummarizeRequest) {
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
pub(crate) fn edit(messages: impl Iterator<Item = v1::EditRequest>) -> Vec<v1::EditResponse> {
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
