//! A text that arrives in chunks, as tokens, with the bytes of each.
//!
//! The tokens are those of the whole text, however it was cut. Characters and bytes are tokens by themselves, so that nothing is
//! held back. Subwords are made word by word: the text is cut at *safe points* only, before a space that follows a letter, a
//! digit or a sign of ASCII; what comes after the last of them is held until the next, or the end. What lies on one side of such
//! a point has no part in what becomes of the other: the tokenizer splits there ([`subwords`](super::subwords)), and no
//! normaliser joins a space to what stands before it. So what is held is one word and the spaces before it, and that has a
//! limit, [`WORD_BYTES`]: a text that exceeds it is refused, or, where its beginning is enough, taken as far as that.
//!
//! Of a text that is longer than the limit no more than the limit is ever held.

use super::{Subword, Vocabulary};
use crate::error::{Error, Result};
use std::{ops::ControlFlow, sync::Arc};

/// Bytes from one safe point to the next, at most.
pub const WORD_BYTES: usize = 1 << 16;

/// A token of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Token {
    /// Its id.
    pub id: u32,
    /// Its first byte in the text.
    pub start: u64,
    /// The byte after its last. A mark for what the vocabulary lacks has bytes too; a token that a normaliser adds has none.
    pub end: u64,
}

/// Whether more tokens are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// They are.
    Left,
    /// The text has more tokens than the limit; those up to it were given.
    Over,
}

/// A text on its way.
#[derive(Debug, Clone)]
pub struct Reading {
    vocabulary: Arc<Vocabulary>,
    field: &'static str,
    /// Whether its beginning is enough, should it not be readable to its end.
    cut: bool,
    /// Tokens that it may still give.
    left: usize,
    room: Room,
    /// Bytes before what is held.
    bytes: u64,
    /// Characters before what is held, for messages.
    characters: usize,
    held: String,
    /// Whether the latest character of a normalised text was a space, of which another is dropped.
    after_space: bool,
}

impl Reading {
    /// Of a text of at most `limit` tokens; `field` is what it is called in messages.
    pub fn new(vocabulary: Arc<Vocabulary>, field: &'static str, limit: usize) -> Self {
        let (bytes, characters, held, after_space) = (0, 0, String::new(), false);
        Self { vocabulary, field, cut: false, left: limit, room: Room::Left, bytes, characters, held, after_space }
    }

    /// The same, cut where a word is too long if its beginning is enough.
    pub fn cut(self, cut: bool) -> Self {
        Self { cut, ..self }
    }

    /// Bytes of the text so far.
    pub fn bytes(&self) -> u64 {
        self.bytes + self.held.len() as u64
    }

    /// Takes the next chunk; gives the tokens that are known by now. What comes once there is no room left is not looked at.
    ///
    /// # Errors
    /// [`Error::UnknownSymbol`] for a character that the vocabulary has neither a token nor a mark for, at its place in the whole
    /// text; [`Error::LongerThan`] for a word that is too long, unless the text may be cut there.
    pub fn push(&mut self, chunk: &str, tokens: &mut Vec<Token>) -> Result<Room> {
        if self.room == Room::Over {
            return Ok(self.room);
        }
        if !self.vocabulary.is_pieces() {
            self.each_character(chunk, tokens)?;
            return Ok(self.room);
        }
        let mut rest = chunk;
        // a chunk may be far longer than what there is room for; so what is too long does not depend on where chunks end
        while self.room == Room::Left && !rest.is_empty() {
            let free = WORD_BYTES.saturating_sub(self.held.len()) + 1;
            let (piece, after) = rest.split_at(floor(rest, free));
            rest = after;
            // what was held before has no safe point but where it meets the new piece
            let from = self.held.char_indices().next_back().map_or(0, |(at, _)| at);
            self.held.push_str(piece);
            if let Some(at) = last_safe_point(&self.held, from) {
                self.words(at, tokens)?;
            }
            if self.held.len() > WORD_BYTES && self.room == Room::Left {
                if self.cut {
                    self.words(floor(&self.held, WORD_BYTES), tokens)?;
                    self.room = Room::Over;
                    break;
                }
                let unit = "bytes without the end of a word";
                return Err(Error::LongerThan { field: self.field, limit: WORD_BYTES, unit, why: None });
            }
        }
        Ok(self.room)
    }

