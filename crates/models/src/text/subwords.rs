//! Subword tokenizers read from Hugging Face's `tokenizer.json`, by the library that defines the format. Special tokens that a text
//! spells out become their ids where transformers reads them; control and byte pieces of SentencePiece that it spells out stay text.
//! A document's tokenizer must encode each word independently; a prompt is encoded as a whole.

use crate::text::{
    AddedToken, VocabularyError,
    added_tokens::{AddedTokens, Part},
    normaliser::{replace_unfinished, take_complete},
    pieces::{Pieces, byte_of_piece, hide, library},
    sentencepiece::{Place, SPACE_MARK, SentencePieceSplitter},
    tokenizer_limits::{Growth, NORMAL_BYTES, PIECE_BYTES, bound_model, check_marks, check_template},
};
use regex::RegexBuilder;
use serde::Deserialize;
use serde_json::Value;
use std::{collections::HashSet, ops::Range, sync::OnceLock};
use tokenizers::{
    DecoderWrapper, NormalizedString, Normalizer, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper,
    TokenizerImpl, step_decode_stream,
};
use weir_kernels::error::{floor_boundary, quoted};

/// Name of the tokenizer's file in a checkpoint.
pub const TOKENIZER_FILE: &str = "tokenizer.json";

/// Maximum size of that file, in bytes.
pub const MAX_TOKENIZER_BYTES: u64 = 64 << 20;

/// Key of an added token that is a user-defined piece of SentencePiece. Before it, spaces stay, and after it no word begins.
pub(crate) const USER_DEFINED_KEY: &str = "user_defined";

/// Key of an added token that is found by the rules of transformers' tokenizers in Python.
pub(crate) const PYTHON_KEY: &str = "python";

/// Value of that key, if a word begins after the token.
pub(crate) const BEGINS_WORD: &str = "begins_word";

/// Bytes of a text that are normalised at a time to measure their growth.
const MEASURED_BYTES: usize = 4096;

/// Growth of a text, in bytes made of one byte, up to which a tokenizer takes the usual time.
const USUAL_GROWTH: usize = 16;

/// The library's tokenizer around [`Pieces`].
pub(super) type Tokenizer =
    TokenizerImpl<Pieces, NormalizerWrapper, PreTokenizerWrapper, PostProcessorWrapper, DecoderWrapper>;

/// A subword tokenizer.
pub struct SubwordTokenizer {
    tokenizer: Tokenizer,
    /// Splits text as SentencePiece does, if the tokenizer was made from a SentencePiece model.
    splitter: Option<SentencePieceSplitter>,
    /// Ids of special tokens.
    specials: HashSet<u32>,
    /// Tokens by which a text is split first. The library finds the others.
    added: AddedTokens,
    /// True if text may have the ids of special tokens.
    reads_specials: bool,
    unsafe_ends: UnsafeEnds,
    growth: Growth,
    /// The maximum bytes of a piece's text in JSON, once they are wanted.
    longest_piece: OnceLock<usize>,
    /// Time for each byte, relative to most tokenizers.
    work: usize,
    /// Id that replaces text for which the tokenizer has no piece.
    unknown: Option<u32>,
    json: String,
    /// The bytes of pieces, if the tokenizer's decoder maps all or some pieces to bytes.
    byte_pieces: Option<BytePieces>,
    /// Ids that the file puts before each text.
    leading: Vec<u32>,
    /// State after some text, from which a text that continues another one is decoded.
    continuation: DecodeState,
}

/// One subword of a text, with its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subword {
    /// Id in the vocabulary.
    pub id: u32,
    /// Offset of its first byte in the text.
    pub start: usize,
    /// Offset after its last byte.
    pub end: usize,
}

/// State of decoding one id at a time, in the form that `step_decode_stream` expects.
#[derive(Debug, Clone, Default)]
pub(super) struct DecodeState {
    /// Bytes of an unfinished code point: at most three between calls.
    pub(super) pending: Vec<u8>,
    ids: Vec<u32>,
    prefix: String,
    index: usize,
}

impl std::fmt::Debug for SubwordTokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SubwordTokenizer").field("pieces", &self.len()).finish_non_exhaustive()
    }
}

impl SubwordTokenizer {
    /// Parses the `tokenizer.json` of a model that reads documents, which must encode words independently, in linear time. Special
    /// tokens stay text.
    pub fn parse(json: &[u8]) -> Result<Self, VocabularyError> {
        Self::parse_checked(json, check_word_by_word)
    }

    /// Parses the `tokenizer.json` of a model that continues prompts, without dropout and slow regular expressions.
    pub fn parse_for_prompts(json: &[u8]) -> Result<Self, VocabularyError> {
        let mut parsed = Self::parse_checked(json, check_dropout)?;
        parsed.tokenizer.set_encode_special_tokens(false);
        parsed.reads_specials = true;
        Ok(parsed)
    }

    /// Encodes the special tokens that a document spells out as their ids.
    #[must_use]
    pub fn with_special_tokens(mut self) -> Self {
        if self.added.is_empty() {
            self.tokenizer.set_encode_special_tokens(false);
            self.reads_specials = true;
        }
        self
    }

