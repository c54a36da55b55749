//! The vocabulary of a model: characters, the 256 byte values, or the pieces of a [`SubwordTokenizer`].
//!
//! Character and byte vocabularies may also contain [`SpecialSymbols`].

use crate::text::{
    AddedToken, MAX_SYMBOLS, Subword, SubwordTokenizer, TextNormaliser, VocabularyError, added_tokens::AddedTokens,
};
use serde::{Deserialize, Serialize};
use std::{
    borrow::Cow,
    collections::{HashMap, hash_map::Entry},
    ops::ControlFlow,
    sync::Arc,
};
use weir_kernels::error::{Error, Result, clip, floor_boundary};

const BYTES: usize = 256;

/// Maximum ids before the first byte's.
const MAX_LEADING_IDS: u32 = 256;

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
    /// meaning: they have no text, unless they are `added`, and bytes that are not UTF-8 have none either.
    Bytes { first: u32, count: usize, sparse: bool, added: Arc<AddedTokens> },
    /// Pieces of a tokenizer. Without a tokenizer, the model accepts and returns ids only. A model that continues prompts has
    /// `marks`.
    Subwords { count: usize, tokenizer: Option<Arc<SubwordTokenizer>>, marks: Option<TokenMarks> },
}

impl Vocabulary {
    /// Creates a character vocabulary; the index of a symbol is its id. Fails if a symbol is repeated or not one character.
    pub fn from_symbols<S: AsRef<str>>(symbols: &[S], normaliser: TextNormaliser) -> Result<Self, VocabularyError> {
        Self::from_characters(symbols, None, normaliser)
    }

    /// Creates a character vocabulary with special symbols, whose characters are ignored. Unknown characters become
    /// `specials.unknown`. Fails as [`from_symbols`](Self::from_symbols) does, and for invalid special symbols.
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
        Self::of_symbols(
            Symbols::Bytes { first: 0, count: BYTES, sparse: false, added: Arc::default() },
            None,
            normaliser,
        )
    }

    /// Creates a vocabulary without marks around a text and without an end byte.
    fn of_symbols(symbols: Symbols, specials: Option<SpecialSymbols>, normaliser: TextNormaliser) -> Self {
        Self { symbols, specials, marks: None, end_byte: None, normaliser }
    }

    /// Creates a byte vocabulary whose byte 0 has id `first`. The remaining ids are special symbols.
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
        Ok(Self::of_symbols(
            Symbols::Bytes { first, count, sparse: false, added: Arc::default() },
            Some(specials),
            normaliser,
        ))
    }

    /// Creates a vocabulary of `count` ids, with the bytes from id `first` on, as in ByT5. Of the other ids only those of its special
    /// tokens and of `added` tokens have texts.
    pub fn sparse_bytes(
        first: u32,
        count: usize,
        added: &[AddedToken],
        normaliser: TextNormaliser,
    ) -> Result<Self, VocabularyError> {
        let min = (first as usize).saturating_add(BYTES);
        if !(min..=MAX_SYMBOLS).contains(&count) {
            let expected = format!("{min} to {MAX_SYMBOLS}: {BYTES} bytes from `first_byte` on");
            return Err(VocabularyError::new("vocabulary.size", expected, count.to_string()));
        }
        if let Some(wrong) = added.iter().find(|own| own.id as usize >= count || own.text.is_empty()) {
            let expected = format!("texts with ids below {count}");
            return Err(VocabularyError::new(
                "vocabulary.added",
                expected,
                format!("id {} {:?}", wrong.id, wrong.text),
            ));
        }
        let added = Arc::new(AddedTokens::new(byt5_tokens(first, count, added))?);
        Ok(Self::of_symbols(Symbols::Bytes { first, count, sparse: true, added }, None, normaliser))
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

    /// Returns the number of Unicode characters of a text that was encoded to `symbols`, after normalisation.
    pub fn text_chars(&self, text: &str, symbols: &[u32]) -> usize {
        // normalised characters are symbols
        if self.normaliser == TextNormaliser::None { text.chars().count() } else { symbols.len() }
    }

    /// Returns true if symbols are bytes.
    pub fn is_bytes(&self) -> bool {
        matches!(self.symbols, Symbols::Bytes { .. })
    }

    /// Returns true if symbols are bytes and all other ids have no text, in which case bytes that are not UTF-8 have none either.
    pub fn is_sparse(&self) -> bool {
        matches!(self.symbols, Symbols::Bytes { sparse: true, .. })
    }

    /// Returns the texts that have ids of their own, by which a text is split before it is encoded.
    pub(super) fn added_tokens(&self) -> Option<&AddedTokens> {
        let added = match &self.symbols {
            Symbols::Characters { .. } => return None,
            Symbols::Bytes { added, .. } => added,
            Symbols::Subwords { tokenizer, .. } => tokenizer.as_ref()?.added_tokens(),
        };
        Some(added).filter(|added| !added.is_empty())
    }

    /// Returns the text of an added token of a vocabulary of bytes.
    pub(super) fn added_text(&self, id: u32) -> Option<&str> {
        let Symbols::Bytes { added, .. } = &self.symbols else { return None };
        added.get(id).filter(|own| !own.special).map(|own| &*own.text)
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
            && self.added_tokens() == other.added_tokens()
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

    /// Decodes ids to text. What has no text becomes U+FFFD; special symbols other than `unknown` become nothing.
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
                let mut text = String::with_capacity(ids.len());
                for run in ids.split_inclusive(|&id| self.added_text(id).is_some()) {
                    let bytes: Vec<u8> = run.iter().filter_map(|&id| self.byte_of(id)).collect();
                    text.extend(bytes.utf8_chunks().map(|chunk| chunk.valid()));
                    text.push_str(run.last().and_then(|&id| self.added_text(id)).unwrap_or_default());
                }
                text
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

    /// Returns the character of `id` in a text, or `None` for marks and ids without text.
    pub(super) fn surface(&self, id: u32) -> Option<char> {
        let has_no_text = |specials: SpecialSymbols| specials.contains(id) && id != specials.unknown;
        let is_byte = self.byte_of(id).is_some();
        let is_unused =
            self.is_mark(id) || (!is_byte && (self.is_sparse() || (self.is_bytes() && self.specials.is_none())));
        (!is_unused && !self.specials.is_some_and(has_no_text)).then(|| self.character(id))
    }

    /// Formats a symbol for messages and tables: a quoted character, or the value of an unprintable byte.
    pub fn printable(&self, id: u32) -> String {
        match (self.display_name(id), self.byte_of(id)) {
            _ if id as usize >= self.len() => format!("id {id}"),
            (Some(name), _) => name.to_owned(),
            (_, Some(byte)) if !byte.is_ascii_graphic() && byte != b' ' => format!("byte 0x{byte:02x}"),
            (_, Some(byte)) => format!("{:?}", char::from(byte)),
            _ => self.token(id).unwrap_or_else(|| format!("{:?}", self.character(id))),
        }
    }

    /// Returns the text of an id of a tokenizer or of a byte vocabulary's tokens; `None` if symbols are characters.
    fn token(&self, id: u32) -> Option<String> {
        let token = match &self.symbols {
            Symbols::Characters { .. } => return None,
            Symbols::Subwords { tokenizer, .. } => tokenizer.as_ref().and_then(|tokenizer| tokenizer.piece(id)),
            Symbols::Bytes { sparse: false, .. } => return None,
            Symbols::Bytes { added, .. } => added.get(id).map(|own| own.text.clone()),
        };
        Some(token.unwrap_or_else(|| format!("id {id}")))
    }

    /// Returns a symbol as tokenizers list it: a character, a piece, the name of a special symbol, or `<0xC3>` for a byte of a longer
    /// character.
    pub fn symbol(&self, id: u32) -> String {
        match (self.display_name(id), self.byte_of(id)) {
            (Some(name), _) => name.to_owned(),
            (_, Some(byte)) if !byte.is_ascii() => format!("<0x{byte:02X}>"),
            (_, Some(byte)) => char::from(byte).to_string(),
            _ => self.token(id).unwrap_or_else(|| self.character(id).to_string()),
        }
    }

    /// Returns the marks before the symbols of a text.
    pub fn start_marks(&self) -> impl Iterator<Item = u32> {
        let tokens = self.token_marks().into_iter().flat_map(|marks| marks.start.iter().copied());
        self.marks.map(|marks| marks.start).into_iter().chain(tokens)
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

const BYT5_SENTINELS: usize = 125;

/// Returns ByT5's tokens that are no bytes: marks, sentinels, and `added` ones, which replace others with their ids or texts.
fn byt5_tokens(first: u32, count: usize, added: &[AddedToken]) -> Vec<AddedToken> {
    let special = |(id, text): (u32, String)| {
        let strips = id < first;
        AddedToken { id, text, special: true, lstrip: strips, rstrip: strips, ..AddedToken::default() }
    };
    let marks = (0..first).zip(["<pad>", "</s>", "<unk>"].map(str::to_owned));
    let sentinels = (first + BYTES as u32..count as u32).zip((0..BYT5_SENTINELS).map(|k| format!("<extra_id_{k}>")));
    let is_new = |own: &AddedToken| added.iter().all(|other| other.id != own.id && other.text != own.text);
    marks.chain(sentinels).map(special).filter(is_new).chain(added.iter().cloned()).collect()
}

// Special symbols: ids that a model uses between the characters of a text, which the checkpoint decides. Only `unknown` may
// occur in a text. Text is never encoded as a special symbol, so `<eos>` stays text.

/// Ids of a model's special symbols.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct SpecialSymbols {
    /// Precedes each text; the model inserts it.
    pub start: u32,
    /// Ends a text.
    pub end: u32,
    /// Precedes each segment if the model writes segments; the model inserts it.
    pub segment_start: u32,
    /// Ends each segment if the model writes segments.
    pub segment_end: u32,
    /// Replaces a character that is not in the vocabulary.
    pub unknown: u32,
}

/// Ids of byte values that no UTF-8 text contains, used as marks around a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TextMarks {
    /// Precedes each text; encoding a text inserts it.
    pub start: u32,
    /// Ends a text.
    pub end: u32,
}

/// Ids of a token vocabulary that are marks around a text.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TokenMarks {
    /// Precede each text; encoding a text inserts them.
    pub start: Vec<u32>,
    /// End a text, each of them.
    pub ends: Vec<u32>,
}

