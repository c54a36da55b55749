//! The editing sessions of the open documents: requests, their answers, and sessions that end.
//!
//! A request whose session ends before its answer is sent again in a new session. A request that another one made stale is sent
//! again in the same session: the session's text then is as long as both need. A request waits while all sessions have requests
//! in progress, but a session whose server does not answer ends. While the server cannot be reached, requests get empty answers at
//! once.

use super::{
    completion::{WaitingRequest, context},
    documents::Documents,
    outbox::{Outbox, Place},
    protocol::Severity,
    session::{CompletionOptions, Session, SessionEvent, SessionNews},
};
use crate::error::Error;
use lsp_server::RequestId;
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};
use tokio::sync::mpsc;
use weir_client::connection::Client;
use weir_proto::v1::{EditFailure, document_closed::Reason as CloseReason, edit_response::Event as EditEvent};

/// Maximum open sessions. Opening another ends the least recently used one that has no requests: a user types in one document at a
/// time.
const MAX_SESSIONS: usize = 8;
/// Maximum requests that wait for such a session. The answers to further ones are empty.
const MAX_QUEUED: usize = 256;
/// Sessions that may end before the answer to a request. Then its answer is empty.
const ATTEMPTS: usize = 4;
/// Pause after a session failed to open, before the next attempt.
const PAUSE: Duration = Duration::from_secs(1);
/// Maximum time for the server to answer a request while requests of other documents wait for a session.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// The sessions of the open documents.
pub(super) struct Sessions {
    client: Client,
    options: CompletionOptions,
    /// Maximum bytes of text before the cursor that the model reads.
    context_bytes: usize,
    /// The sessions by the URIs of their documents.
    open: BTreeMap<String, Session>,
    /// The requests of other documents, while all sessions have requests in progress. In order.
    queued: Vec<WaitingRequest>,
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
            queued: Vec::new(),
            events,
            sessions: 0,
            requests: 0,
            is_unreachable: false,
            failed_at: None,
        }
    }

    /// Sends a request to its document's session, which opens if there is none. Queues it while no session can open. Must run
    /// within a runtime.
    pub(super) fn complete(&mut self, documents: &Documents, request: WaitingRequest, out: &mut Outbox) {
        let may_try = request.attempts < ATTEMPTS && !self.is_paused();
        let Some(text) = documents.text(&request.uri).filter(|_| may_try) else {
            out.complete(documents, &request, &[]);
            return;
        };
        let text = context(text.text(), request.cursor, self.context_bytes);
        let uri = request.uri.clone();
        if !self.open.contains_key(&uri) {
            if !self.has_room() {
                self.queue(request, documents, out);
                return;
            }
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

    /// Returns when a session must give way to queued requests, unless the server answers before. The owner calls
    /// [`send_queued`](Self::send_queued) then.
    pub(super) fn timeout(&self) -> Option<Instant> {
        if self.queued.is_empty() {
            return None;
        }
        self.oldest().map(|(sent_at, _)| sent_at + ANSWER_TIMEOUT)
    }

    /// Sends queued requests for which a session can open now. The owner calls this after each message and event, and at the
    /// [`timeout`](Self::timeout).
    pub(super) fn send_queued(&mut self, documents: &Documents, out: &mut Outbox) {
        while let Some(uri) = self.queued.first().map(|request| request.uri.clone())
            && (self.open.contains_key(&uri) || self.has_room() || self.end_unanswered(documents, out))
        {
            for request in self.take_queued(&uri) {
                self.complete(documents, request, out);
            }
        }
    }

    /// Takes the requests of a document whose text has changed, and cancels their work.
    pub(super) fn overtake(&mut self, uri: &str) -> Vec<WaitingRequest> {
        let queued = self.take_queued(uri);
        let Some(session) = self.open.get_mut(uri) else { return queued };
        let are_in_progress = !session.waiting.is_empty();
        let mut overtaken = session.take_all();
        overtaken.extend(queued);
        if are_in_progress && session.cancel().is_err() {
            self.open.remove(uri);
        }
        overtaken
    }

    /// Cancels a request. Returns false if it does not wait.
    pub(super) fn cancel(&mut self, id: &RequestId, documents: &Documents, out: &mut Outbox) -> bool {
        if let Some(index) = self.queued.iter().position(|request| request.id == *id) {
            self.queued.remove(index);
            return true;
        }
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
        let mut requests = self.open.remove(uri).map(|mut session| session.take_all()).unwrap_or_default();
        requests.extend(self.take_queued(uri));
        requests
    }

    /// Ends all sessions. Returns the requests that waited.
    pub(super) fn close_all(&mut self) -> Vec<WaitingRequest> {
        let queued = std::mem::take(&mut self.queued);
        std::mem::take(&mut self.open).into_values().flat_map(|mut session| session.take_all()).chain(queued).collect()
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
        let mut requests = self.open.remove(uri).map(|mut session| session.take_all()).unwrap_or_default();
        requests.iter_mut().for_each(|request| request.attempts += 1);
        if requests.iter().any(|request| request.attempts >= ATTEMPTS) {
            self.failed_at = Some(Instant::now());
        }
        // These were never sent, so this is no attempt.
        requests.extend(self.take_queued(uri));
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

    /// Ends the session whose request waits longest, if that is too long. Returns false if none ends.
    fn end_unanswered(&mut self, documents: &Documents, out: &mut Outbox) -> bool {
        let Some((sent_at, uri)) = self.oldest() else { return false };
        if sent_at.elapsed() < ANSWER_TIMEOUT {
            return false;
        }
        let uri = uri.to_owned();
        let limit = ANSWER_TIMEOUT;
        let why =
            format!("the server did not answer a request within {limit:?}; requests of other documents were waiting");
        out.report(Place::Message, Severity::Warning, &why);
        self.give_up(&uri, documents, out);
        true
    }

    /// Returns the oldest request in progress: the time at which it was sent, and its document.
    fn oldest(&self) -> Option<(Instant, &str)> {
        self.open.iter().filter_map(|(uri, session)| Some((session.oldest()?, uri.as_str()))).min()
    }

    /// Returns true if a session can open.
    fn has_room(&self) -> bool {
        self.open.len() < MAX_SESSIONS || self.open.values().any(|session| session.waiting.is_empty())
    }

    /// Ends the least recently used session without requests in progress if `MAX_SESSIONS` are open.
    fn make_room(&mut self) {
        if self.open.len() < MAX_SESSIONS {
            return;
        }
        let idle = self.open.iter().filter(|(_, session)| session.waiting.is_empty());
        if let Some(uri) = idle.min_by_key(|(_, session)| session.used).map(|(uri, _)| uri.clone()) {
            self.open.remove(&uri);
        }
    }

    /// Queues a request, or answers it if too many wait.
    fn queue(&mut self, request: WaitingRequest, documents: &Documents, out: &mut Outbox) {
        if self.queued.len() < MAX_QUEUED {
            self.queued.push(request);
        } else {
            out.complete(documents, &request, &[]);
        }
    }

    /// Takes the queued requests of a document.
    fn take_queued(&mut self, uri: &str) -> Vec<WaitingRequest> {
        self.queued.extract_if(.., |request| request.uri == uri).collect()
    }
}

#[cfg(test)]
mod tests;
