//! The closed list of errors, one variant per rule.
//!
//! Every variant has one [`Code`]; only `serve/status.rs` maps codes to the wire. A message names what was wrong, where, the
//! value found and the limit. This module is independent of any transport.

pub mod json;
mod shown;

pub use shown::{Names, QUOTED_BYTES, clip, is_field_name, printable, quoted};
use std::{path::PathBuf, time::Duration};

/// The kind of an error, numbered like gRPC's status codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    /// The request breaks a rule that does not depend on the server's state.
    InvalidArgument = 3,
    /// No model or document has that name.
    NotFound = 5,
    /// The method does not exist.
    Unimplemented = 12,
    /// The request is well formed, but not for this model.
    FailedPrecondition = 9,
    /// A limit on shared resources is reached; trying again later may work.
    ResourceExhausted = 8,
    /// The client has no valid credentials.
    Unauthenticated = 16,
    /// The request's deadline has passed.
    DeadlineExceeded = 4,
    /// The client disconnected.
    Cancelled = 1,
    /// The client is not allowed to do this.
    PermissionDenied = 7,
    /// A message is longer than the server accepts.
    OutOfRange = 11,
    /// The server is shutting down, or the model's worker is broken.
    Unavailable = 14,
    /// A broken invariant: a bug in weir.
    Internal = 13,
}

impl Code {
    /// Returns the name of the code as gRPC writes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::InvalidArgument => "INVALID_ARGUMENT",
            Self::NotFound => "NOT_FOUND",
            Self::Unimplemented => "UNIMPLEMENTED",
            Self::FailedPrecondition => "FAILED_PRECONDITION",
            Self::ResourceExhausted => "RESOURCE_EXHAUSTED",
            Self::Unauthenticated => "UNAUTHENTICATED",
            Self::DeadlineExceeded => "DEADLINE_EXCEEDED",
            Self::Cancelled => "CANCELLED",
            Self::PermissionDenied => "PERMISSION_DENIED",
            Self::OutOfRange => "OUT_OF_RANGE",
            Self::Unavailable => "UNAVAILABLE",
            Self::Internal => "INTERNAL",
        }
    }
}

