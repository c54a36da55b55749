//! Checks that a tokenizer encodes each word independently of the others, and that its patterns are matched in linear time.
//!
//! [`StreamTokenizer`](super::StreamTokenizer) encodes a text word by word while it still arrives. That is only correct if
//! the pre-tokenizer splits before or at every space, the merges are not random (no dropout), the normaliser rewrites
//! characters in place, and no added token reaches over a space.

use super::VocabularyError;
use crate::error::quoted;
use regex::RegexBuilder;
use serde_json::Value;

/// Regular expression for whitespace other than the space, as Python defines it.
pub const BLANK: &str = r"[\x1c-\x1f]|[^\S ]";

/// Pre-tokenizers that split at every space, by their `type`.
const SPLITS: [&str; 4] = ["Metaspace", "WhitespaceSplit", "Whitespace", "BertPreTokenizer"];
/// Normalisers that rewrite characters in place, by their `type`.
const LOCAL: &str =
    "NFC, NFD, NFKC, NFKD, Nmt, Precompiled, Lowercase, Strip, StripAccents, Replace, BertNormalizer, Sequence";

/// Maximum bytes of a regular expression.
const PATTERN_BYTES: usize = 1024;
/// Maximum bytes of a compiled regular expression. Time per character grows with it.
const COMPILED_BYTES: usize = 1 << 20;
/// Parts of a `tokenizer.json` that may contain regular expressions.
const PATTERN_PARTS: [&str; 4] = ["normalizer", "pre_tokenizer", "post_processor", "decoder"];

/// Checks the regular expressions of a `tokenizer.json`, which its author chooses and every request runs. The tokenizer's engine
/// (fancy-regex) backtracks, in exponential time at worst, for look-around, word boundaries, backreferences, and atomic or
/// possessive groups. It matches all other patterns in linear time, and [`SPACES_BEFORE_WORD`] too. The error names the first
/// pattern that is not allowed.
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
    // These crates accept only patterns that are matched in linear time. The tokenizer's engine passes all of them to the crate
    // `regex`, except for word boundaries.
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

/// Checks the templates of a post-processor, as the library writes it at `key`. For each text the library looks up the special
/// tokens of a template. It panics if one is missing, or if the template for a single text names a second text.
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
    check_dropout(json)?;
    check_added_tokens(&json["added_tokens"])?;
    check_normaliser(&json["normalizer"], &kind)
}

/// Mark that a normaliser may put in the place of a space.
const SPACE_MARK: char = '▁';

/// Checks that no added token reaches over a space after a word: the library finds these tokens before it splits the text, and
/// `rstrip` adds the spaces after one to it. It finds no special token in a text.
fn check_added_tokens(tokens: &Value) -> Result<(), VocabularyError> {
    let is_true = |value: &Value| *value == Value::Bool(true);
    for (index, token) in tokens.as_array().into_iter().flatten().enumerate() {
        let content = token["content"].as_str().unwrap_or_default();
        let normalized = is_true(&token["normalized"]);
        // a normaliser may turn other white space into a space
        let is_space = |c: char| c == ' ' || (normalized && (c.is_whitespace() || c == SPACE_MARK));
        // The spaces before a word are encoded with it. A token of a single word depends on the character before these spaces.
        let from_word = if is_true(&token["single_word"]) { content } else { content.trim_start_matches(is_space) };
        let reaches = is_true(&token["rstrip"]) || from_word.contains(is_space);
        if reaches && !is_true(&token["special"]) {
            let expected = "a special token, or a token that has no `rstrip` and contains no space after a word";
            return Err(VocabularyError::new(format!("added_tokens[{index}]"), expected, quoted(content)));
        }
    }
    Ok(())
}

/// Checks that the merges of a `tokenizer.json` are not random.
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
