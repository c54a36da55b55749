//! Reads settings from a TOML file, whose keys are the flags' names without the leading dashes.

use crate::config::checks::{foreign_kind, read_text};
use std::path::Path;
use toml::Spanned;
use toml::de::{DeTable, DeValue};
use weir_kernels::error::quoted;

/// Maximum syntax errors that a message lists.
const MAX_SYNTAX_ERRORS: usize = 3;

/// The type of a setting's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueKind {
    /// A string.
    Text,
    /// A whole number.
    Number,
    /// A whole number of bytes, or a string with a unit.
    Size,
    /// `true` or `false`.
    Switch,
    /// A list of strings.
    List,
}

impl ValueKind {
    fn expected(self) -> &'static str {
        match self {
            Self::Text => "a string",
            Self::Number => "a whole number",
            Self::Size => "a whole number or a string such as \"2GiB\"",
            Self::Switch => "true or false",
            Self::List => "a list of strings",
        }
    }

    /// Returns the value as a flag would have it; none if its type is wrong.
    fn read(self, value: &DeValue<'_>) -> Option<Vec<String>> {
        match (self, value) {
            (Self::Text | Self::Size, DeValue::String(text)) => Some(vec![text.to_string()]),
            (Self::Number | Self::Size, DeValue::Integer(number)) => {
                Some(vec![i64::from_str_radix(number.as_str(), number.radix()).ok()?.to_string()])
            }
            (Self::Switch, DeValue::Boolean(on)) => Some(vec![on.to_string()]),
            (Self::List, DeValue::Array(list)) => {
                list.iter().map(|item| item.get_ref().as_str().map(str::to_owned)).collect()
            }
            _ => None,
        }
    }
}

/// One setting of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileSetting {
    /// The flag's name, without the leading dashes.
    pub key: String,
    /// Its values, as a flag would have them.
    pub values: Vec<String>,
    /// The file and the line.
    pub origin: String,
}

/// Reads a settings file and returns its settings and all problems. `kind` returns the type of a key's value, or none for an
/// unknown key.
pub fn read(path: &Path, kind: impl Fn(&str) -> Option<ValueKind>) -> (Vec<FileSetting>, Vec<String>) {
    let name = path.display().to_string();
    match read_text(path) {
        Ok(text) => match foreign_kind(&text) {
            Some(found) => (Vec::new(), vec![format!("--config: {name}: expected settings in TOML, found {found}")]),
            None => parse(&name, &text, kind),
        },
        Err(why) => (Vec::new(), vec![format!("--config: {why}")]),
    }
}

/// Parses the text of the settings file called `name`, as [`read`] does.
pub fn parse(name: &str, text: &str, kind: impl Fn(&str) -> Option<ValueKind>) -> (Vec<FileSetting>, Vec<String>) {
    let (table, errors) = DeTable::parse_recoverable(text);
    let origin = |offset: usize| {
        let before = text.as_bytes().get(..offset).unwrap_or(text.as_bytes());
        format!("{name}, line {}", 1 + before.iter().filter(|byte| **byte == b'\n').count())
    };
    let mut problems: Vec<_> = errors
        .iter()
        .map(|error| {
            let origin = origin(error.span().map_or(0, |span| span.start));
            format!("{origin}: expected valid TOML, found a syntax error ({})", error.message())
        })
        .collect();
    if problems.len() > MAX_SYNTAX_ERRORS {
        let more = problems.len() - MAX_SYNTAX_ERRORS;
        problems.truncate(MAX_SYNTAX_ERRORS);
        if let Some(last) = problems.last_mut() {
            let plural = if more == 1 { "" } else { "s" };
            *last += &format!("; {more} more syntax error{plural}");
        }
    }
    if !problems.is_empty() {
        // after a syntax error the parsed rest may be wrong
        return (Vec::new(), problems);
    }
    let mut items: Vec<(&Spanned<_>, &Spanned<_>)> = table.get_ref().iter().collect();
    items.sort_by_key(|(key, _)| key.span().start);
    let mut settings = Vec::new();
    for (key, value) in items {
        let origin = origin(key.span().start);
        let key = key.get_ref().to_string();
        let Some(kind) = kind(&key) else {
            problems.push(format!(
                "{origin}: expected the name of a setting, found {}{}",
                quoted(&key),
                hint(&key, &kind)
            ));
            continue;
        };
        match kind.read(value.get_ref()) {
            Some(values) => settings.push(FileSetting { key, values, origin }),
            None => {
                let found = value.get_ref().type_str();
                problems.push(format!("{origin}: {key}: expected {}, found {found}", kind.expected()));
            }
        }
    }
    (settings, problems)
}

