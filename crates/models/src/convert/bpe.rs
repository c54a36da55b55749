//! Byte-level BPE tokenizers of RoBERTa, as in CodeT5, without a `tokenizer.json`: `vocab.json` and `merges.txt`.

use crate::{
    checkpoint::files::{UniqueMap, parse, read_limited},
    convert::added_tokens::{self, token_json},
    text::{AddedToken, subwords::MAX_TOKENIZER_BYTES},
};
use serde_json::{Value as Json, json};
use std::{collections::BTreeMap, path::Path};
use weir_kernels::error::{Error, Result};

pub(super) const VOCABULARY_FILE: &str = "vocab.json";
pub(super) const MERGES_FILE: &str = "merges.txt";

/// Keys of the special tokens, and their usual names.
const SPECIALS: [(&str, &str); 6] = [
    ("bos_token", "<s>"),
    ("eos_token", "</s>"),
    ("unk_token", "<unk>"),
    ("sep_token", "</s>"),
    ("cls_token", "<s>"),
    ("pad_token", "<pad>"),
];

/// Returns the `tokenizer.json` that transformers makes of a folder with a model of `size` ids. Fails if a file is missing or malformed.
pub(super) fn read(dir: &Path, settings: &Json, size: usize) -> Result<Vec<u8>> {
    let file = dir.join(VOCABULARY_FILE);
    let UniqueMap(vocabulary): UniqueMap<u32> = parse(&read_limited(&file, MAX_TOKENIZER_BYTES)?, &file, "")?;
    let file = dir.join(MERGES_FILE);
    let merges = read_limited(&file, MAX_TOKENIZER_BYTES)?;
    let wrong = |expected: &str, found: String| Error::checkpoint(&file, "the file", expected, found);
    let merges = std::str::from_utf8(&merges).map_err(|error| wrong("text in UTF-8", error.to_string()))?;
    let merges: Vec<_> = merges.lines().filter(|line| !line.starts_with("#version") && !line.is_empty()).collect();
    if let Some(line) = merges.iter().find(|line| line.split(' ').count() != 2) {
        return Err(wrong("two pieces in each line", format!("{line:?}")));
    }
    let mut tokens = BTreeMap::new();
    let mut names = Vec::new();
    for (key, usual) in SPECIALS {
        let token = added_tokens::named(dir, settings, key, usual, false)?;
        if let Some(&id) = vocabulary.get(&token.text) {
            names.push((key, token.text.clone(), id));
            tokens.insert(id as usize, AddedToken { id, ..token });
        }
    }
    let mask = added_tokens::named(dir, settings, "mask_token", "<mask>", false)?;
    if let Some(&id) = vocabulary.get(&mask.text) {
        tokens.insert(id as usize, AddedToken { id, lstrip: true, ..mask });
    }
    tokens.extend(added_tokens::read(dir, settings, size)?);
    let mut vocabulary = vocabulary;
    for token in tokens.values() {
        vocabulary.entry(token.text.clone()).or_insert(token.id);
    }
    let named = |wanted: &str| {
        let found = names.iter().find(|(key, ..)| *key == wanted);
        let wrong = || Error::checkpoint(dir.join(VOCABULARY_FILE), wanted, "a token of the vocabulary", "none");
        found.map(|(_, text, id)| json!([text, id])).ok_or_else(wrong)
    };
    let spaces = settings["add_prefix_space"] == json!(true);
    let byte_level =
        json!({ "type": "ByteLevel", "add_prefix_space": spaces, "trim_offsets": true, "use_regex": true });
    let json = json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null,
        "added_tokens": tokens.values().map(token_json).collect::<Vec<_>>(),
        "pre_tokenizer": byte_level,
        "post_processor": { "type": "RobertaProcessing", "sep": named("sep_token")?, "cls": named("cls_token")?,
            "trim_offsets": true, "add_prefix_space": spaces },
        "decoder": byte_level,
        "model": { "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocabulary, "merges": merges },
    });
    Ok(json.to_string().into_bytes())
}
