//! The editing sessions of the open documents: requests, their answers, and sessions that end.
//!
//! A request whose session ends before its answer is sent again in a new session. A request that another one made stale is sent
//! again in the same session: the session's text then is as long as both need. While the server cannot be reached, requests get empty
//! answers at once.

use crate::cli::lsp::documents::{DocumentText, Documents, PositionEncoding};
use crate::cli::lsp::protocol::{Severity, TextRange, failure, response};
use crate::cli::output::to_stderr;
use lsp_server::{ErrorCode, RequestId};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tokio::task::AbortHandle;
use weir_client::connection::Client;
use weir_engine::completion::is_word_character;
use weir_kernels::error::{Error, clip, printable};
use weir_proto::v1::{
    CompleteDocument, CompletionItem, EditFailure, EditRequest, OpenDocument, SpliceDocument, TextSplice, Until,
    document_closed::Reason as CloseReason, edit_request::Action as EditAction, edit_response::Event as EditEvent,
};

/// Maximum open sessions, but for those with requests, of which each open document has at most one. Opening another ends the least
/// recently used one without requests: a user types in one document at a time.
const MAX_SESSIONS: usize = 8;

/// Sessions that may end before the answer to a request. Then its answer is empty.
const ATTEMPTS: usize = 4;

/// Pause after a session failed to open, before the next attempt.
const PAUSE: Duration = Duration::from_secs(1);

/// The sessions of the open documents.
pub(super) struct Sessions {
    client: Client,
    options: CompletionOptions,
    /// Maximum bytes of text before the cursor that the model reads.
    context_bytes: usize,
    /// The sessions by the URIs of their documents.
    open: BTreeMap<String, Session>,
    events: mpsc::Sender<SessionEvent>,
    /// Number of the last session.
    sessions: u64,
    /// Number of the last request.
    requests: u64,
    /// True while the server cannot be reached.
    is_unreachable: bool,
    /// Time of the last failure to open a session.
    failed_at: Option<Instant>,
}

impl Sessions {
    pub(super) fn new(
        client: Client,
        options: CompletionOptions,
        context_bytes: usize,
        events: mpsc::Sender<SessionEvent>,
    ) -> Self {
        Self {
            client,
            options,
            context_bytes,
            open: BTreeMap::new(),
            events,
            sessions: 0,
            requests: 0,
            is_unreachable: false,
            failed_at: None,
        }
    }

    /// Sends a request to its document's session, which opens if there is none. Must run within a runtime.
    pub(super) fn complete(&mut self, documents: &Documents, request: WaitingRequest, out: &mut Outbox) {
        let may_try = request.attempts < ATTEMPTS && !self.is_paused();
        let Some(text) = documents.text(&request.uri).filter(|_| may_try) else {
            out.complete(documents, &request, &[]);
            return;
        };
        let text = context(text.text(), request.cursor, self.context_bytes);
        let uri = request.uri.clone();
        if !self.open.contains_key(&uri) {
            self.make_room();
            self.sessions += 1;
            let events = self.events.clone();
            let session = Session::open(self.client.clone(), &self.options, &uri, self.sessions, events);
            self.open.insert(uri.clone(), session);
        }
        let Some(session) = self.open.get_mut(&uri) else { return };
        self.requests += 1;
        session.used = self.requests;
        if session.complete(&self.options, text, request).is_err() {
            self.give_up(&uri, documents, out);
        }
    }

    /// Takes the requests of a document whose text has changed, and cancels their work.
    pub(super) fn overtake(&mut self, uri: &str) -> Vec<WaitingRequest> {
        let Some(session) = self.open.get_mut(uri) else { return Vec::new() };
        let are_in_progress = !session.waiting.is_empty();
        let overtaken = session.take_all();
        if are_in_progress && session.cancel().is_err() {
            self.open.remove(uri);
        }
        overtaken
    }

    /// Cancels a request. Returns false if it does not wait.
    pub(super) fn cancel(&mut self, id: &RequestId, documents: &Documents, out: &mut Outbox) -> bool {
        for (uri, session) in &mut self.open {
            if let Some(index) = session.deferred.iter().position(|request| request.id == *id) {
                session.deferred.remove(index);
                return true;
            }
            let waits = session.waiting.iter().find(|(_, request)| request.id == *id);
            let Some(wire_id) = waits.map(|(wire_id, _)| *wire_id) else { continue };
            session.waiting.remove(&wire_id);
            let cancelled = session.cancel();
            let uri = uri.clone();
            if cancelled.is_err() {
                self.give_up(&uri, documents, out);
            }
            self.resume(&uri, documents, out);
            return true;
        }
        false
    }

