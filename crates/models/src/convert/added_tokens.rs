//! Tokens that were added to a slow tokenizer of transformers: `added_tokens_decoder` in `tokenizer_config.json`, or else
//! `added_tokens.json`, and the special tokens that `tokenizer_config.json` and `special_tokens_map.json` name.

use crate::{
    checkpoint::files::{self, parse},
    convert::converted::read_config,
    text::{
        AddedToken,
        subwords::{BEGINS_WORD, PYTHON_KEY},
    },
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

/// Returns a token in the form of `tokenizer.json`.
pub(super) fn token_json(token: &AddedToken) -> Json {
    let AddedToken { id, text, special, lstrip, rstrip, single_word, begins_word } = token;
    json!({ "id": id, "content": text, "special": special, "single_word": single_word, "lstrip": lstrip,
        "rstrip": rstrip, "normalized": false, PYTHON_KEY: if *begins_word { BEGINS_WORD } else { "" } })
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
        let id = found.parse().ok().filter(|id: &u32| (*id as usize) < size);
        let wrong =
            |expected: String, found: String| Err(Error::checkpoint(dir.join(file), key.as_str(), expected, found));
        let Some(id) = id else {
            return wrong(format!("an id below {size}, the number of the model's ids"), found);
        };
        let Some(content) = content.filter(|content| !content.is_empty()) else {
            return wrong("a text".into(), flags["content"].to_string());
        };
        let token = with_flags(id, content, flags);
        tokens.insert(id as usize, AddedToken { special: token.special || special.contains(content), ..token });
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

fn with_flags(id: u32, text: &str, flags: &Json) -> AddedToken {
    let is = |flag: &str| flags[flag] == Json::Bool(true);
    AddedToken {
        id,
        text: text.to_owned(),
        special: is("special"),
        lstrip: is("lstrip"),
        rstrip: is("rstrip"),
        single_word: is("single_word"),
        begins_word: false,
    }
}

/// Returns a special token that a folder names at `key`, such as `eos_token`, and which otherwise is `usual`, without its id. Only a
/// name without flags strips white space, if `strips`.
pub(super) fn named(dir: &Path, settings: &Json, key: &str, usual: &str, strips: bool) -> Result<AddedToken> {
    let map = read_optional(dir, SPECIAL_FILE)?;
    let is_listed = settings["added_tokens_decoder"].is_object();
    let mut stated = [&map[key], &settings[key]].into_iter().filter(|value| !value.is_null());
    let stated = if is_listed { stated.next_back() } else { stated.next() };
    let flags = stated.filter(|value| value["content"].is_string());
    let name = flags.map(|value| &value["content"]).or(stated).and_then(Json::as_str).unwrap_or(usual);
    let token = AddedToken { special: true, ..with_flags(0, name, flags.unwrap_or(&Json::Null)) };
    let strips = strips && flags.is_none();
    Ok(AddedToken { lstrip: token.lstrip || strips, rstrip: token.rstrip || strips, ..token })
}

/// Returns the tokens that a value of `special_tokens_map.json` names: a text, an object with `content`, or a list of these.
fn names(value: &Json) -> Vec<&str> {
    match value {
        Json::Array(all) => all.iter().flat_map(names).collect(),
        other => other.as_str().or(other["content"].as_str()).into_iter().collect(),
    }
}
