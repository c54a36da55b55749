//! Encodes a text that arrives in chunks to tokens, with the bytes of each token.
//!
//! The tokens are those of the complete text, wherever the chunks end. Characters and bytes are encoded at once. Subwords
//! are encoded word by word: the text is split only at *safe points*, before a space that follows a letter, a digit or a
//! printable ASCII character. Text after the last safe point is held back until the next one, or the end.
//!
//! The text on one side of a safe point cannot affect the tokens on the other. The tokenizer splits there
//! ([`subwords`](super::subwords) accepts no other tokenizer), and no normaliser joins a space to such a character. At most
//! one word and the spaces before it are held, limited to [`WORD_BYTES`]. A longer word is an error, or truncates the text.

use super::{Subword, Vocabulary};
use crate::error::{Error, Result};
use std::{ops::ControlFlow, sync::Arc};

/// Maximum bytes between two safe points.
pub const WORD_BYTES: usize = 1 << 16;

/// One token of a text, with its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenSpan {
    /// Id in the vocabulary.
    pub id: u32,
    /// Offset of its first byte in the text.
    pub start: u64,
    /// Offset after its last byte. An unknown symbol also has bytes; a token that a normaliser inserts has none.
    pub end: u64,
}

/// Comparison of the text received so far with the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitStatus {
    /// The text has at most `limit` tokens so far.
    Within,
    /// The text has more tokens than the limit. The first `limit` tokens were returned.
    Exceeded,
}

/// Encodes a text that arrives in chunks.
#[derive(Debug, Clone)]
pub struct StreamTokenizer {
    vocabulary: Arc<Vocabulary>,
    field: &'static str,
    /// Truncates the text at a word that is too long, instead of failing.
    truncate: bool,
    /// Tokens that may still be returned.
    remaining: usize,
    status: LimitStatus,
    /// Text before the document, until its first chunk.
    prefix: String,
    /// Bytes of that text.
    prefix_bytes: u64,
    /// Bytes of the text before `held`.
    bytes: u64,
    /// Characters of the text before `held`, for messages.
    characters: usize,
    /// Text that is not encoded yet.
    held: String,
    /// True if the last character of the normalised text is a space, after which another space is dropped.
    after_space: bool,
}

impl StreamTokenizer {
    /// Creates the tokenizer of a text of at most `limit` tokens. `field` names the text in messages.
    pub fn new(vocabulary: Arc<Vocabulary>, field: &'static str, limit: usize) -> Self {
        Self {
            vocabulary,
            field,
            truncate: false,
            remaining: limit,
            status: LimitStatus::Within,
            prefix: String::new(),
            prefix_bytes: 0,
            bytes: 0,
            characters: 0,
            held: String::new(),
            after_space: false,
        }
    }

    /// Sets whether a text is truncated at a word of more than [`WORD_BYTES`] bytes instead of rejected.
    pub fn with_truncation(self, truncate: bool) -> Self {
        Self { truncate, ..self }
    }

    /// Sets a text that precedes the first chunk, such as an instruction. Its tokens count towards the limit. Offsets count from
    /// the end of this text; its tokens have no bytes.
    pub fn with_prefix(self, prefix: &str) -> Self {
        Self { prefix: prefix.to_owned(), prefix_bytes: prefix.len() as u64, ..self }
    }

    /// Returns the number of bytes received so far.
    pub fn bytes(&self) -> u64 {
        let before = self.prefix_bytes - self.prefix.len() as u64;
        (self.bytes + self.held.len() as u64).saturating_sub(before)
    }

    /// Returns the offset of byte `byte` after the prefix.
    fn offset(&self, byte: usize) -> u64 {
        (self.bytes + byte as u64).saturating_sub(self.prefix_bytes)
    }

    fn push_prefix(&mut self, tokens: &mut Vec<TokenSpan>) -> Result<()> {
        let prefix = std::mem::take(&mut self.prefix);
        if !prefix.is_empty() {
            self.push(&prefix, tokens)?;
        }
        Ok(())
    }

    /// Encodes the next chunk and appends the tokens that no later chunk can change. Chunks after
    /// [`LimitStatus::Exceeded`] are ignored. Fails with [`Error::UnknownSymbol`] at a character that the vocabulary
    /// cannot encode, with its offset in the complete text. Fails with [`Error::LongerThan`] at a word above
    /// [`WORD_BYTES`] bytes, unless the text may be truncated there.
    pub fn push(&mut self, chunk: &str, tokens: &mut Vec<TokenSpan>) -> Result<LimitStatus> {
        self.push_prefix(tokens)?;
        if self.status == LimitStatus::Exceeded {
            return Ok(self.status);
        }
        if !self.vocabulary.is_subword() {
            self.encode_characters(chunk, tokens)?;
            return Ok(self.status);
        }
        let mut rest = chunk;
        // a long chunk is split into pieces, so that the word limit does not depend on where chunks end
        while self.status == LimitStatus::Within && !rest.is_empty() {
            let free = WORD_BYTES.saturating_sub(self.held.len()) + 1;
            let (piece, after) = rest.split_at(floor_boundary(rest, free));
            rest = after;
            // the held text contains no safe point; the first possible one is before the new piece
            let from = self.held.char_indices().next_back().map_or(0, |(offset, _)| offset);
            self.held.push_str(piece);
            if let Some(end) = last_safe_point(&self.held, from) {
                self.encode_held(end, tokens)?;
            }
            if self.held.len() > WORD_BYTES && self.status == LimitStatus::Within {
                if self.truncate {
                    self.encode_held(floor_boundary(&self.held, WORD_BYTES), tokens)?;
                    self.status = LimitStatus::Exceeded;
                    break;
                }
                let unit = "bytes without the end of a word";
                return Err(Error::LongerThan { field: self.field, limit: WORD_BYTES, unit, why: None });
            }
        }
        Ok(self.status)
    }

