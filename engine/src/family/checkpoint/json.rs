//! JSON parsing whose errors name the key, the expected and the actual value.

use super::{
    json_errors::{explain, explain_value},
    placeholders::placeholder,
    regular_file,
};
use crate::error::{Error, Result};
use serde::{
    Deserialize,
    de::{self, DeserializeOwned},
};
use std::{collections::BTreeMap, fmt, io::Read, marker::PhantomData, path::Path};

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
        Err(error) => Err(explain_value::<T>(text, file, within, &error)),
    }
}

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
