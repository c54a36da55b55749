//! JSON parsing whose errors name the key, the expected and the actual value.

use crate::checkpoint::files::{self, placeholder};
use serde::{
    Deserialize,
    de::{self, DeserializeOwned},
};
use serde_json::Value;
use serde_path_to_error::{Path as KeyPath, Segment};
use std::{
    collections::BTreeMap,
    fmt,
    io::Read,
    marker::PhantomData,
    path::{Path, PathBuf},
};
use weir_kernels::error::{Error, Mismatch, QUOTED, Result, clip, mismatch, split_place};

/// Reads a small file completely. Fails unless it is a regular file of at most `limit` bytes, or if it is empty or a placeholder.
pub fn read_limited(file: &Path, limit: u64) -> Result<Vec<u8>> {
    let too_long = |bytes: u64| {
        Err(Error::checkpoint(file, "the file", format!("at most {limit} bytes"), format!("{bytes} bytes or more")))
    };
    let (opened, size) = files::open(file).map_err(Error::io(file))?;
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

/// Parses `text`, the value of the key `within` in `file` or the complete file. Errors have the full path of the key.
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

// Error messages for JSON that does not have the expected form, in JSON's terms instead of Rust's and serde's.

/// serde's message, expectation and finding if a choice, `"name"` or `{"name": {…}}`, is given in the other form.
const CHOICES: &[(&str, &str, &str)] = &[
    (
        "invalid type: unit variant, expected struct variant",
        "an object with the settings of this choice",
        "only its name",
    ),
    (
        "invalid type: struct variant, expected unit variant",
        "only the name, because this choice has no settings",
        "an object",
    ),
    ("invalid type: map, expected unit variant", "only the name, because this choice has no settings", "an object"),
];

/// serde's message if a choice is neither a name nor an object with one key. It is also the message for invalid JSON.
const NO_CHOICE: &str = "expected value";

/// Explains why `text`, which is the value of the key `within` in `file`, is not a `T`.
pub(crate) fn explain_value<T: DeserializeOwned>(
    text: &[u8],
    file: &Path,
    within: &str,
    error: &serde_path_to_error::Error<serde_json::Error>,
) -> Error {
    let path = error.path().to_string();
    // serde's path ends with `?` where the text ends within a key, and is `.` at the root
    let path = path.trim_end_matches('?').trim_end_matches('.');
    let message = error.inner().to_string();
    let (start, _) = split_place(&message);
    if (start == NO_CHOICE || CHOICES.iter().any(|(known, ..)| *known == start))
        && serde_json::from_slice::<de::IgnoredAny>(text).is_ok()
    {
        let key = [within, path].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(".");
        if let Some((_, expected, found)) = CHOICES.iter().find(|(known, ..)| *known == start) {
            return Error::checkpoint(file, key, *expected, *found);
        }
        let (expected, found) = choices::<T>(text, error.path());
        return Error::checkpoint(file, key, expected, found);
    }
    explain(&message, file, vec![within, path], error.inner().is_data())
}

/// Returns the names of a choice, and the value that is none of them.
fn choices<T: DeserializeOwned>(text: &[u8], path: &KeyPath) -> (String, String) {
    let mut value: Value = serde_json::from_slice(text).unwrap_or_default();
    let Some(place) = value.pointer_mut(&pointer(path)) else { return ("one name".into(), "another value".into()) };
    let found = clip(&place.to_string(), QUOTED);
    // serde lists the names in its message for an unknown one
    *place = Value::String(String::new());
    let message = serde_json::from_str::<T>(&value.to_string()).err().map(|error| error.to_string());
    let names =
        message.as_deref().and_then(|message| split_place(message).0.strip_prefix("unknown variant ``, expected "));
    (names.unwrap_or("a name, or an object with one key").to_owned(), found)
}

fn pointer(path: &KeyPath) -> String {
    let escaped = |key: &str| key.replace('~', "~0").replace('/', "~1");
    let segment = |segment: &Segment| match segment {
        Segment::Seq { index } => format!("/{index}"),
        Segment::Map { key } | Segment::Enum { variant: key } => format!("/{}", escaped(key)),
        Segment::Unknown => "/?".to_owned(),
    };
    path.iter().map(segment).collect()
}

/// Returns the error of a file for serde's message about the value at `path`.
pub(crate) fn explain<'a>(message: &'a str, file: &Path, path: Vec<&'a str>, is_data: bool) -> Error {
    let Mismatch { key, expected, found, .. } = mismatch(message, path, is_data);
    let key = if key.is_empty() { "the file".into() } else { key };
    Error::Checkpoint { file: PathBuf::from(file), key, expected, found }
}

