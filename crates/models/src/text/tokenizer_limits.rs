//! Bounds on what the stages of a `tokenizer.json` make of a text, checked before the library reads the file. A normaliser, a
//! template or a decoder may multiply text, a character map may have false lengths, and WordPiece takes the square of a word's
//! length.

use crate::text::{MAX_SYMBOLS, VocabularyError};
use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Map, Value};
use std::collections::VecDeque;

/// Maximum lists, objects and commas of a file: what is parsed of it takes up to 300 bytes for each. A unigram model has three for each
/// piece.
const MAX_MARKS: usize = 4 << 20;

/// Maximum stages of one part of the file.
const MAX_STAGES: usize = 64;

/// Maximum bytes that the stages of one part make of one byte.
const MAX_GROWTH: usize = 1024;

/// Maximum special tokens that a template puts around a text.
const MAX_TEMPLATE_TOKENS: usize = 64;

/// Maximum bytes of a unigram piece. Time per character grows with the longest.
const MAX_UNIGRAM_PIECE: usize = 1024;

/// Maximum merges for each piece of the vocabulary. Published files have two.
const MAX_MERGES: usize = 16;

/// Maximum bytes of a text that a stage replaces or splits at, and of an added token. The library compiles them to regular expressions.
const MAX_PATTERN_TEXT: usize = 1024;

/// Maximum bytes of a character map.
const MAX_CHARSMAP_BYTES: usize = 4 << 20;

/// Maximum letters of a word that WordPiece splits, whatever the file states. A longer word is one unknown piece.
pub(super) const MAX_WORD_LETTERS: u64 = 200;

/// Maximum bytes of a text after its normaliser and pre-tokenizer.
pub(super) const NORMAL_BYTES: usize = 4 << 20;

/// Maximum bytes of the text of one piece.
pub(super) const PIECE_BYTES: usize = 1 << 20;

/// Bytes that the stages make of one byte, at most.
#[derive(Debug, Clone, Copy)]
pub(super) struct Growth {
    pub(super) normalizer: usize,
    pub(super) pre_tokenizer: usize,
    pub(super) decoder: usize,
}

impl Growth {
    /// Checks the parts of a `tokenizer.json` and returns their growth. The error names the stage that multiplies text too often.
    pub(super) fn read(json: &Value) -> Result<Self, VocabularyError> {
        check_counts(json)?;
        let [normalizer, pre_tokenizer, decoder] =
            [("normalizer", "normalizers"), ("pre_tokenizer", "pretokenizers"), ("decoder", "decoders")].map(
                |(part, members)| {
                    let mut stages = Stages { members, count: 0, product: 1 };
                    stages.add(part, &json[part]).map(|()| stages.product)
                },
            );
        Ok(Self { normalizer: normalizer?, pre_tokenizer: pre_tokenizer?, decoder: decoder? })
    }

    /// Bytes that normaliser and pre-tokenizer make of one byte.
    pub(super) fn encoding(self) -> usize {
        self.normalizer * self.pre_tokenizer
    }
}

/// Checks the number of a file's values before they are parsed.
pub(super) fn check_marks(json: &str) -> Result<(), VocabularyError> {
    let found = json.bytes().filter(|byte| b"[{,".contains(byte)).count();
    if found <= MAX_MARKS {
        return Ok(());
    }
    let expected = format!("at most {MAX_MARKS} lists, objects and commas");
    Err(VocabularyError::new("the file", expected, found.to_string()))
}

/// Checks the numbers of pieces, merges and added tokens, for which the library takes memory.
fn check_counts(json: &Value) -> Result<(), VocabularyError> {
    let count = |list: &Value| list.as_array().map(Vec::len).or(list.as_object().map(Map::len)).unwrap_or(0);
    let pieces = count(&json["model"]["vocab"]);
    for (key, found, limit) in [
        ("model.vocab", pieces, MAX_SYMBOLS),
        ("model.merges", count(&json["model"]["merges"]), MAX_MERGES * pieces),
        ("added_tokens", count(&json["added_tokens"]), MAX_SYMBOLS),
    ] {
        if found > limit {
            return Err(VocabularyError::new(key, format!("at most {limit}"), found.to_string()));
        }
    }
    let tokens = json["added_tokens"].as_array().into_iter().flatten();
    let mut lengths = tokens.map(|token| token["content"].as_str().map_or(0, str::len)).enumerate();
    match lengths.find(|(_, bytes)| *bytes > MAX_PATTERN_TEXT) {
        None => Ok(()),
        Some((index, bytes)) => {
            let key = format!("added_tokens[{index}].content");
            Err(VocabularyError::new(key, format!("at most {MAX_PATTERN_TEXT} bytes"), format!("{bytes} bytes")))
        }
    }
}