    fn parse_checked(json: &[u8], check: fn(&Value) -> Result<(), VocabularyError>) -> Result<Self, VocabularyError> {
        let invalid = |error: &dyn std::fmt::Display| {
            let found = format!("one that the tokenizers library cannot read ({error})");
            VocabularyError::new("the file", "a tokenizer in Hugging Face's format", found)
        };
        let json = std::str::from_utf8(json).map_err(|error| invalid(&error))?.to_owned();
        check_marks(&json)?;
        let mut value: Value = serde_json::from_str(&json)
            .map_err(|error| VocabularyError::new("the file", "valid JSON", format!("a syntax error ({error})")))?;
        // Before the library compiles patterns and reads character maps.
        check_patterns(&value)?;
        let growth = Growth::read(&value)?;
        let processor = &value["post_processor"];
        let members = processor["processors"].as_array().map_or(std::slice::from_ref(processor), Vec::as_slice);
        members.iter().try_for_each(|member| check_template("post_processor", member))?;
        let work = if value["model"].is_object() { bound_model(&mut value["model"])? } else { 1 };
        let python = take_tokens(&mut value, |token| token[PYTHON_KEY].is_string())?;
        let user_defined = take_tokens(&mut value, |token| is_true(&token[USER_DEFINED_KEY]))?;
        let is_sentencepiece =
            !(python.is_empty() && user_defined.is_empty()) && value["pre_tokenizer"]["type"] == "Metaspace";
        let splitter = match is_sentencepiece {
            true => {
                let adds_prefix = value["pre_tokenizer"]["prepend_scheme"] != "never";
                Some(SentencePieceSplitter::new(&user_defined, take_spaces(&mut value), adds_prefix)?)
            }
            false => None,
        };
        hide(&mut value, &python);
        let mut tokenizer: Tokenizer =
            library(|| Tokenizer::deserialize(&value).map_err(Into::into)).map_err(|error| invalid(&error))?;
        let processor = serde_json::to_value(tokenizer.get_post_processor()).map_err(|error| invalid(&error))?;
        check_templates("post_processor", &processor)?;
        check(&value)?;
        // documents are not truncated, and text that spells out a special token stays text
        tokenizer.with_padding(None).set_encode_special_tokens(true);
        tokenizer.with_truncation(None).map_err(|error| invalid(&error))?;
        check_ids(&tokenizer)?;
        check_pieces(&tokenizer, growth)?;
        let leading = library(|| leading_ids(&tokenizer)).map_err(|error| invalid(&error))?;
        // nothing else of it applies to a text whose special tokens weir adds
        tokenizer.with_post_processor(None::<PostProcessorWrapper>);
        let unknown = unknown_id(&value, &tokenizer);
        let specials = special_ids(&tokenizer, &python);
        let byte_pieces = BytePieces::read(&value["decoder"], &tokenizer, &specials);
        let mut parsed = Self {
            unsafe_ends: unsafe_ends(&value["added_tokens"], &user_defined, &tokenizer),
            tokenizer,
            splitter,
            specials,
            added: AddedTokens::new(python)?,
            reads_specials: false,
            growth,
            longest_piece: OnceLock::new(),
            work: work.max(growth.encoding() / USUAL_GROWTH),
            unknown,
            json,
            byte_pieces,
            leading,
            continuation: DecodeState::default(),
        };
        parsed.continuation = parsed.after_text();
        Ok(parsed)
    }

    /// Returns the state after the first piece that is plain text. Without such a piece, the state of an empty text.
    fn after_text(&self) -> DecodeState {
        let is_text = |id: &u32| !self.specials.contains(id) && self.unknown != Some(*id);
        let plain = ('a'..='z').filter_map(|letter| self.id_of(letter.encode_utf8(&mut [0; 4])));
        for id in plain.filter(is_text) {
            let mut state = DecodeState::default();
            let mut text = String::new();
            self.decode_next(&mut state, id, &mut text);
            if !text.is_empty() {
                return state;
            }
        }
        DecodeState::default()
    }

    /// Returns the ids that the file puts before each text, such as a start mark.
    pub fn leading(&self) -> &[u32] {
        &self.leading
    }

    /// Returns the bytes of a piece that is no text on its own: a part of a character, or a byte piece such as `<0x61>` next to a
    /// piece with the same text.
    pub(super) fn raw_bytes(&self, id: u32) -> Option<&[u8]> {
        let pieces = self.byte_pieces.as_ref()?;
        let bytes = pieces.get(id)?;
        let is_other = |piece: &str| self.id_of(piece).is_some_and(|other| other != id);
        let has_duplicate = |text| is_other(text) || (text == " " && is_other(SPACE_MARK.encode_utf8(&mut [0; 4])));
        std::str::from_utf8(bytes).map_or(true, |text| !pieces.all && has_duplicate(text)).then_some(bytes)
    }

    /// Returns the bytes that a piece adds to a text after another piece; `None` if it has no text.
    pub(super) fn text_bytes(&self, id: u32) -> Option<Vec<u8>> {
        if let Some(bytes) = self.byte_pieces.as_ref().and_then(|pieces| pieces.get(id)) {
            return Some(bytes.to_vec());
        }
        let mut state = self.continuation();
        let mut text = String::new();
        self.decode_next(&mut state, id, &mut text);
        self.decode_rest(&mut state, &mut text);
        (!text.is_empty()).then(|| text.into_bytes())
    }

    /// Returns the state from which a text that continues another one is decoded: a space before its first word stays.
    pub(super) fn continuation(&self) -> DecodeState {
        self.continuation.clone()
    }

    /// Returns the maximum bytes of a piece's text in JSON.
    pub(super) fn longest_piece(&self) -> usize {
        let longest = || {
            let pieces = self.tokenizer.get_vocab(true);
            let bytes = |piece: &String| serde_json::to_string(piece).map_or(0, |json| json.len());
            pieces.keys().map(bytes).max().unwrap_or(0).saturating_mul(self.growth.decoder)
        };
        *self.longest_piece.get_or_init(longest)
    }

    /// Returns the number of ids: one more than the largest.
    pub fn len(&self) -> usize {
        count_ids(&self.tokenizer)
    }

    /// Returns true if the tokenizer has no pieces.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the contents of the file.
    pub fn json(&self) -> &str {
        &self.json
    }

    /// Returns the bytes of text that take most tokenizers as long as this one takes for `bytes` bytes.
    pub fn work(&self, bytes: usize) -> usize {
        bytes.saturating_mul(self.work)
    }

    /// Returns true if an added token may reach from the end of a text over the space after it.
    pub(super) fn may_reach_on(&self, text: &str) -> bool {
        let UnsafeEnds { written, normal } = &self.unsafe_ends;
        if written.iter().any(|end| text.ends_with(end.as_str())) {
            return true;
        }
        let Some(longest) = normal.iter().map(String::len).max() else { return false };
        // a normaliser makes at most so many bytes of one character
        let last = text.char_indices().rev().take(longest + 1).last().map_or(0, |(start, _)| start);
        let mut last = NormalizedString::from(&text[last..]);
        let is_known = self.tokenizer.get_normalizer().is_none_or(|own| library(|| own.normalize(&mut last)).is_ok());
        let last = marked(last.get());
        !is_known || normal.iter().any(|end| last.ends_with(end.as_str()))
    }

