//! The parts of the language server protocol 3.18 that this server uses. Fields that it does not read are left out.

use lsp_server::{ErrorCode, Message, RequestId};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::io::{BufRead, Read, Write, copy, sink};
use std::thread::{Builder, JoinHandle};
use tokio::sync::mpsc;
use weir_kernels::error::{Error, Result, quoted};

/// Severity of a message that an editor shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Severity {
    Error = 1,
    Warning = 2,
    Info = 3,
    Hint = 4,
}

/// A place in a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
pub(super) struct Position {
    /// The line, from 0.
    pub(super) line: u32,
    /// Units of the negotiated encoding before it in its line.
    pub(super) character: u32,
}

/// A part of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
pub(super) struct TextRange {
    pub(super) start: Position,
    /// Exclusive.
    pub(super) end: Position,
}

/// Where the parameters of `initialize` have the names of the position encodings that the client offers.
pub(super) const POSITION_ENCODINGS: &str = "/capabilities/general/positionEncodings";

#[derive(Debug, Deserialize)]
pub(super) struct DocumentId {
    pub(super) uri: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct DocumentItem {
    pub(super) uri: String,
    pub(super) text: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct OpenParams {
    pub(super) text_document: DocumentItem,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ChangeParams {
    pub(super) text_document: DocumentId,
    pub(super) content_changes: Vec<ContentChange>,
}

/// A change of a document. Without a range, the text is the whole document.
#[derive(Debug, Deserialize)]
pub(super) struct ContentChange {
    pub(super) range: Option<TextRange>,
    pub(super) text: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CloseParams {
    pub(super) text_document: DocumentId,
}

/// Parameters of a request for completions, inline or not.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CompletionParams {
    pub(super) text_document: DocumentId,
    pub(super) position: Position,
}

/// Parameters of a request for quick fixes.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CodeActionParams {
    pub(super) text_document: DocumentId,
    pub(super) context: CodeActionContext,
}

#[derive(Debug, Deserialize)]
pub(super) struct CodeActionContext {
    /// The diagnostics at the place, whose form only their sender knows.
    pub(super) diagnostics: Vec<Value>,
    /// The kinds of actions that are wanted; all without it.
    pub(super) only: Option<Vec<String>>,
}

#[derive(Debug, Deserialize)]
pub(super) struct CancelParams {
    pub(super) id: RequestId,
}

pub(super) fn response(id: &RequestId, result: Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "result": result })
}

/// Returns the answer to a request that failed; without an id if that could not be read.
pub(super) fn failure(id: Option<&RequestId>, code: ErrorCode, message: &str) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code as i32, "message": message } })
}

pub(super) const CHANGE: &str = "textDocument/didChange";

/// Maximum queued messages in each direction.
const WAITING: usize = 16;

/// The documents that a message which cannot be read may change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum MayChange {
    Nothing,
    /// The document with this URI.
    One(String),
    Any,
}

/// An input from the client.
#[derive(Debug)]
pub(super) enum Input {
    Message(Message),
    /// An invalid message. The messages after it can still be read.
    Wrong {
        /// The request's id, if that can be read.
        id: Option<RequestId>,
        code: ErrorCode,
        why: String,
        changes: MayChange,
    },
    /// The input cannot be read further.
    Broken(Error),
}

/// Reads the client's messages up to the end of the input.
pub(super) fn read(mut input: impl BufRead + Send + 'static) -> Result<mpsc::Receiver<Input>> {
    let (sender, receiver) = mpsc::channel(WAITING);
    start("weir-lsp-input", move || {
        while let Some(message) = read_next(&mut input) {
            let is_last = matches!(message, Input::Broken(_));
            if sender.blocking_send(message).is_err() || is_last {
                break;
            }
        }
    })?;
    Ok(receiver)
}

/// Reads a message; `None` at the end of the input. Nothing can be read after [`Input::Broken`].
pub(super) fn read_next(input: &mut impl BufRead) -> Option<Input> {
    match read_frame(input) {
        Ok(Some(Frame::Body(body))) => Some(parse(&body)),
        Ok(Some(Frame::TooLong { length, start })) => {
            let why = format!("expected a message of at most {MAX_BODY_BYTES} bytes, found {length}");
            Some(Input::Wrong { id: None, code: ErrorCode::InvalidRequest, why, changes: MayChange::by(&start) })
        }
        Ok(None) => None,
        Err(error) => Some(Input::Broken(error)),
    }
}