/// A result whose error is [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// All errors. Only fields that their message does not explain have a comment.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message shows what its fields are")]
pub enum Error {
    /// No model is served under that name.
    #[error("model: expected one of {}, found {name:?}", known.join(", "))]
    UnknownModel { name: String, known: Vec<String> },
    /// No service of this server has that method.
    #[error("unknown method {path:?}: no service of this server has it")]
    UnknownMethod {
        /// The requested path: `/package.Service/Method`.
        path: String,
    },
    /// The document cache holds no such document of this client.
    #[error("unknown or expired document id {id:?}")]
    UnknownDocument { id: String },
    /// A symbol outside of the model's vocabulary.
    #[error("{field}: expected symbols of the model's vocabulary, found {found} at {unit} {offset}")]
    UnknownSymbol {
        /// The request's field, e.g. `prompt`.
        field: &'static str,
        /// The symbol, printable: `'\u{e9}'`, or `id 31 (the vocabulary has 27 symbols)`.
        found: String,
        offset: usize,
        /// The unit of `offset`, which begins at 0: `character`, `index` or `token`.
        unit: &'static str,
    },
    /// An option outside of its limits. `bound` describes the values that are allowed: `1 to 64`, `one of a, b`.
    #[error("{field}: expected {bound}, found {found}")]
    BadOption {
        /// The option, dotted as on the wire: `sampling.temperature`.
        field: &'static str,
        found: String,
        bound: String,
    },
    /// Malformed input, such as invalid JSON.
    #[error("{why}")]
    Unreadable {
        /// The position in the request, if known.
        field: Option<String>,
        why: String,
    },
    /// An error in an item of a list. The field names in `error` are relative to the item.
    #[error("{list}[{index}].{error}")]
    InItem { list: &'static str, index: usize, error: Box<Self> },
    /// Two options that exclude each other.
    #[error("{first} and {second} exclude each other: give one")]
    Exclusive { first: &'static str, second: &'static str },
    /// An input that is longer than a limit.
    #[error("{field}: expected at most {limit} {unit}{}, found {length}", reason(*why))]
    TooLong {
        field: &'static str,
        length: usize,
        limit: usize,
        /// The unit: `characters`, `bytes`.
        unit: &'static str,
        /// The reason for the limit, if the model sets it; none for a setting.
        why: Option<&'static str>,
    },
    /// An input longer than a limit, of unknown length because it was not read to its end.
    #[error("{field}: expected at most {limit} {unit}{}, found more", reason(*why))]
    LongerThan {
        field: &'static str,
        limit: usize,
        /// The unit: `characters`, `bytes`.
        unit: &'static str,
        why: Option<&'static str>,
    },
    /// A message longer than the server accepts, compressed or not.
    #[error("{what}: expected at most {limit} bytes, found more")]
    Oversized {
        /// The part: `the message`, `the body`.
        what: &'static str,
        limit: usize,
    },
    /// A call or an option that this kind of model does not support.
    #[error("{}", shown::wrong_kind(call, model, wanted, found))]
    WrongKind { call: &'static str, model: String, wanted: &'static str, found: String },
    /// A call without a valid API key.
    #[error("unauthenticated: {why}")]
    Unauthenticated {
        /// The problem; never includes the credentials.
        why: &'static str,
    },
    /// The queue is full.
    #[error("the queue is full: at most {limit} {what} may wait")]
    QueueFull {
        what: &'static str,
        limit: usize,
        /// Time after which a retry may succeed.
        retry: Duration,
    },
    /// A limit on things in progress at the same time is reached.
    #[error("too many {what}: {limit} are allowed at the same time")]
    TooMany {
        what: &'static str,
        limit: usize,
        /// Time after which a retry may succeed.
        retry: Duration,
    },
    /// A request that cannot run even alone. A retry fails, too; a smaller request may succeed.
    #[error(
        "{field}: expected a request that needs at most {limit} bytes of key-value memory, found one that can need {needed}"
    )]
    NeverFits {
        /// The field that makes it too large: the prompt or text, or the limit of generated symbols.
        field: &'static str,
        needed: usize,
        limit: usize,
    },
    /// A request that would feed more symbols than one request may. A retry fails, too; a smaller request may succeed.
    #[error(
        "{field}: expected a request that feeds at most {limit} symbols to the model, found one that can feed {work}"
    )]
    TooMuchWork {
        /// The field that makes it too large.
        field: &'static str,
        /// Maximum symbols that it feeds, repeated context and generated symbols included.
        work: usize,
        limit: usize,
    },
    /// The key-value memory ran out.
    #[error("key-value memory: {needed} bytes needed, the limit is {limit}")]
    OutOfPages { needed: usize, limit: usize },
    /// The system has not enough memory for another model.
    #[error("the model may need {needed} bytes of memory; {available} are available")]
    NoMemory { needed: usize, available: usize },
    /// The maximum number of models is in memory.
    #[error("{limit} model generations are in memory (draining ones included), which is the limit")]
    TooManyModels { limit: usize },
    /// The call carries a wrong secret.
    #[error("{what} is invalid")]
    PermissionDenied {
        /// The kind of secret.
        what: &'static str,
    },
    /// The client does not read its response.
    #[error("the client read nothing of its response for {limit:?}, which is the limit")]
    Stalled { limit: Duration },
    /// The deadline passed.
    #[error("the deadline passed {stage}")]
    Deadline {
        /// The stage of the request: `in the queue`, `while decoding`.
        stage: &'static str,
    },
    /// The request ran for as long as one request may.
    #[error("the request ran for {limit:?}, which is the limit")]
    RanTooLong { limit: Duration },
    /// A request whose upload ended early.
    #[error("the request is incomplete: {why}")]
    Incomplete {
        /// The kind of error that ended it.
        code: Code,
        why: String,
    },
    /// The client disconnected.
    #[error("the client disconnected")]
    Cancelled,
    /// The server is shutting down.
    #[error("the server is shutting down: it accepts no new requests and ends running ones at the drain limit")]
    Draining {
        /// Time after which to retry, on another server.
        retry: Duration,
    },
    /// The model's worker has panicked too often, or could not start over.
    #[error("the model's worker is broken: load the model again, or restart the server")]
    Broken,
    /// An invalid file: a checkpoint, the source of a conversion, or saved measurements.
    #[error("{file}: {key}: expected {expected}, found {found}", file = file.display())]
    Checkpoint {
        file: PathBuf,
        /// The key, tensor or position in it.
        key: String,
        expected: String,
        found: String,
    },
    /// A checkpoint whose outputs differ from those of the second implementation.
    #[error("{model} is not verified: {difference}")]
    Unverified {
        model: String,
        /// The first difference beyond the tolerance.
        difference: String,
    },
    /// An error of the operating system.
    #[error("{path}: {source}", path = path.display())]
    Io { path: PathBuf, source: std::io::Error },
    /// Data that are not in the format of compressed data, or a text that differs from the one that was compressed.
    #[error("{what}: expected {expected}, found {found}")]
    Damaged {
        /// The part: `the header`, `a block`.
        what: &'static str,
        expected: String,
        found: String,
    },
    /// Compressed data of a model that computes other bits.
    #[error("the data were compressed with {what} {found}; {model:?} has {expected}")]
    CompressedWith {
        /// The difference: `the dtype`.
        what: &'static str,
        found: String,
        model: String,
        expected: String,
    },
    /// A text to compress that the model can only read after normalising it.
    #[error(
        "text: expected symbols of the model's vocabulary, found {found} at character {offset}; with {option}, the text is \
         rewritten by {normaliser} before it is compressed"
    )]
    NeedsNormaliser {
        found: String,
        offset: usize,
        normaliser: &'static str,
        /// The option that asks for it: `normalise`.
        option: &'static str,
    },
    /// A remote server that rejected a call or did not answer.
    #[error("{server}: {answer}")]
    Remote {
        server: String,
        /// Its answer, or why there was none.
        answer: String,
    },
    /// A remote server that refused a call because of a field of the request.
    #[error("{server}: {field}{why}")]
    Refused {
        server: String,
        field: String,
        /// The rest of its message, which began with the field.
        why: String,
    },
    /// An invalid setting of this program.
    #[error("{0}")]
    Setting(String),
    /// A broken invariant: a bug in weir.
    #[error("internal error: {0}")]
    Internal(String),
}

