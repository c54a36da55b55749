//! The closed list of errors, one variant per rule, and their messages: what was wrong, where, the value found and the limit.
//! Every variant has one [`Code`]. Also rewrites serde's messages in the terms of JSON.

use std::{fmt, path::PathBuf, time::Duration};

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
///
/// A `field` has the name of the surface that reads it: gRPC's, dotted as on the wire; a key of a request in JSON; or a flag. The
/// set of these names is open, because each surface has fields that this crate knows nothing of. A surface that prints names of
/// its own for gRPC's passes them to [`named`](Error::named), so every name in a message is a field of its variant.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message shows what its fields are")]
pub enum Error {
    /// No model is served under that name.
    #[error("{field}: expected one of {}, found {name:?}", known.join(", "))]
    UnknownModel { field: &'static str, name: String, known: Vec<String> },
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
    /// A number above the value of another option.
    #[error("{field}: expected 0 to {limit} (the value of {other}), found {found}")]
    AboveOption { field: &'static str, found: usize, limit: usize, other: &'static str },
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
        /// The unit: `symbols`, `bytes`.
        unit: &'static str,
        /// The reason for the limit, if the model sets it; none for a setting.
        why: Option<&'static str>,
    },
    /// An input longer than a limit, of unknown length because it was not read to its end.
    #[error("{field}: expected at most {limit} {unit}{}, found more", reason(*why))]
    LongerThan {
        field: &'static str,
        limit: usize,
        /// The unit: `symbols`, `bytes`.
        unit: &'static str,
        /// The reason for the limit, if the model sets it; none for a setting.
        why: Option<&'static str>,
    },
    /// A message longer than the server accepts, compressed or not.
    #[error("{what}: expected at most {limit} bytes, found more")]
    Oversized {
        /// The part: `the message`, `the body`.
        what: &'static str,
        limit: usize,
    },
    /// A model that does not support the call, whose field `model` is wrong, or an option.
    #[error("{field}: expected a model that {wanted}, found {model:?}, {found}{}", instead.map(|call| format!(" (use {call})")).unwrap_or_default())]
    WrongKind {
        field: &'static str,
        model: String,
        wanted: String,
        found: String,
        /// The method that the model has instead.
        instead: Option<&'static str>,
    },
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
    /// A request that cannot run even alone. A retry also fails; a smaller request may succeed.
    #[error(
        "{field}: expected a request that needs at most {limit} bytes of key-value memory, found one that can need {needed}"
    )]
    NeverFits {
        /// The field that makes it too large: the prompt or text, or the limit of generated symbols.
        field: &'static str,
        needed: usize,
        limit: usize,
    },
    /// A request that would feed more symbols than one request may. A retry also fails; a smaller request may succeed.
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
    /// The system starts no thread.
    #[error("cannot start a thread for {work}: {source} (see `ulimit -u` and the container's limit of processes)")]
    NoThread {
        /// What the thread would do.
        work: &'static str,
        source: std::io::Error,
    },
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
    /// The model's worker has panicked too often or could not start over, or the model's file changed.
    #[error("the model's worker is broken: load the model again, or restart the server")]
    Broken,
    /// A file that a model reads while it is served, and that changed or can no longer be read. The model's worker breaks.
    #[error(
        "{file}: {tensor}: expected an unchanged file while the model is served, found {found}; load the model again"
    )]
    FileChanged {
        /// The file's name, without its folder: clients read it.
        file: String,
        tensor: String,
        found: String,
    },
    /// An invalid file: a checkpoint, the source of a conversion, or saved measurements.
    #[error("{file}: {key}: expected {expected}, found {found}", file = file.display())]
    Checkpoint {
        file: PathBuf,
        /// The key, tensor or position in it.
        key: String,
        expected: String,
        found: String,
    },
    /// A checkpoint whose outputs differ from the second implementation's.
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
        normaliser: String,
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
    /// A remote server that refused a call, with its error.
    #[error("{server}: {error}")]
    Refused { server: String, error: Box<Self> },
    /// A remote server's answer about a field, without the field at its beginning.
    #[error("{field}{why}")]
    Answer { field: &'static str, why: String },
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
            | Self::AboveOption { .. }
            | Self::Unreadable { .. }
            | Self::Exclusive { .. }
            | Self::TooLong { .. }
            | Self::LongerThan { .. }
            | Self::NeverFits { .. }
            | Self::TooMuchWork { .. }
            | Self::Damaged { .. }
            | Self::NeedsNormaliser { .. }
            | Self::Answer { .. }
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
            | Self::NoThread { .. }
            | Self::TooManyModels { .. } => Code::ResourceExhausted,
            Self::Unauthenticated { .. } => Code::Unauthenticated,
            Self::PermissionDenied { .. } => Code::PermissionDenied,
            Self::Deadline { .. } | Self::RanTooLong { .. } => Code::DeadlineExceeded,
            Self::Cancelled => Code::Cancelled,
            Self::Incomplete { code, .. } => *code,
            Self::InItem { error, .. } => error.code(),
            Self::Oversized { .. } => Code::OutOfRange,
            Self::Draining { .. }
            | Self::Broken
            | Self::FileChanged { .. }
            | Self::Remote { .. }
            | Self::Refused { .. } => Code::Unavailable,
            Self::Internal(_) => Code::Internal,
        }
    }

    /// Creates a [`BadOption`](Self::BadOption) error.
    pub fn bad_option(field: &'static str, found: impl Into<String>, bound: impl Into<String>) -> Self {
        Self::BadOption { field, found: found.into(), bound: bound.into() }
    }

    /// Creates a [`WrongKind`](Self::WrongKind) error about the model of that name.
    pub fn wrong_kind(field: &'static str, model: &str, wanted: &str, found: impl Into<String>) -> Self {
        Self::WrongKind { field, model: model.into(), wanted: wanted.into(), found: found.into(), instead: None }
    }

    /// Creates the error for a call of a model that only summarizes. `shape` describes the model.
    pub fn only_summarizes(model: &str, wanted: &str, shape: &str) -> Self {
        Self::other_method(model, wanted, format!("a model that summarizes: {shape}"), "Summarize")
    }

    /// Creates the error for a document of a model that only continues text. `shape` describes the model.
    pub fn only_continues_text(model: &str, shape: &str) -> Self {
        Self::other_method(model, "reads documents", format!("a model that continues text: {shape}"), "Generate")
    }

    fn other_method(model: &str, wanted: &str, found: String, method: &'static str) -> Self {
        let instead = Some(method);
        Self::WrongKind { field: "model", model: model.into(), wanted: wanted.into(), found, instead }
    }

    /// Returns the error with the names that a surface has, by `name`, for fields and methods of the gRPC API.
    pub fn named(mut self, name: impl Copy + Fn(&'static str) -> &'static str) -> Self {
        match &mut self {
            Self::UnknownModel { field, .. }
            | Self::UnknownSymbol { field, .. }
            | Self::BadOption { field, .. }
            | Self::TooLong { field, .. }
            | Self::LongerThan { field, .. }
            | Self::NeverFits { field, .. }
            | Self::TooMuchWork { field, .. }
            | Self::NeedsNormaliser { option: field, .. }
            | Self::WrongKind { field, instead: None, .. }
            | Self::Answer { field, .. } => *field = name(field),
            Self::AboveOption { field: first, other: second, .. }
            | Self::Exclusive { first, second }
            | Self::WrongKind { field: first, instead: Some(second), .. } => {
                *first = name(first);
                *second = name(second);
            }
            Self::Refused { error, .. } => **error = std::mem::replace(&mut **error, Self::Cancelled).named(name),
            _ => {}
        }
        self
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

// Rewrites serde's messages about JSON in the terms of JSON instead of Rust.

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

/// Splits serde's message about the value at `path` into key, expectation and finding. An unknown message is the finding.
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
    } else if message == "number out of range" {
        ("", format!("a number of at most {:e}", f32::MAX), "a larger one".into())
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

// Texts of clients and files as messages show them.

/// Makes a text safe to print: replaces control characters, and characters not allowed in XML, with U+FFFD.
pub fn printable(text: &str) -> String {
    let harmful = |c: char| c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}');
    text.chars().map(|c| if harmful(c) { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

/// Maximum bytes of a client's text that [`quoted`] repeats.
pub const QUOTED_BYTES: usize = 64;

/// Quotes a client's text for an error message, truncated to [`QUOTED_BYTES`].
pub fn quoted(text: &str) -> String {
    format!("{:?}", clip(text, QUOTED_BYTES))
}

/// Truncates a text to at most `limit` bytes: messages quote input, which may be megabytes.
pub fn clip(text: &str, limit: usize) -> String {
    if text.len() <= limit {
        return text.to_owned();
    }
    let (beginning, _) = text.split_at(floor_boundary(text, limit));
    format!("{beginning}…")
}

/// Returns the last character boundary at or before `byte`.
pub fn floor_boundary(text: &str, byte: usize) -> usize {
    let mut byte = byte.min(text.len());
    while !text.is_char_boundary(byte) {
        byte -= 1;
    }
    byte
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
        let large = mismatch("number out of range at line 1 column 9", vec!["top_p"], false);
        assert_eq!(
            large.to_string(),
            "expected a number of at most 3.4028235e38, found a larger one (line 1 column 9)"
        );
        let syntax = mismatch("trailing comma at line 1 column 9", vec![""], false);
        assert_eq!(syntax.to_string(), "expected valid JSON, found a syntax error (trailing comma at line 1 column 9)");
    }

    #[test]
    fn a_surface_has_its_own_names() {
        let flag = |name| match name {
            "stopping.max_chars" => "--max-chars",
            "stopping.min_chars" => "--min-chars",
            "Generate" => "`weir generate`",
            other => other,
        };
        let server = "h:1".to_owned();
        let named =
            |error: Error| Error::Refused { server: server.clone(), error: error.into() }.named(flag).to_string();
        let field = "stopping.min_chars";
        let other = "stopping.max_chars";
        assert_eq!(
            named(Error::AboveOption { field, found: 4, limit: 3, other }),
            "h:1: --min-chars: expected 0 to 3 (the value of --max-chars), found 4"
        );
        assert_eq!(
            named(Error::wrong_kind(other, "m", "pools", "another")),
            "h:1: --max-chars: expected a model that pools, found \"m\", another"
        );
        assert_eq!(
            named(Error::only_continues_text("m", "s")),
            "h:1: model: expected a model that reads documents, found \"m\", a model that continues text: s \
             (use `weir generate`)"
        );
        assert_eq!(named(Error::Answer { field, why: ": 0 to 8".into() }), "h:1: --min-chars: 0 to 8");
    }

    #[test]
    fn control_characters_are_replaced_one_by_one() {
        assert_eq!(printable("a name: größe <&> 模型"), "a name: größe <&> 模型");
        assert_eq!(printable("\0\t\n\u{1b}[2J\u{7f}\u{9b}\u{fffe}\u{ffff}x"), "���\u{fffd}[2J����x");
    }
}
