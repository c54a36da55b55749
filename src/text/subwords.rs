//! Subword tokenizers: what Hugging Face's `tokenizer.json` describes, by the library that defines it.
//!
//! Text that spells out one of the tokenizer's own marks is text: marks are never encoded from it. Only tokenizers that look at
//! each word by itself are taken.

use super::{VocabularyError, words::check_words};
use serde_json::Value;
use std::collections::HashSet;
use tokenizers::{Tokenizer, step_decode_stream};

/// The name of the file in a checkpoint.
pub const TOKENIZER_FILE: &str = "tokenizer.json";
/// The largest such file.
pub const MAX_TOKENIZER_BYTES: u64 = 64 << 20;

/// Whitespace other than the space, as Python counts it.
pub const BLANK: &str = r"[\x1c-\x1f]|[^\S ]";

/// A tokenizer.
pub struct Subwords {
    tokenizer: Tokenizer,
    /// Its marks, but for the unknown one.
    marks: HashSet<u32>,
    /// The mark for what it has no piece for.
    unknown: Option<u32>,
    /// The file it was read from.
    json: String,
}

/// One subword of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subword {
    /// Its id.
    pub id: u32,
    /// Its first byte in the text.
    pub start: usize,
    /// One past its last.
    pub end: usize,
}

/// What a stream of pieces has told so far, in the words of the library.
#[derive(Debug, Clone, Default)]
pub(super) struct Spelling {
    /// Bytes of which the next piece decides whether they are a character, and marks among them.
    bytes: Vec<u32>,
    ids: Vec<u32>,
    prefix: String,
    index: usize,
}

impl std::fmt::Debug for Subwords {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Subwords").field("pieces", &self.len()).finish_non_exhaustive()
    }
}

impl Subwords {
    /// Reads a `tokenizer.json`.
    ///
    /// # Errors
    /// What the library cannot make a tokenizer of; one that looks beyond words, by the file's own key.
    pub fn parse(json: &[u8]) -> Result<Self, VocabularyError> {
        let wrong = |found: String| VocabularyError {
            key: "the file".into(),
            expected: "a tokenizer of Hugging Face's format".into(),
            found,
        };
        let json = std::str::from_utf8(json).map_err(|error| wrong(error.to_string()))?.to_owned();
        let mut value: Value = serde_json::from_str(&json).map_err(|error| wrong(error.to_string()))?;
        let tokenizer: Result<Tokenizer, _> = json.parse();
        let tokenizer = tokenizer.map_err(|error| wrong(error.to_string()))?;
        check_words(&value)?;
        let unknown = unknown(&value, &tokenizer);
        let added = tokenizer.get_added_tokens_decoder();
        let special = added.into_iter().filter(|(_, token)| token.special).map(|(id, _)| id);
        let marks: HashSet<u32> = special.filter(|&id| Some(id) != unknown).collect();
        hide_marks(&mut value, &marks, unknown);
        let tokenizer: Result<Tokenizer, _> = value.to_string().parse();
        let mut tokenizer = tokenizer.map_err(|error| wrong(error.to_string()))?;
        // a document is taken whole, and a text that spells out a mark is text
        tokenizer.with_padding(None).set_encode_special_tokens(true);
        tokenizer.with_truncation(None).map_err(|error| wrong(error.to_string()))?;
        Ok(Self { tokenizer, marks, unknown, json })
    }