/// Writes messages to the client until the sender is dropped. The thread returns the error that ended it.
pub(super) fn write(
    mut output: impl Write + Send + 'static,
) -> Result<(mpsc::Sender<Value>, JoinHandle<std::io::Result<()>>)> {
    let (sender, mut receiver) = mpsc::channel::<Value>(WAITING);
    let thread = start("weir-lsp-output", move || {
        while let Some(message) = receiver.blocking_recv() {
            write_frame(&mut output, message.to_string().as_bytes())?;
        }
        Ok(())
    })?;
    Ok((sender, thread))
}

fn start<T: Send + 'static>(name: &str, work: impl FnOnce() -> T + Send + 'static) -> Result<JoinHandle<T>> {
    let thread = Builder::new().name(name.into()).spawn(work);
    thread.map_err(|source| Error::NoThread { work: "the editor's messages", source })
}

pub(super) fn parse(body: &[u8]) -> Input {
    let message: Value = match from_utf16(body) {
        Ok(message) => message,
        Err(error) => {
            let why = format!("expected JSON: {error}");
            return Input::Wrong { id: None, code: ErrorCode::ParseError, why, changes: MayChange::by(body) };
        }
    };
    let id = RequestId::deserialize(&message["id"]).ok();
    serde_json::from_value(message).map_or_else(
        |error| Input::Wrong {
            changes: if id.is_none() { MayChange::by(body) } else { MayChange::Nothing },
            id,
            code: ErrorCode::InvalidRequest,
            why: format!("expected a JSON-RPC message: {error}"),
        },
        Input::Message,
    )
}

/// Parses JSON whose strings are those of an editor: any UTF-16. U+FFFD stands for surrogates without their other half, one for each,
/// so positions stay the same.
fn from_utf16(body: &[u8]) -> serde_json::Result<Value> {
    serde_json::from_slice(body).or_else(|error| match without_lone_surrogates(body) {
        Some(body) => serde_json::from_slice(&body),
        None => Err(error),
    })
}

/// Replaces lone surrogates, which are escaped or encoded like other characters; `None` if there are none.
fn without_lone_surrogates(body: &[u8]) -> Option<Vec<u8>> {
    const REPLACEMENT: &str = "\\ufffd";
    let escaped = |at: usize| {
        let digits = body.get(at..)?.strip_prefix(b"\\u")?.get(..4)?;
        u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
    };
    let mut replaced = body.to_vec();
    let mut at = 0;
    while at < body.len() {
        let is_encoded = matches!(body[at..], [0xed, 0xa0..=0xbf, 0x80..=0xbf, ..]);
        let length = match (body[at], escaped(at), escaped(at + REPLACEMENT.len())) {
            (_, Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => 2 * REPLACEMENT.len(),
            (_, Some(0xd800..=0xdfff), _) => {
                replaced[at..at + REPLACEMENT.len()].copy_from_slice(REPLACEMENT.as_bytes());
                REPLACEMENT.len()
            }
            (b'\\', ..) => 2,
            _ if is_encoded => {
                replaced[at..at + 3].copy_from_slice("\u{fffd}".as_bytes());
                3
            }
            _ => 1,
        };
        at += length;
    }
    (replaced != body).then_some(replaced)
}

impl MayChange {
    /// Returns what a body that cannot be read may change: nothing if it names another method than a change's. Its texts name
    /// neither method nor URI: in a string of JSON, quotes are escaped.
    pub(super) fn by(body: &[u8]) -> Self {
        let body = String::from_utf8_lossy(body);
        let value = |name: &str| {
            let (_, rest) = body.split_once(name)?;
            let value = rest.trim_start().strip_prefix(':')?.trim_start();
            serde_json::Deserializer::from_str(value).into_iter::<String>().next()?.ok()
        };
        match (value("\"method\""), value("\"uri\"")) {
            (Some(method), _) if method != CHANGE => Self::Nothing,
            (_, Some(uri)) => Self::One(uri),
            (_, None) => Self::Any,
        }
    }
}

/// Maximum bytes of a body. JSON may need six bytes for a byte of text.
pub(super) const MAX_BODY_BYTES: usize = 32 << 20;

/// Maximum bytes of a header's line.
const MAX_LINE_BYTES: u64 = 1024;

/// Bytes of a skipped body that are kept.
pub(super) const START_BYTES: u64 = 1024;

/// Maximum headers of a frame.
const MAX_HEADERS: usize = 16;

/// The header that every frame has.
const LENGTH: &str = "content-length";

/// A frame that was read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Frame {
    Body(Vec<u8>),
    /// A body was too long, and skipped.
    TooLong {
        length: u64,
        /// Its first bytes, at most [`START_BYTES`].
        start: Vec<u8>,
    },
}

