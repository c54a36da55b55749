//! Subword tokenizers read from Hugging Face's `tokenizer.json`, by the library that defines the format.
//!
//! Special tokens are never encoded from text: a text that spells out `</s>` stays text. A document is encoded while it arrives,
//! so its tokenizer must encode each word independently. A prompt is encoded as a whole, by any tokenizer.

use super::{
    VocabularyError,
    byte_pieces::BytePieces,
    tokenizer_check::{check_dropout, check_patterns, check_templates, check_word_by_word},
    tokenizer_library::{check_ids, check_pieces, count_ids, library},
    tokenizer_specials::{leading_ids, lower_special_scores, special_ids, unknown_id},
};
use serde_json::Value;
use std::collections::HashSet;
use tokenizers::{Tokenizer, step_decode_stream};

/// Name of the tokenizer's file in a checkpoint.
pub const TOKENIZER_FILE: &str = "tokenizer.json";
/// Maximum size of that file, in bytes.
pub const MAX_TOKENIZER_BYTES: u64 = 64 << 20;

/// A subword tokenizer.
pub struct SubwordTokenizer {
    tokenizer: Tokenizer,
    /// Ids of special tokens, without `unknown`.
    specials: HashSet<u32>,
    /// Id that replaces text for which the tokenizer has no piece.
    unknown: Option<u32>,
    /// Contents of the file.
    json: String,
    /// The bytes of each piece, if the tokenizer's decoder maps pieces to bytes.
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
    /// Byte pieces whose text depends on the next piece, and special tokens among them.
    bytes: Vec<u32>,
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
    /// Parses the `tokenizer.json` of a model that reads documents. Fails if the library rejects the file, the tokenizer does not
    /// encode words independently, or a regular expression may take more than linear time.
    pub fn parse(json: &[u8]) -> Result<Self, VocabularyError> {
        Self::parse_checked(json, check_word_by_word)
    }

    /// Parses the `tokenizer.json` of a model that continues prompts. Fails if the library rejects the file, the merges are random
    /// (dropout), or a regular expression may take more than linear time.
    pub fn parse_for_prompts(json: &[u8]) -> Result<Self, VocabularyError> {
        Self::parse_checked(json, check_dropout)
    }

    fn parse_checked(json: &[u8], check: fn(&Value) -> Result<(), VocabularyError>) -> Result<Self, VocabularyError> {
        let invalid = |error: &dyn std::fmt::Display| {
            let found = format!("one that the tokenizers library cannot read ({error})");
            VocabularyError::new("the file", "a tokenizer in Hugging Face's format", found)
        };
        let json = std::str::from_utf8(json).map_err(|error| invalid(&error))?.to_owned();
        let mut value: Value = serde_json::from_str(&json)
            .map_err(|error| VocabularyError::new("the file", "valid JSON", format!("a syntax error ({error})")))?;
        // Before the library compiles them.
        check_patterns(&value)?;
        let tokenizer: Tokenizer = library(|| json.parse()).map_err(|error| invalid(&error))?;
        let processor = serde_json::to_value(tokenizer.get_post_processor()).map_err(|error| invalid(&error))?;
        check_templates("post_processor", &processor)?;
        check(&value)?;
        let unknown = unknown_id(&value, &tokenizer);
        let specials = special_ids(&tokenizer, unknown);
        lower_special_scores(&mut value, &specials, unknown);
        let mut tokenizer: Tokenizer = library(|| value.to_string().parse()).map_err(|error| invalid(&error))?;
        // documents are not truncated, and text that spells out a special token stays text
        tokenizer.with_padding(None).set_encode_special_tokens(true);
        tokenizer.with_truncation(None).map_err(|error| invalid(&error))?;
        check_ids(&tokenizer)?;
        check_pieces(&tokenizer)?;
        let leading = library(|| leading_ids(&tokenizer)).map_err(|error| invalid(&error))?;
        let byte_pieces = BytePieces::read(&value["decoder"], &tokenizer, &specials);
        let mut parsed =
            Self { tokenizer, specials, unknown, json, byte_pieces, leading, continuation: DecodeState::default() };
        parsed.continuation = parsed.after_text();
        Ok(parsed)
    }

