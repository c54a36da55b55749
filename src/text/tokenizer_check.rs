//! Checks that a tokenizer encodes each word independently of the others.
//!
//! [`StreamTokenizer`](super::StreamTokenizer) encodes a text word by word while it still arrives. That is only correct if
//! the pre-tokenizer splits before or at every space, the merges are not random (no dropout), and the normaliser rewrites
//! characters in place.

use super::VocabularyError;
use serde_json::Value;

/// Regular expression for whitespace other than the space, as Python defines it.
pub const BLANK: &str = r"[\x1c-\x1f]|[^\S ]";

/// Pre-tokenizers that split at every space, by their `type`.
const SPLITS: [&str; 4] = ["Metaspace", "WhitespaceSplit", "Whitespace", "BertPreTokenizer"];
/// Normalisers that rewrite characters in place, by their `type`.
const LOCAL: &str =
    "NFC, NFD, NFKC, NFKD, Nmt, Precompiled, Lowercase, Strip, StripAccents, Replace, BertNormalizer, Sequence";

/// Checks that a `tokenizer.json` describes a tokenizer that encodes words one by one. The error names the first key
/// whose value makes the encoding of one word depend on another.
pub(super) fn check_word_by_word(json: &Value) -> Result<(), VocabularyError> {
    let kind = |value: &Value| value["type"].as_str().unwrap_or("nothing").to_owned();
    let splits = |value: &Value| SPLITS.contains(&kind(value).as_str()) && value["split"] != Value::Bool(false);
    let pre = &json["pre_tokenizer"];
    let members = pre["pretokenizers"].as_array();
    // within a sequence only the first matters: the later ones receive one word at a time
    let first = members.and_then(|members| members.first()).unwrap_or(pre);
    if !splits(first) {
        let expected = format!("one of {} that splits", SPLITS.join(", "));
        return Err(VocabularyError::new("pre_tokenizer", expected, kind(first)));
    }
    if let Some(dropout) = json["model"]["dropout"].as_f64().filter(|dropout| *dropout > 0.0) {
        return Err(VocabularyError::new("model.dropout", "none", dropout.to_string()));
    }
    check_normaliser(&json["normalizer"], &kind)
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
        (_, Some(regex)) => regex == " {2,}" || regex == BLANK,
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
