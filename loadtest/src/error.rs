//! What can go wrong.

use std::{io, path::Path, path::PathBuf};

/// What a function of this crate gives.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Every message names what was wrong, where, and the bound.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or stream that could not be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// Which one.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// An option out of bounds.
    #[error("{field}: {found} must be {bound}")]
    BadOption {
        /// The option.
        field: String,
        /// What was given.
        found: String,
        /// What may be.
        bound: String,
    },
    /// A combination of settings that makes no sense.
    #[error("{0}")]
    Setting(String),
    /// A measurement of nothing but failures.
    #[error("no request ended well: {ends}")]
    NothingWell {
        /// How they ended.
        ends: String,
    },
    /// A measurement of failures above all.
    #[error("fewer than half of the requests ended well: {ends}")]
    FewWell {
        /// How they ended.
        ends: String,
    },
    /// The server is not there, or refuses.
    #[error("{server}: {answer}")]
    Remote {
        /// Its address.
        server: String,
        /// What it said, or why it is not reached.
        answer: String,
    },
    /// A file that is no report.
    #[error("{}: {place}: {why}", path.display())]
    Report {
        /// The file.
        path: PathBuf,
        /// Where in it, dotted.
        place: String,
        /// What is wrong there.
        why: String,
    },
    /// A broken invariant of this program.
    #[error("internal: {0}")]
    Internal(String),
}

impl Error {
    /// For `map_err` on what reads or writes `path`.
    pub fn io(path: impl AsRef<Path>) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { path: path.as_ref().to_owned(), source }
    }

    /// An option out of bounds.
    pub fn option(field: impl Into<String>, found: impl ToString, bound: impl Into<String>) -> Self {
        Self::BadOption { field: field.into(), found: found.to_string(), bound: bound.into() }
    }
}