    /// Ends the session of a document. Returns the requests that waited.
    pub(super) fn close(&mut self, uri: &str) -> Vec<WaitingRequest> {
        self.open.remove(uri).map(|mut session| session.take_all()).unwrap_or_default()
    }

    /// Ends all sessions. Returns the requests that waited.
    pub(super) fn close_all(&mut self) -> Vec<WaitingRequest> {
        std::mem::take(&mut self.open).into_values().flat_map(|mut session| session.take_all()).collect()
    }

    pub(super) fn take(&mut self, event: SessionEvent, documents: &Documents, out: &mut Outbox) {
        let SessionEvent { uri, session: number, news } = event;
        let Some(session) = self.open.get_mut(&*uri).filter(|session| session.number == number) else { return };
        match news {
            SessionNews::Event(EditEvent::Applied(_)) => {
                session.is_open = true;
                if std::mem::take(&mut self.is_unreachable) {
                    out.forget_reports();
                    out.report(Place::Log, Severity::Info, "the server answers again");
                }
            }
            SessionNews::Event(EditEvent::Completions(found)) => {
                if let Some(request) = session.waiting.remove(&found.id) {
                    out.complete(documents, &request, &found.items);
                    self.resume(&uri, documents, out);
                }
            }
            SessionNews::Event(EditEvent::Stale(stale)) => {
                // This process made it stale, so it is no attempt.
                if let Some(request) = session.waiting.remove(&stale.id) {
                    self.complete(documents, request, out);
                    self.resume(&uri, documents, out);
                }
            }
            SessionNews::Event(EditEvent::Failed(failure)) => self.fail(&uri, &failure, documents, out),
            SessionNews::Event(EditEvent::Closed(closed)) => {
                if matches!(closed.reason(), CloseReason::Draining | CloseReason::ModelChanged) {
                    let why = closed.reason().as_str_name();
                    out.report(Place::Log, Severity::Info, &format!("the server closed the session of {uri}: {why}"));
                }
                self.reopen(&uri, documents, out);
            }
            SessionNews::Ended(None) => self.reopen(&uri, documents, out),
            SessionNews::Ended(Some(error)) => self.break_off(&uri, &error, documents, out),
            SessionNews::Event(EditEvent::Scores(_)) => {}
        }
    }

    fn is_paused(&self) -> bool {
        self.failed_at.is_some_and(|at| at.elapsed() < PAUSE)
    }

    /// Sends the deferred requests of a document if none is in progress.
    fn resume(&mut self, uri: &str, documents: &Documents, out: &mut Outbox) {
        let Some(session) = self.open.get_mut(uri) else { return };
        for request in session.take_deferred() {
            self.complete(documents, request, out);
        }
    }

    /// Opens a new session for the requests of one that ended. No session opens for some time if one has used all its
    /// attempts.
    fn reopen(&mut self, uri: &str, documents: &Documents, out: &mut Outbox) {
        let mut requests = self.close(uri);
        requests.iter_mut().for_each(|request| request.attempts += 1);
        if requests.iter().any(|request| request.attempts >= ATTEMPTS) {
            self.failed_at = Some(Instant::now());
        }
        for request in requests {
            self.complete(documents, request, out);
        }
    }

    /// Handles the end of a call with an error. Sends the requests again if the session was open; otherwise answers them and waits
    /// before the next attempt.
    fn break_off(&mut self, uri: &str, error: &Error, documents: &Documents, out: &mut Outbox) {
        if self.open.get(uri).is_some_and(|session| session.is_open) {
            out.report(Place::Log, Severity::Warning, &format!("the session of {uri} ended: {error}"));
            self.reopen(uri, documents, out);
            return;
        }
        self.failed_at = Some(Instant::now());
        if !std::mem::replace(&mut self.is_unreachable, true) {
            let why = format!("{error}; there are no completions until the server answers");
            out.report(Place::Log, Severity::Warning, &why);
        }
        self.give_up(uri, documents, out);
    }