    /// Returns the tokens by which a text is split before its parts are encoded.
    pub(super) fn added_tokens(&self) -> &AddedTokens {
        &self.added
    }

    /// Encodes a text. Fails if the tokenizer has neither a piece nor an unknown token for a part of it, or if normalising makes far
    /// too much of it.
    pub fn encode(&self, text: &str) -> Result<Vec<Subword>, String> {
        if self.added.is_empty() {
            return self.encode_part(text, Place::Word);
        }
        let mut subwords = Vec::new();
        let mut from = 0;
        let mut place = Place::Word;
        // the parts of a complete text are complete
        self.added.split(text, &mut |part| {
            let end = from + part.text().len();
            match part {
                Part::Text(text) => {
                    let shifted = |own: Subword| Subword { start: own.start + from, end: own.end + from, ..own };
                    subwords.extend(self.encode_part(text, place)?.into_iter().map(shifted));
                }
                Part::Token(token) => subwords.push(Subword { id: token.id, start: from, end }),
                Part::Space(_) | Part::Gap => {}
            }
            from = end;
            place = if end == 0 { place } else { self.place_after(&part, place) };
            Ok(())
        })?;
        Ok(subwords)
    }

    /// Returns the place of the text after a part at `place`.
    pub(super) fn place_after(&self, part: &Part<'_>, place: Place) -> Place {
        let begins_word = match part {
            Part::Token(token) => token.begins_word,
            Part::Gap => self.added.begin_words(),
            Part::Space(_) => return place,
            Part::Text(_) => false,
        };
        if begins_word { Place::Word } else { Place::Inside }
    }

    /// Encodes a text, or a part of one between added tokens.
    pub(super) fn encode_part(&self, text: &str, place: Place) -> Result<Vec<Subword>, String> {
        self.check_growth(text)?;
        let ids = match &self.splitter {
            Some(splitter) => {
                splitter.encode(self.tokenizer.get_model(), self.tokenizer.get_normalizer(), text, place)?
            }
            None => {
                let encoding = library(|| self.tokenizer.encode(text, false))?;
                let offsets = encoding.get_offsets().iter().map(|&(start, end)| start..end);
                encoding.get_ids().iter().copied().zip(offsets).collect()
            }
        };
        let text_id = |id: u32| match self.specials.contains(&id) && !self.reads_specials {
            false => Ok(id),
            true => self.unknown.ok_or_else(|| "a special token, which is not text,".to_owned()),
        };
        let placed =
            |(id, bytes): (u32, Range<usize>)| Ok(Subword { id: text_id(id)?, start: bytes.start, end: bytes.end });
        ids.into_iter().map(placed).collect()
    }

    /// Checks that normaliser and pre-tokenizer do not multiply a text to more than [`NORMAL_BYTES`]. Only a text that could become so
    /// long is measured, part by part.
    fn check_growth(&self, text: &str) -> Result<(), String> {
        if text.len().saturating_mul(self.growth.encoding()) <= NORMAL_BYTES {
            return Ok(());
        }
        let mut bytes = 0;
        let mut rest = text;
        while !rest.is_empty() {
            let (part, after) = rest.split_at(floor_boundary(rest, MEASURED_BYTES));
            rest = after;
            let mut normal = NormalizedString::from(part);
            if let Some(normaliser) = self.tokenizer.get_normalizer() {
                library(|| normaliser.normalize(&mut normal))?;
            }
            bytes += normal.get().len() * self.growth.pre_tokenizer;
            if bytes > NORMAL_BYTES {
                return Err(format!(
                    "{} bytes that become more than {NORMAL_BYTES} by the normalizer of {TOKENIZER_FILE}",
                    text.len()
                ));
            }
        }
        Ok(())
    }

    /// Decodes ids. Special tokens and unknown ids have no text.
    pub fn decode(&self, ids: &[u32]) -> String {
        match self.byte_pieces {
            Some(_) => self.decode_from(DecodeState::default(), ids, &[]),
            // `check_pieces` has decoded each piece alone
            None => self.decode_pieces(ids),
        }
    }

    /// Decodes ids as transformers does by default: special tokens are text.
    pub fn decode_all(&self, ids: &[u32]) -> String {
        library(|| self.tokenizer.decode(ids, false)).unwrap_or_default()
    }

    fn decode_pieces(&self, ids: &[u32]) -> String {
        let ids: Vec<u32> = ids.iter().copied().filter(|id| !self.specials.contains(id)).collect();
        library(|| self.tokenizer.decode(&ids, true)).unwrap_or_default()
    }

    /// Decodes the ids of a text that continues another one. The text begins anew after the last id of `start`.
    pub(super) fn decode_continuation(&self, ids: &[u32], start: &[u32]) -> String {
        self.decode_from(self.continuation(), ids, start)
    }

    fn decode_from(&self, mut state: DecodeState, ids: &[u32], start: &[u32]) -> String {
        let mut text = String::new();
        for &id in ids {
            match start.last() == Some(&id) {
                true => self.decode_rest(&mut state, &mut text),
                false => self.decode_next(&mut state, id, &mut text),
            }
        }
        self.decode_rest(&mut state, &mut text);
        text
    }

    /// Decodes one more id and appends the text that it completes to `text`. Special tokens do not end a code point.
    pub(super) fn decode_next(&self, state: &mut DecodeState, id: u32, text: &mut String) {
        if let Some(bytes) = self.byte_pieces.as_ref().and_then(|pieces| pieces.get(id)) {
            let before = text.len();
            state.pending.extend_from_slice(bytes);
            take_complete(&mut state.pending, text, true);
            if state.ids.is_empty() && text.len() > before {
                // the space before the next word stays
                let pending = std::mem::take(&mut state.pending);
                *state = DecodeState { pending, ..self.continuation() };
            }
            return;
        }
        if self.piece(id).is_none() || self.specials.contains(&id) {
            return;
        }
        let DecodeState { pending, ids, prefix, index } = state;
        replace_unfinished(pending, text, true);
        let decoded = library(|| step_decode_stream(&self.tokenizer, vec![id], true, ids, prefix, index));
        // if a decoder changes earlier text, `decode_rest` returns the remainder
        text.push_str(&decoded.ok().flatten().unwrap_or_default());
    }

