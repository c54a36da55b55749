//! A model's symbols: single characters numbered in order, or the 256 byte values; beside them a model's own marks, if it has
//! any ([`Specials`]). Or a tokenizer's pieces ([`Subwords`]).

use super::{Normaliser, Specials, Subwords};
use crate::error::{Error, Result, clip};
use std::{
    borrow::Cow,
    collections::{HashMap, hash_map::Entry},
    ops::ControlFlow,
    path::Path,
    sync::Arc,
};

mod pieces;

/// The most symbols: as many as there are code points.
pub const MAX_SYMBOLS: usize = 1_114_112;
const BYTES: usize = 256;
const REPLACEMENT: char = '\u{fffd}';

/// The symbols of a model and how text becomes them.
#[derive(Debug, Clone)]
pub struct Vocabulary {
    symbols: Symbols,
    specials: Option<Specials>,
    normaliser: Normaliser,
}

#[derive(Debug, Clone)]
enum Symbols {
    /// The index of a character is its id; where a mark has it, what stands there is U+FFFD.
    Characters { symbols: Vec<char>, ids: HashMap<char, u32> },
    /// The value of a byte and the id of byte 0 are its id.
    Bytes { first: u32 },
    /// Pieces of a tokenizer; without one, ids alone.
    Pieces { count: usize, subwords: Option<Arc<Subwords>> },
}

/// A list of symbols that cannot be a vocabulary.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}: expected {expected}, found {found}")]
pub struct VocabularyError {
    /// Where, as in `config.json`: `vocabulary.symbols[3]`.
    pub key: String,
    /// What must be there.
    pub expected: String,
    /// What is there.
    pub found: String,
}

impl VocabularyError {
    fn new(key: impl Into<String>, expected: impl Into<String>, found: impl Into<String>) -> Self {
        Self { key: key.into(), expected: expected.into(), found: found.into() }
    }

    /// The same, of a file.
    pub fn within(self, file: &Path) -> Error {
        Error::checkpoint(file, self.key, self.expected, self.found)
    }
}

impl Vocabulary {
    /// Characters; the index of a symbol is its id.
    ///
    /// # Errors
    /// No symbols, too many, one that is not exactly one character, or one that is there twice.
    pub fn of_symbols<S: AsRef<str>>(symbols: &[S], normaliser: Normaliser) -> Result<Self, VocabularyError> {
        Self::of_characters(symbols, None, normaliser)
    }

    /// The same with marks: what stands at their ids is not looked at. Any character that is not there is the unknown one.
    ///
    /// # Errors
    /// As for [`of_symbols`](Self::of_symbols), and marks out of bounds or twice.
    pub fn of_marked<S: AsRef<str>>(
        symbols: &[S],
        specials: Specials,
        normaliser: Normaliser,
    ) -> Result<Self, VocabularyError> {
        check_specials(specials, symbols.len(), |_| false)?;
        Self::of_characters(symbols, Some(specials), normaliser)
    }

    fn of_characters<S: AsRef<str>>(
        symbols: &[S],
        specials: Option<Specials>,
        normaliser: Normaliser,
    ) -> Result<Self, VocabularyError> {
        if symbols.is_empty() || symbols.len() > MAX_SYMBOLS {
            let found = format!("{} symbols", symbols.len());
            return Err(VocabularyError::new("vocabulary.symbols", format!("1 to {MAX_SYMBOLS} symbols"), found));
        }
        let mut characters = Vec::with_capacity(symbols.len());
        let mut ids = HashMap::with_capacity(symbols.len());
        for (id, symbol) in (0_u32..).zip(symbols) {
            if specials.is_some_and(|specials| specials.holds(id)) {
                characters.push(REPLACEMENT);
                continue;
            }
            let key = || format!("vocabulary.symbols[{id}]");
            let mut rest = symbol.as_ref().chars();
            let (Some(character), None) = (rest.next(), rest.next()) else {
                return Err(VocabularyError::new(key(), "exactly one character", brief(symbol.as_ref())));
            };
            match ids.entry(character) {
                Entry::Vacant(place) => place.insert(id),
                Entry::Occupied(first) => {
                    let found = format!("{character:?}, which is symbol {} already", first.get());
                    return Err(VocabularyError::new(key(), "a symbol that is not in the list yet", found));
                }
            };
            characters.push(character);
        }
        Ok(Self { symbols: Symbols::Characters { symbols: characters, ids }, specials, normaliser })
    }