/// Reads a frame; `None` at the end of the input. Fails if the input ends within a frame or is no frame: the beginning of the next
/// one is then unknown.
pub(super) fn read_frame(input: &mut impl BufRead) -> Result<Option<Frame>> {
    let mut length = None;
    for index in 0.. {
        let Some(line) = read_line(input)? else {
            return if index == 0 { Ok(None) } else { Err(cut()) };
        };
        if line.is_empty() {
            break;
        }
        let wrong = || unreadable(format!("expected a header such as Content-Length: 2, found {}", quoted(&line)));
        if index >= MAX_HEADERS {
            return Err(unreadable(format!("expected at most {MAX_HEADERS} headers, found more")));
        }
        let (name, value) = line.split_once(':').ok_or_else(wrong)?;
        if name.eq_ignore_ascii_case(LENGTH) {
            length = Some(value.trim().parse::<u64>().map_err(|_| wrong())?);
        }
    }
    let length = length.ok_or_else(|| unreadable("expected the header Content-Length, found none".into()))?;
    if length > MAX_BODY_BYTES as u64 {
        let mut start = Vec::new();
        let kept = input.take(START_BYTES).read_to_end(&mut start).map_err(failed)? as u64;
        let skipped = copy(&mut input.take(length - kept), &mut sink()).map_err(failed)?;
        return if kept + skipped == length { Ok(Some(Frame::TooLong { length, start })) } else { Err(cut()) };
    }
    // grows with what arrives
    let mut body = Vec::new();
    let read = input.take(length).read_to_end(&mut body).map_err(failed)?;
    if read as u64 == length { Ok(Some(Frame::Body(body))) } else { Err(cut()) }
}

pub(super) fn write_frame(output: &mut impl Write, body: &[u8]) -> std::io::Result<()> {
    write!(output, "Content-Length: {}\r\n\r\n", body.len())?;
    output.write_all(body)?;
    output.flush()
}

/// Reads a line without its end; `None` at the end of the input.
fn read_line(input: &mut impl BufRead) -> Result<Option<String>> {
    let mut line = Vec::new();
    input.take(MAX_LINE_BYTES).read_until(b'\n', &mut line).map_err(failed)?;
    match line.strip_suffix(b"\n") {
        Some(line) => Ok(Some(String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(line)).into_owned())),
        None if line.is_empty() => Ok(None),
        None if line.len() as u64 == MAX_LINE_BYTES => {
            let found = quoted(&String::from_utf8_lossy(&line));
            Err(unreadable(format!("expected a header of less than {MAX_LINE_BYTES} bytes, found {found}")))
        }
        None => Err(cut()),
    }
}

fn failed(error: std::io::Error) -> Error {
    Error::io("standard input")(error)
}

fn cut() -> Error {
    unreadable("expected a whole message, found the end of the input".into())
}