/// Byte values that never occur in UTF-8.
const NEVER_IN_TEXT: [std::ops::RangeInclusive<u32>; 2] = [0xc0..=0xc1, 0xf5..=0xff];

impl TextMarks {
    /// Returns the name of `id` in messages and listings if it is a mark.
    pub fn display_name(self, id: u32) -> Option<&'static str> {
        match id {
            _ if id == self.start => Some("<BoS>"),
            _ if id == self.end => Some("<eos>"),
            _ => None,
        }
    }

    /// Checks that the marks are distinct byte values that occur in no text. The error names the first that is not.
    pub(super) fn check(self) -> std::result::Result<(), VocabularyError> {
        for (name, id) in [("start", self.start), ("end", self.end)] {
            if !NEVER_IN_TEXT.iter().any(|range| range.contains(&id)) {
                let expected = "a byte value that UTF-8 never has: 192, 193 or 245 to 255";
                return Err(VocabularyError::new(format!("vocabulary.{name}"), expected, id.to_string()));
            }
        }
        self.check_distinct()
    }

    fn check_distinct(self) -> std::result::Result<(), VocabularyError> {
        if self.start == self.end {
            let found = format!("{}, which is also start's", self.end);
            return Err(VocabularyError::new("vocabulary.end", "a distinct id", found));
        }
        Ok(())
    }
}

impl SpecialSymbols {
    /// Number of special symbols.
    pub const COUNT: usize = 5;

    /// Returns each special symbol's name in a checkpoint, with its id.
    pub fn named_ids(self) -> [(&'static str, u32); Self::COUNT] {
        [
            ("start", self.start),
            ("end", self.end),
            ("segment_start", self.segment_start),
            ("segment_end", self.segment_end),
            ("unknown", self.unknown),
        ]
    }

    /// Returns true if `id` is a special symbol.
    pub fn contains(self, id: u32) -> bool {
        self.named_ids().iter().any(|&(_, own)| own == id)
    }

    /// Returns the name of `id` in messages and listings if it is a special symbol.
    pub fn display_name(self, id: u32) -> Option<&'static str> {
        const NAMES: [&str; SpecialSymbols::COUNT] = ["<BoS>", "<eos>", "<bos>", "<nxt>", "<oov>"];
        self.named_ids().iter().zip(NAMES).find(|((_, own), _)| *own == id).map(|(_, name)| name)
    }

