//! Subword tokenizers: what Hugging Face's `tokenizer.json` describes, by the library that defines it.
//!
//! Marks are never encoded from text: one that spells a mark out has the unknown piece there, or other pieces.

use super::VocabularyError;
use tokenizers::Tokenizer;

/// The name of the file in a checkpoint.
pub const TOKENIZER_FILE: &str = "tokenizer.json";
/// The largest such file.
pub const MAX_TOKENIZER_BYTES: u64 = 64 << 20;

/// What tokenizers call what they do not know.
const UNKNOWN: &str = "<unk>";

/// A tokenizer.
pub struct Subwords {
    tokenizer: Tokenizer,
    /// The file it was read from.
    json: String,
    /// Ids of marks, in order.
    marks: Vec<u32>,
    /// The id of what it does not know, where it has one.
    unknown: Option<u32>,
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

impl std::fmt::Debug for Subwords {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Subwords").field("pieces", &self.len()).finish_non_exhaustive()
    }
}

impl Subwords {
    /// Reads a `tokenizer.json`.
    ///
    /// # Errors
    /// What the library cannot make a tokenizer of.
    pub fn parse(json: &[u8]) -> Result<Self, VocabularyError> {
        let wrong = |found: String| VocabularyError {
            key: "the file".into(),
            expected: "a tokenizer of Hugging Face's format".into(),
            found,
        };
        let json = std::str::from_utf8(json).map_err(|error| wrong(error.to_string()))?.to_owned();
        let mut tokenizer: Tokenizer = json.parse().map_err(|error: tokenizers::Error| wrong(error.to_string()))?;
        // a document is taken whole
        tokenizer.with_padding(None).set_encode_special_tokens(true);
        tokenizer.with_truncation(None).map_err(|error| wrong(error.to_string()))?;
        let special = |(id, token): (u32, tokenizers::AddedToken)| token.special.then_some(id);
        let mut marks: Vec<u32> = tokenizer.get_added_tokens_decoder().into_iter().filter_map(special).collect();
        marks.sort_unstable();
        let unknown = tokenizer.token_to_id(UNKNOWN);
        Ok(Self { tokenizer, json, marks, unknown })
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
        // a model's list of pieces may hold its marks as well
        let text = |id: u32| self.unknown.filter(|_| self.marks.binary_search(&id).is_ok()).unwrap_or(id);
        Ok(pieces.map(|(&id, &(start, end))| Subword { id: text(id), start, end }).collect())
    }

    /// The text of ids; marks, and ids that are none, have none.
    pub fn decode(&self, ids: &[u32]) -> String {
        // it fails only for decoders that are given what no tokenizer makes
        self.tokenizer.decode(ids, true).unwrap_or_default()
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