    /// Appends the text that was held back, which may be an unfinished code point, and resets `state`.
    pub(super) fn decode_rest(&self, state: &mut DecodeState, text: &mut String) {
        let DecodeState { mut pending, ids, prefix, .. } = std::mem::take(state);
        if !ids.is_empty() {
            let decoded = self.decode_pieces(&ids);
            let common = decoded.chars().zip(prefix.chars()).take_while(|(decoded, returned)| decoded == returned);
            let returned: usize = common.map(|(decoded, _)| decoded.len_utf8()).sum();
            text.push_str(decoded.get(returned..).unwrap_or_default());
        }
        replace_unfinished(&mut pending, text, true);
    }

    /// Returns the piece of `id` as the file spells it.
    pub fn piece(&self, id: u32) -> Option<String> {
        self.tokenizer.id_to_token(id)
    }

    /// Returns the id of a piece as the file spells it.
    pub fn id_of(&self, piece: &str) -> Option<u32> {
        self.tokenizer.token_to_id(piece)
    }
}

/// A small unigram tokenizer.
#[cfg(test)]
pub(super) const SMALL: &str = r#"{"version": "1.0", "added_tokens": [
    {"id": 0, "content": "<s>", "special": true, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false},
    {"id": 1, "content": "<pad>", "special": true, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false},
    {"id": 2, "content": "</s>", "special": true, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false},
    {"id": 3, "content": "<unk>", "special": true, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false}],
    "normalizer": {"type": "NFKC"},
    "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true},
    "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true},
    "model": {"type": "Unigram", "unk_id": 3, "byte_fallback": false, "vocab": [["<s>", 0.0], ["<pad>", 0.0], ["</s>", 0.0],
    ["<unk>", 0.0], ["▁", -3.0], ["a", -3.0], ["b", -3.0], ["▁ab", -1.0], ["ba", -2.0], ["<", -5.0], ["/", -5.0], ["s", -5.0], [">", -5.0]]}}"#;

// Bytes of pieces. A byte-level tokenizer (GPT-2 and its successors) spells each byte of a piece as one printable character. With
// byte fallback (SentencePiece, Llama), the pieces `<0x00>` to `<0xFF>` are single bytes, and the others are text. Neither depends
// on other pieces, so a text can be decoded piece by piece, and complete code points are known at once.

/// Bytes of all pieces, or of the byte pieces.
pub(super) struct BytePieces {
    bytes: Vec<u8>,
    /// Offset after the last byte of each id's piece.
    ends: Vec<usize>,
    /// True if all pieces are bytes.
    all: bool,
}

impl BytePieces {
    /// Reads the pieces of a tokenizer whose `decoder` in the file is byte-level or has byte fallback; `None` for other decoders.
    /// Special tokens have no bytes.
    pub(super) fn read(decoder: &Value, tokenizer: &Tokenizer, specials: &HashSet<u32>) -> Option<Self> {
        let only = match decoder["decoders"].as_array().map(Vec::as_slice) {
            Some([only]) => only,
            _ => decoder,
        };
        let all = only["type"] == "ByteLevel";
        if !all && !has_byte_fallback(decoder) {
            return None;
        }
        let mut pieces: Vec<_> = tokenizer.get_vocab(true).into_iter().map(|(piece, id)| (id, piece)).collect();
        pieces.sort_unstable();
        let mut table = Self { bytes: Vec::new(), ends: Vec::new(), all };
        for (id, piece) in pieces {
            table.ends.resize(id as usize, table.bytes.len());
            if specials.contains(&id) {
                // no bytes
            } else if all {
                let spelled: Option<Vec<u8>> = piece.chars().map(byte_of).collect();
                table.bytes.extend(spelled.unwrap_or_else(|| piece.into_bytes()));
            } else {
                table.bytes.extend(byte_of_piece(&piece));
            }
            table.ends.push(table.bytes.len());
        }
        Some(table)
    }

    /// Returns the bytes of a piece, or `None` if the piece is text. A special token has no bytes, and neither has an id without a
    /// piece.
    pub(super) fn get(&self, id: u32) -> Option<&[u8]> {
        let id = id as usize;
        let start = id.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0);
        let bytes = self.ends.get(id).and_then(|&end| self.bytes.get(start..end)).unwrap_or_default();
        (self.all || !bytes.is_empty()).then_some(bytes)
    }
}

fn has_byte_fallback(decoder: &Value) -> bool {
    decoder["type"] == "ByteFallback"
        || decoder["decoders"].as_array().is_some_and(|all| all.iter().any(has_byte_fallback))
}

/// Returns the byte that a character spells: itself if it is printable, else one of the characters from U+0100 on, in order.
fn byte_of(character: char) -> Option<u8> {
    let is_printable = |byte: u32| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let code = u32::from(character);
    match code {
        0..=0xff if is_printable(code) => u8::try_from(code).ok(),
        0x100.. => {
            let other = (0..=0xff).filter(|&byte| !is_printable(byte)).nth(code as usize - 0x100)?;
            u8::try_from(other).ok()
        }
        _ => None,
    }
}

// Checks that a tokenizer encodes each word independently of the others: it splits before or at every space, without dropout,
// its normaliser rewrites characters in place, and no added token reaches over a space. Also checks its patterns.

/// Regular expression for whitespace other than the space, as Python defines it.
pub const BLANK: &str = r"[\x1c-\x1f]|[^\S ]";

/// Regular expression for several spaces.
const SPACES: &str = " {2,}";

