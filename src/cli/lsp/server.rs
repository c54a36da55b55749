//! The language server: takes the client's messages and the sessions' events, one at a time.

use crate::cli::lsp::diagnostics::{CheckEvent, Checks, QUICK_FIX, quick_fixes};
use crate::cli::lsp::documents::{Documents, PositionEncoding};
use crate::cli::lsp::protocol::{
    CHANGE, CancelParams, ChangeParams, CloseParams, CompletionParams, DocumentItem, Input, MayChange, OpenParams,
    POSITION_ENCODINGS, Severity,
};
use crate::cli::lsp::sessions::{CompletionKind, Outbox, Place, SessionEvent, Sessions, WaitingRequest};
use lsp_server::{ErrorCode, Message, Notification, Request, RequestId};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::time::Instant;
use tokio::{sync::mpsc, time::sleep_until};
use weir_kernels::error::{Error, Result};

/// Documents are sent whole once, then by their changes.
const INCREMENTAL: u8 = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The client has not sent `initialize`.
    Created,
    Running,
    /// The client has sent `shutdown`.
    ShutDown,
}

/// The next step after a message.
enum Next {
    Read,
    Exit,
}

pub(super) struct LanguageServer {
    phase: Phase,
    documents: Documents,
    sessions: Sessions,
    /// `None` if misspelt words are not wanted.
    checks: Option<Checks>,
    out: Outbox,
}

impl LanguageServer {
    pub(super) fn new(documents: Documents, sessions: Sessions, checks: Option<Checks>) -> Self {
        Self { phase: Phase::Created, documents, sessions, checks, out: Outbox::new() }
    }

    /// Serves the client until it exits. Fails if it does so without `shutdown`, or if its messages cannot be read. Ends early if
    /// `output` is closed.
    pub(super) async fn run(
        mut self,
        mut input: mpsc::Receiver<Input>,
        mut events: mpsc::Receiver<SessionEvent>,
        mut checked: mpsc::Receiver<CheckEvent>,
        output: mpsc::Sender<Value>,
    ) -> Result<()> {
        loop {
            let next = tokio::select! {
                biased;
                Some(event) = events.recv() => {
                    self.sessions.take(event, &self.documents, &mut self.out);
                    Next::Read
                }
                Some(event) = checked.recv() => {
                    if let Some(checks) = &mut self.checks {
                        checks.take(event, &self.documents, &mut self.out);
                    }
                    Next::Read
                }
                // Begins checks below.
                () = until(self.checks.as_ref().and_then(Checks::timeout)) => Next::Read,
                received = input.recv() => match received {
                    Some(received) => self.take(received)?,
                    None => Next::Exit,
                },
            };
            for message in self.outgoing() {
                if output.send(message).await.is_err() {
                    return Ok(());
                }
            }
            if let Next::Exit = next {
                let early = || Error::Unreadable { field: None, why: "the client left without shutdown".into() };
                return if self.phase == Phase::ShutDown { Ok(()) } else { Err(early()) };
            }
        }
    }

    /// Takes an input. Returns the messages for the client, or `None` if the server exits.
    #[cfg(any(test, fuzzing))]
    pub(super) fn answers(&mut self, input: Input) -> Option<Vec<Value>> {
        match self.take(input) {
            Ok(Next::Read) => Some(self.outgoing()),
            Ok(Next::Exit) | Err(_) => None,
        }
    }

    /// Takes an input. Fails if the input cannot be read further.
    fn take(&mut self, input: Input) -> Result<Next> {
        match input {
            Input::Message(message) => return Ok(self.take_message(message)),
            Input::Wrong { id, code, why, changes } => {
                self.out.fail(id.as_ref(), code, &why);
                self.out.report(Place::Log, Severity::Error, &why);
                match changes {
                    MayChange::Nothing => {}
                    MayChange::One(uri) => self.leave_out(Some(&uri)),
                    MayChange::Any => self.leave_out(None),
                }
            }
            Input::Broken(error) => return Err(error),
        }
        Ok(Next::Read)
    }

    /// Begins the check that is due, and returns the messages for the client.
    fn outgoing(&mut self) -> Vec<Value> {
        if let Some(checks) = &mut self.checks {
            checks.begin(&self.documents, &mut self.out);
        }
        self.out.take()
    }

    fn take_message(&mut self, message: Message) -> Next {
        match message {
            Message::Request(request) => self.answer(request),
            Message::Notification(notification) if notification.method == "exit" => return Next::Exit,
            Message::Notification(notification) if self.phase == Phase::Running => self.notice(notification),
            // This server sends no requests.
            Message::Notification(_) | Message::Response(_) => {}
        }
        Next::Read
    }

    fn answer(&mut self, request: Request) {
        let Request { id, method, params } = request;
        let done = match (self.phase, &*method) {
            (Phase::Created, "initialize") => self.initialize(&params).map(Some),
            (Phase::Created, _) => Err((ErrorCode::ServerNotInitialized, "expected initialize first".into())),
            (Phase::ShutDown, _) => Err((ErrorCode::InvalidRequest, "expected exit after shutdown".into())),
            (Phase::Running, "initialize") => Err((ErrorCode::InvalidRequest, "expected one initialize".into())),
            (Phase::Running, "shutdown") => {
                self.phase = Phase::ShutDown;
                for request in self.sessions.close_all() {
                    self.out.fail(Some(&request.id), ErrorCode::RequestCanceled, "the server shuts down");
                }
                self.checks = None;
                Ok(Some(Value::Null))
            }
            (Phase::Running, "textDocument/completion") => {
                parse(params).map(|params| self.complete(&id, CompletionKind::List, params))
            }
            (Phase::Running, "textDocument/inlineCompletion") => {
                parse(params).map(|params| self.complete(&id, CompletionKind::Inline, params))
            }
            (Phase::Running, "textDocument/codeAction") => {
                parse(params).map(|params| Some(quick_fixes(&self.documents, self.out.encoding, params)))
            }
            (Phase::Running, _) => Err((ErrorCode::MethodNotFound, format!("unknown method {method:?}"))),
        };
        match done {
            Ok(Some(result)) => self.out.respond(&id, result),
            Ok(None) => {}
            Err((code, why)) => self.out.fail(Some(&id), code, &why),
        }
    }