    /// The 256 byte values of UTF-8 text.
    pub fn of_bytes(normaliser: Normaliser) -> Self {
        Self { symbols: Symbols::Bytes { first: 0 }, specials: None, normaliser }
    }

    /// The same from id `first` on, with marks at all other ids.
    ///
    /// # Errors
    /// Marks out of bounds, twice, or among the bytes.
    pub fn of_marked_bytes(first: u32, specials: Specials, normaliser: Normaliser) -> Result<Self, VocabularyError> {
        let most = Specials::COUNT as u32;
        if first > most {
            return Err(VocabularyError::new("vocabulary.first_byte", format!("0 to {most}"), first.to_string()));
        }
        let is_byte = |id: u32| id.checked_sub(first).is_some_and(|byte| (byte as usize) < BYTES);
        check_specials(specials, BYTES + Specials::COUNT, is_byte)?;
        Ok(Self { symbols: Symbols::Bytes { first }, specials: Some(specials), normaliser })
    }

    /// How many symbols there are; never none.
    #[expect(clippy::len_without_is_empty, reason = "a vocabulary is never empty")]
    pub fn len(&self) -> usize {
        match &self.symbols {
            Symbols::Characters { symbols, .. } => symbols.len(),
            Symbols::Bytes { .. } => BYTES + self.specials.map_or(0, |_| Specials::COUNT),
            Symbols::Pieces { count, .. } => *count,
        }
    }

    /// The model's own marks, if it has any.
    pub fn specials(&self) -> Option<Specials> {
        self.specials
    }

    /// The ids that stand for text, in order.
    pub fn text_ids(&self) -> impl Iterator<Item = u32> {
        (0_u32..).take(self.len()).filter(|&id| !self.is_special(id))
    }

    /// Whether an id is a mark.
    pub fn is_special(&self, id: u32) -> bool {
        self.specials.is_some_and(|specials| specials.holds(id))
    }

    /// The byte that an id stands for, where symbols are bytes.
    pub fn byte_of(&self, id: u32) -> Option<u8> {
        match self.symbols {
            Symbols::Bytes { first } => id.checked_sub(first).and_then(|byte| u8::try_from(byte).ok()),
            Symbols::Characters { .. } | Symbols::Pieces { .. } => None,
        }
    }

    /// What text goes through first.
    pub fn normaliser(&self) -> Normaliser {
        self.normaliser
    }

    /// Whether symbols are bytes rather than characters.
    pub fn is_bytes(&self) -> bool {
        matches!(self.symbols, Symbols::Bytes { .. })
    }

    /// The characters in order of their ids, if symbols are characters.
    pub fn characters(&self) -> Option<&[char]> {
        match &self.symbols {
            Symbols::Characters { symbols, .. } => Some(symbols),
            Symbols::Bytes { .. } | Symbols::Pieces { .. } => None,
        }
    }

    /// Whether the other has the same symbols under the same ids; normalisers may differ.
    pub fn same_symbols(&self, other: &Self) -> bool {
        let tokenizer = |vocabulary: &Self| vocabulary.subwords().map(|subwords| subwords.json().to_owned());
        self.characters() == other.characters()
            && self.byte_zero() == other.byte_zero()
            && self.specials == other.specials
            && (self.is_pieces(), self.len()) == (other.is_pieces(), other.len())
            && tokenizer(self) == tokenizer(other)
    }

    /// The id of byte 0, where symbols are bytes.
    pub fn byte_zero(&self) -> Option<u32> {
        match self.symbols {
            Symbols::Bytes { first } => Some(first),
            Symbols::Characters { .. } | Symbols::Pieces { .. } => None,
        }
    }

