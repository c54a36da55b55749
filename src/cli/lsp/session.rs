//! The editing session of one document: a stream of the server's editing service.
//!
//! The session's text is the document's text up to the furthest cursor of its requests, or the end of that text if it is long. The
//! server reads nothing after a request's cursor, so requests before that cursor leave the text as it is. A session opens when its
//! document first asks for completions.

use super::completion::WaitingRequest;
use crate::error::Error;
use std::{collections::BTreeMap, sync::Arc, time::Instant};
use tokio::{
    sync::mpsc::{self, error::TrySendError},
    task::AbortHandle,
};
use weir_client::connection::Client;
use weir_proto::v1::{
    CompleteDocument, EditRequest, OpenDocument, SpliceDocument, TextSplice, Until, edit_request::Action as EditAction,
    edit_response::Event as EditEvent,
};

/// Messages of a session that wait to be sent.
const WAITING_MESSAGES: usize = 64;

/// Options of requests for completions.
#[derive(Debug, Clone)]
pub(super) struct CompletionOptions {
    /// Name of the model. May be `None` if exactly one can answer the call.
    pub(super) model: Option<String>,
    pub(super) count: u32,
    pub(super) until: Until,
    pub(super) max_chars: u32,
}

/// An event of a session.
#[derive(Debug)]
pub(super) struct SessionEvent {
    pub(super) uri: Arc<str>,
    /// Number of the session.
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
    /// Number of the session.
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

    /// Asks for the completions of a request at the end of `text`. If the text continues that of the requests in progress, they
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
        self.waiting.insert(id, WaitingRequest { sent_at: Some(Instant::now()), ..request });
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
        }))
    }

    /// Returns the time at which the oldest request in progress was sent.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.waiting.values().filter_map(|request| request.sent_at).min()
    }

    /// Takes the deferred requests if none is in progress.
    pub(super) fn take_deferred(&mut self) -> Vec<WaitingRequest> {
        if self.waiting.is_empty() { std::mem::take(&mut self.deferred) } else { Vec::new() }
    }

    /// Takes all requests.
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
    /// The session's text begins with that of the request.
    None,
    /// The text of the request begins with the session's.
    Longer(TextSplice),
    Other(TextSplice),
}

/// Returns the change after which a session's text begins with that of a request.
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