    /// Returns the ids that are never sampled: two that the model inserts itself, and `unknown`, which has no surface form.
    pub fn never_sampled(self) -> [u32; 3] {
        [self.start, self.segment_start, self.unknown]
    }

    pub(super) fn check(self, len: usize, is_text: impl Fn(u32) -> bool) -> std::result::Result<(), VocabularyError> {
        let named = self.named_ids();
        let error = |name, expected: String, found: String| {
            VocabularyError::new(format!("vocabulary.specials.{name}"), expected, found)
        };
        for (index, (name, id)) in named.into_iter().enumerate() {
            if id as usize >= len {
                return Err(error(name, format!("an id below {len}"), id.to_string()));
            }
            if let Some((other, _)) = named[..index].iter().find(|(_, own)| *own == id) {
                return Err(error(name, "a distinct id".into(), format!("{id}, which is also {other}'s")));
            }
            if is_text(id) {
                return Err(error(name, "an id that is not a text symbol".into(), id.to_string()));
            }
        }
        Ok(())
    }
}

// From texts to ids, and the check of given ids.

/// A character of a normalised text that is not in the vocabulary.
pub struct UnknownCharacter {
    character: char,
    /// Offset, in characters, of the character that it comes from in the text before normalising.
    offset: usize,
}

impl Vocabulary {
    /// Normalises and encodes a text to at most `limit` symbols, a start mark included. `field` names the text in messages.
    /// Fails at the first character that is not in the vocabulary, with its offset, and above `limit`: a text that is too long
    /// costs no more than one of `limit` symbols, and never more than [`BYTES_PER_SYMBOL`] bytes of each are read.
    pub fn encode(&self, field: &'static str, text: &str, limit: usize) -> Result<Vec<u32>> {
        if self.is_subword() {
            let tokens = self.encode_tokens(field, text, limit)?;
            return Ok(tokens.into_iter().map(|token| token.id).collect());
        }
        let max_bytes = limit.saturating_mul(BYTES_PER_SYMBOL);
        let mut encoded = Vec::with_capacity(text.len().min(limit));
        encoded.extend(self.marks.map(|marks| marks.start));
        match self.encode_piece(&text[..floor_boundary(text, max_bytes)], &mut None, limit, &mut encoded) {
            Err(UnknownCharacter { character, offset }) => Err(unknown_symbol(field, text, character, offset)),
            Ok(()) if encoded.len() > limit => Err(self.too_long(field, text, limit)),
            Ok(()) if text.len() > max_bytes => {
                Err(Error::LongerThan { field, limit: max_bytes, unit: "bytes", why: None })
            }
            Ok(()) => Ok(encoded),
        }
    }

    /// Encodes a text as [`encode`](Self::encode) does, and finds the places of its symbols. Spaces that no symbol stands for belong
    /// to the next one.
    pub fn encode_placed(&self, field: &'static str, text: &str, limit: usize) -> Result<(Vec<u32>, PlacedText)> {
        if !self.is_subword() {
            let symbols = self.encode(field, text, limit)?;
            let marks = std::iter::repeat_n(0, usize::from(self.marks.is_some()));
            return Ok((symbols, PlacedText::new(text, marks.chain(self.start_bytes(text, 0)))));
        }
        let tokens = self.encode_tokens(field, text, limit)?;
        let placed = PlacedText::of_spans(text, tokens.iter().map(|token| (token.start, token.end)));
        Ok((tokens.into_iter().map(|token| token.id).collect(), placed))
    }

