//! JSON parsing whose errors name the key, the expected and the actual value.

use super::{placeholders::placeholder, regular_file};
use crate::error::{Error, Result, clip};
use serde::{
    Deserialize,
    de::{self, DeserializeOwned},
};
use std::{
    collections::BTreeMap,
    fmt,
    io::Read,
    marker::PhantomData,
    path::{Path, PathBuf},
};

/// Reads a small file completely. Fails unless it is a regular file of at most `limit` bytes, or if it is empty or a placeholder.
pub fn read_limited(file: &Path, limit: u64) -> Result<Vec<u8>> {
    let too_long = |bytes: u64| {
        Err(Error::checkpoint(file, "the file", format!("at most {limit} bytes"), format!("{bytes} bytes or more")))
    };
    let (opened, size) = regular_file::open(file).map_err(Error::io(file))?;
    if size > limit {
        return too_long(size);
    }
    let mut text = Vec::new();
    opened.take(limit + 1).read_to_end(&mut text).map_err(Error::io(file))?;
    if text.len() as u64 > limit {
        return too_long(text.len() as u64);
    }
    match placeholder(&text) {
        Some(found) => Err(Error::checkpoint(file, "the file", "its contents", found)),
        None => Ok(text),
    }
}

/// Parses `text`, which is the value of the key `within` in `file`, or the complete file if `within` is empty. Fails
/// with [`Error::Checkpoint`], which has the full path of the key.
pub fn parse<T: DeserializeOwned>(text: &[u8], file: &Path, within: &str) -> Result<T> {
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    match serde_path_to_error::deserialize(&mut deserializer) {
        Ok(value) => match deserializer.end() {
            Ok(()) => Ok(value),
            Err(error) => Err(explain(&error.to_string(), file, vec![within], error.is_data())),
        },
        Err(error) => {
            let path = error.path().to_string();
            let path = if path == "." { "" } else { &path };
            let message = error.inner().to_string();
            let mistaken = CHOICES.iter().find(|(known, ..)| message.split(" at line ").next() == Some(known));
            match mistaken.filter(|_| serde_json::from_slice::<de::IgnoredAny>(text).is_ok()) {
                Some((_, expected, found)) => {
                    let key = [within, path].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(".");
                    Err(Error::checkpoint(file, key, *expected, *found))
                }
                None => Err(explain(&message, file, vec![within, path], error.inner().is_data())),
            }
        }
    }
}

/// serde's message, expectation and finding if a choice, `"name"` or `{"name": {…}}`, is given in the other form or several
/// times. The last message is also serde's for invalid JSON.
const CHOICES: &[(&str, &str, &str)] = &[
    ("invalid type: unit variant, expected struct variant", "an object: this name has settings", "the name alone"),
    ("invalid type: struct variant, expected unit variant", "the name alone: it has no settings", "an object"),
    ("invalid type: map, expected unit variant", "the name alone: it has no settings", "an object"),
    ("expected value", "one choice", "an object with several keys, or none"),
];

/// Splits serde's message into key, expectation and finding. A message of unknown form becomes the finding. `is_data` states that
/// the syntax is right.
fn explain<'a>(message: &'a str, file: &Path, mut path: Vec<&'a str>, is_data: bool) -> Error {
    let (message, place) = match message.rfind(" at line ") {
        Some(index) => message.split_at(index),
        None => (message, ""),
    };
    let quoted = |rest: &str| rest.split('`').next().map(str::len).unwrap_or_default();
    let (field, expected, found) = if let Some(rest) = message.strip_prefix("missing field `") {
        (&rest[..quoted(rest)], "a value".into(), "nothing".into())
    } else if let Some(rest) = message.strip_prefix("duplicate field `") {
        (&rest[..quoted(rest)], "one value".into(), "two".into())
    } else if let Some(rest) = message.strip_prefix("unknown field `") {
        let known = rest.split_once(", expected ").map_or("no such key", |(_, known)| known);
        (&rest[..quoted(rest)], known.to_owned(), "an unknown key".into())
    } else if let Some((before, after)) = message.split_once(", expected ") {
        let before =
            ["invalid type: ", "invalid value: "].iter().find_map(|start| before.strip_prefix(start)).unwrap_or(before);
        ("", after.to_owned(), before.to_owned())
    } else if is_data {
        ("", "valid JSON".into(), format!("{message}{place}"))
    } else {
        ("", "valid JSON".into(), format!("a syntax error ({message}{place})"))
    };
    // serde's path sometimes ends with the unknown key and sometimes before it
    let inside = path.last().is_some_and(|last| *last == field || last.ends_with(&format!(".{field}")));
    if !inside {
        path.push(field);
    }
    path.retain(|part| !part.is_empty());
    let key = if path.is_empty() { "the file".into() } else { path.join(".") };
    Error::Checkpoint { file: PathBuf::from(file), key, expected, found: clip(&found, QUOTED) }
}

/// Maximum bytes of a found value that a message quotes.
pub(super) const QUOTED: usize = 200;

/// A JSON object without duplicate keys (serde's own maps keep the last one silently).
#[derive(Debug, Clone)]
pub struct UniqueMap<T>(pub BTreeMap<String, T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for UniqueMap<T> {
    fn deserialize<D: de::Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Visitor<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> de::Visitor<'de> for Visitor<T> {
            type Value = UniqueMap<T>;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("an object")
            }

            fn visit_map<A: de::MapAccess<'de>>(self, mut object: A) -> std::result::Result<Self::Value, A::Error> {
                let mut map = BTreeMap::new();
                while let Some(key) = object.next_key::<String>()? {
                    let value = object.next_value()?;
                    if map.contains_key(&key) {
                        return Err(de::Error::custom(format!("duplicate field `{key}`")));
                    }
                    map.insert(key, value);
                }
                Ok(UniqueMap(map))
            }
        }
        deserializer.deserialize_map(Visitor(PhantomData))
    }
}
