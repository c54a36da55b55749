//! The rules of a search for completions.

use crate::{
    decode::{contract::Card, options::bad},
    error::{Error, Result},
};
use std::ops::RangeInclusive;

/// Allowed counts of completions.
pub(super) const COUNTS: RangeInclusive<usize> = 1..=16;
/// Allowed lengths of a completion, in characters.
pub(super) const LENGTHS: RangeInclusive<usize> = 1..=256;

/// The place where a completion ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompletionEnd {
    /// The end is before the first character that is not a letter, digit, apostrophe or underscore. In a model of bytes, every character
    /// outside ASCII counts as a letter.
    Word,
    /// The end is before the first line feed.
    Line,
    /// The end is after the character with which a segment ends.
    Segment,
    /// The end is after `max_chars` characters.
    Length,
}

/// The rules of a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompletionRules {
    /// Number of completions.
    pub count: usize,
    /// The place where each ends.
    pub end: CompletionEnd,
    /// Maximum characters of each.
    pub max_chars: usize,
}

impl CompletionRules {
    /// Checks the bounds of all fields. Fails with [`Error::BadOption`] or [`Error::WrongKind`], which name the field.
    pub fn validate(&self, card: &Card) -> Result<()> {
        for (field, value, range) in
            [("complete.count", self.count, COUNTS), ("complete.max_chars", self.max_chars, LENGTHS)]
        {
            if !range.contains(&value) {
                return Err(bad(field, value, format!("{} to {}", range.start(), range.end())));
            }
        }
        let wrong = |call, wanted| {
            let found = format!("a model of another kind: {}", card.shape);
            Err(Error::WrongKind { call, model: card.name.clone(), wanted, found })
        };
        if card.vocabulary.is_subword() {
            return wrong("Edit", "reads characters or bytes");
        }
        if self.end == CompletionEnd::Segment && !card.pooled {
            return wrong("complete.until", "pools its input");
        }
        if self.end == CompletionEnd::Segment && card.begins_chunks {
            return wrong("complete.until", "ends segments with a character");
        }
        Ok(())
    }
}