/// Pre-tokenizers that split at every space, by their `type`.
const SPLITS: [&str; 5] = ["Metaspace", "WhitespaceSplit", "Whitespace", "BertPreTokenizer", "ByteLevel"];

/// Normalisers that rewrite characters in place, by their `type`.
const LOCAL: &str =
    "NFC, NFD, NFKC, NFKD, Nmt, Precompiled, Lowercase, Strip, StripAccents, Replace, BertNormalizer, Sequence";

/// Maximum bytes of a regular expression.
const PATTERN_BYTES: usize = 1024;

/// Maximum bytes of a compiled regular expression. Time per character grows with it.
const COMPILED_BYTES: usize = 1 << 20;

/// Parts of a `tokenizer.json` that may contain regular expressions.
const PATTERN_PARTS: [&str; 4] = ["normalizer", "pre_tokenizer", "post_processor", "decoder"];

/// Checks the regular expressions of a `tokenizer.json`, which every request runs. The tokenizer's engine (fancy-regex)
/// backtracks for look-around, word boundaries, backreferences, and atomic or possessive groups, in exponential time at worst;
/// only [`SPACES_BEFORE_WORD`] of these is allowed.
pub(super) fn check_patterns(json: &Value) -> Result<(), VocabularyError> {
    PATTERN_PARTS.into_iter().try_for_each(|part| check_patterns_in(part, &json[part]))
}

/// The only look-around that is allowed, and only as one of the pattern's alternatives: spaces up to the last one before a word, in
/// the patterns of GPT-2 and its successors. The engine gives back at most one character of the run, so the time stays linear.
const SPACES_BEFORE_WORD: &str = r"\s+(?!\S)";

/// Checks the patterns in `value`, which is at `key`. A pattern is an object with the key `Regex`.
fn check_patterns_in(key: &str, value: &Value) -> Result<(), VocabularyError> {
    match value {
        Value::Object(members) => members.iter().try_for_each(|(name, member)| {
            let key = format!("{key}.{name}");
            match member.as_str().filter(|_| name == "Regex") {
                Some(pattern) => check_pattern(&key, pattern),
                None => check_patterns_in(&key, member),
            }
        }),
        Value::Array(members) => members
            .iter()
            .enumerate()
            .try_for_each(|(index, member)| check_patterns_in(&format!("{key}[{index}]"), member)),
        _ => Ok(()),
    }
}

fn check_pattern(key: &str, pattern: &str) -> Result<(), VocabularyError> {
    if pattern.len() > PATTERN_BYTES {
        let expected = format!("a pattern of at most {PATTERN_BYTES} bytes");
        return Err(VocabularyError::new(key, expected, format!("{} bytes", pattern.len())));
    }
    // These crates accept only patterns that are matched in linear time; the tokenizer's engine passes these to `regex`.
    let is_easy = |pattern: &str| {
        let parsed = regex_syntax::parse(pattern).ok();
        parsed.is_some_and(|parsed| !parsed.properties().look_set().contains_word())
            && RegexBuilder::new(pattern).size_limit(COMPILED_BYTES).build().is_ok()
    };
    // The engine passes each of the other alternatives to the crate `regex` as a whole.
    let is_allowed = match pattern.split_once(SPACES_BEFORE_WORD) {
        Some((before, after)) => {
            let before = if before.is_empty() { Some(before) } else { before.strip_suffix('|') };
            let after = if after.is_empty() { Some(after) } else { after.strip_prefix('|') };
            before.is_some_and(is_easy) && after.is_some_and(is_easy)
        }
        None => is_easy(pattern),
    };
    if !is_allowed {
        let expected =
            "a small pattern without look-around, word boundaries, backreferences, and atomic or possessive groups";
        return Err(VocabularyError::new(key, expected, quoted(pattern)));
    }
    Ok(())
}

/// Checks the templates of a post-processor at `key`: the library panics if a special token is missing, or if the template for a
/// single text names a second text.
pub(super) fn check_templates(key: &str, processor: &Value) -> Result<(), VocabularyError> {
    if let Some(members) = processor["processors"].as_array() {
        return members
            .iter()
            .enumerate()
            .try_for_each(|(index, member)| check_templates(&format!("{key}.processors[{index}]"), member));
    }
    if processor["type"] != "TemplateProcessing" {
        return Ok(());
    }
    check_template(key, processor)?;
    let tokens = &processor["special_tokens"];
    for (id, token) in tokens.as_object().into_iter().flatten() {
        let length = |list: &str| token[list].as_array().map_or(0, Vec::len);
        if length("ids") != length("tokens") {
            let found = format!("{} and {} in {}", length("ids"), length("tokens"), quoted(id));
            return Err(VocabularyError::new(format!("{key}.special_tokens"), "as many ids as tokens", found));
        }
    }
    for list in ["single", "pair"] {
        for piece in processor[list].as_array().into_iter().flatten() {
            if let Some(id) = piece["SpecialToken"]["id"].as_str().filter(|id| tokens.get(id).is_none()) {
                return Err(VocabularyError::new(format!("{key}.{list}"), "tokens in special_tokens", quoted(id)));
            }
            if list == "single" && piece["Sequence"]["id"] == "B" {
                return Err(VocabularyError::new(format!("{key}.{list}"), "the sequence A", "\"B\""));
            }
        }
    }
    Ok(())
}

/// Checks that a `tokenizer.json` describes a tokenizer that encodes words one by one. The error names the first bad key.
pub(super) fn check_word_by_word(json: &Value) -> Result<(), VocabularyError> {
    let kind = |value: &Value| value["type"].as_str().unwrap_or("nothing").to_owned();
    let is_off = |value: &Value| *value == Value::Bool(false);
    let splits = |value: &Value| {
        SPLITS.contains(&kind(value).as_str()) && !is_off(&value["split"]) && !is_off(&value["use_regex"])
    };
    let pre = &json["pre_tokenizer"];
    let members = pre["pretokenizers"].as_array();
    // within a sequence only the first matters: the later ones receive one word at a time
    let first = members.and_then(|members| members.first()).unwrap_or(pre);
    if !splits(first) {
        let expected = format!("one of {} that splits", SPLITS.join(", "));
        return Err(VocabularyError::new("pre_tokenizer", expected, kind(first)));
    }
    check_dropout(json)?;
    check_added_tokens(&json["added_tokens"])?;
    check_normaliser(&json["normalizer"], &kind)
}

