//! The editing sessions of the open documents: requests, their answers, and sessions that end.
//!
//! A request whose session ends before its answer is sent again in a new session. A request that another one made stale is sent
//! again in the same session: the session's text then is as long as both need. While the server cannot be reached, requests get
//! empty answers at once.

use super::{
    completion::{WaitingRequest, context},
    documents::Documents,
    outbox::{Outbox, Place},
    protocol::Severity,
    session::{CompletionOptions, Session, SessionEvent, SessionNews},
};
use crate::{
    error::Error,
    serve::client::{
        editing::{CloseReason, EditEvent, EditFailure},
        inference::InferenceClient,
    },
};
use lsp_server::RequestId;
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};
use tokio::sync::mpsc;

/// Maximum open sessions. Opening another ends the least recently used one: a user types in one document at a time.
const MAX_SESSIONS: usize = 8;
/// Sessions that may end before the answer to a request. Then its answer is empty.
const ATTEMPTS: usize = 4;
/// Pause after a session failed to open, before the next attempt.
const PAUSE: Duration = Duration::from_secs(1);

/// The sessions of the open documents.
pub(super) struct Sessions {
    client: InferenceClient,
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
        client: InferenceClient,
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
            self.make_room(documents, out);
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

    /// Takes an event of a session.
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
        let requests = self.close(uri).into_iter();
        let requests: Vec<_> =
            requests.map(|request| WaitingRequest { attempts: request.attempts + 1, ..request }).collect();
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

    /// Ends the least recently used session if `MAX_SESSIONS` are open. Prefers sessions without requests in progress.
    fn make_room(&mut self, documents: &Documents, out: &mut Outbox) {
        if self.open.len() < MAX_SESSIONS {
            return;
        }
        let least = self.open.iter().min_by_key(|(_, session)| (!session.waiting.is_empty(), session.used));
        if let Some(uri) = least.map(|(uri, _)| uri.clone()) {
            self.give_up(&uri, documents, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::completion::CompletionKind, *};
    use crate::{
        cli::lsp::documents::DocumentLimits,
        serve::client::editing::{CompletionItem, DocumentApplied, DocumentCompletions, StaleRequest, Until},
    };
    use serde_json::Value;

    const URI: &str = "a";

    /// The sessions of a document of 105 bytes, of which the model reads 16, and a server that answers what a test writes.
    struct Editor {
        sessions: Sessions,
        documents: Documents,
        out: Outbox,
    }

    impl Editor {
        fn new() -> Self {
            let client = InferenceClient::in_process(mpsc::channel(1).0);
            let options = CompletionOptions { model: None, count: 1, until: Until::Word, max_chars: 8 };
            let mut documents = Documents::new(DocumentLimits::default());
            assert!(documents.open(URI.into(), "0123456".repeat(15)).is_ok());
            Self { sessions: Sessions::new(client, options, 16, mpsc::channel(1).0), documents, out: Outbox::new() }
        }

        /// Asks for completions. The request's id is its cursor.
        fn complete(&mut self, cursor: u8) {
            let id = i32::from(cursor).into();
            let kind = CompletionKind::Inline;
            let request = WaitingRequest { id, kind, uri: URI.into(), cursor: cursor.into(), attempts: 0 };
            self.sessions.complete(&self.documents, request, &mut self.out);
        }

        fn cancel(&mut self, cursor: u8) {
            assert!(self.sessions.cancel(&i32::from(cursor).into(), &self.documents, &mut self.out));
        }

        fn take(&mut self, news: SessionNews) {
            let event = SessionEvent { uri: URI.into(), session: self.sessions.sessions, news };
            self.sessions.take(event, &self.documents, &mut self.out);
        }

        fn answer(&mut self, wire_id: u64) {
            let items = vec![CompletionItem { text: "x".into(), ..CompletionItem::default() }];
            let found = DocumentCompletions { id: wire_id, items, ..DocumentCompletions::default() };
            self.take(SessionNews::Event(EditEvent::Completions(found)));
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

    fn within_a_runtime(test: impl FnOnce()) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let _guard = runtime.enter();
        test();
    }

    #[test]
    fn requests_at_several_cursors_are_all_answered() {
        within_a_runtime(|| {
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
        });
    }

    #[test]
    fn cancelling_a_request_costs_others_no_attempt() {
        within_a_runtime(|| {
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
        });
    }

    #[test]
    fn a_request_whose_sessions_end_is_answered_and_reported() {
        within_a_runtime(|| {
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
        });
    }
}