    /// Ends the text and appends the tokens of the text that was held back. Fails as [`push`](Self::push) does.
    pub fn finish(&mut self, tokens: &mut Vec<TokenSpan>) -> Result<LimitStatus> {
        if self.status == LimitStatus::Within && !self.held.is_empty() {
            self.encode_held(self.held.len(), tokens)?;
        }
        self.held = String::new();
        Ok(self.status)
    }

    /// Encodes the first `end` bytes of the held text.
    fn encode_held(&mut self, end: usize, tokens: &mut Vec<TokenSpan>) -> Result<()> {
        let field = self.field;
        let Some(tokenizer) = self.vocabulary.tokenizer() else {
            // fails with the vocabulary's message for a missing tokenizer
            return self.vocabulary.encode(field, &self.held, usize::MAX).map(|_| ());
        };
        let unknown = |found: String| Error::UnknownSymbol { field, found, offset: self.characters, unit: "character" };
        let subwords = tokenizer.encode(&self.held[..end]).map_err(unknown)?;
        if subwords.len() > self.remaining {
            self.status = LimitStatus::Exceeded;
        }
        let count = subwords.len().min(self.remaining);
        self.remaining -= count;
        tokens.extend(subwords.into_iter().take(count).map(|Subword { id, start, end }| TokenSpan {
            id,
            start: self.offset(start),
            end: self.offset(end),
        }));
        self.bytes += end as u64;
        self.characters += self.held[..end].chars().count();
        self.held.drain(..end);
        Ok(())
    }

    /// Encodes a chunk into characters or bytes.
    fn encode_characters(&mut self, chunk: &str, tokens: &mut Vec<TokenSpan>) -> Result<()> {
        let vocabulary = Arc::clone(&self.vocabulary);
        let mut characters = chunk.char_indices().enumerate().peekable();
        // bytes of the chunk's character that is being normalised
        let mut span = 0..0;
        let mut is_first = true;
        let mut unknown = None;
        vocabulary.normaliser().for_each(chunk, |character, offset| {
            while let Some((index, (byte, original))) = characters.next_if(|(index, _)| *index <= offset) {
                if index == offset {
                    span = byte..byte + original.len_utf8();
                }
            }
            let repeats_space = std::mem::take(&mut is_first) && self.after_space && character == ' ';
            if repeats_space && vocabulary.normaliser().collapses() {
                return ControlFlow::Continue(());
            }
            self.after_space = character == ' ';
            let mut bytes = [0; 4];
            let ids: &[u32] = match (vocabulary.id_or_unknown(character), vocabulary.byte_zero()) {
                (Some(id), _) => &[id],
                (None, Some(zero)) => {
                    let encoded = character.encode_utf8(&mut bytes).len();
                    &std::array::from_fn::<u32, 4, _>(|index| zero + u32::from(bytes[index]))[..encoded]
                }
                (None, None) => {
                    unknown = Some((character, offset));
                    return ControlFlow::Break(());
                }
            };
            for &id in ids {
                if self.remaining == 0 {
                    self.status = LimitStatus::Exceeded;
                    return ControlFlow::Break(());
                }
                self.remaining -= 1;
                let [start, end] = [span.start, span.end].map(|byte| self.offset(byte));
                tokens.push(TokenSpan { id, start, end });
            }
            ControlFlow::Continue(())
        });
        if let Some((character, offset)) = unknown {
            let found = format!("{character:?}");
            return Err(Error::UnknownSymbol {
                field: self.field,
                found,
                offset: self.characters + offset,
                unit: "character",
            });
        }
        self.bytes += chunk.len() as u64;
        self.characters += chunk.chars().count();
        Ok(())
    }
}

/// Returns the last safe point at or after `from`: before a space, after a character that no normaliser joins it to.
fn last_safe_point(text: &str, from: usize) -> Option<usize> {
    let mut spaces = text.get(from..)?.rmatch_indices(' ').map(|(offset, _)| from + offset);
    spaces.find(|&space| {
        let before = text.get(..space).and_then(|before| before.chars().next_back());
        before.is_some_and(|before| before.is_alphanumeric() || before.is_ascii_graphic())
    })
}

/// Returns the last character boundary at or before `bytes`, but at least the end of the first character.
fn floor_boundary(text: &str, bytes: usize) -> usize {
    let boundary = (0..=bytes.min(text.len())).rev().find(|&offset| text.is_char_boundary(offset));
    boundary.filter(|&offset| offset > 0).unwrap_or(text.len())
}

#[cfg(test)]
mod tests;
