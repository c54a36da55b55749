//! From texts to ids, and the check of given ids.

use super::{BYTES_PER_SYMBOL, Vocabulary};
use crate::{
    error::{Error, Result},
    text::TextNormaliser,
};
use std::ops::ControlFlow;

/// A character of a normalised text that is not in the vocabulary.
pub(crate) struct UnknownCharacter {
    character: char,
    /// Offset, in characters, of the character that it comes from in the text before normalising.
    offset: usize,
}

impl Vocabulary {
    /// Normalises and encodes a text to at most `limit` symbols, a start mark included. `field` names the text in messages.
    ///
    /// Encoding stops at the first unknown symbol and at the first symbol above `limit`. A text that is too long
    /// therefore costs no more than one of `limit` symbols. Fails with [`Error::UnknownSymbol`] at the first character
    /// that is not in the vocabulary; the error has its offset in `text`, in characters. Fails with [`Error::TooLong`],
    /// or with [`Error::LongerThan`] if the length is only known after normalising all of `text`. Never reads more than
    /// [`BYTES_PER_SYMBOL`] bytes for each symbol of `limit`, so that a text that normalises to little is bounded, too.
    pub fn encode(&self, field: &'static str, text: &str, limit: usize) -> Result<Vec<u32>> {
        let max_bytes = limit.saturating_mul(BYTES_PER_SYMBOL);
        let oversized = || Error::LongerThan { field, limit: max_bytes, unit: "bytes", why: None };
        if self.is_subword() {
            if text.len() > max_bytes {
                return Err(oversized());
            }
            return self.encode_tokens(field, text, limit);
        }
        let mut encoded = Vec::with_capacity(text.len().min(limit));
        encoded.extend(self.marks.map(|marks| marks.start));
        match self.encode_piece(beginning(text, max_bytes), &mut None, limit, &mut encoded) {
            Err(UnknownCharacter { character, offset }) => Err(unknown_symbol(field, text, character, offset)),
            Ok(()) if encoded.len() > limit => Err(self.too_long(field, text, limit)),
            Ok(()) if text.len() > max_bytes => Err(oversized()),
            Ok(()) => Ok(encoded),
        }
    }

    /// Adds the symbols of a piece of a text to those before it. `last` is the last character of the normalised text before the
    /// piece, and then that of the piece. Stops above `limit` symbols in all, and fails at the first character that is not in the
    /// vocabulary. Supports vocabularies of characters or bytes, whose pieces are those of the text wherever it is cut.
    pub(crate) fn encode_piece(
        &self,
        piece: &str,
        last: &mut Option<char>,
        limit: usize,
        encoded: &mut Vec<u32>,
    ) -> std::result::Result<(), UnknownCharacter> {
        let mut unknown = None;
        self.normaliser.for_each_after(*last, piece, |character, offset| {
            *last = Some(character);
            match (self.id_or_unknown(character), self.byte_zero()) {
                (Some(id), _) => encoded.push(id),
                (None, Some(zero)) => {
                    encoded.extend(character.encode_utf8(&mut [0; 4]).bytes().map(|byte| zero + u32::from(byte)));
                }
                (None, None) => unknown = Some(UnknownCharacter { character, offset }),
            }
            if unknown.is_some() || encoded.len() > limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        unknown.map_or(Ok(()), Err)
    }

    fn too_long(&self, field: &'static str, text: &str, limit: usize) -> Error {
        let unit = "characters";
        match (self.normaliser, self.is_bytes()) {
            (TextNormaliser::None, true) => {
                let length = text.len() + usize::from(self.marks.is_some());
                Error::TooLong { field, length, limit, unit, why: None }
            }
            (TextNormaliser::None, false) => {
                Error::TooLong { field, length: text.chars().count(), limit, unit, why: None }
            }
            (TextNormaliser::Text8, _) => Error::LongerThan { field, limit, unit, why: None },
        }
    }

    /// Encodes a text without normalising it, such as a biased symbol. Fails with
    /// [`Error::UnknownSymbol`] at the first character that is not in the vocabulary.
    pub fn encode_exactly(&self, field: &'static str, text: &str) -> Result<Vec<u32>> {
        if let Some(zero) = self.byte_zero() {
            return Ok(text.bytes().map(|byte| zero + u32::from(byte)).collect());
        }
        if self.is_subword() {
            return Ok(self.encode_subwords(field, text)?.into_iter().map(|piece| piece.id).collect());
        }
        let unknown = |offset, character| {
            let found = format!("{character:?}");
            Error::UnknownSymbol { field, found, offset, unit: "character" }
        };
        let symbol = |(offset, character)| self.id_of(character).ok_or_else(|| unknown(offset, character));
        text.chars().enumerate().map(symbol).collect()
    }

    /// Checks that all ids are in the vocabulary. The error names the first id that is not, and its index.
    pub fn check_ids(&self, field: &'static str, ids: &[u32]) -> Result<()> {
        let len = self.len();
        match ids.iter().position(|&id| id as usize >= len) {
            None => Ok(()),
            Some(offset) => {
                let found = format!("id {} (the vocabulary has {len} symbols)", ids[offset]);
                Err(Error::UnknownSymbol { field, found, offset, unit: "index" })
            }
        }
    }

    /// Checks that all ids may occur in a text: ids of the vocabulary except special symbols other than `unknown`. The
    /// error names the first id that may not, and its index.
    pub fn check_text(&self, field: &'static str, ids: &[u32]) -> Result<()> {
        self.check_ids(field, ids)?;
        let Some(specials) = self.specials else { return Ok(()) };
        match ids.iter().position(|&id| specials.contains(id) && id != specials.unknown) {
            None => Ok(()),
            Some(offset) => {
                let found = format!("{} at index {offset}", self.printable(ids[offset]));
                Err(Error::bad_option(field, found, "symbols of a text"))
            }
        }
    }
}

/// Returns the longest beginning of `text` that has at most `bytes` bytes.
fn beginning(text: &str, bytes: usize) -> &str {
    let mut end = bytes.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.split_at(end).0
}

/// Returns the error for `character`, which the character of `text` at `offset` was normalised to.
fn unknown_symbol(field: &'static str, text: &str, character: char, offset: usize) -> Error {
    let original = text.chars().nth(offset).unwrap_or(character);
    let found = match original == character {
        true => format!("{character:?}"),
        false => format!("{original:?} (normalised to {character:?})"),
    };
    Error::UnknownSymbol { field, found, offset, unit: "character" }
}