/// The stages of a part that were read so far.
struct Stages {
    /// The key of a sequence's members.
    members: &'static str,
    count: usize,
    product: usize,
}

impl Stages {
    fn add(&mut self, key: &str, stage: &Value) -> Result<(), VocabularyError> {
        self.count += 1;
        if self.count > MAX_STAGES {
            return Err(VocabularyError::new(key, format!("at most {MAX_STAGES} stages"), "more"));
        }
        if let Some(members) = stage[self.members].as_array() {
            let member = |index: usize| format!("{key}.{}[{index}]", self.members);
            let keys: Vec<_> = (0..members.len().min(MAX_STAGES + 1)).map(member).collect();
            return keys.iter().zip(members).try_for_each(|(key, stage)| self.add(key, stage));
        }
        self.product = self.product.saturating_mul(growth(key, stage)?);
        if self.product > MAX_GROWTH {
            let expected = format!("stages that make at most {MAX_GROWTH} bytes of one");
            return Err(VocabularyError::new(key, expected, format!("{} bytes", self.product)));
        }
        Ok(())
    }
}

/// Returns the bytes that a stage makes of one byte, at most.
fn growth(key: &str, stage: &Value) -> Result<usize, VocabularyError> {
    let length = |key: &str| stage[key].as_str().map_or(0, str::len);
    let text = stage["pattern"]["String"].as_str().unwrap_or_default();
    if text.len() > MAX_PATTERN_TEXT {
        let expected = format!("at most {MAX_PATTERN_TEXT} bytes");
        return Err(VocabularyError::new(format!("{key}.pattern.String"), expected, format!("{} bytes", text.len())));
    }
    if stage["type"] == "FixedLength" && stage["length"] == 0 {
        return Err(VocabularyError::new(format!("{key}.length"), "at least 1", "0"));
    }
    Ok(match stage["type"].as_str().unwrap_or_default() {
        "Replace" => {
            let content = length("content");
            match shortest_match(&stage["pattern"]) {
                0 => content + 1,
                shortest => content.div_ceil(shortest).max(1),
            }
        }
        // once for each part of a text between added tokens
        "Prepend" => length("prepend") + 1,
        "Metaspace" => length("replacement") + 1,
        "ByteLevel" | "Lowercase" | "WordPiece" | "BPEDecoder" | "CTC" => 2,
        "NFC" | "NFD" => 3,
        // U+FDFA has 3 bytes and becomes 33
        "NFKC" | "NFKD" => 11,
        "BertNormalizer" => 12,
        "Precompiled" => {
            let key = format!("{key}.precompiled_charsmap");
            let map = stage["precompiled_charsmap"].as_str().unwrap_or_default();
            if map.len() > MAX_CHARSMAP_BYTES {
                let expected = format!("at most {MAX_CHARSMAP_BYTES} bytes");
                return Err(VocabularyError::new(key, expected, format!("{} bytes", map.len())));
            }
            let growth = STANDARD.decode(map).ok().and_then(|map| charsmap_growth(&map));
            growth.ok_or_else(|| VocabularyError::new(key, "a character map of SentencePiece", "a malformed one"))?
        }
        _ => 1,
    })
}

/// Returns the bytes of the shortest text that a pattern matches.
fn shortest_match(pattern: &Value) -> usize {
    let parsed = pattern["Regex"].as_str().map(regex_syntax::parse);
    match (pattern["String"].as_str(), parsed) {
        (Some(text), _) => text.len(),
        // a pattern with look-around, of which `check_patterns` allows one that matches a space or more
        (_, Some(Err(_))) => 1,
        (_, Some(Ok(parsed))) => parsed.properties().minimum_len().unwrap_or(0),
        (None, None) => 0,
    }
}