    /// Ids: one more than the largest.
    pub fn len(&self) -> usize {
        self.tokenizer.get_vocab(true).into_values().max().map_or(0, |most| most as usize + 1)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The file it was read from.
    pub fn json(&self) -> &str {
        &self.json
    }

    /// A text's subwords.
    ///
    /// # Errors
    /// What the library says where a text cannot be cut: a tokenizer without a piece for what it does not know.
    pub fn encode(&self, text: &str) -> Result<Vec<Subword>, String> {
        let encoding = self.tokenizer.encode(text, false).map_err(|error| error.to_string())?;
        let pieces = encoding.get_ids().iter().zip(encoding.get_offsets());
        let spelt = |id: u32| match (self.marks.contains(&id), self.unknown) {
            (false, _) => Ok(id),
            (true, Some(unknown)) => Ok(unknown),
            (true, None) => Err("a mark, which is no text,".to_owned()),
        };
        pieces.map(|(&id, &(start, end))| Ok(Subword { id: spelt(id)?, start, end })).collect()
    }

    /// The text of ids; marks, and ids that are none, have none.
    pub fn decode(&self, ids: &[u32]) -> String {
        // it fails only for decoders that are given what no tokenizer makes
        self.tokenizer.decode(ids, true).unwrap_or_default()
    }

    /// The text that one more piece completes.
    pub(super) fn spell(&self, so_far: &mut Spelling, id: u32) -> String {
        let Spelling { bytes, ids, prefix, index } = so_far;
        bytes.push(id);
        // what bytes spell is known when their run has ended, which marks between them do not end
        let is_byte = |piece: String| piece.len() == "<0x00>".len() && piece.starts_with("<0x");
        if self.marks.contains(&id) || self.unknown == Some(id) || self.piece(id).is_none_or(is_byte) {
            return String::new();
        }
        let told = step_decode_stream(&self.tokenizer, std::mem::take(bytes), true, ids, prefix, index);
        // a decoder that takes back what it has said leaves the rest to the end
        told.ok().flatten().unwrap_or_default()
    }

    /// What was held back at the end, which may be an unfinished code point.
    pub(super) fn rest(&self, so_far: &mut Spelling) -> String {
        let Spelling { bytes, mut ids, prefix, .. } = std::mem::take(so_far);
        ids.extend(bytes);
        let whole = self.decode(&ids);
        let common = whole.chars().zip(prefix.chars()).take_while(|(own, told)| own == told);
        let told: usize = common.map(|(own, _)| own.len_utf8()).sum();
        whole.get(told..).unwrap_or_default().to_owned()
    }

    /// The piece of an id as the file spells it.
    pub fn piece(&self, id: u32) -> Option<String> {
        self.tokenizer.id_to_token(id)
    }

    /// The id of a piece as the file spells it.
    pub fn id_of(&self, piece: &str) -> Option<u32> {
        self.tokenizer.token_to_id(piece)
    }
}

/// Words of a few characters, a unigram model of them.
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
/// The mark for what a tokenizer has no piece for.
fn unknown(json: &Value, tokenizer: &Tokenizer) -> Option<u32> {
    let model = &json["model"];
    let id = model["unk_id"].as_u64().and_then(|id| u32::try_from(id).ok());
    id.or_else(|| tokenizer.token_to_id(model["unk_token"].as_str()?))
}

/// Makes marks so improbable, where pieces have probabilities, that a text that spells one out is cut otherwise.
fn hide_marks(json: &mut Value, marks: &HashSet<u32>, unknown: Option<u32>) {
    const HIDDEN: f64 = 1000.0;
    let Some(vocabulary) = json["model"]["vocab"].as_array_mut() else { return };
    let is_mark = |id: u32| marks.contains(&id) || Some(id) == unknown;
    let scores = (0_u32..).zip(&*vocabulary).filter(|(id, _)| !is_mark(*id)).filter_map(|(_, piece)| piece[1].as_f64());
    let least = scores.fold(0.0, f64::min);
    let hidden = (0_u32..).zip(vocabulary).filter(|(id, piece)| is_mark(*id) && piece[1].is_number());
    hidden.for_each(|(_, piece)| piece[1] = Value::from(least - HIDDEN));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_have_their_places_in_the_text_as_given() {
        let subwords = Subwords::parse(SMALL.as_bytes()).unwrap();
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
    fn marks_are_never_encoded_from_text() {
        let subwords = Subwords::parse(SMALL.as_bytes()).unwrap();
        for text in ["</s>", "a</s> <pad>b", "<s>", "<unk>"] {
            let pieces = subwords.encode(text).unwrap();
            assert!(!pieces.is_empty() && pieces.iter().all(|piece| piece.id >= 3), "{text}: {pieces:?}");
        }
        assert_eq!(subwords.encode("").unwrap(), []);
    }

    #[test]
    fn what_is_no_tokenizer_is_told() {
        for json in ["", "{}", "[1]", "\u{0}"] {
            let error = Subwords::parse(json.as_bytes()).unwrap_err();
            assert!(error.to_string().starts_with("the file: expected a tokenizer of"), "{error}");
        }
        assert!(Subwords::parse(&[0xff]).is_err());
    }
}
