//! `Editing.Edit` over the wire: answers, errors that do not end a session, and limits.

use super::{Server, eventually, fake_model::Kind, reason};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Streaming};
use weir::{
    config::{EditingConfig, TransportConfig},
    engine::Limits,
};
use weir_proto::v1::{
    self, EditRequest, EditResponse, Until, document_closed::Reason, edit_request::Action, edit_response::Event,
    editing_client::EditingClient,
};

struct Session {
    requests: mpsc::Sender<EditRequest>,
    responses: Streaming<EditResponse>,
}

impl Session {
    async fn begin(server: &Server) -> Result<Self, tonic::Status> {
        let (requests, receiver) = mpsc::channel(64);
        let mut client = EditingClient::new(server.channel.clone());
        let responses = client.edit(ReceiverStream::new(receiver)).await?.into_inner();
        Ok(Self { requests, responses })
    }

    async fn open(server: &Server, text: &str) -> Self {
        let mut session = Self::begin(server).await.unwrap();
        let open = v1::OpenDocument { text: text.into(), ..Default::default() };
        assert_eq!(session.ask(Action::Open(open)).await, applied(0, text.len()));
        session
    }

    async fn send(&self, action: Action) {
        self.requests.send(EditRequest { action: Some(action) }).await.unwrap();
    }

    async fn next(&mut self) -> Event {
        self.responses.message().await.unwrap().unwrap().event.unwrap()
    }

    async fn ask(&mut self, action: Action) -> Event {
        self.send(action).await;
        self.next().await
    }

    /// Returns the failure that a message gets.
    async fn refused(&mut self, action: Action) -> v1::EditFailure {
        match self.ask(action).await {
            Event::Failed(failure) => failure,
            other => panic!("{other:?}"),
        }
    }

    async fn completed(&mut self, action: Action) -> v1::DocumentCompletions {
        match self.ask(action).await {
            Event::Completions(completions) => completions,
            other => panic!("{other:?}"),
        }
    }
}

fn applied(revision: u64, bytes: usize) -> Event {
    Event::Applied(v1::DocumentApplied { revision, text_bytes: bytes as u64, ..Default::default() })
}

fn splice(revision: u64, start: u64, end: u64, text: &str) -> Action {
    let splices = vec![v1::TextSplice { start_byte: start, end_byte: end, text: text.into() }];
    Action::Splice(v1::SpliceDocument { revision, splices })
}

fn many_splices(revision: u64, count: usize) -> Action {
    Action::Splice(v1::SpliceDocument { revision, splices: vec![v1::TextSplice::default(); count] })
}

fn complete(id: u64, cursor_byte: u64, count: u32) -> Action {
    let until = Some(Until::MaxChars.into());
    Action::Complete(v1::CompleteDocument { id, cursor_byte, count: Some(count), until, max_chars: Some(2) })
}

fn score(id: u64, start_byte: u64, end_byte: u64) -> Action {
    Action::Score(v1::ScoreDocument { id, start_byte, end_byte })
}

fn cached() -> Limits {
    Limits { cache_bytes: 1 << 20, ..Limits::default() }
}

