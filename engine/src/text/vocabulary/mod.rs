//! The vocabulary of a model: characters, the 256 byte values, or the pieces of a [`SubwordTokenizer`].
//!
//! Character and byte vocabularies may also contain [`SpecialSymbols`].

use super::{SpecialSymbols, SubwordTokenizer, TextMarks, TextNormaliser, TokenMarks, VocabularyError};
use crate::error::{Result, clip};
use std::{
    borrow::Cow,
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
};

mod encode;
mod marks;
mod pieces;
mod start_bytes;
mod stops;

/// Maximum symbols of a vocabulary: the number of Unicode code points.
pub const MAX_SYMBOLS: usize = 1_114_112;
const BYTES: usize = 256;
/// Maximum bytes of text per symbol of a limit. Normalising can shorten a text, and a subword has several characters.
pub const BYTES_PER_SYMBOL: usize = 32;
const REPLACEMENT: char = '\u{fffd}';

/// The symbols of a model and the conversion between them and text.
#[derive(Debug, Clone)]
pub struct Vocabulary {
    symbols: Symbols,
    specials: Option<SpecialSymbols>,
    marks: Option<TextMarks>,
    /// The byte that ends a text when the model generates it. Elsewhere it is a character like any other.
    end_byte: Option<u32>,
    normaliser: TextNormaliser,
}

#[derive(Debug, Clone)]
enum Symbols {
    /// The index of a character is its id. U+FFFD fills the ids of special symbols.
    Characters { symbols: Vec<char>, ids: HashMap<char, u32> },
    /// The id of a byte is its value plus `first`. The other ids of `count` are special symbols. If `sparse`, they have no
    /// meaning: they have no text, and bytes that are not UTF-8 have none either.
    Bytes { first: u32, count: usize, sparse: bool },
    /// Pieces of a tokenizer. Without a tokenizer, the model accepts and returns ids only. A model that continues prompts has
    /// `marks`.
    Subwords { count: usize, tokenizer: Option<Arc<SubwordTokenizer>>, marks: Option<TokenMarks> },
}

impl Vocabulary {
    /// Creates a character vocabulary. The index of a symbol is its id. Fails if there are no symbols or more than
    /// [`MAX_SYMBOLS`], or if a symbol is repeated or not exactly one character.
    pub fn from_symbols<S: AsRef<str>>(symbols: &[S], normaliser: TextNormaliser) -> Result<Self, VocabularyError> {
        Self::from_characters(symbols, None, normaliser)
    }

    /// Creates a character vocabulary with special symbols. The characters at their ids are ignored. A character that
    /// is not in the vocabulary is encoded as `specials.unknown`. Fails as [`from_symbols`](Self::from_symbols) does,
    /// and if special symbols are out of bounds or repeated.
    pub fn from_symbols_with_specials<S: AsRef<str>>(
        symbols: &[S],
        specials: SpecialSymbols,
        normaliser: TextNormaliser,
    ) -> Result<Self, VocabularyError> {
        specials.check(symbols.len(), |_| false)?;
        Self::from_characters(symbols, Some(specials), normaliser)
    }

    fn from_characters<S: AsRef<str>>(
        symbols: &[S],
        specials: Option<SpecialSymbols>,
        normaliser: TextNormaliser,
    ) -> Result<Self, VocabularyError> {
        if symbols.is_empty() || symbols.len() > MAX_SYMBOLS {
            let found = format!("{} symbols", symbols.len());
            return Err(VocabularyError::new("vocabulary.symbols", format!("1 to {MAX_SYMBOLS} symbols"), found));
        }
        let mut characters = Vec::with_capacity(symbols.len());
        let mut ids = HashMap::with_capacity(symbols.len());
        for (id, symbol) in (0_u32..).zip(symbols) {
            if specials.is_some_and(|specials| specials.contains(id)) {
                characters.push(REPLACEMENT);
                continue;
            }
            let key = || format!("vocabulary.symbols[{id}]");
            let mut characters_of = symbol.as_ref().chars();
            let (Some(character), None) = (characters_of.next(), characters_of.next()) else {
                return Err(VocabularyError::new(key(), "exactly one character", quote_start(symbol.as_ref())));
            };
            match ids.entry(character) {
                Entry::Vacant(entry) => entry.insert(id),
                Entry::Occupied(first) => {
                    let found = format!("{character:?}, which is already symbol {}", first.get());
                    return Err(VocabularyError::new(key(), "a symbol that is not yet in the list", found));
                }
            };
            characters.push(character);
        }
        Ok(Self::of_symbols(Symbols::Characters { symbols: characters, ids }, specials, normaliser))
    }

    /// Creates a vocabulary of the 256 byte values of UTF-8 text.
    pub fn byte_level(normaliser: TextNormaliser) -> Self {
        Self::of_symbols(Symbols::Bytes { first: 0, count: BYTES, sparse: false }, None, normaliser)
    }