/// Suggests the key with dashes instead of underscores, if it exists.
fn hint(key: &str, kind: &impl Fn(&str) -> Option<ValueKind>) -> String {
    let kebab = key.replace('_', "-");
    if kind(&kebab).is_some() { format!("; did you mean {kebab:?}?") } else { String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(key: &str) -> Option<ValueKind> {
        let known = [
            ("listen", ValueKind::Text),
            ("rows", ValueKind::Number),
            ("kv-memory", ValueKind::Size),
            ("json", ValueKind::Switch),
            ("model", ValueKind::List),
        ];
        known.into_iter().find(|(name, _)| *name == key).map(|(_, kind)| kind)
    }

    #[test]
    fn values_are_read_as_flags_would_have_them() {
        let text = "# settings\nrows = 0x1_0\nlisten = '[::]:1' # all\njson = true\nkv-memory = 1_000\n\nmodel = [\"a\",\n 'b']\n";
        let (settings, problems) = parse("w.toml", text, kind);
        assert_eq!(problems, [""; 0]);
        let values = |setting: &FileSetting| setting.values.join(",");
        let actual: Vec<_> = settings.iter().map(|item| (&*item.key, values(item), &*item.origin)).collect();
        assert_eq!(
            actual,
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
    fn all_problems_name_their_line() {
        let text = "rows = \"8\"\nlisten = 5\njson = 1\nmodel = 'a'\nkv_memory = 1\n\nnone = 1\nkv-memory = 1.5\n\
                    [rows-of]\nx = 1\n";
        let (settings, problems) = parse("w.toml", text, kind);
        assert_eq!(settings, []);
        assert_eq!(
            problems,
            [
                "w.toml, line 1: rows: expected a whole number, found string",
                "w.toml, line 2: listen: expected a string, found integer",
                "w.toml, line 3: json: expected true or false, found integer",
                "w.toml, line 4: model: expected a list of strings, found string",
                "w.toml, line 5: expected the name of a setting, found \"kv_memory\"; did you mean \"kv-memory\"?",
                "w.toml, line 7: expected the name of a setting, found \"none\"",
                "w.toml, line 8: kv-memory: expected a whole number or a string such as \"2GiB\", found float",
                "w.toml, line 9: expected the name of a setting, found \"rows-of\"",
            ]
        );
        for list in ["model = [1]", "model = ['a', ['b']]", "rows = 99999999999999999999"] {
            assert_eq!(parse("w.toml", list, kind).1.len(), 1, "{list}");
        }
    }

    #[test]
    fn syntax_errors_name_their_line() {
        for (text, line) in [
            ("rows = 1\nrows = 2\n", 2),
            ("rows = 1\n\nlisten = \n", 3),
            ("rows 1\n", 1),
            ("a: 1\nb: 2\nc: 3\nd: 4\ne: 5\n", 1),
        ] {
            let (settings, problems) = parse("w.toml", text, kind);
            assert!(settings.is_empty() && !problems.is_empty(), "{text}");
            assert!(problems.len() <= MAX_SYNTAX_ERRORS, "{problems:?}");
            assert!(problems[0].starts_with(&format!("w.toml, line {line}: ")), "{problems:?}");
        }
        let end = |errors: usize| {
            // Every line but the first repeats a key.
            parse("w.toml", &"rows = 1\n".repeat(1 + errors), kind).1.pop().unwrap_or_default()
        };
        assert!(!end(3).contains("more syntax error"), "{}", end(3));
        assert!(end(4).ends_with("; 1 more syntax error"), "{}", end(4));
        assert!(end(5).ends_with("; 2 more syntax errors"), "{}", end(5));
    }
}
