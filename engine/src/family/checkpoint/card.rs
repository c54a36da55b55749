//! `card.json`: facts about a checkpoint. The writer states the digest of the weights; the loader reads nothing else.

use super::{json, links::check_inside};
use crate::error::{Error, Result, clip};
use serde::Deserialize;
use std::path::Path;

/// The name of the file.
pub const CARD_FILE: &str = "card.json";
/// Maximum size of `card.json`.
const MAX_BYTES: u64 = 1 << 20;

/// Returns the text of a card that states the digest of the weights.
pub(super) fn text(sha256: &str) -> String {
    format!("{}\n", serde_json::json!({ "sha256": sha256 }))
}

/// The part of a card that the loader reads. Other keys are for people and for the training tools.
#[derive(Deserialize)]
pub(super) struct Card {
    sha256: Option<String>,
}

/// Checks that the card of the checkpoint at `dir` states a digest, which [`check_digest`] then compares. Fails if there is no
/// card, or it states no digest.
pub(super) fn require_digest(card: Option<Card>, dir: &Path) -> Result<()> {
    let found = match card {
        Some(Card { sha256: Some(_) }) => return Ok(()),
        Some(Card { sha256: None }) => "nothing",
        None => "no card",
    };
    Err(Error::checkpoint(
        dir.join(CARD_FILE),
        "sha256",
        "the digest of the weights, which --require-sha256 asks for",
        found,
    ))
}

/// Compares the SHA-256 of the weights of the checkpoint at `dir` with the one in its card. A checkpoint without a card, or with
/// a card that states no digest, passes. Fails if the digests differ.
pub(super) fn check_digest(card: Option<Card>, dir: &Path, sha256: &str) -> Result<()> {
    match card.and_then(|card| card.sha256) {
        Some(stated) if !stated.eq_ignore_ascii_case(sha256) => {
            let expected = format!("{}, as {CARD_FILE} states", clip(&stated, 64));
            Err(Error::checkpoint(dir, "sha256 of the weights", expected, sha256))
        }
        _ => Ok(()),
    }
}

/// Reads the card of the checkpoint in a folder, if it has one. Fails if it cannot be read.
pub(super) fn read(dir: &Path) -> Result<Option<Card>> {
    let file = dir.join(CARD_FILE);
    if !file.try_exists().map_err(Error::io(&file))? {
        return Ok(None);
    }
    check_inside(dir, &file)?;
    parse(&json::read_limited(&file, MAX_BYTES)?, &file).map(Some)
}

/// Parses a card; errors name `file`. Fails if a key has the wrong type.
pub(super) fn parse(text: &[u8], file: &Path) -> Result<Card> {
    json::parse(text, file, "")
}