    /// Creates a vocabulary without marks around a text and without an end byte.
    fn of_symbols(symbols: Symbols, specials: Option<SpecialSymbols>, normaliser: TextNormaliser) -> Self {
        Self { symbols, specials, marks: None, end_byte: None, normaliser }
    }

    /// Creates a byte vocabulary whose byte 0 has id `first`. The remaining ids are special symbols. Fails if `first`
    /// is too large, or special symbols are out of bounds, repeated, or among the bytes.
    pub fn byte_level_with_specials(
        first: u32,
        specials: SpecialSymbols,
        normaliser: TextNormaliser,
    ) -> Result<Self, VocabularyError> {
        let max = SpecialSymbols::COUNT as u32;
        if first > max {
            return Err(VocabularyError::new("vocabulary.first_byte", format!("0 to {max}"), first.to_string()));
        }
        let is_byte = |id: u32| id.checked_sub(first).is_some_and(|byte| (byte as usize) < BYTES);
        let count = BYTES + SpecialSymbols::COUNT;
        specials.check(count, is_byte)?;
        Ok(Self::of_symbols(Symbols::Bytes { first, count, sparse: false }, Some(specials), normaliser))
    }

    /// Creates a vocabulary of `count` ids, with the byte values from id `first` on, as in ByT5. The other ids have no text. Fails
    /// if the bytes do not fit, or `count` is above [`MAX_SYMBOLS`].
    pub fn sparse_bytes(first: u32, count: usize, normaliser: TextNormaliser) -> Result<Self, VocabularyError> {
        let min = (first as usize).saturating_add(BYTES);
        if !(min..=MAX_SYMBOLS).contains(&count) {
            let expected = format!("{min} to {MAX_SYMBOLS}: {BYTES} bytes from `first_byte` on");
            return Err(VocabularyError::new("vocabulary.size", expected, count.to_string()));
        }
        Ok(Self::of_symbols(Symbols::Bytes { first, count, sparse: true }, None, normaliser))
    }

    /// Returns the number of symbols, at least one.
    #[expect(clippy::len_without_is_empty, reason = "a vocabulary is never empty")]
    pub fn len(&self) -> usize {
        match &self.symbols {
            Symbols::Characters { symbols, .. } => symbols.len(),
            Symbols::Bytes { count, .. } | Symbols::Subwords { count, .. } => *count,
        }
    }

    /// Returns the special symbols, if the vocabulary has any.
    pub fn specials(&self) -> Option<SpecialSymbols> {
        self.specials
    }

    /// Returns the ids of text symbols, in order.
    pub fn text_ids(&self) -> impl Iterator<Item = u32> {
        (0_u32..).take(self.len()).filter(|&id| !self.is_special(id))
    }

    /// Returns true if `id` is a special symbol.
    pub fn is_special(&self, id: u32) -> bool {
        self.specials.is_some_and(|specials| specials.contains(id))
    }

    /// Returns the byte of `id`, if symbols are bytes and `id` is no mark.
    pub fn byte_of(&self, id: u32) -> Option<u8> {
        match self.symbols {
            Symbols::Bytes { .. } if self.is_mark(id) => None,
            Symbols::Bytes { first, .. } => id.checked_sub(first).and_then(|byte| u8::try_from(byte).ok()),
            Symbols::Characters { .. } | Symbols::Subwords { .. } => None,
        }
    }

    /// Returns the normaliser that is applied before encoding.
    pub fn normaliser(&self) -> TextNormaliser {
        self.normaliser
    }

    /// Returns true if symbols are bytes.
    pub fn is_bytes(&self) -> bool {
        matches!(self.symbols, Symbols::Bytes { .. })
    }

    /// Returns true if symbols are bytes and all other ids have no text, in which case bytes that are not UTF-8 have none either.
    pub fn is_sparse(&self) -> bool {
        matches!(self.symbols, Symbols::Bytes { sparse: true, .. })
    }

    /// Returns the characters in order of their ids, if symbols are characters.
    pub fn characters(&self) -> Option<&[char]> {
        match &self.symbols {
            Symbols::Characters { symbols, .. } => Some(symbols),
            Symbols::Bytes { .. } | Symbols::Subwords { .. } => None,
        }
    }

    /// Returns true if `other` has the same symbols with the same ids. The normalisers and the end bytes may differ.
    pub fn same_symbols(&self, other: &Self) -> bool {
        self.characters() == other.characters()
            && self.byte_zero() == other.byte_zero()
            && self.is_sparse() == other.is_sparse()
            && self.specials == other.specials
            && self.marks == other.marks
            && self.token_marks() == other.token_marks()
            && self.is_subword() == other.is_subword()
            && self.len() == other.len()
            && self.tokenizer().map(|tokenizer| tokenizer.json()) == other.tokenizer().map(|tokenizer| tokenizer.json())
    }