fn is_true(value: &Value) -> bool {
    *value == Value::Bool(true)
}

/// Checks that no added token depends on what is before the spaces with which it begins: the library finds such a token before it splits
/// the text, and the spaces before a word are encoded with it.
fn check_added_tokens(tokens: &Value) -> Result<(), VocabularyError> {
    for (index, token) in tokens.as_array().into_iter().flatten().enumerate() {
        let content = token["content"].as_str().unwrap_or_default();
        if is_true(&token["single_word"]) && content.starts_with(|c: char| c.is_whitespace() || c == SPACE_MARK) {
            let expected = "a token that begins with a space, or is a single word, but not both";
            return Err(VocabularyError::new(format!("added_tokens[{index}]"), expected, quoted(content)));
        }
    }
    Ok(())
}

/// Ends of a text after which an added token may reach over a space: tokens that take the spaces after them, and the beginnings of tokens
/// that contain spaces.
#[derive(Debug)]
struct UnsafeEnds {
    written: Vec<String>,
    /// The ends of a normalised text, with `▁` for each space.
    normal: Vec<String>,
}

fn unsafe_ends(tokens: &Value, user_defined: &[AddedToken], tokenizer: &Tokenizer) -> UnsafeEnds {
    let mut ends = UnsafeEnds { written: Vec::new(), normal: Vec::new() };
    for AddedToken { text, .. } in user_defined {
        let before = |space: char| text.match_indices(space).filter(|(at, _)| *at > 0).map(|(at, _)| &text[..at]);
        ends.written.extend(before(' ').map(str::to_owned));
        ends.normal.extend(before(SPACE_MARK).map(str::to_owned));
    }
    for token in tokens.as_array().into_iter().flatten() {
        let written = token["content"].as_str().unwrap_or_default();
        let id = tokenizer.token_to_id(written);
        let is_normal = is_true(&token["normalized"]);
        let normal = id.filter(|_| is_normal).and_then(|id| tokenizer.get_added_vocabulary().simple_id_to_token(id));
        let content = normal.as_deref().unwrap_or(written);
        let own = if is_normal { &mut ends.normal } else { &mut ends.written };
        let is_space = |c: char| c == ' ' || (is_normal && (c.is_whitespace() || c == SPACE_MARK));
        let inner = content.match_indices(is_space).map(|(space, _)| &content[..space]);
        own.extend(inner.filter(|before| !before.is_empty()).map(str::to_owned));
        if is_true(&token["rstrip"]) {
            own.push(content.to_owned());
        }
    }
    ends.normal.iter_mut().for_each(|end| *end = marked(end));
    ends
}

/// Returns a normalised text with `▁` for each space.
fn marked(text: &str) -> String {
    text.replace(' ', SPACE_MARK.encode_utf8(&mut [0; 4]))
}

/// Takes the added tokens that the library does not find. Fails if one has no text or id.
fn take_tokens(json: &mut Value, is_own: fn(&Value) -> bool) -> Result<Vec<AddedToken>, VocabularyError> {
    let Some(tokens) = json.pointer_mut("/added_tokens").and_then(Value::as_array_mut) else { return Ok(Vec::new()) };
    let own = |token: &Value| {
        let is = |flag: &str| is_true(&token[flag]);
        Some(AddedToken {
            id: token["id"].as_u64()?.try_into().ok()?,
            text: token["content"].as_str().filter(|text| !text.is_empty())?.to_owned(),
            special: is("special"),
            lstrip: is("lstrip"),
            rstrip: is("rstrip"),
            single_word: is("single_word"),
            begins_word: token[PYTHON_KEY] == BEGINS_WORD,
        })
    };
    let mut found = Vec::new();
    for (index, token) in tokens.iter().enumerate().filter(|(_, token)| is_own(token)) {
        let wrong = || VocabularyError::new(format!("added_tokens[{index}]"), "an id and a text", token.to_string());
        found.push(own(token).ok_or_else(wrong)?);
    }
    tokens.retain(|token| !is_own(token));
    Ok(found)
}

/// Removes the normaliser's steps that rewrite spaces, because [`SentencePieceSplitter`] does their work. Returns true if a `▁` in a text
/// counts as a space.
fn take_spaces(json: &mut Value) -> bool {
    let Some(steps) = json.pointer_mut("/normalizer/normalizers").and_then(Value::as_array_mut) else { return false };
    steps.retain(|step| step["type"] != "Strip" && step["pattern"]["Regex"] != SPACES);
    steps.iter().any(|step| step["pattern"]["String"].as_str().is_some_and(|text| text.starts_with(SPACE_MARK)))
}

pub(super) fn check_dropout(json: &Value) -> Result<(), VocabularyError> {
    match json["model"]["dropout"].as_f64().filter(|dropout| *dropout > 0.0) {
        Some(dropout) => Err(VocabularyError::new("model.dropout", "none", dropout.to_string())),
        None => Ok(()),
    }
}

fn check_normaliser(value: &Value, kind: &dyn Fn(&Value) -> String) -> Result<(), VocabularyError> {
    if value.is_null() {
        return Ok(());
    }
    if LOCAL.split(", ").all(|local| local != kind(value)) {
        return Err(VocabularyError::new("normalizer", format!("one of {LOCAL}"), kind(value)));
    }
    let refused = |expected: &str, found: &Value| Err(VocabularyError::new("normalizer", expected, found.to_string()));
    // a replacement may only touch one run of spaces at a time
    let pattern = &value["pattern"];
    let known = match (pattern["String"].as_str(), pattern["Regex"].as_str()) {
        (Some(text), _) => text == " " || !text.contains(' '),
        (_, Some(regex)) => regex == SPACES || regex == BLANK,
        (None, None) => true,
    };
    if !known {
        let expected = format!("replacement of a string without spaces, of one space, of \" {{2,}}\" or of {BLANK:?}");
        return refused(&expected, pattern);
    }
    // a word that is encoded by itself begins with the space before it, which stripping would remove
    if value["strip_left"] == Value::Bool(true) {
        return refused("no stripping on the left", value);
    }
    let members = value["normalizers"].as_array();
    members.into_iter().flatten().try_for_each(|member| check_normaliser(member, kind))
}