fn unreadable(why: String) -> Error {
    Error::Unreadable { field: None, why: format!("standard input: {why}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::lsp::protocol::{Frame, Input, MAX_BODY_BYTES, START_BYTES, parse, read, read_frame, write_frame};

    #[test]
    fn a_message_that_cannot_be_read_is_reported() {
        let wrong = |body: &str| match parse(body.as_bytes()) {
            Input::Wrong { id, code, .. } => (id, code as i32),
            other => panic!("{body}: {other:?}"),
        };
        assert_eq!(wrong("{\"id\": 1,"), (None, -32700));
        assert_eq!(wrong("\u{0}"), (None, -32700));
        assert_eq!(wrong("[]"), (None, -32600));
        assert_eq!(wrong("{\"id\": 7, \"method\": 8}"), (Some(7.into()), -32600));
        let changes = |body: &str| match parse(body.as_bytes()) {
            Input::Wrong { changes, .. } => changes,
            other => panic!("{body}: {other:?}"),
        };
        for (body, expected) in [
            ("{", MayChange::Any),
            ("[]", MayChange::Any),
            (r#"{"method" : "textDocument/didChange", "#, MayChange::Any),
            (r#"{"method":"textDocument/didOpen", "#, MayChange::Nothing),
            (r#"{"id": 7, "method": 8}"#, MayChange::Nothing),
            (r#"{"params": "a \"method\": \"exit\", \"uri\": \"b\""#, MayChange::Any),
            (
                r#"{"method":"textDocument/didChange","params":{"textDocument":{"uri" : "a\/\"b"}, "#,
                MayChange::One("a/\"b".into()),
            ),
        ] {
            assert_eq!(changes(body), expected, "{body}");
        }
        assert!(matches!(parse(b"{\"method\": \"exit\"}"), Input::Message(Message::Notification(_))));
        assert!(matches!(parse(b"{\"method\": \"x\", \"id\": \"a\"}"), Input::Message(Message::Request(_))));
    }

    #[test]
    fn lone_surrogates_are_replaced() {
        for (body, expected) in [
            (
                &br#"["\ud83d", "\uDE00x", "\ud83d\ude00\ud83d"]"#[..],
                json!(["\u{fffd}", "\u{fffd}x", "\u{1f600}\u{fffd}"]),
            ),
            (br#"{"\udfff": "\\ud83d\\\ud83d"}"#, json!({ "\u{fffd}": "\\ud83d\\\u{fffd}" })),
            (br#"["\ud83d\u0041", "\ud83d\ud83d\ude00"]"#, json!(["\u{fffd}A", "\u{fffd}\u{1f600}"])),
            (b"[\"a\xed\xa0\xbdb\"]", json!(["a\u{fffd}b"])),
        ] {
            assert_eq!(from_utf16(body).unwrap(), expected);
        }
        let error = from_utf16(br#"["\ud83d", "\u12"#).unwrap_err();
        assert!(error.is_eof() || error.is_syntax(), "{error}");
        assert!(without_lone_surrogates(br#"["\ud83d\ude00", "\\ud83d"]"#).is_none());
    }

    #[test]
    fn the_end_of_the_input_ends_the_messages() {
        let mut messages = read(&b"Content-Length: 2\r\n\r\n[]Content"[..]).unwrap();
        assert!(matches!(messages.blocking_recv(), Some(Input::Wrong { .. })));
        assert!(matches!(messages.blocking_recv(), Some(Input::Broken(_))));
        assert!(messages.blocking_recv().is_none());
        assert!(read(&b""[..]).unwrap().blocking_recv().is_none());
    }

    fn all(mut input: &[u8]) -> (Vec<Frame>, Option<String>) {
        let mut frames = Vec::new();
        loop {
            match read_frame(&mut input) {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => return (frames, None),
                Err(error) => return (frames, Some(error.to_string())),
            }
        }
    }

    #[test]
    fn frames_are_read_as_they_are_written() {
        let mut written = Vec::new();
        for body in ["{}", "", "é"] {
            write_frame(&mut written, body.as_bytes()).unwrap();
        }
        let more = b"content-type: x\ncontent-length:  2 \n\n[]";
        let body = |text: &str| Frame::Body(text.as_bytes().to_vec());
        assert_eq!(all(&[&written[..], more].concat()), (vec![body("{}"), body(""), body("é"), body("[]")], None));
    }

    #[test]
    fn a_body_that_is_too_long_is_skipped() {
        let length = MAX_BODY_BYTES + 1;
        let mut input = format!("Content-Length: {length}\r\n\r\n").into_bytes();
        input.resize(input.len() + length, b' ');
        write_frame(&mut input, b"{}").unwrap();
        let too_long = Frame::TooLong { length: length as u64, start: vec![b' '; START_BYTES as usize] };
        assert_eq!(all(&input), (vec![too_long, Frame::Body(b"{}".to_vec())], None));
    }

    #[test]
    fn what_is_no_frame_is_an_error_that_shows_it() {
        for (input, expected) in [
            ("Content-Length: 3\r\n\r\n{}", "the end of the input"),
            ("Content-Length: 99999999999\r\n\r\n{}", "the end of the input"),
            ("Content-Length: 2\r\n", "the end of the input"),
            ("Content-Len", "the end of the input"),
            ("\r\n{}", "expected the header Content-Length"),
            ("GET / HTTP/1.1\r\n\r\n", "found \"GET / HTTP/1.1\""),
            ("Content-Length: -1\r\n\r\n", "found \"Content-Length: -1\""),
            (&"a: b\n".repeat(17), "at most 16 headers"),
            (&"a".repeat(2000), "less than 1024 bytes, found \"aaaa"),
        ] {
            let (frames, error) = all(input.as_bytes());
            let error = error.unwrap();
            assert!(frames.is_empty() && error.contains(expected), "{input:?}: {error}");
        }
    }
}
