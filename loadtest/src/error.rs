//! Errors of this crate.

use std::{fmt::Display, io, ops::RangeInclusive, path::Path, path::PathBuf};
use weir_client::failed_connection::FailedConnection;

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Errors. Every message names the wrong value, where it is, and the limit.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message shows what its fields are")]
pub enum Error {
    /// A file or stream cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    /// An option is out of bounds.
    #[error("{field}: expected {expected}, found {value}")]
    BadOption { field: String, value: String, expected: String },
    /// Options contradict each other, or a condition of the command is not met.
    #[error("{0}")]
    Setting(String),
    #[error("no request succeeded: {outcomes}")]
    NoneSucceeded { outcomes: String },
    #[error("fewer than half of the requests succeeded: {outcomes}")]
    FewSucceeded { outcomes: String },
    /// The server rejected a request, or is unreachable for a known reason.
    #[error("{server}: {reason}")]
    Remote { server: String, reason: String },
    #[error("{server}: {failed}")]
    Connection { server: String, failed: FailedConnection },
    /// A file is not a report of this version.
    #[error("{}: {problem}", path.display())]
    Report { path: PathBuf, problem: String },
    /// An invariant of this program is broken.
    #[error("internal: {0}")]
    Internal(String),
}

impl Error {
    /// Returns a function for `map_err` after reading or writing `path`.
    pub fn io(path: impl AsRef<Path>) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { path: path.as_ref().to_owned(), source }
    }

    /// Returns a function for `map_err` after reading the file that `flag` names.
    pub fn unreadable<'a>(flag: &'a str, file: &'a Path) -> impl FnOnce(io::Error) -> Self + 'a {
        move |error| Self::Setting(format!("{flag}: cannot read {}: {error}", file.display()))
    }

    /// Returns a function for `map_err` after writing the file that `flag` names.
    pub fn unwritable<'a>(flag: &'a str, file: &'a Path) -> impl FnOnce(io::Error) -> Self + 'a {
        move |error| Self::Setting(format!("{flag}: cannot write {}: {error}", file.display()))
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