    /// Adds the symbols of a piece of a text to those before it, up to `limit` in all. `last` is the last character of the
    /// normalised text before the piece, and then of the piece. Supports vocabularies of characters or bytes.
    pub fn encode_piece(
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
        let unit = "symbols";
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

    /// Encodes a text without normalising it, such as a biased symbol. Fails at the first unknown character.
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

    /// Checks that all ids may occur in a text. The error names the first id that may not, and its index.
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

/// Returns the error for `character`, which the character of `text` at `offset` was normalised to.
fn unknown_symbol(field: &'static str, text: &str, character: char, offset: usize) -> Error {
    let original = text.chars().nth(offset).unwrap_or(character);
    let found = match original == character {
        true => format!("{character:?}"),
        false => format!("{original:?} (normalised to {character:?})"),
    };
    Error::UnknownSymbol { field, found, offset, unit: "character" }
}

// Marks around a text, special symbols, and the end byte.

impl Vocabulary {
    /// Creates a byte vocabulary with marks for start and end, which must differ and never occur in UTF-8 text.
    pub fn byte_level_with_marks(
        marks: TextMarks,
        normaliser: TextNormaliser,
    ) -> std::result::Result<Self, VocabularyError> {
        marks.check()?;
        Ok(Self { marks: Some(marks), ..Self::byte_level(normaliser) })
    }

    /// Creates a byte vocabulary whose byte 0 has id `first`, with marks among the ids before it, as in the Byte Latent Transformer.
    /// The other ids before it have no text.
    pub fn bytes_after_marks(
        first: u32,
        marks: TextMarks,
        normaliser: TextNormaliser,
    ) -> std::result::Result<Self, VocabularyError> {
        if !(2..=MAX_LEADING_IDS).contains(&first) {
            let expected = format!("2 to {MAX_LEADING_IDS}");
            return Err(VocabularyError::new("vocabulary.first_byte", expected, first.to_string()));
        }
        for (name, id) in [("start", marks.start), ("end", marks.end)] {
            if id >= first {
                let expected = format!("an id below `first_byte`, {first}");
                return Err(VocabularyError::new(format!("vocabulary.{name}"), expected, id.to_string()));
            }
        }
        marks.check_distinct()?;
        let symbols = Symbols::Bytes { first, count: BYTES + first as usize, sparse: false, added: Arc::default() };
        Ok(Self { marks: Some(marks), ..Self::of_symbols(symbols, None, normaliser) })
    }

    /// Creates a byte vocabulary with an end byte: a text ends when the model generates it, but an encoded text may contain it.
    /// It must be an ASCII control character other than whitespace.
    pub fn byte_level_with_end(end: u32, normaliser: TextNormaliser) -> std::result::Result<Self, VocabularyError> {
        if !matches!(end, 0..=8 | 14..=31 | 127) {
            let expected = "0 to 8, 14 to 31, or 127: a control character other than whitespace";
            return Err(VocabularyError::new("vocabulary.end", expected, end.to_string()));
        }
        Ok(Self { end_byte: Some(end), ..Self::byte_level(normaliser) })
    }

    /// Returns the byte that ends a text when the model generates it, if the vocabulary has one.
    pub fn end_byte(&self) -> Option<u32> {
        self.end_byte
    }

    /// Returns the marks around a text, if the vocabulary has any.
    pub fn marks(&self) -> Option<TextMarks> {
        self.marks
    }

    /// Returns the special symbols, the marks and the end byte, each with its name in a checkpoint.
    pub fn named_ids(&self) -> Vec<(&'static str, u32)> {
        let specials = self.specials.into_iter().flat_map(SpecialSymbols::named_ids);
        let marks = self.marks.into_iter().flat_map(|marks| [("start", marks.start), ("end", marks.end)]);
        specials.chain(marks).chain(self.end_byte.map(|end| ("end", end))).collect()
    }

    /// Returns the spelling of a special symbol or mark in messages and listings.
    pub fn display_name(&self, id: u32) -> Option<&'static str> {
        let special = self.specials.and_then(|specials| specials.display_name(id));
        special.or_else(|| self.marks.and_then(|marks| marks.display_name(id)))
    }

    /// Returns the number of symbols that are not marks. Marks are not part of the text that a client sends.
    pub fn count_without_marks(&self, ids: &[u32]) -> usize {
        ids.iter().filter(|&&id| !self.is_mark(id)).count()
    }

    fn is_mark(&self, id: u32) -> bool {
        self.marks.is_some_and(|marks| id == marks.start || id == marks.end)
    }
}

// Vocabularies whose symbols are the pieces of a subword tokenizer.

impl Vocabulary {
    /// Creates a vocabulary of `count` ids, which have text only with a tokenizer, whose ids must fit.
    pub fn from_tokenizer(
        count: usize,
        tokenizer: Option<Arc<SubwordTokenizer>>,
        normaliser: TextNormaliser,
    ) -> Result<Self, VocabularyError> {
        let min = tokenizer.as_ref().map_or(0, |tokenizer| tokenizer.len()).max(1);
        if !(min..=MAX_SYMBOLS).contains(&count) {
            let expected = format!("{min} to {MAX_SYMBOLS}, at least the number of the tokenizer's pieces");
            return Err(VocabularyError::new("vocabulary.size", expected, count.to_string()));
        }
        Ok(Self::of_symbols(Symbols::Subwords { count, tokenizer, marks: None }, None, normaliser))
    }

    /// Creates the vocabulary of a model with `count` ids that continues prompts: tokens, and the marks around a text.
    pub fn from_tokens(
        count: usize,
        tokenizer: Option<Arc<SubwordTokenizer>>,
        marks: TokenMarks,
    ) -> Result<Self, VocabularyError> {
        let named =
            marks.start.iter().map(|id| ("bos_token_id", id)).chain(marks.ends.iter().map(|id| ("eos_token_id", id)));
        for (key, &id) in named {
            if id as usize >= count {
                return Err(VocabularyError::new(key, format!("an id below vocab_size, {count}"), id.to_string()));
            }
        }
        let mut vocabulary = Self::from_tokenizer(count, tokenizer, TextNormaliser::None)
            .map_err(|error| VocabularyError { key: "vocab_size".into(), ..error })?;
        if let Symbols::Subwords { marks: own, .. } = &mut vocabulary.symbols {
            *own = Some(marks);
        }
        Ok(vocabulary)
    }

    /// Returns the marks of a model that continues prompts of tokens.
    pub fn token_marks(&self) -> Option<&TokenMarks> {
        match &self.symbols {
            Symbols::Subwords { marks, .. } => marks.as_ref(),
            _ => None,
        }
    }

    /// Returns the bytes of a symbol that is no text on its own: a byte of a longer character, a piece with a part of one, or a byte
    /// piece whose text another piece has as well.
    pub fn raw_bytes(&self, id: u32) -> Option<Vec<u8>> {
        if let Some(byte) = self.byte_of(id) {
            return (!byte.is_ascii()).then(|| vec![byte]);
        }
        self.tokenizer()?.raw_bytes(id).map(<[u8]>::to_vec)
    }

    /// Returns the bytes that `id` adds to a text after another symbol; `None` for marks, the end, and ids without text.
    pub fn symbol_bytes(&self, id: u32) -> Option<Vec<u8>> {
        if self.ends_text(id) || self.is_special(id) {
            return None;
        }
        match &self.symbols {
            Symbols::Characters { .. } => self.surface(id).map(|character| character.to_string().into_bytes()),
            Symbols::Bytes { .. } => match self.byte_of(id) {
                Some(byte) if NEVER_IN_TEXT.iter().any(|range| range.contains(&u32::from(byte))) => None,
                Some(byte) => Some(vec![byte]),
                None => self.added_text(id).map(|text| text.as_bytes().to_vec()),
            },
            Symbols::Subwords { tokenizer, .. } => tokenizer.as_ref()?.text_bytes(id),
        }
    }

    /// Returns the ids that end a text, in a vocabulary without special symbols.
    pub fn end_marks(&self) -> impl Iterator<Item = u32> {
        let byte = self.marks.map(|marks| marks.end).or(self.end_byte);
        let tokens = self.token_marks().into_iter().flat_map(|marks| marks.ends.iter().copied());
        byte.into_iter().chain(tokens)
    }

    /// Returns true if a text ends when the model generates `id`: a mark, the end byte, or the special symbol for the end.
    pub fn ends_text(&self, id: u32) -> bool {
        self.specials().map_or_else(|| self.end_marks().any(|end| end == id), |specials| specials.end == id)
    }

