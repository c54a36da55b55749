//! Tokens that were added to a slow tokenizer of transformers, which are in no SentencePiece model: `added_tokens_decoder` in
//! `tokenizer_config.json`, or else `added_tokens.json`. `special_tokens_map.json` tells which of them are special.

use crate::{
    checkpoint::files::{self, parse},
    convert::converted::read_config,
    text::SpelledId,
};
use serde_json::{Value as Json, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};
use weir_kernels::error::{Error, Result};

/// Settings of a tokenizer.
pub(super) const SETTINGS_FILE: &str = "tokenizer_config.json";

/// Ids of added tokens, in folders of older versions.
pub(super) const ADDED_FILE: &str = "added_tokens.json";

/// Names of special tokens.
pub(super) const SPECIAL_FILE: &str = "special_tokens_map.json";

/// A token that text is searched for before it is normalised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AddedToken {
    pub(super) content: String,
    pub(super) special: bool,
    rstrip: bool,
    single_word: bool,
}

impl AddedToken {
    /// Returns the token in the form of `tokenizer.json`. A slow tokenizer drops the spaces before it with those at the end of a text.
    pub(super) fn json(&self, id: usize) -> Json {
        let Self { content, special, rstrip, single_word } = self;
        json!({ "id": id, "content": content, "special": special, "single_word": single_word, "lstrip": true,
            "rstrip": rstrip, "normalized": false })
    }

    /// Returns the token in the form of a vocabulary of bytes.
    pub(super) fn spelled(self, id: usize) -> SpelledId {
        let Self { content, special, rstrip, .. } = self;
        SpelledId { id: u32::try_from(id).unwrap_or(u32::MAX), text: content, special, strips: rstrip }
    }
}

/// Returns the contents of an optional file; null if there is none.
pub(super) fn read_optional(dir: &Path, name: &str) -> Result<Json> {
    match files::present(dir, name)? {
        Some(file) => parse(&read_config(&file)?, &file, ""),
        None => Ok(Json::Null),
    }
}

/// Returns the added tokens of a model with `size` ids, by their ids. Fails for an id that the model does not have.
pub(super) fn read(dir: &Path, settings: &Json, size: usize) -> Result<BTreeMap<usize, AddedToken>> {
    let map = read_optional(dir, SPECIAL_FILE)?;
    let mut special: BTreeSet<&str> =
        map.as_object().into_iter().flatten().flat_map(|(_, value)| names(value)).collect();
    special.extend(names(&settings["additional_special_tokens"]));
    let mut tokens = BTreeMap::new();
    let mut add = |file: &str, key: String, found: String, content: Option<&str>, flags: &Json| {
        let id = found.parse().ok();
        let wrong =
            |expected: String, found: String| Err(Error::checkpoint(dir.join(file), key.as_str(), expected, found));
        let Some(id) = id.filter(|id: &usize| *id < size) else {
            return wrong(format!("an id below {size}, the number of the model's ids"), found);
        };
        let Some(content) = content.filter(|content| !content.is_empty()) else {
            return wrong("a text".into(), flags["content"].to_string());
        };
        let is = |flag: &str| flags[flag] == Json::Bool(true);
        let special = is("special") || special.contains(content);
        let token =
            AddedToken { content: content.to_owned(), special, rstrip: is("rstrip"), single_word: is("single_word") };
        tokens.insert(id, token);
        Ok(())
    };
    match settings["added_tokens_decoder"].as_object() {
        Some(decoder) => {
            for (id, flags) in decoder {
                let content = flags.as_str().or(flags["content"].as_str());
                add(SETTINGS_FILE, format!("added_tokens_decoder.{id}"), id.clone(), content, flags)?;
            }
        }
        None => {
            for (content, id) in read_optional(dir, ADDED_FILE)?.as_object().into_iter().flatten() {
                add(ADDED_FILE, format!("{content:?}"), id.to_string(), Some(content), &Json::Null)?;
            }
        }
    }
    Ok(tokens)
}

/// Returns the tokens that a value of `special_tokens_map.json` names: a text, an object with `content`, or a list of these.
fn names(value: &Json) -> Vec<&str> {
    match value {
        Json::Array(all) => all.iter().flat_map(names).collect(),
        other => other.as_str().or(other["content"].as_str()).into_iter().collect(),
    }
}
