//! Documents that are longer than the model reads, in parts: each part is summarized, and the summaries, joined by line breaks, are
//! the text of the next round. The last round has one part.

use super::{
    document::{DocumentLimits, covers_text, no_text},
    summary::ByteRange,
};
use crate::{
    error::{Error, Result},
    text::{LimitStatus, TokenSpan, Vocabulary},
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Maximum bytes of a document that is summarized in parts.
pub const MAX_BYTES: usize = 16 << 20;
/// Maximum parts of a round.
pub const MAX_PARTS: usize = 64;
/// Maximum rounds.
pub const MAX_ROUNDS: usize = 8;

/// Bytes of text that the tokenizer takes at once.
const SLICE: usize = 16 << 10;

/// Decides how a request treats a document that is longer than the model reads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LongDocuments {
    /// The request fails.
    #[default]
    Refuse,
    /// The model reads the beginning.
    Cut,
    /// The model reads the parts, then their summaries.
    Chunk,
}

impl LongDocuments {
    /// All values.
    pub const ALL: [Self; 3] = [Self::Refuse, Self::Cut, Self::Chunk];

    /// Its name in the API and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Refuse => "refuse",
            Self::Cut => "cut",
            Self::Chunk => "chunk",
        }
    }

    /// Returns the value of that name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|value| value.name() == name)
    }
}

/// Names of options in errors.
#[derive(Debug, Clone, Copy)]
pub struct FieldNames {
    /// The document's text.
    pub text: &'static str,
    /// The choice of [`LongDocuments`].
    pub long_documents: &'static str,
}

/// A document that is read in parts. The caller summarizes each part that [`next_part`](Self::next_part) returns, and passes the
/// summary to [`push_summary`](Self::push_summary), until a part is the whole text of its round.
pub struct LongDocument {
    /// The text of the round.
    text: String,
    names: FieldNames,
    round: usize,
    /// Parts of the round that are summarized.
    parts: usize,
    /// The first byte of the next part.
    start: usize,
    /// The summaries of the round's parts, joined.
    summaries: String,
}

/// A part of a round's text, as tokens for the encoder.
#[derive(Debug)]
pub struct TextPart {
    /// Number of the round, from 1.
    pub round: usize,
    /// Number of the part in its round, from 1.
    pub number: usize,
    /// The first byte, in the text of the round.
    pub start: u64,
    /// One past the last byte that the model reads.
    pub end: u64,
    /// Bytes of the round's text.
    pub round_bytes: u64,
    /// The tokens, with the end mark.
    pub ids: Vec<u32>,
    /// The bytes of each token, in the text of the round.
    pub byte_ranges: Vec<ByteRange>,
    /// True if only white space follows.
    pub is_last: bool,
    /// Bytes from `start` to the next part.
    step: usize,
}

impl TextPart {
    /// Returns true if the part is the whole text of its round. Its summary is that of the document.
    pub fn is_whole(&self) -> bool {
        self.is_last && self.number == 1
    }
}

impl LongDocument {
    /// Begins the first round with the text of a document.
    pub fn new(text: String, names: FieldNames) -> Self {
        Self { text, names, round: 1, parts: 0, start: 0, summaries: String::new() }
    }

    /// Returns the bytes of the round's text that no part has covered.
    pub fn bytes_left(&self) -> usize {
        self.text.len().saturating_sub(self.start)
    }

    /// Returns the next part: as much of the text as the model reads. Fails with [`Error::BadOption`] if the text is empty or has
    /// too many parts. The first part of a round gives an estimate of their number.
    pub fn next_part(&self, vocabulary: &Arc<Vocabulary>, limits: &DocumentLimits) -> Result<TextPart> {
        let rest = self.text.get(self.start..).unwrap_or_default();
        let (mut tokens, cut) = self.tokens(rest, vocabulary, limits)?;
        let last = tokens.iter().filter(|token| token.start < token.end).max_by_key(|token| token.end);
        let byte = |offset: u64| floor_boundary(rest, usize::try_from(offset).unwrap_or(usize::MAX));
        let read = match last {
            // The tokens of a character have its byte range, and the limit may fall between them: the next part reads it again.
            Some(token) if cut && is_one_character(rest, byte(token.start), byte(token.end)) => byte(token.start),
            Some(token) => byte(token.end),
            None if cut => 0,
            None => rest.len(),
        };
        tokens.retain(|token| token.end <= read as u64);
        let is_last = !cut || rest.get(read..).unwrap_or_default().trim().is_empty();
        let step = next_start(rest, read);
        if step == 0 && !is_last {
            return Err(Error::Internal("the model read none of its text".into()));
        }
        let after = self.text.len().saturating_sub(read);
        let estimate = if self.parts == 0 { 1 + after.div_ceil(step.max(1)) } else { self.parts + 1 };
        if estimate > MAX_PARTS && !(is_last && self.parts == 0) {
            let found = format!("about {estimate} parts of {} tokens", tokens.len() + 1);
            return Err(Error::bad_option(self.names.long_documents, found, format!("at most {MAX_PARTS} parts")));
        }
        let offset = self.start as u64;
        let byte_range = |token: &TokenSpan| ByteRange { start: token.start + offset, end: token.end + offset };
        let mut ids: Vec<u32> = tokens.iter().map(|token| token.id).collect();
        let mut byte_ranges: Vec<_> = tokens.iter().map(byte_range).collect();
        let end = offset + read as u64;
        ids.push(limits.marks.end);
        byte_ranges.push(ByteRange { start: end, end });
        Ok(TextPart {
            round: self.round,
            number: self.parts + 1,
            start: offset,
            end,
            round_bytes: self.text.len() as u64,
            ids,
            byte_ranges,
            is_last,
            step,
        })
    }