    /// Returns true if equal texts have equal symbols: each symbol has a text of its own, except bytes that are not UTF-8.
    pub fn is_spelled_out(&self) -> bool {
        !(self.is_subword() || self.is_sparse() || self.marks.is_some())
    }

    /// Returns the bytes of text that take most vocabularies as long to encode as this one takes for `bytes` bytes.
    pub fn work(&self, bytes: usize) -> usize {
        self.tokenizer().map_or(bytes, |tokenizer| tokenizer.work(bytes))
    }

    /// Returns the maximum bytes of a symbol's text in JSON.
    pub fn longest_symbol(&self) -> usize {
        // an escaped control character, or a byte that is shown as one
        const LONGEST_CHARACTER: usize = 6;
        self.tokenizer().map_or(LONGEST_CHARACTER, |tokenizer| tokenizer.longest_piece())
    }

    /// Returns the subword tokenizer, if symbols are its pieces.
    pub fn tokenizer(&self) -> Option<&Arc<SubwordTokenizer>> {
        match &self.symbols {
            Symbols::Subwords { tokenizer, .. } => tokenizer.as_ref(),
            _ => None,
        }
    }

    /// Returns true if symbols are subwords rather than characters or bytes.
    pub fn is_subword(&self) -> bool {
        matches!(self.symbols, Symbols::Subwords { .. })
    }

    /// Encodes a text to at most `limit` tokens, start marks included, which have no bytes. Fails as [`encode`](Self::encode) does.
    fn encode_tokens(&self, field: &'static str, text: &str, limit: usize) -> Result<Vec<Subword>> {
        let max_bytes = limit.saturating_mul(BYTES_PER_SYMBOL);
        if text.len() > max_bytes {
            return Err(Error::LongerThan { field, limit: max_bytes, unit: "bytes", why: None });
        }
        let start = self.token_marks().into_iter().flat_map(|marks| &marks.start);
        let mut encoded: Vec<_> = start.map(|&id| Subword { id, start: 0, end: 0 }).collect();
        encoded.extend(self.encode_subwords(field, text)?);
        match encoded.len() <= limit {
            true => Ok(encoded),
            false => Err(Error::TooLong { field, length: encoded.len(), limit, unit: "tokens", why: None }),
        }
    }

    /// Normalises and encodes a text with the subword tokenizer. `field` names the text in messages.
    pub fn encode_subwords(&self, field: &'static str, text: &str) -> Result<Vec<Subword>> {
        let without = || Error::bad_option(field, "a text", "ids (the checkpoint has no tokenizer)");
        let tokenizer = self.tokenizer().ok_or_else(without)?;
        let encoded = tokenizer.encode(&self.normalise(text));
        encoded.map_err(|error| Error::bad_option(field, error.to_string(), "a text that the tokenizer can encode"))
    }
}

// The characters of a text from which its symbols come.

impl Vocabulary {
    /// Returns the byte offset of the source character of each symbol of `text` (characters or bytes) but the first `skipped`.
    pub fn start_bytes(&self, text: &str, skipped: usize) -> Vec<usize> {
        let mut starts = Vec::new();
        let mut edges = text.char_indices().map(|(start, _)| start).enumerate().peekable();
        let mut start = 0;
        let mut symbols = usize::from(self.marks.is_some());
        self.normaliser.for_each(text, |character, offset| {
            while let Some((_, edge)) = edges.next_if(|(place, _)| *place <= offset) {
                start = edge;
            }
            let count = if self.is_bytes() { character.len_utf8() } else { 1 };
            let kept = (symbols + count).saturating_sub(skipped.max(symbols));
            starts.extend(std::iter::repeat_n(start, kept));
            symbols += count;
            ControlFlow::Continue(())
        });
        starts
    }
}

/// A text as it was sent, with the places of its symbols.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlacedText {
    text: String,
    /// For each symbol, marks included: the byte and the character of the text at which its own text begins.
    starts: Vec<(u32, u32)>,
}

impl PlacedText {
    /// Creates a text whose symbols begin at these bytes.
    fn new(text: &str, bytes: impl IntoIterator<Item = usize>) -> Self {
        let mut edges = text.char_indices().map(|(edge, _)| edge).chain([text.len()]).peekable();
        let mut place = (0, 0);
        let count = |size: usize| u32::try_from(size).unwrap_or(u32::MAX);
        let mut characters = 0;
        let starts = bytes.into_iter().map(|byte| {
            while let Some(edge) = edges.next_if(|edge| *edge <= byte) {
                place = (count(edge), count(characters));
                characters += 1;
            }
            place
        });
        Self { starts: starts.collect(), text: text.to_owned() }
    }

    /// Creates a text whose symbols have these bytes, each from the first to the one after the last.
    pub fn of_spans(text: &str, spans: impl IntoIterator<Item = (usize, usize)>) -> Self {
        let mut last = 0;
        let starts = spans.into_iter().map(|(start, end)| {
            let start = start.min(last);
            last = last.max(end);
            start
        });
        Self::new(text, starts)
    }

    /// Returns the text of the symbols from `from` to `to`, which may end within a character's bytes: its text is the last one's.
    pub fn text_of(&self, from: usize, to: usize) -> &str {
        let edge = |symbol: usize| self.starts.get(symbol).map_or(self.text.len(), |(byte, _)| *byte as usize);
        let from = if from == 0 { 0 } else { edge(from) };
        self.text.get(from..edge(to)).unwrap_or_default()
    }

    /// Returns the character at which a symbol begins.
    pub fn character_of(&self, symbol: usize) -> usize {
        self.starts.get(symbol).map_or(0, |(_, character)| *character as usize)
    }
}

// Stop strings: texts that end a generation when the model generates them.