async fn server(editing: EditingConfig) -> Server {
    let config = TransportConfig { editing, ..TransportConfig::default() };
    Server::with(cached(), config, &[("fake", Kind::Pooled)]).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_document_is_completed_and_scored_while_it_changes() {
    let server = server(EditingConfig::default()).await;
    let mut session = Session::open(&server, "ab cd ").await;
    let first = session.completed(complete(1, 6, 3)).await;
    assert_eq!((first.id, first.revision, first.items.len(), first.cut), (1, 0, 3, false));
    assert_eq!((first.reused_chars, first.recomputed_chars), (0, 6));
    let logprobs: Vec<f64> = first.items.iter().map(|item| item.logprob).collect();
    assert!(logprobs.is_sorted_by(|a, b| a >= b) && first.items.iter().all(|item| item.text.chars().count() == 2));
    // the most probable completion has the score of its text
    let best = first.items[0].clone();
    assert_eq!(session.ask(splice(1, 6, 6, &best.text)).await, applied(1, 6 + best.text.len()));
    let Event::Scores(scores) = session.ask(score(2, 6, 6 + best.text.len() as u64)).await else { panic!() };
    let sum: f64 = scores.characters.iter().map(|character| f64::from(character.logprob.unwrap())).sum();
    assert!((sum - best.logprob).abs() < 1e-4, "{sum} {best:?}");
    // the text before the edit is not computed again, and another session gets the same
    session.ask(splice(2, 3, 8, "é")).await;
    let edited = session.completed(complete(3, 5, 2)).await;
    assert_eq!((edited.reused_chars, edited.recomputed_chars), (3, 1));
    let cold = self::server(EditingConfig::default()).await;
    let mut other = Session::open(&cold, "ab é").await;
    assert_eq!(other.completed(complete(3, 5, 2)).await.items, edited.items);
    assert_eq!(session.ask(Action::Close(v1::CloseDocument {})).await, closed(Reason::Client));
    assert!(session.responses.message().await.unwrap().is_none());
}

fn closed(reason: Reason) -> Event {
    Event::Closed(v1::DocumentClosed { reason: reason.into() })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_splice_ends_the_work_that_it_overtakes() {
    let server = server(EditingConfig::default()).await;
    let mut session = Session::open(&server, "ab ").await;
    server.model.hold();
    session.send(complete(7, 3, 2)).await;
    session.send(score(5, 0, 3)).await;
    eventually("both requests run", || server.engine.load().running + server.engine.load().queued == 2).await;
    // a splice that is refused, long or short, ends nothing
    for text in ["a", &"a".repeat(100_000)] {
        assert_eq!(session.refused(splice(0, 0, 1, text)).await.field.as_deref(), Some("splice.revision"));
        assert_eq!(session.refused(splice(1, 0, 9, text)).await.field.as_deref(), Some("splice.splices[0].end_byte"));
    }
    assert_eq!(server.engine.load().running + server.engine.load().queued, 2);
    assert_eq!(session.ask(splice(1, 0, 1, "")).await, applied(1, 2));
    assert_eq!(session.next().await, Event::Stale(v1::StaleRequest { id: 5 }));
    assert_eq!(session.next().await, Event::Stale(v1::StaleRequest { id: 7 }));
    // an id may be used again
    session.send(complete(7, 2, 1)).await;
    server.model.release();
    let Event::Completions(completions) = session.next().await else { panic!() };
    assert_eq!((completions.id, completions.revision), (7, 1));
}

#[tokio::test]
async fn a_keystroke_reuses_what_the_last_search_computed() {
    // the second server has no memory for distributions
    let small = TransportConfig { message_bytes: 1 << 16, request_memory: 1 << 18, ..TransportConfig::default() };
    for (config, reuses) in [(TransportConfig::default(), true), (small, false)] {
        let server = Server::with(cached(), config, &[("fake", Kind::Pooled)]).await;
        let mut session = Session::open(&server, "ab cd ").await;
        let first = session.completed(complete(1, 6, 3)).await;
        assert!(first.distributions > 0 && first.reused_distributions == 0);
        let typed: String = first.items[0].text.chars().take(1).collect();
        session.ask(splice(1, 6, 6, &typed)).await;
        let second = session.completed(complete(2, 6 + typed.len() as u64, 3)).await;
        assert_eq!(second.reused_distributions > 0, reuses);
        // the character is taken back
        session.ask(splice(2, 6, 6 + typed.len() as u64, "")).await;
        let third = session.completed(complete(3, 6, 3)).await;
        assert_eq!((third.distributions == 0, &third.items), (reuses, &first.items));
    }
}

/// A completion needs 68 KiB and, in a short text, 37 bytes for each byte before its cursor.
#[tokio::test]
async fn kept_distributions_make_room_for_requests() {
    let limit = (1 << 18) + (1 << 15) + (1 << 16);
    let config = TransportConfig { message_bytes: 1 << 14, request_memory: 2 * limit, ..TransportConfig::default() };
    let server = Server::with(cached(), config, &[("fake", Kind::Pooled)]).await;
    let mut session = Session::open(&server, &"ab cd ea".repeat(200)).await;
    // the memory has room for the distributions, or for a completion at the end
    let first = session.completed(complete(1, 6, 3)).await;
    assert!(first.distributions > 0);
    assert_eq!(session.completed(complete(2, 6, 3)).await.distributions, 0);
    for id in 3..5 {
        assert_eq!(session.completed(complete(id, 1_600, 1)).await.items.len(), 1);
    }
    // they are kept again once there is room
    assert!(session.completed(complete(5, 6, 3)).await.distributions > 0);
    assert_eq!(session.completed(complete(6, 6, 3)).await.distributions, 0);
    drop(session);
    server.at_rest().await;
}

#[tokio::test]
async fn wrong_messages_leave_the_session_open() {
    let server = server(EditingConfig { text_bytes: 8, ..EditingConfig::default() }).await;
    let mut session = Session::begin(&server).await.unwrap();
    let failure = session.refused(complete(4, 0, 1)).await;
    assert_eq!(
        (failure.id, failure.code.as_str(), failure.field.as_deref()),
        (Some(4), "INVALID_ARGUMENT", Some("action"))
    );
    let open = |text: &str| Action::Open(v1::OpenDocument { text: text.into(), revision: 5, ..Default::default() });
    let unknown = v1::OpenDocument { model: Some("other".into()), ..Default::default() };
    assert_eq!(session.refused(Action::Open(unknown)).await.reason, "UNKNOWN_MODEL");
    assert_eq!(session.refused(open("123456789")).await.reason, "TOO_LONG");
    let urgent = v1::OpenDocument { priority: Some(99), ..Default::default() };
    assert_eq!(session.refused(Action::Open(urgent)).await.field.as_deref(), Some("priority"));
    assert_eq!(session.ask(open("aé c")).await, applied(5, 5));
    assert_eq!(session.refused(open("a")).await.field.as_deref(), Some("open"));
    for (action, field) in [
        (splice(5, 0, 0, "a"), "splice.revision"),
        (splice(6, 2, 3, ""), "splice.splices[0].start_byte"),
        (splice(6, 0, 6, ""), "splice.splices[0].end_byte"),
        (splice(6, 0, 0, "abcd"), "splice.splices[0].text"),
        (many_splices(6, 257), "splice.splices"),
        (complete(1, 2, 1), "complete.cursor_byte"),
        (complete(1, 0, 1), "complete.cursor_byte"),
        (complete(1, 1, 17), "complete.count"),
        (score(1, 1, 1), "score.end_byte"),
        (score(1, 0, u64::MAX), "score.end_byte"),
    ] {
        let failure = session.refused(action.clone()).await;
        assert_eq!((failure.code.as_str(), failure.field.as_deref()), ("INVALID_ARGUMENT", Some(field)), "{action:?}");
    }
    assert_eq!(
        session
            .refused(Action::Complete(v1::CompleteDocument { until: Some(9), cursor_byte: 1, ..Default::default() }))
            .await
            .field
            .as_deref(),
        Some("complete.until")
    );
    assert_eq!(session.ask(splice(6, 0, 3, "")).await, applied(6, 2));
    assert_eq!(session.completed(complete(1, 2, 1)).await.revision, 6);
    drop(session);
    server.at_rest().await;
}

#[tokio::test]
async fn normalised_texts_keep_the_offsets_of_the_client() {
    let server = Server::with(cached(), TransportConfig::default(), &[("fake", Kind::Text8)]).await;
    let mut session = Session::begin(&server).await.unwrap();
    let normalized = |revision, text_bytes, normalized_chars| {
        Event::Applied(v1::DocumentApplied { revision, text_bytes, normalized_chars })
    };
    // `Éa`, two line feeds and a letter: the model reads `ea b`
    let open = v1::OpenDocument { text: "Éa\n\nb".into(), ..Default::default() };
    assert_eq!(session.ask(Action::Open(open)).await, normalized(0, 6, 3));
    let Event::Scores(scores) = session.ask(score(1, 0, 6)).await else { panic!() };
    let texts: Vec<&str> = scores.characters.iter().map(|character| character.text.as_str()).collect();
    assert_eq!((texts, scores.start_bytes), (vec!["e", "a", " ", "b"], vec![0, 2, 3, 5]));
    let Event::Scores(scores) = session.ask(score(1, 4, 6)).await else { panic!() };
    assert_eq!((scores.characters.len(), scores.start_bytes), (1, vec![5]));
    // the cursor counts the client's bytes, and the model reads four characters before it
    let completions = session.completed(complete(2, 6, 1)).await;
    assert_eq!(completions.reused_chars + completions.recomputed_chars, 4);
    assert_eq!(session.ask(splice(1, 0, 2, "Ab")).await, normalized(1, 6, 1));
    // without a normaliser, a character that the vocabulary lacks fails the requests that read it
    let server = self::server(EditingConfig::default()).await;
    let mut session = Session::open(&server, "ab?").await;
    assert_eq!(session.completed(complete(1, 2, 1)).await.items.len(), 1);
    let failure = session.refused(complete(2, 3, 1)).await;
    assert_eq!((failure.reason.as_str(), failure.message.contains("'?' at character 2")), ("UNKNOWN_SYMBOL", true));
}

#[tokio::test]
async fn many_splices_of_a_long_text_apply_or_change_nothing() {
    let server = server(EditingConfig { splice_rate: 1_000_000, ..EditingConfig::default() }).await;
    let length = (1 << 20) - 256;
    let mut session = Session::open(&server, &"a".repeat(length)).await;
    let edits = |revision, count, end_byte| {
        let mut splices = vec![v1::TextSplice { text: "b".into(), ..Default::default() }; count];
        splices.push(v1::TextSplice { end_byte, ..Default::default() });
        Action::Splice(v1::SpliceDocument { revision, splices })
    };
    assert_eq!(session.refused(edits(1, 255, 1 << 21)).await.field.as_deref(), Some("splice.splices[255].end_byte"));
    assert_eq!(session.ask(edits(2, 255, 254)).await, applied(2, length + 1));
    let Event::Scores(scores) = session.ask(score(1, 0, 3)).await else { panic!() };
    let texts: String = scores.characters.iter().map(|character| character.text.as_str()).collect();
    assert_eq!(texts, "baa");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_are_limited_and_closed_with_a_reason() {
    let editing = EditingConfig { sessions: 2, idle: Duration::from_secs(2), splice_rate: 20, ..Default::default() };
    let mut server = server(editing).await;
    let mut session = Session::open(&server, "ab ").await;
    // one caller has half of the sessions
    let status = Session::begin(&server).await.map(drop).unwrap_err();
    assert_eq!((status.code(), reason(&status).as_str()), (Code::ResourceExhausted, "TOO_MANY"));
    // 20 splices may come at once, and four more take a fifth of a second, also in one message
    let began = std::time::Instant::now();
    for revision in 1..=20 {
        session.send(splice(revision, 0, 0, "a")).await;
    }
    session.send(many_splices(21, 4)).await;
    session.send(splice(22, 0, 0, "a")).await;
    for revision in 1..=22 {
        assert_eq!(session.next().await, applied(revision, 3 + revision.min(20) as usize + revision as usize / 22));
    }
    assert!(began.elapsed() >= Duration::from_millis(150), "{:?}", began.elapsed());
    assert_eq!(session.next().await, closed(Reason::Idle));
    assert!(session.responses.message().await.unwrap().is_none());
    drop(session);
    let mut session = loop {
        if let Ok(session) = Session::begin(&server).await {
            break session;
        }
    };
    session.ask(Action::Open(v1::OpenDocument::default())).await;
    server.running.shut_down();
    assert_eq!(session.next().await, closed(Reason::Draining));
}

#[tokio::test]
async fn a_half_closed_session_answers_what_is_in_progress() {
    let server = server(EditingConfig::default()).await;
    let session = Session::open(&server, "ab ").await;
    server.model.hold();
    session.send(complete(1, 3, 1)).await;
    eventually("the request runs", || server.engine.load().running == 1).await;
    let Session { requests, mut responses } = session;
    drop(requests);
    server.model.release();
    let answer = responses.message().await.unwrap().unwrap().event.unwrap();
    assert!(matches!(answer, Event::Completions(_)), "{answer:?}");
    assert!(responses.message().await.unwrap().is_none());
    server.at_rest().await;
}

#[tokio::test]
async fn models_without_the_means_are_refused() {
    let limits = Limits::default();
    let server = Server::with(limits, TransportConfig::default(), &[("fake", Kind::Pooled)]).await;
    let mut session = Session::begin(&server).await.unwrap();
    let failure = session.refused(Action::Open(v1::OpenDocument::default())).await;
    assert_eq!((failure.code.as_str(), failure.reason.as_str()), ("FAILED_PRECONDITION", "WRONG_KIND_OF_MODEL"));
}