/// Checks a character map: the length of its trie, the trie (a double array of Darts), the zero-terminated replacements. Returns the
/// bytes that it makes of one byte, at most; `None` if the library would read outside of the map.
fn charsmap_growth(map: &[u8]) -> Option<usize> {
    let (size, rest) = map.split_first_chunk::<4>()?;
    let (trie, replacements) = rest.split_at_checked(u32::from_le_bytes(*size) as usize)?;
    let replacements = std::str::from_utf8(replacements).ok()?;
    let units: Vec<usize> = trie
        .chunks(4)
        .map(|unit| unit.try_into().ok().map(|unit| u32::from_le_bytes(unit) as usize))
        .collect::<Option<_>>()?;
    let children = |unit: usize| (unit >> 10) << ((unit & (1 << 9)) >> 6);
    let mut seen = vec![false; units.len()];
    let mut growth = 1;
    // the shortest keys first
    let mut nodes = VecDeque::from([(children(*units.first()?), 1)]);
    while let Some((node, length)) = nodes.pop_front() {
        for label in 1..=0xff {
            let place = node ^ label;
            // the library reads this unit for any text
            let unit = *units.get(place)?;
            if unit & ((1 << 31) | 0xff) != label || std::mem::replace(&mut seen[place], true) {
                continue;
            }
            let next = place ^ children(unit);
            if (unit >> 8) & 1 == 1 {
                let text = replacements.get(units.get(next)? & ((1 << 31) - 1)..)?;
                let bytes = text.find('\0').unwrap_or(text.len());
                growth = growth.max(bytes.div_ceil(length));
            }
            nodes.push_back((next, length + 1));
        }
    }
    Some(growth)
}

/// Checks that a template contains the text once, and few special tokens.
pub(super) fn check_template(key: &str, template: &Value) -> Result<(), VocabularyError> {
    let pieces = template["single"].as_array().map_or(&[][..], Vec::as_slice);
    let texts = pieces.iter().filter(|piece| piece.get("Sequence").is_some()).count();
    if texts > 1 {
        return Err(VocabularyError::new(format!("{key}.single"), "the text once", format!("{texts} times")));
    }
    let ids = |token: &Value| {
        template["special_tokens"][token["SpecialToken"]["id"].as_str()?]["ids"].as_array().map(Vec::len)
    };
    let tokens = pieces.iter().filter_map(ids).fold(0, usize::saturating_add);
    if tokens > MAX_TEMPLATE_TOKENS {
        let expected = format!("at most {MAX_TEMPLATE_TOKENS} special tokens");
        return Err(VocabularyError::new(format!("{key}.single"), expected, tokens.to_string()));
    }
    Ok(())
}

