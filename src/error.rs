//! The closed list of what can go wrong, one variant a rule.
//!
//! Every variant has one [`Code`]; `serve/status.rs` maps codes to the wire and nothing else does. Messages say what was
//! wrong, where, and the bound. This room knows no transport.

use std::{path::PathBuf, time::Duration};

/// The names of gRPC's status codes, by number.
pub const CODE_NAMES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];

/// The kind of a failure, numbered as gRPC's status codes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    /// The caller's input breaks a rule that does not depend on the server's state.
    InvalidArgument = 3,
    /// There is no model, or document, of that name.
    NotFound = 5,
    /// There is no such call.
    Unimplemented = 12,
    /// The request is well formed, but not for this model.
    FailedPrecondition = 9,
    /// A limit on shared resources is reached; trying again later may work.
    ResourceExhausted = 8,
    /// It is not known who the caller is.
    Unauthenticated = 16,
    /// The caller's deadline has passed.
    DeadlineExceeded = 4,
    /// The caller went away.
    Cancelled = 1,
    /// The caller may not do this.
    PermissionDenied = 7,
    /// More than the wire takes.
    OutOfRange = 11,
    /// The server is shutting down.
    Unavailable = 14,
    /// A broken invariant of ours.
    Internal = 13,
}

impl Code {
    /// Returns the name of the code as gRPC writes it.
    pub fn name(self) -> &'static str {
        CODE_NAMES[self as usize]
    }
}

/// A result whose error is [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No model is served under that name.
    #[error("unknown model {name:?}; known: {}", known.join(", "))]
    UnknownModel {
        /// The name asked for.
        name: String,
        /// The names there are.
        known: Vec<String>,
    },
    /// No service here has that method.
    #[error("unknown method {path:?}: no service here has one of this path")]
    UnknownMethod {
        /// The path asked for: `/package.Service/Method`.
        path: String,
    },
    /// No such document is kept for the caller.
    #[error("unknown document {id:?}: there is none of this id that you have sent, or it is kept no longer")]
    UnknownDocument {
        /// The id asked for.
        id: String,
    },
    /// A symbol that the model's vocabulary does not have.
    #[error("{field}: {found} at character {offset} is not in the model's vocabulary")]
    UnknownSymbol {
        /// The request's field, e.g. `prompt`.
        field: &'static str,
        /// The symbol, printable: `'\u{e9}'`, or `id 31 (the vocabulary has 27 symbols)`.
        found: String,
        /// Its offset in characters (in symbols, if ids were given), from 0.
        offset: usize,
    },
    /// An option outside its bounds.
    #[error("{field}: {found} is out of bounds: {bound}")]
    BadOption {
        /// The option, dotted as on the wire: `sampling.temperature`.
        field: &'static str,
        /// What was given.
        found: String,
        /// What is allowed.
        bound: String,
    },
    /// Something that is not in the form it must have, such as JSON.
    #[error("{why}")]
    Unreadable {
        /// Where in the request, if it can be told.
        field: Option<String>,
        /// What is wrong with it.
        why: String,
    },
    /// Two options that exclude each other.
    #[error("{first} and {second} exclude each other: give one")]
    Exclusive {
        /// One of them.
        first: &'static str,
        /// The other.
        second: &'static str,
    },
    /// An input that is longer than a limit.
    #[error("{field}: {length} {unit} is more than the limit of {limit}{}", reason(*why))]
    TooLong {
        /// The field or input.
        field: &'static str,
        /// Its length.
        length: usize,
        /// The limit.
        limit: usize,
        /// What is counted: `characters`, `bytes`.
        unit: &'static str,
        /// Why it is the limit, if it is one of the model's own and not a setting.
        why: Option<&'static str>,
    },
    /// An input that was not read to its end, because it is longer than a limit already.
    #[error("{field}: more than {limit} {unit}, which is the limit{}", reason(*why))]
    LongerThan {
        /// The field or input.
        field: &'static str,
        /// The limit.
        limit: usize,
        /// What is counted: `characters`, `bytes`.
        unit: &'static str,
        /// Why it is the limit, likewise.
        why: Option<&'static str>,
    },
    /// A message that is longer than the wire takes, compressed or not.
    #[error("{what}: more than {limit} bytes, which is the limit")]
    Oversized {
        /// What is so long: `the message`, `the body`.
        what: &'static str,
        /// The most bytes that it may have.
        limit: usize,
    },
    /// A call that this kind of model cannot answer.
    #[error("{call} needs a model that {wanted}; {model:?} is {found}")]
    WrongKind {
        /// The call or option.
        call: &'static str,
        /// The model's name.
        model: String,
        /// The kind needed.
        wanted: &'static str,
        /// The kind found.
        found: String,
    },
    /// A call without a key that is known.
    #[error("unauthenticated: {why}")]
    Unauthenticated {
        /// What is missing, without a word of what was given.
        why: &'static str,
    },
    /// The queue has no place left.
    #[error("the queue is full: at most {limit} {what} may wait")]
    QueueFull {
        /// What is counted.
        what: &'static str,
        /// Its limit.
        limit: usize,
        /// When to try again.
        retry: Duration,
    },
    /// A request that could not run even alone: trying again later is no use, asking for less is.
    #[error("{field}: the request can need {needed} bytes of key-value memory, the limit is {limit}")]
    NeverFits {
        /// What makes it too large: the prompt or text alone, or what may follow it.
        field: &'static str,
        /// Bytes that it can need.
        needed: usize,
        /// Bytes there may be.
        limit: usize,
    },
    /// The key-value memory ran out.
    #[error("key-value memory: {needed} bytes needed, the limit is {limit}")]
    OutOfPages {
        /// Bytes needed.
        needed: usize,
        /// Bytes there may be.
        limit: usize,
    },
    /// There is no memory for another model.
    #[error("the model may need {needed} bytes of memory; {available} are available")]
    NoMemory {
        /// Bytes that it may need.
        needed: usize,
        /// Bytes that the system can give.
        available: usize,
    },
    /// As many models as there may be are in memory.
    #[error("{limit} generations of models are in memory, those that drain included, and that is the limit")]
    TooManyModels {
        /// The limit.
        limit: usize,
    },
    /// The call shows a secret that is not the right one.
    #[error("{what} is not the right one")]
    PermissionDenied {
        /// What it showed.
        what: &'static str,
    },
    /// The caller does not read its answer.
    #[error("the answer was not read: for {limit:?} nothing of what was ready was taken")]
    Stalled {
        /// How long that may last.
        limit: Duration,
    },
    /// The deadline passed.
    #[error("the deadline passed {stage}")]
    Deadline {
        /// Where the request was: `in the queue`, `while decoding`.
        stage: &'static str,
    },
    /// A request that ended before it had come whole.
    #[error("the request did not come whole: {why}")]
    Incomplete {
        /// What kind of failure ended it.
        code: Code,
        /// Why.
        why: String,
    },
    /// The caller went away.
    #[error("the caller went away")]
    Cancelled,
    /// The server is shutting down.
    #[error("the server is shutting down: it takes no new requests, and ends running ones at its limit")]
    Draining {
        /// When to try again, elsewhere.
        retry: Duration,
    },
    /// A file that is not as it must be: a checkpoint, one to be converted into one, saved measurements.
    #[error("{file}: {key}: expected {expected}, found {found}", file = file.display())]
    Checkpoint {
        /// The file.
        file: PathBuf,
        /// The key, tensor, or place in it.
        key: String,
        /// What the format asks for.
        expected: String,
        /// What is there.
        found: String,
    },
    /// The operating system refused.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// Its answer.
        source: std::io::Error,
    },
    /// A server that was asked, and refused or is not there.
    #[error("{server}: {answer}")]
    Remote {
        /// The server.
        server: String,
        /// Its answer, or why there is none.
        answer: String,
    },
    /// A setting of this program that cannot be used.
    #[error("{0}")]
    Setting(String),
    /// A broken invariant: our fault.
    #[error("internal error: {0}")]
    Internal(String),
}