    /// Handles a message that the server refused.
    fn fail(&mut self, uri: &str, failure: &EditFailure, documents: &Documents, out: &mut Outbox) {
        let Some(session) = self.open.get_mut(uri) else { return };
        let EditFailure { id, code, message, .. } = failure;
        let Some(id) = id else {
            // The session's text is unknown now.
            out.report(Place::Message, Severity::Error, &format!("{uri}: {code}: {message}"));
            self.failed_at = Some(Instant::now());
            self.give_up(uri, documents, out);
            return;
        };
        let Some(request) = session.waiting.remove(id) else { return };
        // Some models cannot complete an empty text. The user cannot change that, so it is not reported.
        if request.cursor > 0 {
            out.report(Place::Log, Severity::Warning, &format!("{uri}: {code}: {message}"));
        }
        out.complete(documents, &request, &[]);
        self.resume(uri, documents, out);
    }

    /// Ends a session, and answers its requests with nothing.
    fn give_up(&mut self, uri: &str, documents: &Documents, out: &mut Outbox) {
        for request in self.close(uri) {
            out.complete(documents, &request, &[]);
        }
    }

    /// Ends the least recently used sessions until fewer than `MAX_SESSIONS` are open. Those with requests go on.
    fn make_room(&mut self) {
        while self.open.len() >= MAX_SESSIONS {
            let idle =
                self.open.iter().filter(|(_, session)| session.waiting.is_empty() && session.deferred.is_empty());
            let Some(uri) = idle.min_by_key(|(_, session)| session.used).map(|(uri, _)| uri.clone()) else { return };
            self.open.remove(&uri);
        }
    }
}

/// Maximum characters of the word before the cursor that an item repeats.
const MAX_WORD: usize = 64;

/// The kind of items: text.
const TEXT: u8 = 1;

/// The request that a client sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CompletionKind {
    /// `textDocument/completion`: a menu.
    List,
    /// `textDocument/inlineCompletion`: text at the cursor.
    Inline,
}

/// A request that waits for its completions. Its text cannot change while it waits, because a change ends the request.
#[derive(Debug, Clone)]
pub(super) struct WaitingRequest {
    pub(super) id: RequestId,
    pub(super) kind: CompletionKind,
    pub(super) uri: String,
    /// Byte offset of the cursor.
    pub(super) cursor: usize,
    /// Sessions that ended before its answer.
    pub(super) attempts: usize,
}

impl CompletionKind {
    /// Returns the result of a request of this kind. `text` is `None` if the document is closed or exceeds a limit.
    pub(super) fn result(
        self,
        text: Option<&DocumentText>,
        cursor: usize,
        encoding: PositionEncoding,
        items: &[CompletionItem],
    ) -> Value {
        let items: Vec<Value> = match (self, text) {
            (_, None) => Vec::new(),
            (Self::Inline, Some(text)) => items.iter().map(|item| inline(text, cursor, encoding, item)).collect(),
            (Self::List, Some(text)) => {
                items.iter().enumerate().map(|(rank, item)| listed(text, cursor, encoding, rank, item)).collect()
            }
        };
        match self {
            Self::List => json!({ "isIncomplete": true, "items": items }),
            Self::Inline => json!({ "items": items }),
        }
    }
}

fn inline(text: &DocumentText, cursor: usize, encoding: PositionEncoding, item: &CompletionItem) -> Value {
    let at = text.position(cursor, encoding);
    json!({ "insertText": item.text, "range": TextRange { start: at, end: at } })
}

/// Returns a menu item. It replaces the word before the cursor with that word plus the completion, because editors filter
/// items by that word.
fn listed(text: &DocumentText, cursor: usize, encoding: PositionEncoding, rank: usize, item: &CompletionItem) -> Value {
    let word = word_before(text.text(), cursor);
    let whole = format!("{word}{}", item.text);
    let start = text.position(cursor - word.len(), encoding);
    let end = text.position(cursor, encoding);
    let label = whole.replace('\n', "⏎");
    let mut listed = json!({
        "label": label,
        "kind": TEXT,
        "detail": format!("{:.1} %", item.logprob.exp() * 100.0),
        "sortText": format!("{rank:04}"),
        "textEdit": { "range": TextRange { start, end }, "newText": whole },
    });
    // Set only if needed: without `filterText`, editors filter by the label, and Neovim completes from the start of the
    // edit.
    if label != whole {
        listed["filterText"] = whole.into();
    }
    listed
}

