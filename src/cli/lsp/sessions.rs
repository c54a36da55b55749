//! The editing sessions of the open documents: requests, their answers, and sessions that end.
//!
//! A request whose session ends before its answer is sent again in a new session, and so is one that a request for another text
//! overtook. While the server cannot be reached, requests get empty answers at once.

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

/// Maximum open sessions. One more closes the one that was used least recently: a user types in one document at a time.
const MAX_SESSIONS: usize = 8;
/// How often a request is sent before its answer is empty.
const ATTEMPTS: usize = 4;
/// How long no session opens after one could not be opened.
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
    /// When a session last could not be opened.
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
        let request = WaitingRequest { attempts: request.attempts + 1, ..request };
        if session.complete(&self.options, text, request).is_err() {
            self.give_up(&uri, documents, out);
        }
    }

    /// Takes the requests of a document whose text has changed, and cancels their work.
    pub(super) fn overtake(&mut self, uri: &str) -> Vec<WaitingRequest> {
        let Some(session) = self.open.get_mut(uri) else { return Vec::new() };
        if session.waiting.is_empty() {
            return Vec::new();
        }
        let overtaken = std::mem::take(&mut session.waiting).into_values().collect();
        if session.cancel().is_err() {
            self.open.remove(uri);
        }
        overtaken
    }

    /// Cancels a request. Returns false if it does not wait.
    pub(super) fn cancel(&mut self, id: &RequestId, documents: &Documents, out: &mut Outbox) -> bool {
        for (uri, session) in &mut self.open {
            let waits = session.waiting.iter().find(|(_, request)| request.id == *id);
            let Some(wire_id) = waits.map(|(wire_id, _)| *wire_id) else { continue };
            session.waiting.remove(&wire_id);
            if session.cancel().is_err() {
                let uri = uri.clone();
                self.give_up(&uri, documents, out);
            }
            return true;
        }
        false
    }

    /// Ends the session of a document. Returns the requests that waited.
    pub(super) fn close(&mut self, uri: &str) -> Vec<WaitingRequest> {
        self.open.remove(uri).map(waiting_of).unwrap_or_default()
    }

    /// Ends all sessions. Returns the requests that waited.
    pub(super) fn close_all(&mut self) -> Vec<WaitingRequest> {
        std::mem::take(&mut self.open).into_values().flat_map(waiting_of).collect()
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
                }
            }
            SessionNews::Event(EditEvent::Stale(stale)) => {
                if let Some(request) = session.waiting.remove(&stale.id) {
                    self.complete(documents, request, out);
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

    /// Sends the requests of a session that ended in a new one.
    fn reopen(&mut self, uri: &str, documents: &Documents, out: &mut Outbox) {
        for request in self.close(uri) {
            self.complete(documents, request, out);
        }
    }

    /// Handles the end of a call with an error. Sends the requests again if the session was open; otherwise answers them and waits
    /// before the next attempt.
    fn break_off(&mut self, uri: &str, error: &Error, documents: &Documents, out: &mut Outbox) {
        if self.open.get(uri).is_some_and(|session| session.is_open) {
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
        // Some models need a character to begin with, which is no problem of the user's.
        if request.cursor > 0 {
            out.report(Place::Log, Severity::Warning, &format!("{uri}: {code}: {message}"));
        }
        out.complete(documents, &request, &[]);
    }

    /// Ends a session, and answers its requests with nothing.
    fn give_up(&mut self, uri: &str, documents: &Documents, out: &mut Outbox) {
        for request in self.close(uri) {
            out.complete(documents, &request, &[]);
        }
    }

    /// Ends the session that was used least recently, if there are as many as are allowed: one without requests, if possible.
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

fn waiting_of(mut session: Session) -> Vec<WaitingRequest> {
    std::mem::take(&mut session.waiting).into_values().collect()
}
