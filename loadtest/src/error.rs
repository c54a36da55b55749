//! Errors of this crate.

use std::{fmt::Display, io, ops::RangeInclusive, path::Path};

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Errors. Every message names the wrong value, where it is, and the limit.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message shows what its fields are")]
pub enum Error {
    /// Stdout cannot be written.
    #[error("stdout: {0}")]
    Stdout(io::Error),
    /// An option is out of bounds.
    #[error("{field}: expected {expected}, found {value}")]
    BadOption { field: String, value: String, expected: String },
    /// Options contradict each other, or a condition of the command is not met.
    #[error("{0}")]
    Setting(String),
    /// The server rejected a request, is unreachable, or went away. The message begins with its address.
    #[error("{0}")]
    Server(String),
    /// An invariant of this program is broken.
    #[error("internal: {0}")]
    Internal(String),
}

impl Error {
    /// Returns a function for `map_err` after a failure to `verb` the file that `flag` names: `read` or `write`.
    pub fn file<'a>(flag: &'a str, verb: &'a str, file: &'a Path) -> impl FnOnce(io::Error) -> Self + 'a {
        move |error| Self::Setting(format!("{flag}: cannot {verb} {}: {error}", file.display()))
    }

    /// Builds a [`Error::BadOption`].
    pub fn option(field: impl Into<String>, value: impl ToString, expected: impl Into<String>) -> Self {
        Self::BadOption { field: field.into(), value: value.to_string(), expected: expected.into() }
    }

    /// Fails unless the value of an option is in a range.
    pub fn check_range<T: PartialOrd + Display>(field: &str, value: T, range: RangeInclusive<T>) -> Result<()> {
        let expected = || format!("{} to {}", range.start(), range.end());
        if range.contains(&value) { Ok(()) } else { Err(Self::option(field, value, expected())) }
    }
}