impl Error {
    /// Returns the kind of the error.
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
            | Self::TooMuchWork { .. }
            | Self::Damaged { .. }
            | Self::NeedsNormaliser { .. }
            | Self::Setting(_) => Code::InvalidArgument,
            Self::WrongKind { .. }
            | Self::CompressedWith { .. }
            | Self::Checkpoint { .. }
            | Self::Unverified { .. }
            | Self::Io { .. } => Code::FailedPrecondition,
            Self::QueueFull { .. }
            | Self::TooMany { .. }
            | Self::OutOfPages { .. }
            | Self::Stalled { .. }
            | Self::NoMemory { .. }
            | Self::TooManyModels { .. } => Code::ResourceExhausted,
            Self::Unauthenticated { .. } => Code::Unauthenticated,
            Self::PermissionDenied { .. } => Code::PermissionDenied,
            Self::Deadline { .. } | Self::RanTooLong { .. } => Code::DeadlineExceeded,
            Self::Cancelled => Code::Cancelled,
            Self::Incomplete { code, .. } => *code,
            Self::InItem { error, .. } => error.code(),
            Self::Oversized { .. } => Code::OutOfRange,
            Self::Draining { .. } | Self::Broken | Self::Remote { .. } | Self::Refused { .. } => Code::Unavailable,
            Self::Internal(_) => Code::Internal,
        }
    }

    /// Creates a [`BadOption`](Self::BadOption) error.
    pub fn bad_option(field: &'static str, found: impl Into<String>, bound: impl Into<String>) -> Self {
        Self::BadOption { field, found: found.into(), bound: bound.into() }
    }

    /// Adds the reason for the limit to an error about a length.
    pub fn because(mut self, reason: Option<&'static str>) -> Self {
        if let Self::TooLong { why, .. } | Self::LongerThan { why, .. } = &mut self {
            *why = reason;
        }
        self
    }

    /// Returns a function that turns an I/O error about `path` into [`Io`](Self::Io).
    pub fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source }
    }

    /// Creates a [`Checkpoint`](Self::Checkpoint) error.
    pub fn checkpoint(
        file: impl Into<PathBuf>,
        key: impl Into<String>,
        expected: impl Into<String>,
        found: impl Into<String>,
    ) -> Self {
        Self::Checkpoint { file: file.into(), key: key.into(), expected: expected.into(), found: found.into() }
    }
}

/// Formats the reason for a limit.
fn reason(why: Option<&str>) -> String {
    why.map(|why| format!(" ({why})")).unwrap_or_default()
}
