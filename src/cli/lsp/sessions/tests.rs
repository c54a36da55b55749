//! The sessions of a scripted editor, with a server that answers what a test writes.

use super::{super::completion::CompletionKind, *};
use crate::{cli::lsp::documents::DocumentLimits, serve::Listener};
use serde_json::Value;
use weir_client::connection::Client;
use weir_proto::v1::{CompletionItem, DocumentApplied, DocumentCompletions, StaleRequest, Until};

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
        let request = WaitingRequest { id, kind, uri: uri.into(), cursor: cursor.into(), attempts: 0, sent_at: None };
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
        self.sessions.send_queued(&self.documents, &mut self.out);
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

/// The URIs of documents for two more sessions than may be open.
const URIS: [&str; MAX_SESSIONS + 2] = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];

#[test]
fn a_request_waits_while_all_sessions_have_requests() {
    within_a_runtime(|| {
        let mut editor = Editor::with(&URIS);
        for (uri, cursor) in URIS.into_iter().zip(1..) {
            editor.complete_in(uri, cursor);
        }
        editor.complete_in("i", 20);
        let open = |editor: &Editor| editor.sessions.open.keys().cloned().collect::<String>();
        assert_eq!((open(&editor), editor.answers()), ("abcdefgh".into(), vec![]), "no request loses its session");
        editor.complete_in("d", 21);
        editor.answer_of("d", 1);
        assert_eq!(open(&editor), "abcdefgh", "another request of d is in progress");
        editor.answer_of("c", 1);
        assert_eq!(open(&editor), "abdefghi");
        assert_eq!(editor.sessions.open["i"].waiting.len(), 1);
        assert_eq!(editor.sessions.open["i"].deferred.len() + editor.sessions.queued.len(), 2);
        editor.cancel(10);
        assert!(editor.sessions.queued.is_empty());
        editor.complete_in("j", 22);
        editor.complete_in("c", 23);
        assert_eq!(editor.sessions.overtake("j").len(), 1);
        // A session that is given up leaves room, too.
        editor.take_of("b", SessionNews::Ended(Some(Error::Internal("broken".into()))));
        assert_eq!(open(&editor), "adefghi");
        assert_eq!(editor.answers(), [(Some(4), 1), (Some(3), 1), (None, 0), (Some(2), 0), (Some(23), 0)]);
        editor.complete_in("j", 24);
        assert_eq!(editor.answers(), [(Some(24), 0)], "it pauses");
        assert_eq!(editor.sessions.close_all().len(), 8);
    });
}

#[test]
fn a_session_that_is_not_answered_ends_for_requests_that_wait() {
    within_a_runtime(|| {
        let mut editor = Editor::with(&URIS);
        for (uri, cursor) in URIS.into_iter().take(MAX_SESSIONS).zip(1..) {
            editor.complete_in(uri, cursor);
        }
        // The requests of b and d are too old.
        for uri in ["b", "d"] {
            let requests = editor.sessions.open.get_mut(uri).unwrap().waiting.values_mut();
            requests.for_each(|request| request.sent_at = request.sent_at.map(|at| at - ANSWER_TIMEOUT));
        }
        let open = |editor: &Editor| editor.sessions.open.keys().cloned().collect::<String>();
        editor.sessions.send_queued(&editor.documents, &mut editor.out);
        assert_eq!((editor.sessions.timeout(), open(&editor)), (None, "abcdefgh".into()), "no request waits for them");
        editor.complete_in("i", 9);
        assert!(editor.sessions.timeout().unwrap() <= Instant::now());
        editor.sessions.send_queued(&editor.documents, &mut editor.out);
        assert_eq!(open(&editor), "acdefghi");
        editor.complete_in("j", 10);
        editor.sessions.send_queued(&editor.documents, &mut editor.out);
        assert_eq!(open(&editor), "acefghij");
        assert_eq!(editor.answers(), [(None, 0), (Some(2), 0), (Some(4), 0)], "the user is told once");
        editor.complete_in("b", 11);
        editor.sessions.send_queued(&editor.documents, &mut editor.out);
        assert_eq!(open(&editor), "acefghij");
        let in_time = editor.sessions.timeout().unwrap() - Instant::now();
        assert!(in_time > ANSWER_TIMEOUT / 2, "{in_time:?}");
    });
}

#[test]
fn the_end_of_a_session_is_no_attempt_of_a_queued_request() {
    within_a_runtime(|| {
        let mut editor = Editor::new();
        editor.complete(9);
        let queued = WaitingRequest { id: 5.into(), attempts: 0, ..editor.sessions.open[URI].waiting[&1].clone() };
        editor.sessions.queued.push(queued);
        editor.take(SessionNews::Ended(None));
        let requests = editor.sessions.open[URI].waiting.values();
        assert_eq!(requests.map(|request| request.attempts).collect::<Vec<_>>(), [1, 0]);
    });
}

#[test]
fn the_queue_is_limited() {
    within_a_runtime(|| {
        let mut editor = Editor::with(&URIS);
        for uri in &URIS[..MAX_SESSIONS] {
            editor.complete_in(uri, 1);
        }
        for _ in 0..MAX_QUEUED {
            editor.complete_in("i", 2);
        }
        assert_eq!(editor.answers(), []);
        editor.complete_in("j", 3);
        assert_eq!(editor.answers(), [(Some(3), 0)]);
        assert_eq!(editor.sessions.close("i").len(), MAX_QUEUED);
    });
}