impl Error {
    /// The kind of failure.
    pub fn code(&self) -> Code {
        match self {
            Self::UnknownModel { .. } | Self::UnknownDocument { .. } => Code::NotFound,
            Self::UnknownMethod { .. } => Code::Unimplemented,
            Self::UnknownSymbol { .. }
            | Self::BadOption { .. }
            | Self::Unreadable { .. }
            | Self::Exclusive { .. }
            | Self::TooLong { .. }
            | Self::LongerThan { .. }
            | Self::NeverFits { .. }
            | Self::Setting(_) => Code::InvalidArgument,
            Self::WrongKind { .. } | Self::Checkpoint { .. } | Self::Io { .. } => Code::FailedPrecondition,
            Self::QueueFull { .. }
            | Self::OutOfPages { .. }
            | Self::Stalled { .. }
            | Self::NoMemory { .. }
            | Self::TooManyModels { .. } => Code::ResourceExhausted,
            Self::Unauthenticated { .. } => Code::Unauthenticated,
            Self::PermissionDenied { .. } => Code::PermissionDenied,
            Self::Deadline { .. } => Code::DeadlineExceeded,
            Self::Cancelled => Code::Cancelled,
            Self::Incomplete { code, .. } => *code,
            Self::Oversized { .. } => Code::OutOfRange,
            Self::Draining { .. } | Self::Remote { .. } => Code::Unavailable,
            Self::Internal(_) => Code::Internal,
        }
    }

    /// The same with the reason for its limit, if it is about a length.
    pub fn because(mut self, reason: Option<&'static str>) -> Self {
        if let Self::TooLong { why, .. } | Self::LongerThan { why, .. } = &mut self {
            *why = reason;
        }
        self
    }

    /// An operating system's refusal, with the path it was about.
    pub fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source }
    }

    /// A file that is not as it must be.
    pub fn checkpoint(
        file: impl Into<PathBuf>,
        key: impl Into<String>,
        expected: impl Into<String>,
        found: impl Into<String>,
    ) -> Self {
        Self::Checkpoint { file: file.into(), key: key.into(), expected: expected.into(), found: found.into() }
    }
}

/// What is said of a limit's reason.
fn reason(why: Option<&str>) -> String {
    why.map(|why| format!(": {why}")).unwrap_or_default()
}

/// A text that does no harm where it is shown: names come from folders and files, and what steers a terminal, or must not be
/// in XML, becomes U+FFFD, sign by sign.
pub fn printable(text: &str) -> String {
    let harmful = |sign: char| sign.is_control() || matches!(sign, '\u{fffe}' | '\u{ffff}');
    text.chars().map(|sign| if harmful(sign) { char::REPLACEMENT_CHARACTER } else { sign }).collect()
}

/// The beginning of a text, at most so many bytes of it: messages quote what they were given, and it may be megabytes.
pub fn clip(text: &str, bytes: usize) -> String {
    if text.len() <= bytes {
        return text.to_owned();
    }
    let mut end = bytes;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let (beginning, _) = text.split_at(end);
    format!("{beginning}…")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_steers_a_terminal_is_replaced_sign_by_sign() {
        assert_eq!(printable("a name: größe <&> 模型"), "a name: größe <&> 模型");
        assert_eq!(printable("\0\t\n\u{1b}[2J\u{7f}\u{9b}\u{fffe}\u{ffff}x"), "���\u{fffd}[2J����x");
    }
}
