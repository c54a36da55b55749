//! Rewrites serde's messages about JSON in the terms of JSON instead of Rust.

use super::shown::clip;
use std::fmt;

/// Maximum bytes of a found value that a message quotes.
pub const QUOTED: usize = 200;

/// serde's names of expected values, and ours.
const EXPECTED: &[(&str, &str)] = &[
    ("i64", "a whole number"),
    ("i32", "a whole number from -2147483648 to 2147483647"),
    ("f64", "a number"),
    ("f32", "a number"),
    ("a boolean", "true or false"),
    ("a sequence", "a list"),
    ("a map", "an object"),
    ("map with a single key", "an object with one key"),
];
/// serde's names of whole numbers of at least 0, and the largest of each.
const NATURALS: &[(&str, u64)] = &[
    ("u8", u8::MAX as u64),
    ("u16", u16::MAX as u64),
    ("u32", u32::MAX as u64),
    ("u64", u64::MAX),
    ("usize", usize::MAX as u64),
];

/// An error in a JSON text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch<'a> {
    /// The path of the key, such as `layers[0].size`; empty for the whole text.
    pub key: String,
    /// The expected value, in words.
    pub expected: String,
    /// The value found, at most [`QUOTED`] bytes.
    pub found: String,
    /// The line and the column, if `found` does not name them.
    place: &'a str,
}

impl fmt::Display for Mismatch<'_> {
    /// Writes what was expected and found, and where.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { expected, found, place, .. } = self;
        write!(out, "expected {expected}, found {found}")?;
        match place.strip_prefix(" at ") {
            Some(place) => write!(out, " ({place})"),
            None => Ok(()),
        }
    }
}

/// Splits serde's message from the place at its end.
pub fn split_place(message: &str) -> (&str, &str) {
    message.rfind(" at line ").map_or((message, ""), |index| message.split_at(index))
}

/// Splits serde's message about the value at `path` into key, expectation and finding. A message of unknown form becomes the
/// finding. `is_data` states that the syntax is right.
pub fn mismatch<'a>(message: &'a str, mut path: Vec<&'a str>, is_data: bool) -> Mismatch<'a> {
    let (message, place) = split_place(message);
    let mut outside = place;
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
        let found = finding(before);
        ("", expectation(after, &found), found)
    } else if let Some((expected, found)) =
        message.strip_prefix("expected ").and_then(|own| own.rsplit_once(", found "))
    {
        ("", expected.to_owned(), found.to_owned())
    } else {
        outside = "";
        let found = if is_data { format!("{message}{place}") } else { format!("a syntax error ({message}{place})") };
        ("", "valid JSON".into(), found)
    };
    // serde's path sometimes ends with the unknown key and sometimes before it
    let inside = path.last().is_some_and(|last| *last == field || last.ends_with(&format!(".{field}")));
    if !inside {
        path.push(field);
    }
    path.retain(|part| !part.is_empty());
    Mismatch { key: path.join("."), expected, found: clip(&found, QUOTED), place: outside }
}

fn expectation(words: &str, found: &str) -> String {
    if let Some((_, max)) = NATURALS.iter().find(|(serde, _)| *serde == words) {
        let is_too_large = found.parse::<f64>().is_ok_and(|number| number > *max as f64);
        let bound = if is_too_large { format!("at most {max}") } else { "at least 0".to_owned() };
        return format!("a whole number of {bound}");
    }
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
    use super::*;

    #[test]
    fn the_place_follows_what_was_found() {
        let shown = mismatch("invalid value: integer `70000`, expected u16 at line 2 column 5", vec!["a[0]"], true);
        assert_eq!(shown.key, "a[0]");
        assert_eq!(shown.to_string(), "expected a whole number of at most 65535, found 70000 (line 2 column 5)");
        let own = mismatch("expected at most 2 strings, found 3 at line 1 column 7", vec!["stop"], true);
        assert_eq!(own.to_string(), "expected at most 2 strings, found 3 (line 1 column 7)");
        let missing = mismatch("missing field `id` at line 1 column 2", vec![""], true);
        assert_eq!((missing.key.as_str(), missing.found.as_str()), ("id", "nothing"));
        let syntax = mismatch("trailing comma at line 1 column 9", vec![""], false);
        assert_eq!(syntax.to_string(), "expected valid JSON, found a syntax error (trailing comma at line 1 column 9)");
    }
}
