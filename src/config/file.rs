//! Settings from a TOML file. Its keys are the flags' names, without the dashes in front.

use super::contents;
use crate::error::clip;
use std::path::Path;
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

/// Bytes of a key that a message repeats.
const KEY_BYTES: usize = 64;

/// What a setting's value must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A string.
    Text,
    /// A whole number.
    Number,
    /// A whole number of bytes, or a string with a unit.
    Size,
    /// `true` or `false`.
    Switch,
    /// Strings.
    List,
}

impl Kind {
    fn expected(self) -> &'static str {
        match self {
            Self::Text => "a string",
            Self::Number => "a whole number",
            Self::Size => "a whole number or a string such as \"2GiB\"",
            Self::Switch => "true or false",
            Self::List => "a list of strings",
        }
    }

    /// The value as a flag would have it.
    fn read(self, value: &DeValue<'_>) -> Option<Vec<String>> {
        match (self, value) {
            (Self::Text | Self::Size, DeValue::String(text)) => Some(vec![text.to_string()]),
            (Self::Number | Self::Size, DeValue::Integer(number)) => {
                Some(vec![i64::from_str_radix(number.as_str(), number.radix()).ok()?.to_string()])
            }
            (Self::Switch, DeValue::Boolean(on)) => Some(vec![on.to_string()]),
            (Self::List, DeValue::Array(list)) => {
                list.iter().map(|one| one.get_ref().as_str().map(str::to_owned)).collect()
            }
            _ => None,
        }
    }
}

/// One setting of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The flag's name, without the dashes in front.
    pub key: String,
    /// Its values, as a flag would have them.
    pub values: Vec<String>,
    /// The file and the line.
    pub origin: String,
}

/// The settings of a file, and everything that is wrong with it. `kind` tells what a key's value must be, if there is such
/// a key.
pub fn read(path: &Path, kind: impl Fn(&str) -> Option<Kind>) -> (Vec<Entry>, Vec<String>) {
    let name = path.display().to_string();
    let text = match contents(path).map(String::from_utf8) {
        Ok(Ok(text)) => text,
        Ok(Err(_)) => return (Vec::new(), vec![format!("--config {name:?}: it is not UTF-8")]),
        Err(why) => return (Vec::new(), vec![format!("--config {name:?}: {why}")]),
    };
    parse(&name, &text, kind)
}

fn parse(name: &str, text: &str, kind: impl Fn(&str) -> Option<Kind>) -> (Vec<Entry>, Vec<String>) {
    let (table, errors) = DeTable::parse_recoverable(text);
    let at = |offset: usize| {
        let before = text.as_bytes().get(..offset).unwrap_or(text.as_bytes());
        format!("{name}, line {}", 1 + before.iter().filter(|byte| **byte == b'\n').count())
    };
    let mut wrong: Vec<_> = errors
        .iter()
        .map(|error| format!("{}: {}", at(error.span().map_or(0, |span| span.start)), error.message()))
        .collect();
    if !wrong.is_empty() {
        // What was understood of the rest may not be what was meant.
        return (Vec::new(), wrong);
    }
    let mut rows: Vec<(&Spanned<_>, &Spanned<_>)> = table.get_ref().iter().collect();
    rows.sort_by_key(|(key, _)| key.span().start);
    let mut entries = Vec::new();
    for (key, value) in rows {
        let (origin, key) = (at(key.span().start), key.get_ref().to_string());
        let Some(kind) = kind(&key) else {
            wrong.push(format!("{origin}: there is no setting {:?}{}", clip(&key, KEY_BYTES), hint(&key, &kind)));
            continue;
        };
        match kind.read(value.get_ref()) {
            Some(values) => entries.push(Entry { key, values, origin }),
            None => {
                let found = value.get_ref().type_str();
                wrong.push(format!("{origin}: {key}: expected {}, found {found}", kind.expected()));
            }
        }
    }
    (entries, wrong)
}

/// The likeliest slip.
fn hint(key: &str, kind: &impl Fn(&str) -> Option<Kind>) -> String {
    let kebab = key.replace('_', "-");
    if kind(&kebab).is_some() { format!("; did you mean {kebab:?}?") } else { String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(key: &str) -> Option<Kind> {
        let known = [
            ("listen", Kind::Text),
            ("rows", Kind::Number),
            ("kv-memory", Kind::Size),
            ("json", Kind::Switch),
            ("model", Kind::List),
        ];
        known.into_iter().find(|(name, _)| *name == key).map(|(_, kind)| kind)
    }

    #[test]
    fn values_are_what_flags_would_have() {
        let text =
            "# ours\nrows = 0x1_0\nlisten = '[::]:1' # all\njson = true\nkv-memory = 1_000\n\nmodel = [\"a\",\n 'b']\n";
        let (entries, wrong) = parse("w.toml", text, kind);
        assert_eq!(wrong, [""; 0]);
        let told: Vec<_> = entries.iter().map(|entry| (&*entry.key, entry.values.join(","), &*entry.origin)).collect();
        assert_eq!(
            told,
            [
                ("rows", "16".to_owned(), "w.toml, line 2"),
                ("listen", "[::]:1".into(), "w.toml, line 3"),
                ("json", "true".into(), "w.toml, line 4"),
                ("kv-memory", "1000".into(), "w.toml, line 5"),
                ("model", "a,b".into(), "w.toml, line 7"),
            ]
        );
        assert_eq!(parse("w.toml", "kv-memory = '2GiB'", kind).0[0].values, ["2GiB"]);
        assert_eq!(parse("w.toml", "model = []", kind).0[0].values, [""; 0]);
    }

    #[test]
    fn all_that_is_wrong_is_told_with_its_line() {
        let text = "rows = \"8\"\nlisten = 5\njson = 1\nmodel = 'a'\nkv_memory = 1\n\nnone = 1\nkv-memory = 1.5\n\
                    [rows-of]\nx = 1\n";
        let (entries, wrong) = parse("w.toml", text, kind);
        assert_eq!(entries, []);
        assert_eq!(
            wrong,
            [
                "w.toml, line 1: rows: expected a whole number, found string",
                "w.toml, line 2: listen: expected a string, found integer",
                "w.toml, line 3: json: expected true or false, found integer",
                "w.toml, line 4: model: expected a list of strings, found string",
                "w.toml, line 5: there is no setting \"kv_memory\"; did you mean \"kv-memory\"?",
                "w.toml, line 7: there is no setting \"none\"",
                "w.toml, line 8: kv-memory: expected a whole number or a string such as \"2GiB\", found float",
                "w.toml, line 9: there is no setting \"rows-of\"",
            ]
        );
        for list in ["model = [1]", "model = ['a', ['b']]", "rows = 99999999999999999999"] {
            assert_eq!(parse("w.toml", list, kind).1.len(), 1, "{list}");
        }
    }

    #[test]
    fn what_is_no_toml_is_told_with_its_line() {
        for (text, line) in [("rows = 1\nrows = 2\n", 2), ("rows = 1\n\nlisten = \n", 3), ("rows 1\n", 1)] {
            let (entries, wrong) = parse("w.toml", text, kind);
            assert!(entries.is_empty() && !wrong.is_empty(), "{text}");
            assert!(wrong[0].starts_with(&format!("w.toml, line {line}: ")), "{wrong:?}");
        }
    }
}