    /// Returns the tokens at the beginning of a text that the model reads, and whether the text continues.
    fn tokens(
        &self,
        text: &str,
        vocabulary: &Arc<Vocabulary>,
        limits: &DocumentLimits,
    ) -> Result<(Vec<TokenSpan>, bool)> {
        let mut tokenizer = limits.tokenizer(Arc::clone(vocabulary), self.names.text).with_truncation(true);
        let mut tokens = Vec::new();
        let mut status = LimitStatus::Within;
        let mut rest = text;
        while status == LimitStatus::Within && !rest.is_empty() {
            let (slice, after) = rest.split_at(floor_boundary(rest, SLICE));
            status = tokenizer.push(slice, &mut tokens)?;
            rest = after;
        }
        if status == LimitStatus::Within {
            status = tokenizer.finish(&mut tokens)?;
        }
        if !covers_text(&tokens) {
            return Err(no_text(self.names.text));
        }
        Ok((tokens, status == LimitStatus::Exceeded))
    }

    /// Takes the summary of a part that is not the whole text. After the last part the summaries are the text of the next round.
    /// Fails with [`Error::BadOption`] if they are not shorter than the text, or if no round is left.
    pub fn push_summary(&mut self, part: &TextPart, summary: &str) -> Result<()> {
        let Self { text, names, round, parts, start, summaries } = self;
        if *parts > 0 {
            summaries.push('\n');
        }
        summaries.push_str(summary);
        if summaries.len() >= text.len() {
            let found = format!("{} bytes of summaries in round {round}", summaries.len());
            let bound = format!("fewer than the {} bytes of the text (shorter summaries help)", text.len());
            return Err(Error::bad_option(names.long_documents, found, bound));
        }
        *parts += 1;
        *start += part.step;
        if !part.is_last {
            return Ok(());
        }
        if *round == MAX_ROUNDS {
            let found = format!("a text of {} bytes after {MAX_ROUNDS} rounds", summaries.len());
            let bound = "a text that the model can read (shorter summaries help)";
            return Err(Error::bad_option(names.long_documents, found, bound));
        }
        if summaries.trim().is_empty() {
            let found = format!("no text in the summaries of round {round}");
            return Err(Error::bad_option(names.long_documents, found, "summaries with text"));
        }
        *text = std::mem::take(summaries);
        *round += 1;
        *parts = 0;
        *start = 0;
        Ok(())
    }
}

/// Returns where the next part begins, after one that ends at byte `read`: behind the last sentence or line that ends in the last
/// quarter of the part, or behind its last word, or at its end. White space is skipped. 0 only if nothing was read.
fn next_start(text: &str, read: usize) -> usize {
    let end = floor_boundary(text, read);
    let from = floor_boundary(text, end - end / 4);
    let mut sentence = None;
    let mut word = None;
    let mut characters = text.get(from..).unwrap_or_default().char_indices().peekable();
    while let Some((offset, character)) = characters.next() {
        let after = from + offset + character.len_utf8();
        if after > end {
            break;
        }
        let is_before_space = characters.peek().is_none_or(|(_, next)| next.is_whitespace());
        if character == '\n' || (matches!(character, '.' | '!' | '?') && is_before_space) {
            sentence = Some(after);
        }
        if is_before_space {
            word = Some(after);
        }
    }
    let next = sentence.or(word).unwrap_or(end);
    let rest = text.get(next..).unwrap_or_default();
    next + rest.len() - rest.trim_start().len()
}

/// Returns true if the bytes from `start` to `end` are one character of several bytes, and not the first of the text.
fn is_one_character(text: &str, start: usize, end: usize) -> bool {
    start > 0 && end > start + 1 && text.get(start..end).is_some_and(|piece| piece.chars().count() == 1)
}

/// Returns the last character boundary at or before `byte`.
fn floor_boundary(text: &str, byte: usize) -> usize {
    let mut byte = byte.min(text.len());
    while !text.is_char_boundary(byte) {
        byte -= 1;
    }
    byte
}

#[cfg(test)]
mod tests;