    /// Returns the state after the first piece that is plain text. Without such a piece, the state of an empty text.
    fn after_text(&self) -> DecodeState {
        let is_text = |id: &u32| !self.specials.contains(id) && self.unknown != Some(*id);
        let plain = ('a'..='z').filter_map(|letter| self.id_of(letter.encode_utf8(&mut [0; 4])));
        for id in plain.filter(is_text) {
            let mut state = DecodeState::default();
            if !self.decode_next(&mut state, id).is_empty() {
                return state;
            }
        }
        DecodeState::default()
    }

    /// Returns the ids that the file puts before each text, such as a start mark.
    pub fn leading(&self) -> &[u32] {
        &self.leading
    }

    /// Returns the bytes of each piece, if the tokenizer's decoder maps pieces to bytes.
    pub(super) fn byte_pieces(&self) -> Option<&BytePieces> {
        self.byte_pieces.as_ref()
    }

    /// Returns the state from which a text that continues another one is decoded: a space before its first word stays.
    pub(super) fn continuation(&self) -> DecodeState {
        self.continuation.clone()
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

    /// Encodes a text. Fails with the library's message if the tokenizer has neither a piece nor an unknown token for a
    /// part of `text`.
    pub fn encode(&self, text: &str) -> Result<Vec<Subword>, String> {
        let encoding = library(|| self.tokenizer.encode(text, false))?;
        let pieces = encoding.get_ids().iter().zip(encoding.get_offsets());
        let text_id = |id: u32| match (self.specials.contains(&id), self.unknown) {
            (false, _) => Ok(id),
            (true, Some(unknown)) => Ok(unknown),
            (true, None) => Err("a special token, which is not text,".to_owned()),
        };
        pieces.map(|(&id, &(start, end))| Ok(Subword { id: text_id(id)?, start, end })).collect()
    }

    /// Decodes ids. Special tokens and unknown ids have no text.
    pub fn decode(&self, ids: &[u32]) -> String {
        // `check_pieces` has decoded each piece alone
        library(|| self.tokenizer.decode(ids, true)).unwrap_or_default()
    }

    /// Decodes the ids of a text that continues another one. The text begins anew after the last id of `start`.
    pub(super) fn decode_continuation(&self, ids: &[u32], start: &[u32]) -> String {
        if let Some(pieces) = &self.byte_pieces {
            let bytes: Vec<u8> = ids.iter().flat_map(|&id| pieces.get(id)).copied().collect();
            return String::from_utf8_lossy(&bytes).into_owned();
        }
        let mut state = self.continuation();
        let mut text = String::new();
        for &id in ids {
            text += &match start.last() == Some(&id) {
                true => self.decode_rest(&mut state),
                false => self.decode_next(&mut state, id),
            };
        }
        text + &self.decode_rest(&mut state)
    }

    /// Decodes one more id and returns the text that it completes.
    pub(super) fn decode_next(&self, state: &mut DecodeState, id: u32) -> String {
        let DecodeState { bytes, ids, prefix, index } = state;
        bytes.push(id);
        // the text of byte pieces is known when their run has ended; special tokens do not end it
        let is_byte = |piece: String| piece.len() == "<0x00>".len() && piece.starts_with("<0x");
        if self.specials.contains(&id) || self.unknown == Some(id) || self.piece(id).is_none_or(is_byte) {
            return String::new();
        }
        let new = std::mem::take(bytes);
        let decoded = library(|| step_decode_stream(&self.tokenizer, new, true, ids, prefix, index));
        // if a decoder changes earlier text, `decode_rest` returns the remainder
        decoded.ok().flatten().unwrap_or_default()
    }

    /// Returns the text that was held back, which may be an unfinished code point, and resets `state`.
    pub(super) fn decode_rest(&self, state: &mut DecodeState) -> String {
        let DecodeState { bytes, mut ids, prefix, .. } = std::mem::take(state);
        ids.extend(bytes);
        let decoded = self.decode(&ids);
        let common = decoded.chars().zip(prefix.chars()).take_while(|(decoded, returned)| decoded == returned);
        let returned: usize = common.map(|(decoded, _)| decoded.len_utf8()).sum();
        decoded.get(returned..).unwrap_or_default().to_owned()
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

#[cfg(test)]
mod tests {
    use super::{super::tokenizer_library::MAX_IDS, *};
    use serde_json::json;

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

    #[test]
    fn a_continuation_keeps_the_space_before_its_first_word() {
        let subwords = SubwordTokenizer::parse_for_prompts(SMALL.as_bytes()).unwrap();
        let mut state = subwords.continuation();
        assert_eq!((subwords.decode_next(&mut state, 7), subwords.decode_rest(&mut state)), (" ab".into(), "".into()));
        assert!(subwords.leading().is_empty());
        let mut file: Value = serde_json::from_str(SMALL).unwrap();
        file["post_processor"] = json!({ "type": "TemplateProcessing", "pair": [],
            "single": [{ "SpecialToken": { "id": "<s>", "type_id": 0 } }, { "Sequence": { "id": "A", "type_id": 0 } },
                { "SpecialToken": { "id": "</s>", "type_id": 0 } }],
            "special_tokens": { "<s>": { "id": "<s>", "ids": [0], "tokens": ["<s>"] },
                "</s>": { "id": "</s>", "ids": [2], "tokens": ["</s>"] } } });
        assert_eq!(SubwordTokenizer::parse_for_prompts(file.to_string().as_bytes()).unwrap().leading(), [0]);
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
            let mut file: Value = serde_json::from_str(SMALL).unwrap();
            let template =
                json!({ "type": "TemplateProcessing", "pair": [], "single": [single], "special_tokens": tokens });
            file["post_processor"] = json!({ "type": "Sequence", "processors": [template] });
            let error = SubwordTokenizer::parse_for_prompts(file.to_string().as_bytes()).unwrap_err();
            assert_eq!(error.key, key, "{error}");
        }
    }

    /// The library panics on a piece that is shorter than what it strips.
    #[test]
    fn decoders_that_panic_on_a_piece_are_rejected() {
        let mut file: Value = serde_json::from_str(SMALL).unwrap();
        file["decoder"] = json!({ "type": "Strip", "content": "a", "start": 0, "stop": 2 });
        let error = SubwordTokenizer::parse_for_prompts(file.to_string().as_bytes()).unwrap_err();
        assert_eq!(error.key, "decoder", "{error}");
        assert!(error.to_string().ends_with("at \"a\""), "{error}");
    }

    #[test]
    fn a_panic_of_the_library_is_an_error() {
        let error = library(|| -> tokenizers::Result<()> { panic!("no") }).unwrap_err();
        assert!(error.contains("a panic of the tokenizers library"), "{error}");
    }

    #[test]
    fn ids_have_a_limit() {
        let parse = |id: usize| {
            let mut file: Value = serde_json::from_str(SMALL).unwrap();
            file["model"] = json!({ "type": "WordLevel", "vocab": { "a": 0, "b": id }, "unk_token": "a" });
            file["added_tokens"] = json!([]);
            file["decoder"] =
                json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true });
            SubwordTokenizer::parse_for_prompts(file.to_string().as_bytes())
        };
        assert_eq!(parse(MAX_IDS - 1).unwrap().len(), MAX_IDS);
        let message = parse(MAX_IDS).unwrap_err().to_string();
        assert_eq!(message, "model.vocab: expected ids below 4194304, found 4194304");
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
        for pattern in
            [r"(a|a)+(a|a)+$b\s+(?!\S)", r"(?:(a|a)+|\s+(?!\S))+$b", r"a|\s+(?!\S)|\s+(?!\S)", r"\|\s+(?!\S)"]
        {
            assert!(SubwordTokenizer::parse(splitting_at(pattern).as_bytes()).is_err(), "{pattern}");
        }
        for pattern in [r"(?=(a+)+$)b", r"(a|a)+\b(a|a)+$b", r"(a|aa)+\1", r"(?>a+)b", r"(?:(?:a{99}){99}){99}", &long]
        {
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