/// Returns the part of a word that ends at the cursor. Words have the characters that completions up to the end of a word have.
fn word_before(text: &str, cursor: usize) -> &str {
    let before = text.get(..cursor).unwrap_or_default();
    let word = before.chars().rev().take_while(|&character| is_word_character(character));
    let length: usize = word.take(MAX_WORD).map(char::len_utf8).sum();
    &before[before.len() - length..]
}

/// Returns the part of the text before the cursor that the model reads: its last `limit` bytes, or at least half as many. It begins
/// at the same place while the cursor moves within half of `limit`, so that states can be reused.
pub(super) fn context(text: &str, cursor: usize, limit: usize) -> &str {
    let before = text.get(..cursor).unwrap_or_default();
    let Some(excess) = before.len().checked_sub(limit) else { return before };
    let step = (limit / 2).max(1);
    let mut start = excess.next_multiple_of(step).min(before.len());
    while !before.is_char_boundary(start) {
        start += 1;
    }
    &before[start..]
}

// The editing session of one document: a stream of the server's editing service.
//
// The session's text is the document's text up to the furthest cursor of its requests, or the end of that text if it is long. The
// server reads nothing after a request's cursor, so requests before that cursor leave the text as it is. A session opens when its
// document first asks for completions.

/// Messages of a session that wait to be sent.
const WAITING_MESSAGES: usize = 64;

#[derive(Debug, Clone)]
pub(super) struct CompletionOptions {
    /// Name of the model. May be `None` if exactly one can answer the call.
    pub(super) model: Option<String>,
    pub(super) count: u32,
    pub(super) until: Until,
    pub(super) max_chars: u32,
}

#[derive(Debug)]
pub(super) struct SessionEvent {
    pub(super) uri: Arc<str>,
    pub(super) session: u64,
    pub(super) news: SessionNews,
}

/// The content of a session's event.
#[derive(Debug)]
pub(super) enum SessionNews {
    Event(EditEvent),
    /// The stream ended, with an error if the call failed.
    Ended(Option<Error>),
}

/// A session. Dropping it ends the stream, which cancels its requests.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) number: u64,
    /// True once the server has taken a message.
    pub(super) is_open: bool,
    /// The requests in progress by their ids on the wire.
    pub(super) waiting: BTreeMap<u64, WaitingRequest>,
    /// The requests that wait to be sent, because the model reads another text for those in progress. In order.
    pub(super) deferred: Vec<WaitingRequest>,
    /// Number of its latest request, counted over all documents.
    pub(super) used: u64,
    requests: mpsc::Sender<EditRequest>,
    reader: AbortHandle,
    text: String,
    revision: u64,
    last_id: u64,
}

/// The session cannot send: the server is not reading its messages.
#[derive(Debug)]
pub(super) struct Stuck;

impl Session {
    /// Opens session `number` for a document. Must run within a runtime.
    pub(super) fn open(
        client: Client,
        options: &CompletionOptions,
        uri: &str,
        number: u64,
        events: mpsc::Sender<SessionEvent>,
    ) -> Self {
        let (requests, receiver) = mpsc::channel(WAITING_MESSAGES);
        let open = OpenDocument { model: options.model.clone(), ..OpenDocument::default() };
        // Never fails: the channel is empty.
        let _ = requests.try_send(EditRequest { action: Some(EditAction::Open(open)) });
        let uri = Arc::from(uri);
        let reader = tokio::spawn(async move {
            let report = async |news| {
                let event = SessionEvent { uri: Arc::clone(&uri), session: number, news };
                events.send(event).await.is_ok()
            };
            let error = match client.edit(receiver).await {
                Err(error) => Some(error),
                Ok(mut stream) => loop {
                    match stream.next().await {
                        Ok(Some(message)) => {
                            if let Some(event) = message.event
                                && !report(SessionNews::Event(event)).await
                            {
                                return;
                            }
                        }
                        Ok(None) => break None,
                        Err(error) => break Some(error),
                    }
                },
            };
            report(SessionNews::Ended(error)).await;
        });
        Self {
            number,
            is_open: false,
            waiting: BTreeMap::new(),
            deferred: Vec::new(),
            used: 0,
            requests,
            reader: reader.abort_handle(),
            text: String::new(),
            revision: 0,
            last_id: 0,
        }
    }