// Checks of what the tokenizers library has read.

/// Limit on the ids of a tokenizer's pieces. Tables have one entry for each id below the largest, also for ids without a piece.
pub(super) const MAX_IDS: usize = 1 << 22;

/// Returns the number of ids: one more than the largest.
pub(super) fn count_ids(tokenizer: &Tokenizer) -> usize {
    tokenizer.get_vocab(true).into_values().max().map_or(0, |largest| largest as usize + 1)
}

/// Checks that no id is so large that tables of all ids would take much memory.
pub(super) fn check_ids(tokenizer: &Tokenizer) -> Result<(), VocabularyError> {
    match count_ids(tokenizer) {
        count if count > MAX_IDS => {
            Err(VocabularyError::new("model.vocab", format!("ids below {MAX_IDS}"), (count - 1).to_string()))
        }
        _ => Ok(()),
    }
}

/// Checks that the library can decode each piece: some decoders panic on pieces that they do not expect.
pub(super) fn check_pieces(tokenizer: &Tokenizer, growth: Growth) -> Result<(), VocabularyError> {
    let mut pieces: Vec<_> = tokenizer.get_vocab(true).into_iter().collect();
    pieces.sort_unstable_by_key(|(_, id)| *id);
    pieces.into_iter().try_for_each(|(piece, id)| {
        let bytes = piece.len().saturating_mul(growth.decoder);
        if bytes > PIECE_BYTES {
            let expected = format!("at most {PIECE_BYTES} bytes for each piece");
            return Err(VocabularyError::new("decoder", expected, format!("{bytes} bytes, at {}", quoted(&piece))));
        }
        let decoded = library(|| tokenizer.decode(&[id], true));
        let found = |error| format!("{error}, at {}", quoted(&piece));
        decoded
            .map_err(|error| VocabularyError::new("decoder", "one that accepts every piece", found(error)))
            .map(|_| ())
    })
}

// Finds the special tokens of a `tokenizer.json`, and keeps text from being encoded as one.

/// Returns the ids that the tokenizer's post-processor puts before each text. Fails if the library cannot encode a letter.
pub(super) fn leading_ids(tokenizer: &Tokenizer) -> tokenizers::Result<Vec<u32>> {
    let ids = |specials: bool| tokenizer.encode("a", specials).map(|encoding| encoding.get_ids().to_vec());
    let (plain, all) = (ids(false)?, ids(true)?);
    let start = all.windows(plain.len().max(1)).position(|part| part == plain);
    Ok(all[..start.unwrap_or(0)].to_vec())
}

fn unknown_id(json: &Value, tokenizer: &Tokenizer) -> Option<u32> {
    let model = &json["model"];
    let id = model["unk_id"].as_u64().and_then(|id| u32::try_from(id).ok());
    id.or_else(|| tokenizer.token_to_id(model["unk_token"].as_str()?))
}

