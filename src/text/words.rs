//! Which tokenizers look at each word by itself, so that a text may be cut between words while it still arrives
//! ([`reading`](super::reading)): those whose pre-tokenizer splits before or at every space, whose merges are not drawn by lot,
//! and whose normaliser rewrites characters where they stand.

use super::{VocabularyError, subwords::BLANK};
use serde_json::Value;

/// Pre-tokenizers that split at every space, by their `type`.
const SPLITS: [&str; 4] = ["Metaspace", "WhitespaceSplit", "Whitespace", "BertPreTokenizer"];
/// Normalisers that rewrite characters where they stand, by their `type`.
const LOCAL: [&str; 12] = [
    "NFC",
    "NFD",
    "NFKC",
    "NFKD",
    "Nmt",
    "Precompiled",
    "Lowercase",
    "Strip",
    "StripAccents",
    "Replace",
    "BertNormalizer",
    "Sequence",
];

fn wrong(key: &str, expected: impl Into<String>, found: impl Into<String>) -> VocabularyError {
    VocabularyError { key: key.into(), expected: expected.into(), found: found.into() }
}

/// Whether words are looked at one by one.
pub(super) fn check_words(json: &Value) -> Result<(), VocabularyError> {
    let kind = |value: &Value| value["type"].as_str().unwrap_or("nothing").to_owned();
    let splits = |value: &Value| {
        let whole = value["split"] == Value::Bool(false);
        SPLITS.contains(&kind(value).as_str()) && !whole
    };
    let pre = &json["pre_tokenizer"];
    let members = pre["pretokenizers"].as_array();
    // within a sequence the first decides: what comes after it sees one word at a time
    let first = members.and_then(|members| members.first()).unwrap_or(pre);
    if !splits(first) {
        let expected = format!("one of {} that splits", SPLITS.join(", "));
        return Err(wrong("pre_tokenizer", expected, kind(first)));
    }
    if let Some(dropout) = json["model"]["dropout"].as_f64().filter(|dropout| *dropout > 0.0) {
        return Err(wrong("model.dropout", "none", dropout.to_string()));
    }
    check_normaliser(&json["normalizer"], &kind)
}

fn check_normaliser(value: &Value, kind: &dyn Fn(&Value) -> String) -> Result<(), VocabularyError> {
    if value.is_null() {
        return Ok(());
    }
    if !LOCAL.contains(&kind(value).as_str()) {
        return Err(wrong("normalizer", format!("one of {}", LOCAL.join(", ")), kind(value)));
    }
    let refused = |expected: &str, found: &Value| Err(wrong("normalizer", expected, found.to_string()));
    // spaces are looked at one run at a time
    let pattern = &value["pattern"];
    let known = match (pattern["String"].as_str(), pattern["Regex"].as_str()) {
        (Some(text), _) => text == " " || !text.contains(' '),
        (_, Some(regex)) => regex == " {2,}" || regex == BLANK,
        (None, None) => true,
    };
    if !known {
        return refused(
            &format!("replacement of a string without spaces, of one space, of \" {{2,}}\" or of {BLANK:?}"),
            pattern,
        );
    }
    // the beginning of what is cut off is a space that counts
    if value["strip_left"] == Value::Bool(true) {
        return refused("no stripping on the left", value);
    }
    let members = value["normalizers"].as_array();
    members.into_iter().flatten().try_for_each(|member| check_normaliser(member, kind))
}