    /// Asks for the completions of a request at the end of `text`. If the text continues the text of the requests in progress, they
    /// become stale and can be sent again. If it is another text, the request is deferred until they have ended. Fails if the
    /// server is not reading; the request is in `waiting` even then.
    pub(super) fn complete(
        &mut self,
        options: &CompletionOptions,
        text: &str,
        request: WaitingRequest,
    ) -> Result<(), Stuck> {
        let change = change(&self.text, text);
        if !self.waiting.is_empty() && (matches!(change, Change::Other(_)) || !self.deferred.is_empty()) {
            self.deferred.push(request);
            return Ok(());
        }
        self.last_id += 1;
        let id = self.last_id;
        self.waiting.insert(id, request);
        if let Change::Longer(splice) | Change::Other(splice) = change {
            text.clone_into(&mut self.text);
            self.splice(vec![splice])?;
        }
        self.send(EditAction::Complete(CompleteDocument {
            id,
            cursor_byte: text.len() as u64,
            count: Some(options.count),
            until: Some(options.until.into()),
            max_chars: Some(options.max_chars),
            constraint: None,
        }))
    }

    /// Takes the deferred requests if none is in progress.
    pub(super) fn take_deferred(&mut self) -> Vec<WaitingRequest> {
        if self.waiting.is_empty() { std::mem::take(&mut self.deferred) } else { Vec::new() }
    }

    pub(super) fn take_all(&mut self) -> Vec<WaitingRequest> {
        let deferred = std::mem::take(&mut self.deferred);
        std::mem::take(&mut self.waiting).into_values().chain(deferred).collect()
    }

    /// Cancels the work of all requests in progress. Those that still wait become stale. Fails if the server is not reading.
    pub(super) fn cancel(&mut self) -> Result<(), Stuck> {
        self.splice(Vec::new())
    }

    fn splice(&mut self, splices: Vec<TextSplice>) -> Result<(), Stuck> {
        self.revision += 1;
        self.send(EditAction::Splice(SpliceDocument { revision: self.revision, splices }))
    }

