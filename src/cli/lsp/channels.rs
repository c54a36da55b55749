//! Standard input and output, on threads of their own: reading them blocks.

use super::framing::{self, Frame, MAX_BODY_BYTES};
use crate::error::{Error, Result};
use lsp_server::{ErrorCode, Message, RequestId};
use serde::{Deserialize, de::IgnoredAny};
use serde_json::Value;
use std::{
    io::{BufRead, Write},
    thread::{Builder, JoinHandle},
};
use tokio::sync::mpsc;

/// The method of a change.
pub(super) const CHANGE: &str = "textDocument/didChange";
/// Maximum queued messages in each direction.
const WAITING: usize = 16;

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
        /// True if it may have been a change of a document.
        may_change: bool,
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
    match framing::read(input) {
        Ok(Some(Frame::Body(body))) => Some(parse(&body)),
        Ok(Some(Frame::TooLong { length, start })) => Some(too_long(length, &start)),
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
            framing::write(&mut output, message.to_string().as_bytes())?;
        }
        Ok(())
    })?;
    Ok((sender, thread))
}

fn start<T: Send + 'static>(name: &str, work: impl FnOnce() -> T + Send + 'static) -> Result<JoinHandle<T>> {
    let failed = |error| Error::Internal(format!("cannot start a thread: {error}"));
    Builder::new().name(name.into()).spawn(work).map_err(failed)
}

pub(super) fn parse(body: &[u8]) -> Input {
    #[derive(Deserialize)]
    struct Identified {
        id: RequestId,
    }
    let error = match serde_json::from_slice(body) {
        Ok(message) => return Input::Message(message),
        Err(error) => error,
    };
    if let Err(error) = serde_json::from_slice::<IgnoredAny>(body) {
        return Input::Wrong {
            id: None,
            code: ErrorCode::ParseError,
            why: format!("expected JSON: {error}"),
            may_change: may_change(body),
        };
    }
    let id = serde_json::from_slice::<Identified>(body).ok().map(|message| message.id);
    Input::Wrong {
        may_change: id.is_none() && may_change(body),
        id,
        code: ErrorCode::InvalidRequest,
        why: format!("expected a JSON-RPC message: {error}"),
    }
}

/// Returns the input for a body of `length` bytes that was skipped, and begins with `start`.
fn too_long(length: u64, start: &[u8]) -> Input {
    let why = format!("expected a message of at most {MAX_BODY_BYTES} bytes, found {length}");
    Input::Wrong { id: None, code: ErrorCode::InvalidRequest, why, may_change: may_change(start) }
}

/// Returns false if a body that cannot be read names another method than that of a change. Its texts cannot name one: in a string
/// of JSON, quotes are escaped.
fn may_change(body: &[u8]) -> bool {
    let body = String::from_utf8_lossy(body);
    let Some((_, rest)) = body.split_once("\"method\"") else { return true };
    let value = rest.trim_start().strip_prefix(':').map(str::trim_start);
    let name = value.and_then(|value| value.strip_prefix('"')?.split_once('"'));
    name.is_none_or(|(name, _)| name == CHANGE)
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let changes = |body: &str| matches!(parse(body.as_bytes()), Input::Wrong { may_change: true, .. });
        assert!(changes("{") && changes("[]") && changes(r#"{"method" : "textDocument/didChange", "#));
        assert!(!changes(r#"{"method":"textDocument/didOpen", "#) && !changes(r#"{"id": 7, "method": 8}"#));
        assert!(changes(r#"{"params": "a \"method\": \"exit\""#), "a method within a text");
        assert!(matches!(parse(b"{\"method\": \"exit\"}"), Input::Message(Message::Notification(_))));
        assert!(matches!(parse(b"{\"method\": \"x\", \"id\": \"a\"}"), Input::Message(Message::Request(_))));
    }

    #[test]
    fn the_end_of_the_input_ends_the_messages() {
        let mut messages = read(&b"Content-Length: 2\r\n\r\n[]Content"[..]).unwrap();
        assert!(matches!(messages.blocking_recv(), Some(Input::Wrong { .. })));
        assert!(matches!(messages.blocking_recv(), Some(Input::Broken(_))));
        assert!(messages.blocking_recv().is_none());
        assert!(read(&b""[..]).unwrap().blocking_recv().is_none());
    }
}