/// Bounds the time that the model takes for a word: shortens the words that WordPiece splits. Fails for a unigram piece that is too
/// long. Returns the bytes of a usual text that take as long as one byte of this one.
pub(super) fn bound_model(model: &mut Value) -> Result<usize, VocabularyError> {
    if model["type"] == "WordPiece" {
        let letters = model["max_input_chars_per_word"].as_u64().unwrap_or(MAX_WORD_LETTERS).min(MAX_WORD_LETTERS);
        model["max_input_chars_per_word"] = letters.into();
        return Ok(usize::try_from(letters).unwrap_or(1).max(1));
    }
    let pieces = model["vocab"].as_array().into_iter().flatten().filter_map(|piece| piece[0].as_str());
    if let Some((id, piece)) = pieces.enumerate().find(|(_, piece)| piece.len() > MAX_UNIGRAM_PIECE) {
        let expected = format!("a piece of at most {MAX_UNIGRAM_PIECE} bytes");
        return Err(VocabularyError::new(format!("model.vocab[{id}]"), expected, format!("{} bytes", piece.len())));
    }
    Ok(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn wrong_key(json: &Value) -> Option<String> {
        Growth::read(json).err().map(|error| error.key)
    }

    #[test]
    fn counts_without_use_are_named() {
        let merges = |count| json!({ "model": { "vocab": { "a": 0, "b": 1 }, "merges": vec![["a", "b"]; count] } });
        assert_eq!(wrong_key(&merges(32)), None);
        assert_eq!(wrong_key(&merges(33)).as_deref(), Some("model.merges"));
        assert!(check_marks(&"[".repeat(MAX_MARKS)).is_ok());
        assert_eq!(check_marks(&"[".repeat(MAX_MARKS + 1)).unwrap_err().found, "4194305");
        let token = |bytes| json!({ "added_tokens": [{ "content": "a" }, { "content": "b".repeat(bytes) }] });
        assert_eq!(wrong_key(&token(1024)), None);
        assert_eq!(wrong_key(&token(1025)).as_deref(), Some("added_tokens[1].content"));
    }

    #[test]
    fn stages_that_multiply_text_are_named() {
        let replace = |content: &str| json!({ "type": "Replace", "pattern": { "String": "a" }, "content": content });
        let sequence = |members: Vec<Value>| json!({ "type": "Sequence", "normalizers": members });
        let doublings = |count| sequence(vec![replace("aa"); count]);
        for (normalizer, growth) in [
            (Value::Null, 1),
            (replace(&"b".repeat(1024)), 1024),
            (doublings(10), 1024),
            (sequence(vec![json!({ "type": "Prepend", "prepend": "▁" }), replace("▁")]), 12),
            (json!({ "type": "Replace", "pattern": { "Regex": " {2,}" }, "content": "abc" }), 2),
            (json!({ "type": "Replace", "pattern": { "Regex": "x*" }, "content": "abc" }), 4),
        ] {
            assert_eq!(Growth::read(&json!({ "normalizer": normalizer })).unwrap().normalizer, growth, "{normalizer}");
        }
        let byte_level = json!({ "type": "ByteLevel" });
        for (part, value, key) in [
            ("normalizer", replace(&"b".repeat(1025)), "normalizer"),
            ("normalizer", doublings(11), "normalizer.normalizers[10]"),
            ("normalizer", json!({ "type": "Prepend", "prepend": "b".repeat(1024) }), "normalizer"),
            ("normalizer", sequence(vec![json!({ "type": "Strip" }); 64]), "normalizer.normalizers[63]"),
            ("pre_tokenizer", json!({ "pretokenizers": vec![byte_level; 11] }), "pre_tokenizer.pretokenizers[10]"),
            ("decoder", json!({ "decoders": [replace(&"b".repeat(2000))] }), "decoder.decoders[0]"),
            ("normalizer", json!({ "pattern": { "String": "a".repeat(1025) } }), "normalizer.pattern.String"),
            ("pre_tokenizer", json!({ "type": "FixedLength", "length": 0 }), "pre_tokenizer.length"),
        ] {
            assert_eq!(wrong_key(&json!({ part: value })).as_deref(), Some(key), "{value}");
        }
    }

    /// Returns a map of the key `a` to a text.
    fn map(replacement: &str) -> Vec<u8> {
        let mut units = [0_u32; 512];
        // the root's children are in the second block
        units[0] = 256 << 10;
        let node = 256 ^ usize::from(b'a');
        units[node] = u32::from(b'a') | (1 << 8) | (1 << 10);
        units[node ^ 1] = 1 << 31;
        let units = units.iter().flat_map(|unit| unit.to_le_bytes());
        (4_u32 * 512).to_le_bytes().into_iter().chain(units).chain(replacement.bytes()).collect()
    }

    #[test]
    fn character_maps_with_false_lengths_are_rejected() {
        let whole = map("bcd\0");
        assert_eq!(charsmap_growth(&whole), Some(3));
        assert_eq!(charsmap_growth(&map("")), Some(1));
        for length in [0, 3, 4, 900, 4 + 4 * 511] {
            assert_eq!(charsmap_growth(&whole[..length]), None, "{length} bytes");
        }
        for (place, value) in [(0, 0xff), (3, 0xff), (5, 0xff), (7, 0x80), (whole.len() - 1, 0xff)] {
            let mut changed = whole.clone();
            changed[place] = value;
            assert_eq!(charsmap_growth(&changed), None, "{value} at {place}");
        }
    }

    #[test]
    fn templates_contain_the_text_once() {
        let text = json!({ "Sequence": { "id": "A", "type_id": 0 } });
        let token = json!({ "SpecialToken": { "id": "<s>", "type_id": 0 } });
        let check = |single: Vec<&Value>, ids: usize| {
            let tokens = json!({ "<s>": { "id": "<s>", "ids": vec![0; ids], "tokens": vec!["<s>"; ids] } });
            check_template("p", &json!({ "single": single, "special_tokens": tokens })).is_ok()
        };
        assert!(check(vec![&token, &text], 64) && !check(vec![&token, &text], 65));
        assert!(!check(vec![&text, &text], 1) && !check(vec![&token, &text, &token], 33));
    }
}
