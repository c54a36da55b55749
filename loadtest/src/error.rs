//! Errors of this crate.

use std::{io, path::Path, path::PathBuf};

/// Result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Errors. Every message names the wrong value, where it is, and the limit.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or stream could not be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// File or stream.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// An option is out of bounds.
    #[error("{field}: {value} must be {expected}")]
    BadOption {
        /// Option.
        field: String,
        /// Value found.
        value: String,
        /// Values allowed.
        expected: String,
    },
    /// Options contradict each other, or a condition of the command is not met.
    #[error("{0}")]
    Setting(String),
    /// No measured request succeeded.
    #[error("no request succeeded: {outcomes}")]
    NoneSucceeded {
        /// How the requests ended.
        outcomes: String,
    },
    /// Fewer than half of the measured requests succeeded.
    #[error("fewer than half of the requests succeeded: {outcomes}")]
    FewSucceeded {
        /// How the requests ended.
        outcomes: String,
    },
    /// The server is unreachable or rejected a request.
    #[error("{server}: {reason}")]
    Remote {
        /// Address of the server.
        server: String,
        /// Status of the server, or why the connection failed.
        reason: String,
    },
    /// A file is not a report of this version.
    #[error("{}: {location}: {problem}", path.display())]
    Report {
        /// File.
        path: PathBuf,
        /// Dotted path of the wrong key.
        location: String,
        /// Problem found there.
        problem: String,
    },
    /// An invariant of this program is broken.
    #[error("internal: {0}")]
    Internal(String),
}

impl Error {
    /// Returns a function for `map_err` after reading or writing `path`.
    pub fn io(path: impl AsRef<Path>) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { path: path.as_ref().to_owned(), source }
    }

    /// Builds a [`Error::BadOption`].
    pub fn option(field: impl Into<String>, value: impl ToString, expected: impl Into<String>) -> Self {
        Self::BadOption { field: field.into(), value: value.to_string(), expected: expected.into() }
    }
}
