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