#[cfg(test)]
mod tests {
    use crate::checkpoint::json::parse;
    use serde::Deserialize;
    use std::path::Path;

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Window {
        Full,
        Sliding { _keys: usize },
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Sizes {
        _width: Option<usize>,
        _list: Option<Vec<f32>>,
        _window: Option<Window>,
        _inner: Option<Box<Sizes>>,
        _flag: Option<bool>,
        _signed: Option<i64>,
    }

    #[test]
    fn messages_have_the_words_of_json() {
        for (text, expected) in [
            (r#"{"_width": "a"}"#, r#"_width: expected a whole number of at least 0, found "a""#),
            (r#"{"_width": -1}"#, "_width: expected a whole number of at least 0, found -1"),
            (r#"{"_width": {}}"#, "_width: expected a whole number of at least 0, found an object"),
            (r#"{"_list": 2.5}"#, "_list: expected a list, found 2.5"),
            (r#"{"_list": [null]}"#, "_list[0]: expected a number, found null"),
            (r#"{"_flag": "no"}"#, r#"_flag: expected true or false, found "no""#),
            (r#"{"_signed": 0.5}"#, "_signed: expected a whole number, found 0.5"),
            (r#"{"_inner": 3}"#, "_inner: expected an object, found 3"),
            (r#"{"_inner": []}"#, "_inner: expected an object, found a list of 0"),
            ("[]", "the file: expected an object, found a list of 0"),
            ("7", "the file: expected an object, found 7"),
            (r#"{"_window": 0}"#, "_window: expected `full` or `sliding`, found 0"),
            (r#"{"_window": {}}"#, "_window: expected `full` or `sliding`, found {}"),
            (r#"{"_window": ["full"]}"#, r#"_window: expected `full` or `sliding`, found ["full"]"#),
            (r#"{"_window": "none"}"#, r#"_window: expected `full` or `sliding`, found "none""#),
            (r#"{"_inner": {"_window": 3}}"#, "_inner._window: expected `full` or `sliding`, found 3"),
            (r#"{"_window": {"sliding": 3}}"#, "_window.sliding: expected an object, found 3"),
            (
                r#"{"_window": "sliding"}"#,
                "_window.sliding: expected an object with the settings of this choice, found only its name",
            ),
            (
                "{",
                "the file: expected valid JSON, found a syntax error (EOF while parsing an object at line 1 column 1)",
            ),
            (
                r#"{"_inner": {"_wid"#,
                "_inner: expected valid JSON, found a syntax error (EOF while parsing a string at line 1 column 17)",
            ),
            (
                r#"{"_width": 1, "_wid"#,
                "the file: expected valid JSON, found a syntax error (EOF while parsing a string at line 1 column 19)",
            ),
        ] {
            let message = parse::<Sizes>(text.as_bytes(), Path::new("c"), "").unwrap_err().to_string();
            assert_eq!(message, format!("c: {expected}"), "{text}");
        }
        let inside = parse::<Sizes>(b"{", Path::new("c"), "architecture").unwrap_err().to_string();
        assert!(inside.starts_with("c: architecture: expected valid JSON"), "{inside}");
        assert!(matches!(
            parse::<Window>(br#"{"sliding": {"_keys": 2}}"#, Path::new("c"), ""),
            Ok(Window::Sliding { .. })
        ));
        assert!(matches!(parse::<Window>(br#""full""#, Path::new("c"), ""), Ok(Window::Full)));
    }
}
