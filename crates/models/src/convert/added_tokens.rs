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
use weir_kernels::error::{Error, QUOTED, Result, clip, quoted};

pub(super) const SETTINGS_FILE: &str = "tokenizer_config.json";

/// Ids of added tokens, in folders of older versions.
pub(super) const ADDED_FILE: &str = "added_tokens.json";

pub(super) const SPECIAL_FILE: &str = "special_tokens_map.json";

/// Returns a token in the form of `tokenizer.json`.
pub(super) fn token_json(token: &AddedToken) -> Json {
    let AddedToken { id, text, special, lstrip, rstrip, single_word, begins_word } = token;
    json!({ "id": id, "content": text, "special": special, "single_word": single_word, "lstrip": lstrip,
        "rstrip": rstrip, "normalized": false, PYTHON_KEY: if *begins_word { BEGINS_WORD } else { "" } })
}

/// Returns the object in an optional file; null if there is none.
pub(super) fn read_optional(dir: &Path, name: &str) -> Result<Json> {
    match files::present(dir, name)? {
        Some(file) => parse(&read_config(&file)?, &file, "").map(Json::Object),
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
    let wrong = |file: &str, key: &str, expected: &str, found: String| {
        Error::checkpoint(dir.join(file), key, expected, clip(&found, QUOTED))
    };
    let mut add = |file: &str, key: &str, id: String, content: &Json, flags: &Json| {
        let Some(known) = id.parse().ok().filter(|id: &u32| (*id as usize) < size) else {
            let expected = format!("an id below {size}, the number of the model's ids");
            return Err(wrong(file, key, &expected, id));
        };
        let Some(content) = content.as_str().filter(|content| !content.is_empty()) else {
            return Err(wrong(file, &format!("{key}.content"), "a text", content.to_string()));
        };
        for flag in FLAGS {
            if !matches!(flags[flag], Json::Null | Json::Bool(_)) {
                return Err(wrong(file, &format!("{key}.{flag}"), "true or false", flags[flag].to_string()));
            }
        }
        let token = with_flags(known, content, flags);
        tokens.insert(known as usize, AddedToken { special: token.special || special.contains(content), ..token });
        Ok(())
    };
    let listed = "added_tokens_decoder";
    match &settings[listed] {
        Json::Object(decoder) => {
            for (id, token) in decoder {
                let key = format!("{listed}.{id}");
                if !token.is_object() {
                    return Err(wrong(SETTINGS_FILE, &key, "an object with the token's content", token.to_string()));
                }
                add(SETTINGS_FILE, &key, id.clone(), &token["content"], token)?;
            }
        }
        Json::Null => {
            for (content, id) in read_optional(dir, ADDED_FILE)?.as_object().into_iter().flatten() {
                add(ADDED_FILE, &quoted(content), id.to_string(), &json!(content), &Json::Null)?;
            }
        }
        other => return Err(wrong(SETTINGS_FILE, listed, "an object", other.to_string())),
    }
    Ok(tokens)
}

/// The flags of a token.
const FLAGS: [&str; 4] = ["special", "lstrip", "rstrip", "single_word"];

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
    let of_map = (SPECIAL_FILE, &map[key]);
    let mut stated = [of_map, (SETTINGS_FILE, &settings[key])].into_iter().filter(|(_, value)| !value.is_null());
    let stated = if is_listed { stated.next_back() } else { stated.next() };
    let flags = stated.map(|(_, value)| value).filter(|value| value["content"].is_string());
    let name = match stated {
        None => usual,
        Some((file, value)) => value["content"].as_str().or(value.as_str()).ok_or_else(|| {
            let found = clip(&value.to_string(), QUOTED);
            Error::checkpoint(dir.join(file), key, "a text, or an object with its content", found)
        })?,
    };
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