    /// The text as the model would have met it in training.
    pub fn normalise<'a>(&self, text: &'a str) -> Cow<'a, str> {
        self.normaliser.apply(text)
    }

    /// The id of a character. In a byte vocabulary only ASCII characters are one symbol.
    pub fn id_of(&self, character: char) -> Option<u32> {
        match &self.symbols {
            Symbols::Characters { ids, .. } => ids.get(&character).copied(),
            Symbols::Bytes { first } => character.is_ascii().then_some(first + u32::from(character)),
            Symbols::Pieces { subwords, .. } => {
                subwords.as_ref().and_then(|subwords| subwords.id_of(character.encode_utf8(&mut [0; 4])))
            }
        }
    }

    /// The same, or the mark for characters that are not there.
    pub(super) fn known_or_mark(&self, character: char) -> Option<u32> {
        let unknown = || self.specials.filter(|_| !self.is_bytes()).map(|specials| specials.unknown);
        self.id_of(character).or_else(unknown)
    }

    /// The symbols of a text, normalised first; at most `limit`. `field` is what the text is called in messages.
    ///
    /// The work ends with the first symbol too many or unknown: a text that nobody will take costs no more than one that
    /// fits, however much normalising would make of it.
    ///
    /// # Errors
    /// [`Error::UnknownSymbol`] with the first character that is not in the vocabulary and its offset in characters in the
    /// text as given; [`Error::TooLong`], or [`Error::LongerThan`] where the length would have to be worked out.
    pub fn encode(&self, field: &'static str, text: &str, limit: usize) -> Result<Vec<u32>> {
        if self.is_pieces() {
            let pieces = self.pieces(field, text)?;
            return match pieces.len() <= limit {
                true => Ok(pieces.into_iter().map(|piece| piece.id).collect()),
                false => Err(Error::TooLong { field, length: pieces.len(), limit, unit: "tokens", why: None }),
            };
        }
        let mut encoded = Vec::with_capacity(text.len().min(limit));
        let mut unknown = None;
        self.normaliser.each(text, |character, offset| {
            match (self.known_or_mark(character), self.byte_zero()) {
                (Some(id), _) => encoded.push(id),
                (None, Some(zero)) => {
                    encoded.extend(character.encode_utf8(&mut [0; 4]).bytes().map(|byte| zero + u32::from(byte)));
                }
                (None, None) => unknown = Some((character, offset)),
            }
            if unknown.is_some() || encoded.len() > limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        match unknown {
            Some((character, offset)) => Err(unknown_symbol(field, text, character, offset)),
            None if encoded.len() > limit => Err(self.too_long(field, text, limit)),
            None => Ok(encoded),
        }
    }

    fn too_long(&self, field: &'static str, text: &str, limit: usize) -> Error {
        let unit = "characters";
        match (self.normaliser, self.is_bytes()) {
            (Normaliser::None, true) => Error::TooLong { field, length: text.len(), limit, unit, why: None },
            (Normaliser::None, false) => Error::TooLong { field, length: text.chars().count(), limit, unit, why: None },
            (Normaliser::Text8, _) => Error::LongerThan { field, limit, unit, why: None },
        }
    }

    /// The symbols of a text as given, without normalising it: for stop strings, which must match what is generated.
    ///
    /// # Errors
    /// As for [`encode`](Self::encode).
    pub fn encode_exactly(&self, field: &'static str, text: &str) -> Result<Vec<u32>> {
        if let Some(zero) = self.byte_zero() {
            return Ok(text.bytes().map(|byte| zero + u32::from(byte)).collect());
        }
        if self.is_pieces() {
            return Ok(self.pieces(field, text)?.into_iter().map(|piece| piece.id).collect());
        }
        let unknown = |offset, character| Error::UnknownSymbol { field, found: format!("{character:?}"), offset };
        let symbol = |(offset, character)| self.id_of(character).ok_or_else(|| unknown(offset, character));
        text.chars().enumerate().map(symbol).collect()
    }

    /// Whether all ids are symbols.
    ///
    /// # Errors
    /// [`Error::UnknownSymbol`] with the first one that is not, and its index.
    pub fn check_ids(&self, field: &'static str, ids: &[u32]) -> Result<()> {
        let len = self.len();
        match ids.iter().position(|&id| id as usize >= len) {
            None => Ok(()),
            Some(offset) => {
                let found = format!("id {} (the vocabulary has {len} symbols)", ids[offset]);
                Err(Error::UnknownSymbol { field, found, offset })
            }
        }
    }

    /// Whether all ids may stand in a text: symbols, but for marks other than the unknown character's.
    ///
    /// # Errors
    /// [`Error::UnknownSymbol`] with the first one that may not, and its index.
    pub fn check_text(&self, field: &'static str, ids: &[u32]) -> Result<()> {
        self.check_ids(field, ids)?;
        let Some(specials) = self.specials else { return Ok(()) };
        let is_mark = |&id: &u32| specials.holds(id) && id != specials.unknown;
        match ids.iter().position(is_mark) {
            None => Ok(()),
            Some(offset) => {
                let found = format!("{}, which is no character,", self.printable(ids[offset]));
                Err(Error::UnknownSymbol { field, found, offset })
            }
        }
    }

    /// The text of symbols. Bytes that are not UTF-8, unknown characters, and ids that are no symbols become U+FFFD; other
    /// marks are no text.
    pub fn decode(&self, ids: &[u32]) -> String {
        match &self.symbols {
            Symbols::Characters { .. } => ids.iter().filter_map(|&id| self.surface(id)).collect(),
            Symbols::Pieces { subwords, .. } => {
                subwords.as_ref().map_or_else(String::new, |subwords| subwords.decode(ids))
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

    /// What an id looks like in a text: nothing, if it is a mark other than the unknown character's.
    pub(super) fn surface(&self, id: u32) -> Option<char> {
        let silent = |specials: Specials| specials.holds(id) && id != specials.unknown;
        (!self.specials.is_some_and(silent)).then(|| self.character(id))
    }

    /// A symbol for messages and tables: a character in quotes, a byte by its value where it is not printable.
    pub fn printable(&self, id: u32) -> String {
        match (self.specials.and_then(|specials| specials.shown(id)), self.byte_of(id)) {
            _ if id as usize >= self.len() => format!("id {id}"),
            (Some(shown), _) => shown.to_owned(),
            (_, Some(byte)) if !byte.is_ascii_graphic() && byte != b' ' => format!("byte 0x{byte:02x}"),
            (_, Some(byte)) => format!("{:?}", char::from(byte)),
            _ if self.is_pieces() => {
                self.subwords().and_then(|subwords| subwords.piece(id)).unwrap_or_else(|| format!("id {id}"))
            }
            _ => format!("{:?}", self.character(id)),
        }
    }

    /// The character of an id; U+FFFD for a byte that is none by itself, and for what is no symbol.
    pub(super) fn character(&self, id: u32) -> char {
        match &self.symbols {
            Symbols::Characters { symbols, .. } => symbols.get(id as usize).copied().unwrap_or(REPLACEMENT),
            Symbols::Bytes { .. } => self.byte_of(id).map(char::from).filter(char::is_ascii).unwrap_or(REPLACEMENT),
            // a piece is no character, whatever its length
            Symbols::Pieces { .. } => REPLACEMENT,
        }
    }
}

fn check_specials(specials: Specials, len: usize, taken: impl Fn(u32) -> bool) -> Result<(), VocabularyError> {
    match specials.wrong(len, taken) {
        None => Ok(()),
        Some((name, expected, found)) => {
            Err(VocabularyError::new(format!("vocabulary.specials.{name}"), expected, found))
        }
    }
}

/// What is said of `character`, which the text's character at `offset` was normalised to.
fn unknown_symbol(field: &'static str, text: &str, character: char, offset: usize) -> Error {
    let given = text.chars().nth(offset).unwrap_or(character);
    let found = match given == character {
        true => format!("{character:?}"),
        false => format!("{given:?}, normalised to {character:?},"),
    };
    Error::UnknownSymbol { field, found, offset }
}

/// A quoted beginning of a string that may be long.
fn brief(text: &str) -> String {
    const SHOWN: usize = 32;
    match text.len() <= SHOWN {
        true => format!("{text:?}"),
        false => format!("{:?} ({} bytes)", clip(text, SHOWN), text.len()),
    }
}

#[cfg(test)]
mod tests;