    /// Queues a message. Fails if the queue is full. A call that has ended takes no message: its end is reported as an event, which
    /// says why, and the requests wait until then.
    fn send(&self, action: EditAction) -> Result<(), Stuck> {
        match self.requests.try_send(EditRequest { action: Some(action) }) {
            Err(TrySendError::Full(_)) => Err(Stuck),
            Ok(()) | Err(TrySendError::Closed(_)) => Ok(()),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// What a request needs of the session's text.
#[derive(Debug, PartialEq)]
enum Change {
    /// The session's text begins with the request's.
    None,
    /// The text of the request begins with the session's.
    Longer(TextSplice),
    Other(TextSplice),
}

/// Returns the change after which a session's text begins with a request's.
fn change(session: &str, request: &str) -> Change {
    let pairs = session.bytes().zip(request.bytes());
    let mut common = pairs.take_while(|(one, other)| one == other).count();
    if common == request.len() {
        return Change::None;
    }
    // A character may begin with the bytes of another.
    while !(session.is_char_boundary(common) && request.is_char_boundary(common)) {
        common -= 1;
    }
    let text = request.get(common..).unwrap_or_default().to_owned();
    let splice = TextSplice { start_byte: common as u64, end_byte: session.len() as u64, text };
    if common == session.len() { Change::Longer(splice) } else { Change::Other(splice) }
}

/// Reports that are remembered, so that they are not repeated.
const REPORTS: usize = 64;

/// Maximum bytes of a report.
const REPORT_BYTES: usize = 1000;

/// The destination of a report, in addition to stderr.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// A message that the editor shows to the user.
    Message,
    /// An entry in the editor's log.
    Log,
}

/// Messages that wait to be sent.
#[derive(Debug)]
pub(super) struct Outbox {
    /// Encoding of positions, as negotiated.
    pub(super) encoding: PositionEncoding,
    messages: Vec<Value>,
    reported: BTreeSet<String>,
}

/// Returns the text of a report.
fn reported(message: &str) -> String {
    format!("weir: {}", clip(&printable(message), REPORT_BYTES))
}

impl Outbox {
    pub(super) fn new() -> Self {
        Self { encoding: PositionEncoding::Utf16, messages: Vec::new(), reported: BTreeSet::new() }
    }

    pub(super) fn take(&mut self) -> Vec<Value> {
        std::mem::take(&mut self.messages)
    }

    pub(super) fn notify(&mut self, method: &str, params: Value) {
        self.messages.push(json!({ "jsonrpc": "2.0", "method": method, "params": params }));
    }

    pub(super) fn respond(&mut self, id: &RequestId, result: Value) {
        self.messages.push(response(id, result));
    }

    pub(super) fn complete(&mut self, documents: &Documents, request: &WaitingRequest, items: &[CompletionItem]) {
        let WaitingRequest { id, kind, uri, cursor, .. } = request;
        self.respond(id, kind.result(documents.text(uri), *cursor, self.encoding, items));
    }

    pub(super) fn fail(&mut self, id: Option<&RequestId>, code: ErrorCode, message: &str) {
        self.messages.push(failure(id, code, message));
    }

    /// Answers requests whose text has changed.
    pub(super) fn overtaken(&mut self, requests: impl IntoIterator<Item = WaitingRequest>) {
        for request in requests {
            self.fail(Some(&request.id), ErrorCode::ContentModified, "the document changed");
        }
    }

    /// Reports a problem, even if it was reported before.
    pub(super) fn report_again(&mut self, place: Place, severity: Severity, message: &str) {
        self.reported.remove(&reported(message));
        self.report(place, severity, message);
    }

    /// Reports a problem or its end, unless it was reported before.
    pub(super) fn report(&mut self, place: Place, severity: Severity, message: &str) {
        let message = reported(message);
        if self.reported.contains(&message) {
            return;
        }
        // The log of a fuzzer would fill the disk.
        if !cfg!(fuzzing) {
            to_stderr(&message);
        }
        let method = match place {
            Place::Message => "window/showMessage",
            Place::Log => "window/logMessage",
        };
        self.notify(method, json!({ "type": severity as i32, "message": message }));
        if self.reported.len() >= REPORTS {
            self.reported.clear();
        }
        self.reported.insert(message);
    }

    /// Lets reports be repeated.
    pub(super) fn forget_reports(&mut self) {
        self.reported.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::lsp::documents::DocumentLimits;
    use crate::cli::lsp::sessions::CompletionKind;
    use crate::cli::lsp::sessions::tests::PositionEncoding::{Utf8, Utf16};
    use serde_json::Value;
    use weir_client::connection::Client;
    use weir_proto::v1::{CompletionItem, DocumentApplied, DocumentCompletions, StaleRequest, Until};
    use weir_server::Listener;

    fn items() -> Vec<CompletionItem> {
        let item = |text: &str, logprob| CompletionItem { text: text.into(), logprob, ..CompletionItem::default() };
        vec![item("er", -0.5), item("e\n", -1.0)]
    }

    #[test]
    fn items_replace_the_word_before_the_cursor() {
        let text = DocumentText::new("a\n😀 l'é".into());
        let cursor = text.text().len();
        let result = CompletionKind::List.result(Some(&text), cursor, Utf16, &items());
        let expected = json!({
            "label": "l'éer", "kind": 1, "detail": "60.7 %", "sortText": "0000",
            "textEdit": {
                "range": { "start": { "line": 1, "character": 3 }, "end": { "line": 1, "character": 6 } },
                "newText": "l'éer",
            },
        });
        assert_eq!((&result["isIncomplete"], &result["items"][0]), (&true.into(), &expected));
        assert_eq!(result["items"][1]["filterText"], "l'ée\n");
        assert_eq!((&result["items"][1]["label"], &result["items"][1]["sortText"]), (&"l'ée⏎".into(), &"0001".into()));
        let result = CompletionKind::Inline.result(Some(&text), cursor, Utf8, &items());
        let at = json!({ "line": 1, "character": 9 });
        assert_eq!(result["items"][1], json!({ "insertText": "e\n", "range": { "start": at, "end": at } }));
        let gone = CompletionKind::List.result(None, cursor, Utf16, &items());
        assert_eq!(gone, json!({ "isIncomplete": true, "items": [] }));
    }

    #[test]
    fn a_word_has_letters_digits_and_apostrophes() {
        for (text, word) in [("a b2_c", "b2_c"), ("it's", "it's"), ("it’s", "it’s"), ("a ", ""), ("a-é", "é"), ("", "")]
        {
            assert_eq!(word_before(text, text.len()), word);
        }
        assert_eq!(word_before("abc", 1), "a");
        assert_eq!(word_before(&"a".repeat(100), 100).len(), MAX_WORD);
    }

    #[test]
    fn a_context_begins_at_few_places() {
        let text = "é".repeat(100);
        assert_eq!(context(&text, 16, 16), &text[..16]);
        let mut starts = std::collections::BTreeSet::new();
        for cursor in (0..=200).step_by(2) {
            let context = context(&text, cursor, 16);
            assert!(context.len() <= 16 && (cursor < 16 || context.len() >= 7), "{cursor}: {}", context.len());
            starts.insert(cursor - context.len());
        }
        assert_eq!(starts.len(), 24, "{starts:?}");
        assert_eq!(context("abc", 3, 1), "c");
        assert_eq!(context("abc", 3, 0), "");
    }

    #[tokio::test]
    async fn a_full_queue_is_an_error_and_the_end_of_the_call_is_not() {
        let (requests, receiver) = mpsc::channel(1);
        let mut session = Session {
            number: 1,
            is_open: false,
            waiting: BTreeMap::new(),
            deferred: Vec::new(),
            used: 0,
            requests,
            reader: tokio::spawn(async {}).abort_handle(),
            text: String::new(),
            revision: 0,
            last_id: 0,
        };
        assert!(session.cancel().is_ok());
        assert!(session.cancel().is_err());
        drop(receiver);
        assert!(session.cancel().is_ok());
    }

    #[test]
    fn a_change_replaces_the_shortest_end_in_whole_characters() {
        let splice = |start_byte, end_byte, text: &str| TextSplice { start_byte, end_byte, text: text.into() };
        assert_eq!(change("", ""), Change::None);
        assert_eq!(change("añ", "añ"), Change::None);
        assert_eq!(change("añb", "añ"), Change::None);
        assert_eq!(change("", "a"), Change::Longer(splice(0, 0, "a")));
        assert_eq!(change("añ", "añb"), Change::Longer(splice(3, 3, "b")));
        assert_eq!(change("abc", "abd"), Change::Other(splice(2, 3, "d")));
        assert_eq!(change("abcd", "bc"), Change::Other(splice(0, 4, "bc")));
        // é and ñ begin with the same byte
        assert_eq!(change("aéb", "añb"), Change::Other(splice(1, 4, "ñb")));
    }

    const URI: &str = "a";

    /// The sessions of documents of 105 bytes, of which the model reads 16, and a server that answers what a test writes.
    struct Editor {
        sessions: Sessions,
        documents: Documents,
        out: Outbox,
    }

    impl Editor {
        fn new() -> Self {
            Self::with(&[URI])
        }

        /// Opens these documents.
        fn with(uris: &[&str]) -> Self {
            let client = Client::of_channel(Listener::in_process().1, "this process");
            let options = CompletionOptions { model: None, count: 1, until: Until::Word, max_chars: 8 };
            let mut documents = Documents::new(DocumentLimits::default());
            for uri in uris {
                assert!(documents.open((*uri).into(), "0123456".repeat(15)).is_ok());
            }
            Self { sessions: Sessions::new(client, options, 16, mpsc::channel(1).0), documents, out: Outbox::new() }
        }

        /// Asks for completions. The request's id is its cursor.
        fn complete(&mut self, cursor: u8) {
            self.complete_in(URI, cursor);
        }

        fn complete_in(&mut self, uri: &str, cursor: u8) {
            let id = i32::from(cursor).into();
            let kind = CompletionKind::Inline;
            let request = WaitingRequest { id, kind, uri: uri.into(), cursor: cursor.into(), attempts: 0 };
            self.sessions.complete(&self.documents, request, &mut self.out);
        }

        fn cancel(&mut self, cursor: u8) {
            assert!(self.sessions.cancel(&i32::from(cursor).into(), &self.documents, &mut self.out));
        }

        fn take(&mut self, news: SessionNews) {
            self.take_of(URI, news);
        }

        fn take_of(&mut self, uri: &str, news: SessionNews) {
            let session = self.sessions.open[uri].number;
            let event = SessionEvent { uri: uri.into(), session, news };
            self.sessions.take(event, &self.documents, &mut self.out);
        }

        /// Returns the URIs of the open sessions, one after the other.
        fn open(&self) -> String {
            self.sessions.open.keys().cloned().collect()
        }

        fn answer(&mut self, wire_id: u64) {
            self.answer_of(URI, wire_id);
        }

        fn answer_of(&mut self, uri: &str, wire_id: u64) {
            let items = vec![CompletionItem { text: "x".into(), ..CompletionItem::default() }];
            let found = DocumentCompletions { id: wire_id, items, ..DocumentCompletions::default() };
            self.take_of(uri, SessionNews::Event(EditEvent::Completions(found)));
        }

        fn stale(&mut self, wire_id: u64) {
            self.take(SessionNews::Event(EditEvent::Stale(StaleRequest { id: wire_id })));
        }

        /// Returns the requests in progress: their ids on the wire and their cursors.
        fn in_progress(&self) -> Vec<(u64, usize)> {
            let session = &self.sessions.open[URI];
            session.waiting.iter().map(|(wire_id, request)| (*wire_id, request.cursor)).collect()
        }

        /// Returns the answers: each request's id, and how many completions it got. Reports have no id.
        fn answers(&mut self) -> Vec<(Option<u64>, usize)> {
            let count = |message: &Value| message["result"]["items"].as_array().map_or(0, Vec::len);
            self.out.take().iter().map(|message| (message["id"].as_u64(), count(message))).collect()
        }
    }

    #[tokio::test]
    async fn requests_at_several_cursors_are_all_answered() {
        let mut editor = Editor::new();
        for cursor in [9, 12, 3, 90, 91] {
            editor.complete(cursor);
        }
        assert_eq!(editor.in_progress(), [(1, 9), (2, 12), (3, 3)], "other texts wait");
        editor.stale(1);
        editor.answer(2);
        editor.answer(3);
        assert_eq!(editor.in_progress(), [(4, 90), (5, 91)]);
        editor.stale(4);
        editor.answer(5);
        assert_eq!(editor.in_progress(), [(6, 9)], "deferred requests keep their order");
        editor.complete(80);
        editor.cancel(9);
        assert_eq!(editor.in_progress(), [(7, 90)]);
        editor.cancel(80);
        editor.answer(7);
        assert_eq!(editor.in_progress(), []);
        assert_eq!(editor.answers(), [12, 3, 91, 90].map(|id| (Some(id), 1)));
    }

    #[tokio::test]
    async fn cancelling_a_request_costs_others_no_attempt() {
        let mut editor = Editor::new();
        editor.complete(9);
        for _ in 0..2 * ATTEMPTS {
            let (kept, _) = editor.in_progress()[0];
            editor.complete(5);
            editor.cancel(5);
            editor.stale(kept);
        }
        let (kept, _) = editor.in_progress()[0];
        editor.answer(kept);
        assert_eq!(editor.answers(), [(Some(9), 1)]);
    }

    #[tokio::test]
    async fn a_request_whose_sessions_end_is_answered_and_reported() {
        let mut editor = Editor::new();
        editor.complete(9);
        for attempt in 1..=ATTEMPTS {
            assert_eq!((editor.in_progress(), editor.sessions.is_paused()), (vec![(1, 9)], false), "{attempt}");
            editor.take(SessionNews::Event(EditEvent::Applied(DocumentApplied::default())));
            editor.take(SessionNews::Ended(Some(Error::Internal("broken".into()))));
        }
        assert_eq!(editor.answers(), [(None, 0), (Some(9), 0)], "the error is reported once");
        editor.complete(9);
        assert_eq!((editor.answers(), editor.sessions.is_paused()), (vec![(Some(9), 0)], true));
    }

    #[tokio::test]
    async fn the_least_recently_used_session_gives_way() {
        const URIS: [&str; MAX_SESSIONS + 1] = ["a", "b", "c", "d", "e", "f", "g", "h", "i"];
        let mut editor = Editor::with(&URIS);
        for (uri, cursor) in URIS.into_iter().take(MAX_SESSIONS).zip(1..) {
            editor.complete_in(uri, cursor);
        }
        for cursor in 1..=3 {
            editor.cancel(cursor);
        }
        editor.complete_in("a", 20);
        assert_eq!(editor.open(), "abcdefgh");
        editor.complete_in("i", 21);
        assert_eq!(editor.open(), "acdefghi");
        editor.complete_in("b", 22);
        assert_eq!(editor.open(), "abdefghi");
        editor.complete_in("c", 23);
        assert_eq!((editor.open(), editor.answers()), ("abcdefghi".into(), vec![]), "all others have requests");
        editor.take_of("d", SessionNews::Ended(Some(Error::Internal("broken".into()))));
        assert_eq!((editor.open(), editor.answers()), ("abcefghi".into(), vec![(None, 0), (Some(4), 0)]));
        editor.complete_in("d", 24);
        assert_eq!(editor.answers(), [(Some(24), 0)], "it pauses");
        assert_eq!(editor.sessions.close_all().len(), 8);
    }
}