/// Returns the ids of the special tokens.
fn special_ids(tokenizer: &Tokenizer, python: &[AddedToken]) -> HashSet<u32> {
    let added = tokenizer.get_added_tokens_decoder();
    let special = added.into_iter().filter(|(_, token)| token.special).map(|(id, _)| id);
    special.chain(python.iter().filter(|token| token.special).map(|token| token.id)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_byte_has_one_character() {
        let spelled: HashSet<u8> = (0..0x200).filter_map(char::from_u32).filter_map(byte_of).collect();
        assert_eq!(spelled.len(), 256);
        assert_eq!(
            (byte_of('Ġ'), byte_of('Ċ'), byte_of('a'), byte_of('Ã')),
            (Some(b' '), Some(b'\n'), Some(b'a'), Some(0xc3))
        );
        assert_eq!((byte_of(' '), byte_of('語')), (None, None));
    }

    #[test]
    fn subwords_have_byte_offsets_in_the_original_text() {
        let subwords = SubwordTokenizer::parse(SMALL.as_bytes()).unwrap();
        assert_eq!(subwords.len(), 13);
        // the ligature is two characters once normalised
        let text = "ab abba  ﬁ b";
        let pieces = subwords.encode(text).unwrap();
        let ids: Vec<_> = pieces.iter().map(|piece| subwords.piece(piece.id).unwrap()).collect();
        assert_eq!(ids[..3], ["▁ab", "▁ab", "ba"]);
        assert_eq!((&text[pieces[2].start..pieces[2].end], &text[pieces[1].start..pieces[1].end]), ("ba", " ab"));
        let unknown = pieces.iter().find(|piece| piece.id == 3).unwrap();
        assert!(text[unknown.start..unknown.end].contains('ﬁ'));
        assert!(pieces.windows(2).all(|pair| pair[0].end <= pair[1].start || pair[0].start == pair[1].start));
        assert_eq!(subwords.decode(&[7, 7, 8, 2, 1, 99]), "ab abba");
    }

    #[test]
    fn special_tokens_are_never_encoded_from_text() {
        let subwords = SubwordTokenizer::parse(SMALL.as_bytes()).unwrap();
        for text in ["</s>", "a</s> <pad>b", "<s>", "<unk>"] {
            let pieces = subwords.encode(text).unwrap();
            assert!(!pieces.is_empty() && pieces.iter().all(|piece| piece.id >= 3), "{text}: {pieces:?}");
        }
        assert_eq!(subwords.encode("").unwrap(), []);
    }

    /// Parses the small tokenizer with other values at some keys.
    fn changed<const N: usize>(changes: [(&str, Value); N]) -> Result<SubwordTokenizer, VocabularyError> {
        let mut file: Value = serde_json::from_str(SMALL).unwrap();
        for (key, value) in changes {
            file[key] = value;
        }
        SubwordTokenizer::parse_for_prompts(file.to_string().as_bytes())
    }

    #[test]
    fn a_continuation_keeps_the_space_before_its_first_word() {
        let subwords = changed([]).unwrap();
        let mut state = subwords.continuation();
        let mut text = String::new();
        subwords.decode_next(&mut state, 7, &mut text);
        assert_eq!(text, " ab");
        subwords.decode_rest(&mut state, &mut text);
        assert_eq!(text, " ab");
        assert!(subwords.leading().is_empty());
        let template = json!({ "type": "TemplateProcessing", "pair": [],
            "single": [{ "SpecialToken": { "id": "<s>", "type_id": 0 } }, { "Sequence": { "id": "A", "type_id": 0 } },
                { "SpecialToken": { "id": "</s>", "type_id": 0 } }],
            "special_tokens": { "<s>": { "id": "<s>", "ids": [0], "tokens": ["<s>"] },
                "</s>": { "id": "</s>", "ids": [2], "tokens": ["</s>"] } } });
        assert_eq!(changed([("post_processor", template)]).unwrap().leading(), [0]);
    }

    /// The library panics at the first text instead.
    #[test]
    fn templates_without_their_tokens_are_rejected() {
        let token = json!({ "SpecialToken": { "id": "<s>", "type_id": 0 } });
        let second = json!({ "Sequence": { "id": "B", "type_id": 0 } });
        let listed = json!({ "<s>": { "id": "<s>", "ids": [0], "tokens": ["<s>"] } });
        let uneven = json!({ "<s>": { "id": "<s>", "ids": [0, 0], "tokens": ["<s>"] } });
        let unlisted = json!({});
        for (single, tokens, key) in [
            (&token, &unlisted, "post_processor.processors[0].single"),
            (&json!({ "SpecialToken": ["<s>", 0] }), &unlisted, "post_processor.processors[0].single"),
            (&second, &listed, "post_processor.processors[0].single"),
            (&token, &uneven, "post_processor.processors[0].special_tokens"),
        ] {
            let template =
                json!({ "type": "TemplateProcessing", "pair": [], "single": [single], "special_tokens": tokens });
            let sequence = json!({ "type": "Sequence", "processors": [template] });
            let error = changed([("post_processor", sequence)]).unwrap_err();
            assert_eq!(error.key, key, "{error}");
        }
    }

    /// The library panics on a piece that is shorter than what it strips.
    #[test]
    fn decoders_that_panic_on_a_piece_are_rejected() {
        let decoder = json!({ "type": "Strip", "content": "a", "start": 0, "stop": 2 });
        let error = changed([("decoder", decoder)]).unwrap_err();
        let panicked = error.found.starts_with("a panic of the tokenizers library");
        assert!(error.key == "decoder" && panicked && error.found.ends_with("at \"a\""), "{error}");
    }

    #[test]
    fn ids_have_a_limit() {
        let parse = |id: usize| {
            let decoder =
                json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true });
            let model = json!({ "type": "WordLevel", "vocab": { "a": 0, "b": id }, "unk_token": "a" });
            changed([("model", model), ("added_tokens", json!([])), ("decoder", decoder)])
        };
        assert_eq!(parse(MAX_IDS - 1).unwrap().len(), MAX_IDS);
        let error = parse(MAX_IDS).unwrap_err();
        assert_eq!((error.key.as_str(), error.found), ("model.vocab", MAX_IDS.to_string()));
    }

    #[test]
    fn a_file_that_is_not_a_tokenizer_is_rejected() {
        for (json, expected) in [
            ("", "valid JSON, found a syntax error (EOF"),
            ("\u{0}", "valid JSON, found a syntax error ("),
            ("{}", "a tokenizer in Hugging Face's format, found one that"),
            ("[1]", "a tokenizer in Hugging Face's format, found one that"),
        ] {
            let error = SubwordTokenizer::parse(json.as_bytes()).unwrap_err();
            assert!(error.to_string().starts_with(&format!("the file: expected {expected}")), "{error}");
        }
        assert!(SubwordTokenizer::parse(&[0xff]).is_err());
    }

    /// Returns a small tokenizer that also splits words at `pattern`.
    fn splitting_at(pattern: &str) -> String {
        let mut tokenizer: Value = serde_json::from_str(SMALL).unwrap();
        let split =
            json!({ "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Isolated", "invert": false });
        let first = tokenizer["pre_tokenizer"].take();
        tokenizer["pre_tokenizer"] = json!({ "type": "Sequence", "pretokenizers": [first, split] });
        tokenizer.to_string()
    }

    #[test]
    fn patterns_that_backtrack_are_rejected() {
        let long = "a".repeat(2000);
        let gpt2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
        assert!(SubwordTokenizer::parse(splitting_at(gpt2).as_bytes()).is_ok());
        let near_gpt2 =
            [r"(a|a)+(a|a)+$b\s+(?!\S)", r"(?:(a|a)+|\s+(?!\S))+$b", r"a|\s+(?!\S)|\s+(?!\S)", r"\|\s+(?!\S)"];
        let others = [r"(?=(a+)+$)b", r"(a|a)+\b(a|a)+$b", r"(a|aa)+\1", r"(?>a+)b", r"(?:(?:a{99}){99}){99}", &long];
        for pattern in near_gpt2.into_iter().chain(others) {
            let error = SubwordTokenizer::parse(splitting_at(pattern).as_bytes()).unwrap_err();
            assert_eq!(error.key, "pre_tokenizer.pretokenizers[1].pattern.Regex", "{pattern}: {error}");
        }
    }

    /// Backtracking would take 2^60 steps for each word.
    #[test]
    fn allowed_patterns_are_matched_in_linear_time() {
        let tokenizer = SubwordTokenizer::parse(splitting_at(r"(a|a)+(a|a)+$b|\p{P}").as_bytes()).unwrap();
        let text = format!("{} ", "a".repeat(60)).repeat(1000);
        assert!(tokenizer.encode(&text).unwrap().len() > 1000);
    }
}