    /// Returns the id of byte 0, if symbols are bytes.
    pub fn byte_zero(&self) -> Option<u32> {
        match self.symbols {
            Symbols::Bytes { first, .. } => Some(first),
            Symbols::Characters { .. } | Symbols::Subwords { .. } => None,
        }
    }

    /// Normalises `text` like the training text.
    pub fn normalise<'a>(&self, text: &'a str) -> Cow<'a, str> {
        self.normaliser.apply(text)
    }

    /// Returns the id of a character. In a byte vocabulary, only ASCII characters are single symbols.
    pub fn id_of(&self, character: char) -> Option<u32> {
        match &self.symbols {
            Symbols::Characters { ids, .. } => ids.get(&character).copied(),
            Symbols::Bytes { first, .. } => character.is_ascii().then_some(first + u32::from(character)),
            Symbols::Subwords { tokenizer, .. } => {
                tokenizer.as_ref().and_then(|tokenizer| tokenizer.id_of(character.encode_utf8(&mut [0; 4])))
            }
        }
    }

    /// Returns the id of a character, or the `unknown` symbol if the vocabulary has one.
    pub(super) fn id_or_unknown(&self, character: char) -> Option<u32> {
        let unknown = || self.specials.filter(|_| !self.is_bytes()).map(|specials| specials.unknown);
        self.id_of(character).or_else(unknown)
    }

    /// Decodes ids to text. Invalid UTF-8, unknown characters and ids outside the vocabulary become U+FFFD. Special symbols
    /// other than `unknown` have no text.
    pub fn decode(&self, ids: &[u32]) -> String {
        match &self.symbols {
            Symbols::Characters { .. } => ids.iter().filter_map(|&id| self.surface(id)).collect(),
            Symbols::Subwords { tokenizer: Some(tokenizer), marks: Some(marks), .. } => {
                tokenizer.decode_continuation(ids, &marks.start)
            }
            Symbols::Subwords { tokenizer, .. } => {
                tokenizer.as_ref().map_or_else(String::new, |tokenizer| tokenizer.decode(ids))
            }
            Symbols::Bytes { sparse: true, .. } => {
                let bytes: Vec<u8> = ids.iter().filter_map(|&id| self.byte_of(id)).collect();
                bytes.utf8_chunks().map(|chunk| chunk.valid()).collect()
            }
            Symbols::Bytes { .. } => {
                let mut text = String::with_capacity(ids.len());
                for run in ids.split_inclusive(|&id| self.byte_of(id).is_none()) {
                    let bytes: Vec<u8> = run.iter().filter_map(|&id| self.byte_of(id)).collect();
                    text.push_str(&String::from_utf8_lossy(&bytes));
                    text.extend(run.last().filter(|_| bytes.len() < run.len()).and_then(|&id| self.surface(id)));
                }
                text
            }
        }
    }

    /// Returns the character of `id` in a text, or `None` for a mark, for an id without text, and for a special symbol other than
    /// `unknown`.
    pub(super) fn surface(&self, id: u32) -> Option<char> {
        let has_no_text = |specials: SpecialSymbols| specials.contains(id) && id != specials.unknown;
        let is_unused = self.is_mark(id) || (self.is_sparse() && self.byte_of(id).is_none());
        (!is_unused && !self.specials.is_some_and(has_no_text)).then(|| self.character(id))
    }

    /// Formats a symbol for messages and tables: a quoted character, or the value of an unprintable byte.
    pub fn printable(&self, id: u32) -> String {
        match (self.display_name(id), self.byte_of(id)) {
            _ if id as usize >= self.len() => format!("id {id}"),
            (Some(name), _) => name.to_owned(),
            (_, Some(byte)) if !byte.is_ascii_graphic() && byte != b' ' => format!("byte 0x{byte:02x}"),
            (_, Some(byte)) => format!("{:?}", char::from(byte)),
            _ if self.is_subword() => {
                self.tokenizer().and_then(|tokenizer| tokenizer.piece(id)).unwrap_or_else(|| format!("id {id}"))
            }
            _ if self.is_sparse() => format!("id {id}"),
            _ => format!("{:?}", self.character(id)),
        }
    }

    /// Returns the character of `id`, or U+FFFD for a non-ASCII byte, a subword, or an id outside the vocabulary.
    pub(super) fn character(&self, id: u32) -> char {
        match &self.symbols {
            Symbols::Characters { symbols, .. } => symbols.get(id as usize).copied().unwrap_or(REPLACEMENT),
            Symbols::Bytes { .. } => self.byte_of(id).map(char::from).filter(char::is_ascii).unwrap_or(REPLACEMENT),
            Symbols::Subwords { .. } => REPLACEMENT,
        }
    }
}

/// Quotes at most the first 32 bytes of a string.
fn quote_start(text: &str) -> String {
    const SHOWN: usize = 32;
    match text.len() <= SHOWN {
        true => format!("{text:?}"),
        false => format!("{:?} ({} bytes)", clip(text, SHOWN), text.len()),
    }
}

#[cfg(test)]
mod tests;
