//! Error messages for JSON that does not have the expected form, in JSON's terms instead of Rust's and serde's.

use crate::error::{Error, clip};
use serde::de::{self, DeserializeOwned};
use serde_json::Value;
use serde_path_to_error::{Path as KeyPath, Segment};
use std::path::{Path, PathBuf};

/// Maximum bytes of a found value that a message quotes.
pub(super) const QUOTED: usize = 200;

/// serde's names of what a key should have, and ours.
const EXPECTED: &[(&str, &str)] = &[
    ("usize", NATURAL),
    ("u64", NATURAL),
    ("u32", NATURAL),
    ("u16", NATURAL),
    ("u8", NATURAL),
    ("i64", "a whole number"),
    ("i32", "a whole number"),
    ("f64", "a number"),
    ("f32", "a number"),
    ("a boolean", "true or false"),
    ("a sequence", "a list"),
    ("a map", "an object"),
];
const NATURAL: &str = "a whole number of at least 0";

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
pub(super) fn explain_value<T: DeserializeOwned>(
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

/// Returns a path in the syntax of JSON pointers.
fn pointer(path: &KeyPath) -> String {
    let escaped = |key: &str| key.replace('~', "~0").replace('/', "~1");
    let segment = |segment: &Segment| match segment {
        Segment::Seq { index } => format!("/{index}"),
        Segment::Map { key } | Segment::Enum { variant: key } => format!("/{}", escaped(key)),
        Segment::Unknown => "/?".to_owned(),
    };
    path.iter().map(segment).collect()
}

/// Splits serde's message from the place at its end.
fn split_place(message: &str) -> (&str, &str) {
    message.rfind(" at line ").map_or((message, ""), |index| message.split_at(index))
}

/// Splits serde's message into key, expectation and finding. A message of unknown form becomes the finding. `is_data` states that
/// the syntax is right.
pub(super) fn explain<'a>(message: &'a str, file: &Path, mut path: Vec<&'a str>, is_data: bool) -> Error {
    let (message, place) = split_place(message);
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
        ("", expectation(after), finding(before))
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

fn expectation(words: &str) -> String {
    let is_object = words.starts_with("struct ") || words.starts_with("internally tagged enum ");
    let known = EXPECTED.iter().find(|(serde, _)| *serde == words).map(|(_, own)| *own);
    known.or(is_object.then_some("an object")).unwrap_or(words).to_owned()
}

fn finding(words: &str) -> String {
    let quoted = ["integer `", "floating point `", "boolean `"];
    let number = quoted.iter().find_map(|start| words.strip_prefix(start)?.strip_suffix('`'));
    if let Some(text) = number.or_else(|| words.strip_prefix("string ")) {
        return text.to_owned();
    }
    if let Some(name) = words.strip_prefix("unknown variant `").and_then(|rest| rest.strip_suffix('`')) {
        return format!("{name:?}");
    }
    match (words, words.strip_prefix("invalid length ")) {
        (_, Some(length)) => format!("a list of {length}"),
        ("map", None) => "an object".into(),
        ("sequence", None) => "a list".into(),
        (other, None) => other.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use crate::family::checkpoint::json::parse;
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
        _width: usize,
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
            (r#"{"_width": 1, "_list": 2.5}"#, "_list: expected a list, found 2.5"),
            (r#"{"_width": 1, "_list": [null]}"#, "_list[0]: expected a number, found null"),
            (r#"{"_width": 1, "_flag": "no"}"#, r#"_flag: expected true or false, found "no""#),
            (r#"{"_width": 1, "_signed": 0.5}"#, "_signed: expected a whole number, found 0.5"),
            (r#"{"_width": 1, "_inner": 3}"#, "_inner: expected an object, found 3"),
            (r#"{"_width": 1, "_inner": []}"#, "_inner: expected an object, found a list of 0"),
            ("[]", "the file: expected an object, found a list of 0"),
            ("7", "the file: expected an object, found 7"),
            (r#"{"_width": 1, "_window": 0}"#, "_window: expected `full` or `sliding`, found 0"),
            (r#"{"_width": 1, "_window": {}}"#, "_window: expected `full` or `sliding`, found {}"),
            (r#"{"_width": 1, "_window": ["full"]}"#, r#"_window: expected `full` or `sliding`, found ["full"]"#),
            (r#"{"_width": 1, "_window": "none"}"#, r#"_window: expected `full` or `sliding`, found "none""#),
            (
                r#"{"_width": 1, "_inner": {"_width": 1, "_window": 3}}"#,
                "_inner._window: expected `full` or `sliding`, found 3",
            ),
            (r#"{"_width": 1, "_window": {"sliding": 3}}"#, "_window.sliding: expected an object, found 3"),
            (
                r#"{"_width": 1, "_window": "sliding"}"#,
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
