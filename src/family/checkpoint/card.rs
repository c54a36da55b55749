//! `card.json`: facts about a checkpoint. The loader reads the digest of the weights only.

use super::json;
use crate::error::{Error, Result, clip};
use serde::Deserialize;
use std::path::Path;

/// The name of the file.
pub const CARD_FILE: &str = "card.json";
/// Maximum size of `card.json`.
const MAX_BYTES: u64 = 1 << 20;

/// The part of a card that the loader reads. Other keys are for people and for the training tools.
#[derive(Deserialize)]
struct Card {
    sha256: Option<String>,
}

/// Compares the SHA-256 of a checkpoint's weights with the one in its card. A checkpoint without a card, or with a card
/// that states no digest, passes. Fails if the digests differ, or the card cannot be read.
pub fn check_digest(dir: &Path, sha256: &str) -> Result<()> {
    let file = dir.join(CARD_FILE);
    if !file.try_exists().map_err(Error::io(&file))? {
        return Ok(());
    }
    let card: Card = json::parse(&json::read_limited(&file, MAX_BYTES)?, &file, "")?;
    match card.sha256 {
        Some(stated) if !stated.eq_ignore_ascii_case(sha256) => {
            let expected = format!("{}, as {CARD_FILE} states", clip(&stated, 64));
            Err(Error::checkpoint(dir, "sha256 of the weights", expected, sha256))
        }
        _ => Ok(()),
    }
}