impl Vocabulary {
    /// Normalises a stop string and encodes it: to symbols, or to bytes if symbols are tokens. `None` for a string that can
    /// never match, and for characters that normalising turns into spaces only, such as line breaks.
    pub fn encode_stop(&self, text: &str) -> Option<Vec<u32>> {
        let normal = self.normalise(text);
        if is_blank(&normal) && !is_blank(text) {
            return None;
        }
        match self.byte_zero() {
            Some(zero) => {
                let ids = normal.bytes().map(|byte| zero + u32::from(byte));
                ids.map(|id| (self.end_byte != Some(id)).then_some(id)).collect()
            }
            None if self.is_subword() => Some(normal.bytes().map(u32::from).collect()),
            None => normal.chars().map(|character| self.id_of(character)).collect(),
        }
    }

    /// Returns the length of a stop string as sent, in the units of [`encode_stop`](Self::encode_stop).
    pub fn stop_length(&self, text: &str) -> usize {
        if self.is_bytes() || self.is_subword() { text.len() } else { text.chars().count() }
    }
}

/// Returns true for a text without any character but spaces.
fn is_blank(text: &str) -> bool {
    text.bytes().all(|byte| byte == b' ')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::{SubwordTokenizer, TextMarks, TextNormaliser, subwords::SMALL};
    use proptest::prelude::*;
    use std::sync::Arc;

    const SPECIALS: SpecialSymbols = SpecialSymbols { start: 0, end: 1, segment_start: 2, segment_end: 3, unknown: 9 };

    #[test]
    fn marks_are_distinct_and_in_no_text() {
        let wrong_key = |start, end| TextMarks { start, end }.check().map_err(|error| error.key);
        assert_eq!(wrong_key(254, 255), Ok(()));
        assert_eq!(wrong_key(65, 255), Err("vocabulary.start".into()));
        assert_eq!(wrong_key(254, 244), Err("vocabulary.end".into()));
        assert_eq!(wrong_key(254, 254), Err("vocabulary.end".into()));
    }

    #[test]
    fn ids_are_distinct_and_in_bounds() {
        let wrong_key = |result: Result<(), VocabularyError>| result.unwrap_err().key;
        assert_eq!(SPECIALS.check(10, |_| false), Ok(()));
        assert_eq!(wrong_key(SPECIALS.check(9, |_| false)), "vocabulary.specials.unknown");
        let repeated = SpecialSymbols { end: 3, ..SPECIALS };
        assert_eq!(wrong_key(repeated.check(10, |_| false)), "vocabulary.specials.segment_end");
        assert_eq!(wrong_key(SPECIALS.check(10, |id| id == 2)), "vocabulary.specials.segment_start");
    }

    fn small(normaliser: TextNormaliser) -> Vocabulary {
        Vocabulary::from_symbols(&[" ", "e", "é", "\n", "n", "o"], normaliser).unwrap()
    }

    #[test]
    fn symbols_are_numbered_in_order() {
        let vocabulary = small(TextNormaliser::None);
        assert_eq!(vocabulary.encode("prompt", "é e\n", usize::MAX).unwrap(), [2, 0, 1, 3]);
        assert_eq!(vocabulary.decode(&[2, 0, 1, 3, 9]), "é e\n\u{fffd}");
        assert_eq!(vocabulary.id_of('é'), Some(2));
        assert_eq!(vocabulary.id_of('x'), None);
        assert_eq!(vocabulary.printable(3), "'\\n'");
        assert_eq!(vocabulary.printable(6), "id 6");
    }

    #[test]
    fn the_error_names_the_unknown_symbol_and_its_offset_in_characters() {
        let plain = small(TextNormaliser::None);
        let folded = small(TextNormaliser::Text8);
        for (result, found) in [
            (plain.encode("prompt", "éé x", usize::MAX).map(drop), "'x' at character 3"),
            (folded.encode("prompt", "1 E²", usize::MAX).map(drop), "'²' (normalised to 't') at character 3"),
            (folded.encode("prompt", "oo 7", 4).map(drop), "'7' (normalised to 's') at character 3"),
            (plain.check_ids("prompt", &[0, 5, 6]), "id 6 (the vocabulary has 6 symbols) at index 2"),
        ] {
            let message = format!("prompt: expected symbols of the model's vocabulary, found {found}");
            assert_eq!(result.unwrap_err().to_string(), message);
        }
    }

    #[test]
    fn encoding_stops_at_the_first_symbol_above_the_limit() {
        let letters = |normaliser| Vocabulary::from_symbols(&[" ", "e", "n", "o", "é"], normaliser).unwrap();
        let message =
            |vocabulary: &Vocabulary, text: &str| vocabulary.encode("prompt", text, 4).unwrap_err().to_string();
        let plain = letters(TextNormaliser::None);
        let folded = letters(TextNormaliser::Text8);
        let bytes = Vocabulary::byte_level(TextNormaliser::None);
        assert_eq!(plain.encode("prompt", "éneo", 4).unwrap().len(), 4);
        assert_eq!(folded.encode("prompt", "É  N,", 4).unwrap(), [1, 0, 2, 0]);
        assert_eq!(message(&plain, "éneo éx"), "prompt: expected at most 4 symbols, found 7");
        assert_eq!(message(&bytes, "ééé"), "prompt: expected at most 4 symbols, found 6");
        assert_eq!(message(&folded, "oo 1"), "prompt: expected at most 4 symbols, found more");
        // normalising all of it would produce ten million symbols, which takes longer in every attempt
        let digits = "1".repeat(2 << 20);
        let is_quick = (0..20).any(|_| {
            let start = std::time::Instant::now();
            assert!(folded.encode("prompt", &digits, 1000).is_err());
            start.elapsed() < std::time::Duration::from_millis(20)
        });
        assert!(is_quick);
    }

    #[test]
    fn the_error_names_the_invalid_symbol() {
        let error = |symbols: &[&str]| Vocabulary::from_symbols(symbols, TextNormaliser::None).unwrap_err();
        assert_eq!(error(&[]).key, "vocabulary.symbols");
        assert_eq!(error(&["a", "bc"]).key, "vocabulary.symbols[1]");
        assert_eq!(error(&["a", ""]).found, "\"\"");
        assert_eq!(error(&["a", "b", "a"]).found, "'a', which is already symbol 0");
        assert!(error(&["x".repeat(1 << 20).as_str()]).found.len() < 100);
        let many = vec!["a"; MAX_SYMBOLS + 1];
        assert_eq!(error(&many).found, "1114113 symbols");
    }

    #[test]
    fn ids_of_bytes_are_their_values() {
        let vocabulary = Vocabulary::byte_level(TextNormaliser::None);
        assert_eq!(vocabulary.encode("prompt", "aé", usize::MAX).unwrap(), [0x61, 0xc3, 0xa9]);
        assert_eq!(vocabulary.decode(&[0x61, 0xc3, 0xa9, 0xff, 0xc3]), "aé\u{fffd}\u{fffd}");
        assert_eq!((vocabulary.id_of('\n'), vocabulary.id_of('é')), (Some(10), None));
        assert_eq!(vocabulary.printable(10), "byte 0x0a");
        assert_eq!(vocabulary.printable(97), "'a'");
        assert!(vocabulary.check_ids("prompt", &[256]).is_err());
    }

    const UNORDERED_SPECIALS: SpecialSymbols =
        SpecialSymbols { start: 1, end: 3, segment_start: 0, segment_end: 5, unknown: 6 };

    #[test]
    fn special_symbols_have_no_text() {
        let vocabulary = Vocabulary::from_symbols_with_specials(
            &["<bos>", "<BoS>", "a", "<eos>", "b", "<nxt>", "<oov>"],
            UNORDERED_SPECIALS,
            TextNormaliser::None,
        );
        let vocabulary = vocabulary.unwrap();
        assert_eq!(vocabulary.encode("prompt", "axb<", usize::MAX).unwrap(), [2, 6, 4, 6]);
        assert_eq!(vocabulary.decode(&[1, 0, 2, 6, 5, 4, 3]), "a\u{fffd}b");
        assert_eq!((vocabulary.printable(5), vocabulary.id_of('x')), ("<nxt>".into(), None));
        assert!(vocabulary.encode_exactly("stop", "x").is_err() && vocabulary.check_text("--ids", &[2, 6]).is_ok());
        let message = vocabulary.check_text("--ids", &[2, 5]).unwrap_err().to_string();
        assert_eq!(message, "--ids: expected symbols of a text, found <nxt> at index 1");
        let twice =
            Vocabulary::from_symbols_with_specials(&["a", "b"], UNORDERED_SPECIALS, TextNormaliser::None).unwrap_err();
        assert_eq!(twice.key, "vocabulary.specials.end");
    }

    #[test]
    fn byte_ids_may_follow_special_symbols() {
        let specials = SpecialSymbols { start: 0, end: 1, segment_start: 2, segment_end: 259, unknown: 260 };
        let vocabulary = Vocabulary::byte_level_with_specials(3, specials, TextNormaliser::None).unwrap();
        assert_eq!(vocabulary.len(), 261);
        let ids = vocabulary.encode("prompt", "é語", usize::MAX).unwrap();
        assert_eq!(ids[..2], [0xc3 + 3, 0xa9 + 3]);
        assert_eq!(vocabulary.decode(&[&ids[..], &[1]].concat()), "é語");
        assert_eq!((vocabulary.printable(3 + 97), vocabulary.printable(260)), ("'a'".into(), "<oov>".into()));
        assert!(Vocabulary::byte_level_with_specials(2, specials, TextNormaliser::None).is_err());
    }

    proptest! {
        #[test]
        fn decoding_undoes_encoding(text in "[ eé\\nno]*") {
            let vocabulary = small(TextNormaliser::None);
            prop_assert_eq!(vocabulary.decode(&vocabulary.encode("prompt", &text, usize::MAX).unwrap()), text);
        }

        #[test]
        fn bytes_round_trip_any_text(text in any::<String>()) {
            let vocabulary = Vocabulary::byte_level(TextNormaliser::None);
            prop_assert_eq!(vocabulary.decode(&vocabulary.encode("prompt", &text, usize::MAX).unwrap()), text);
        }

        #[test]
        fn ids_outside_the_vocabulary_are_replaced(ids in prop::collection::vec(any::<u32>(), 0..40)) {
            Vocabulary::byte_level(TextNormaliser::None).decode(&ids);
            prop_assert_eq!(small(TextNormaliser::None).decode(&ids).chars().count(), ids.len());
        }
    }

    #[test]
    fn a_text_has_a_start_mark_and_marks_have_no_text() {
        let marks = TextMarks { start: 254, end: 255 };
        let vocabulary = Vocabulary::byte_level_with_marks(marks, TextNormaliser::None).unwrap();
        let ids = vocabulary.encode("prompt", "aé", 4).unwrap();
        assert_eq!(ids, [254, 0x61, 0xc3, 0xa9]);
        assert_eq!(vocabulary.decode(&[254, 0x61, 0xc3, 255, 0xa9]), "a\u{fffd}\u{fffd}");
        assert_eq!(vocabulary.decode(&ids), "aé");
        assert_eq!((vocabulary.count_without_marks(&ids), vocabulary.count_without_marks(&[254, 255])), (3, 0));
        assert_eq!([0x61, 0xc3, 254].map(|id| vocabulary.raw_bytes(id)), [None, Some(vec![0xc3]), None]);
        assert_eq!(vocabulary.encode("prompt", "", 4).unwrap(), [254]);
        assert_eq!(vocabulary.encode_exactly("stop", "a").unwrap(), [0x61]);
        let message = vocabulary.encode("prompt", "abcd", 4).unwrap_err().to_string();
        assert!(message.contains('5') && message.contains('4'), "{message}");
        assert_eq!(vocabulary.named_ids(), [("start", 254), ("end", 255)]);
        assert_eq!([vocabulary.printable(254), vocabulary.printable(253)], ["<BoS>", "byte 0xfd"]);
        assert!(!vocabulary.same_symbols(&Vocabulary::byte_level(TextNormaliser::None)));
    }

    #[test]
    fn an_end_byte_is_a_character_of_a_text() {
        let vocabulary = Vocabulary::byte_level_with_end(3, TextNormaliser::None).unwrap();
        let ids = vocabulary.encode("prompt", "a\u{3}b", 3).unwrap();
        assert_eq!((&ids[..], vocabulary.decode(&ids)), (&[97, 3, 98][..], "a\u{3}b".into()));
        assert_eq!((vocabulary.count_without_marks(&ids), vocabulary.text_ids().count()), (3, 256));
        assert_eq!([3, 97].map(|id| vocabulary.ends_text(id)), [true, false]);
        assert_eq!((vocabulary.end_marks().next(), vocabulary.named_ids()), (Some(3), vec![("end", 3)]));
        assert!(vocabulary.same_symbols(&Vocabulary::byte_level(TextNormaliser::None)) && vocabulary.is_spelled_out());
        for end in [0, 8, 14, 31, 127] {
            assert!(Vocabulary::byte_level_with_end(end, TextNormaliser::None).is_ok(), "{end}");
        }
        for end in [9, 11, 13, 32, 97, 128, 259] {
            let error = Vocabulary::byte_level_with_end(end, TextNormaliser::None).unwrap_err();
            assert_eq!((error.key, error.found), ("vocabulary.end".to_owned(), end.to_string()));
        }
    }

    #[test]
    fn ids_have_text_only_with_a_tokenizer() {
        let subwords = Arc::new(SubwordTokenizer::parse(SMALL.as_bytes()).unwrap());
        let vocabulary = Vocabulary::from_tokenizer(20, Some(subwords.clone()), TextNormaliser::None).unwrap();
        assert_eq!(vocabulary.encode("document", "ab ab", 2).unwrap(), [7, 7]);
        let message = vocabulary.encode("document", "ab ab", 1).unwrap_err().to_string();
        assert_eq!(message, "document: expected at most 1 tokens, found 2");
        assert_eq!((vocabulary.decode(&[7, 8, 2, 19]), vocabulary.len()), ("abba".into(), 20));
        assert_eq!((vocabulary.printable(7), vocabulary.printable(19)), ("\u{2581}ab".into(), "id 19".into()));
        assert_eq!(vocabulary.raw_bytes(7), None);
        assert!(vocabulary.check_ids("document", &[19]).is_ok() && vocabulary.check_ids("document", &[20]).is_err());
        let ids = Vocabulary::from_tokenizer(20, None, TextNormaliser::None).unwrap();
        let message = ids.encode("document", "ab", 9).unwrap_err().to_string();
        assert_eq!(message, "document: expected ids (the checkpoint has no tokenizer), found a text");
        assert_eq!(ids.decode(&[7]), "");
        assert!(!ids.same_symbols(&vocabulary) && ids.same_symbols(&ids.clone()));
        for count in [0, 12, MAX_SYMBOLS + 1] {
            let error = Vocabulary::from_tokenizer(count, Some(subwords.clone()), TextNormaliser::None).unwrap_err();
            assert_eq!(error.key, "vocabulary.size", "{error}");
        }
    }

    fn letters() -> Vocabulary {
        let symbols: Vec<String> = (' '..=' ').chain('a'..='z').map(String::from).collect();
        Vocabulary::from_symbols(&symbols, TextNormaliser::Text8).unwrap()
    }

    #[test]
    fn symbols_come_from_characters_of_the_text() {
        // ` one `: a digit becomes five characters, of which the first is dropped after a space
        assert_eq!(letters().start_bytes("É 1b", 0), [0, 2, 3, 3, 3, 3, 4]);
        assert_eq!(letters().start_bytes("a  b", 1), [1, 3]);
        let bytes = Vocabulary::byte_level(TextNormaliser::None);
        assert_eq!(bytes.start_bytes("aéb", 0), [0, 1, 1, 3]);
        assert_eq!(bytes.start_bytes("aéb", 2), [1, 3]);
        let marks = TextMarks { start: 254, end: 255 };
        let marked = Vocabulary::byte_level_with_marks(marks, TextNormaliser::None).unwrap();
        assert_eq!(marked.start_bytes("ab", 1), [0, 1]);
        assert_eq!(marked.start_bytes("", 1), [0; 0]);
    }

    proptest! {
        #[test]
        fn each_symbol_has_one(text in "[a-c 1é\u{301}A?½]{0,12}", skipped in 0_usize..20) {
            let vocabulary = letters();
            let symbols = vocabulary.encode("text", &text, 1000).unwrap().len();
            let starts = vocabulary.start_bytes(&text, 0);
            prop_assert_eq!(starts.len(), symbols);
            prop_assert!(starts.is_sorted() && starts.iter().all(|&start| text.is_char_boundary(start)));
            prop_assert_eq!(&vocabulary.start_bytes(&text, skipped)[..], &starts[skipped.min(symbols)..]);
        }
    }

    /// Stop strings are normalised as text is. One that cannot be generated has no symbols. Bytes and tokens match by bytes.
    #[test]
    fn stop_strings_are_what_can_be_generated() {
        let characters = |normaliser| Vocabulary::from_symbols(&[" ", "a", "b", "c"], normaliser).unwrap();
        let text8 = characters(TextNormaliser::Text8);
        let plain = characters(TextNormaliser::None);
        let bytes = Vocabulary::byte_level(TextNormaliser::None);
        let ended = Vocabulary::byte_level_with_end(3, TextNormaliser::None).unwrap();
        let subwords = Arc::new(SubwordTokenizer::parse(SMALL.as_bytes()).unwrap());
        let tokens = Vocabulary::from_tokenizer(20, Some(subwords), TextNormaliser::None).unwrap();
        for (vocabulary, text, symbols) in [
            (&text8, "A  b", vec![1, 0, 2]),
            (&text8, "\nB:", vec![0, 2, 0]),
            (&text8, "  ", vec![0]),
            (&text8, "", vec![]),
            (&plain, "a ", vec![1, 0]),
            (&ended, ".", vec![46]),
            (&bytes, "é\n", vec![0xc3, 0xa9, 10]),
            (&tokens, "é", vec![0xc3, 0xa9]),
        ] {
            assert_eq!(vocabulary.encode_stop(text), Some(symbols), "{text:?}");
        }
        assert!(["\n\n", ". ", "\u{301}", "ax", "1"].iter().all(|text| text8.encode_stop(text).is_none()));
        assert!(["A", "\n"].iter().all(|text| plain.encode_stop(text).is_none()));
        assert_eq!(ended.encode_stop(".\u{3}"), None);
        assert_eq!([bytes.stop_length("é\n"), tokens.stop_length("é")], [3, 2]);
    }
}