    /// Ends the text; gives what was held back.
    ///
    /// # Errors
    /// As for [`push`](Self::push).
    pub fn finish(&mut self, tokens: &mut Vec<Token>) -> Result<Room> {
        if self.room == Room::Left && !self.held.is_empty() {
            self.words(self.held.len(), tokens)?;
        }
        self.held = String::new();
        Ok(self.room)
    }

    /// Gives the tokens of the first so many bytes of what is held.
    fn words(&mut self, end: usize, tokens: &mut Vec<Token>) -> Result<()> {
        let field = self.field;
        let Some(subwords) = self.vocabulary.subwords() else {
            // as the vocabulary says it
            return self.vocabulary.encode(field, &self.held, usize::MAX).map(|_| ());
        };
        let unread = |found: String| Error::UnknownSymbol { field, found, offset: self.characters };
        let placed = subwords.encode(&self.held[..end]).map_err(unread)?;
        let before = self.bytes;
        let one = |Subword { id, start, end }| {
            let [start, end] = [start, end].map(|at| before + at as u64);
            Token { id, start, end }
        };
        if placed.len() > self.left {
            self.room = Room::Over;
        }
        let known = placed.len().min(self.left);
        self.left -= known;
        tokens.extend(placed.into_iter().take(known).map(one));
        self.bytes += end as u64;
        self.characters += self.held[..end].chars().count();
        self.held.drain(..end);
        Ok(())
    }

    /// Gives the tokens of a text of characters or bytes.
    fn each_character(&mut self, chunk: &str, tokens: &mut Vec<Token>) -> Result<()> {
        let vocabulary = Arc::clone(&self.vocabulary);
        let mut places = chunk.char_indices().enumerate().peekable();
        let (mut at, mut first, mut unknown) = ((0, 0), true, None);
        vocabulary.normaliser().each(chunk, |character, offset| {
            while let Some((index, (byte, given))) = places.next_if(|(index, _)| *index <= offset) {
                at = if index == offset { (byte, byte + given.len_utf8()) } else { at };
            }
            let doubled = std::mem::take(&mut first) && self.after_space && character == ' ';
            if doubled && vocabulary.normaliser().collapses() {
                return ControlFlow::Continue(());
            }
            self.after_space = character == ' ';
            let mut bytes = [0; 4];
            let ids: &[u32] = match (vocabulary.known_or_mark(character), vocabulary.byte_zero()) {
                (Some(id), _) => &[id],
                (None, Some(zero)) => {
                    let encoded = character.encode_utf8(&mut bytes).len();
                    &std::array::from_fn::<u32, 4, _>(|at| zero + u32::from(bytes[at]))[..encoded]
                }
                (None, None) => {
                    unknown = Some((character, offset));
                    return ControlFlow::Break(());
                }
            };
            for &id in ids {
                if self.left == 0 {
                    self.room = Room::Over;
                    return ControlFlow::Break(());
                }
                self.left -= 1;
                let [start, end] = [at.0, at.1].map(|byte| self.bytes + byte as u64);
                tokens.push(Token { id, start, end });
            }
            ControlFlow::Continue(())
        });
        if let Some((character, offset)) = unknown {
            let found = format!("{character:?}");
            return Err(Error::UnknownSymbol { field: self.field, found, offset: self.characters + offset });
        }
        self.bytes += chunk.len() as u64;
        self.characters += chunk.chars().count();
        Ok(())
    }
}

/// The last place at which a text may be cut, of those from `from` on: before a space that follows what no normaliser joins it to.
fn last_safe_point(text: &str, from: usize) -> Option<usize> {
    let spaces = text.get(from..)?.rmatch_indices(' ').map(|(at, _)| from + at);
    let mut safe = spaces.filter(|&at| {
        let before = text.get(..at).and_then(|before| before.chars().next_back());
        before.is_some_and(|before| before.is_alphanumeric() || before.is_ascii_graphic())
    });
    safe.next()
}

/// The largest place at or below `bytes` where the text can be cut; at least one character.
fn floor(text: &str, bytes: usize) -> usize {
    let at = (0..=bytes.min(text.len())).rev().find(|&at| text.is_char_boundary(at));
    at.filter(|&at| at > 0).unwrap_or(text.len())
}

#[cfg(test)]
mod tests;