    fn initialize(&mut self, params: &Value) -> Result<Value, (ErrorCode, String)> {
        let offered: Option<Vec<String>> = parse(params.pointer(POSITION_ENCODINGS).cloned().unwrap_or_default())?;
        self.phase = Phase::Running;
        // Documents are UTF-8 here, so its offsets need no conversion.
        if offered.is_some_and(|names| names.iter().any(|name| name == PositionEncoding::Utf8.name())) {
            self.out.encoding = PositionEncoding::Utf8;
        }
        // Without checks, there is nothing to fix.
        let fixes = self.checks.as_ref().map(|_| json!({ "codeActionKinds": [QUICK_FIX] }));
        let mut answer = json!({
            "serverInfo": { "name": "weir", "version": env!("CARGO_PKG_VERSION") },
            "capabilities": {
                "positionEncoding": self.out.encoding.name(),
                "textDocumentSync": { "openClose": true, "change": INCREMENTAL },
                "completionProvider": {},
                "inlineCompletionProvider": {},
            },
        });
        if let Some(fixes) = fixes {
            answer["capabilities"]["codeActionProvider"] = fixes;
        }
        Ok(answer)
    }

    /// Begins to complete a document. Returns `None`, because the answer comes later.
    fn complete(&mut self, id: &RequestId, kind: CompletionKind, params: CompletionParams) -> Option<Value> {
        let CompletionParams { text_document, position } = params;
        let uri = text_document.uri;
        let text = self.documents.text(&uri);
        let cursor = text.map_or(0, |text| text.offset(position, self.out.encoding));
        let request = WaitingRequest { id: id.clone(), kind, uri, cursor, attempts: 0 };
        self.sessions.complete(&self.documents, request, &mut self.out);
        None
    }

    fn notice(&mut self, notification: Notification) {
        let Notification { method, params } = notification;
        let done = match &*method {
            "textDocument/didOpen" => parse(params).map(|params| self.open(params)),
            CHANGE => {
                let uri = params["textDocument"]["uri"].as_str().map(str::to_owned);
                let changed = parse(params).map(|params| self.change(params));
                if changed.is_err() {
                    self.leave_out(uri.as_deref());
                }
                changed
            }
            "textDocument/didClose" => parse(params).map(|CloseParams { text_document }| {
                self.documents.close(&text_document.uri);
                self.out.overtaken(self.sessions.close(&text_document.uri));
                if let Some(checks) = &mut self.checks {
                    checks.close(&text_document.uri, &mut self.out);
                }
            }),
            "$/cancelRequest" => parse(params).map(|CancelParams { id }| {
                if self.sessions.cancel(&id, &self.documents, &mut self.out) {
                    self.out.fail(Some(&id), ErrorCode::RequestCanceled, "the client cancelled the request");
                }
            }),
            _ => Ok(()),
        };
        if let Err((_, why)) = done {
            self.out.report(Place::Log, Severity::Error, &format!("{method}: {why}"));
        }
    }

    fn open(&mut self, params: OpenParams) {
        let DocumentItem { uri, text } = params.text_document;
        self.out.overtaken(self.sessions.close(&uri));
        let opened = self.documents.open(uri.clone(), text);
        self.warn(opened);
        self.plan_check(&uri);
    }

    fn change(&mut self, params: ChangeParams) {
        let ChangeParams { text_document, content_changes } = params;
        self.out.overtaken(self.sessions.overtake(&text_document.uri));
        let changed = self.documents.change(&text_document.uri, content_changes, self.out.encoding);
        self.warn(changed);
        self.plan_check(&text_document.uri);
    }

    /// Plans the check of a document whose text is new; takes its hints back if the text is unknown.
    fn plan_check(&mut self, uri: &str) {
        let Some(checks) = &mut self.checks else { return };
        match self.documents.text(uri) {
            Some(_) => checks.change(uri),
            None => checks.close(uri, &mut self.out),
        }
    }

    /// Leaves out a document, or all without a URI, because a change of it could not be read.
    fn leave_out(&mut self, uri: Option<&str>) {
        let lost = self.documents.leave_out(uri);
        for uri in &lost {
            self.out.overtaken(self.sessions.overtake(uri));
            if let Some(checks) = &mut self.checks {
                checks.close(uri, &mut self.out);
            }
        }
        let named = match (&lost[..], uri) {
            ([], _) => return,
            ([only], Some(_)) => only.as_str(),
            _ => "the open documents",
        };
        // It may happen again, and then the user must know it again.
        self.out.report_again(
            Place::Message,
            Severity::Warning,
            &format!("{named}: a message could not be read, so the text is unknown; open it again to get completions"),
        );
    }

    fn warn(&mut self, done: Result<(), String>) {
        if let Err(why) = done {
            self.out.report(Place::Message, Severity::Warning, &why);
        }
    }
}

/// Waits until a time, or forever without one. Cancel safe.
async fn until(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time.into()).await,
        None => std::future::pending().await,
    }
}

fn parse<T: DeserializeOwned>(params: Value) -> Result<T, (ErrorCode, String)> {
    serde_json::from_value(params).map_err(|error| (ErrorCode::InvalidParams, format!("params: {error}")))
}
