//! Entry points of fuzz targets: conversion of requests to jobs.

use super::convert::{generate_job, long_documents, score_job, segment_job, summary_options};
use crate::{
    decode::contract::{BoundaryMode, Card},
    text::{TextNormaliser, Vocabulary},
};
use prost::{Message, Name};
use std::sync::LazyLock;
use weir_proto::{
    codec::decode_bounded,
    v1::{self, summarize_request::Part},
};

/// Models of characters and of bytes.
static CARDS: LazyLock<Vec<Card>> = LazyLock::new(|| {
    let letters = Vocabulary::from_symbols(&[" ", "a", "b", "c"], TextNormaliser::Text8).ok();
    let vocabularies = letters.into_iter().chain([Vocabulary::byte_level(TextNormaliser::None)]);
    let boundary_modes = vec![BoundaryMode::Threshold, BoundaryMode::Sampled];
    vocabularies.map(|all| Card { boundary_modes: boundary_modes.clone(), ..Card::for_tests(all) }).collect()
});

/// Reads a request, of a kind that the first byte selects, and converts it to a job.
pub(in crate::serve) fn request(data: &[u8]) {
    let Some((kind, encoded)) = data.split_first() else { return };
    match kind % 4 {
        0 => decode(encoded).into_iter().for_each(generate),
        1 => decode(encoded).into_iter().for_each(score),
        2 => decode(encoded).into_iter().for_each(segment),
        _ => decode(encoded).into_iter().for_each(summarize),
    }
}

/// Converts a `Generate` to a job of each model.
pub(in crate::serve) fn generate(request: v1::GenerateRequest) {
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
pub(in crate::serve) fn summarize(request: v1::SummarizeRequest) {
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
