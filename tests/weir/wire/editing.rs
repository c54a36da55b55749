//! Editing sessions over gRPC and over WebSockets.

use super::*;
use std::{io::Write as _, net::TcpStream};
use tokio::task::block_in_place;
use tungstenite::client::client;
use tungstenite::error::Error;
use tungstenite::handshake::client::{Request, Response, generate_key};
use tungstenite::protocol::frame::coding::CloseCode;
use tungstenite::{HandshakeError, Message, WebSocket};
use weir::server::config::EditingConfig;
use weir_proto::v1::{EditRequest, EditResponse, Until, edit_response::Event};

pub(super) struct Session {
    pub(super) requests: mpsc::Sender<EditRequest>,
    pub(super) responses: Streaming<EditResponse>,
}

impl Session {
    async fn begin(server: &Running) -> Result<Self, tonic::Status> {
        let (requests, receiver) = mpsc::channel(64);
        let mut client = EditingClient::new(server.channel.clone());
        let responses = client.edit(ReceiverStream::new(receiver)).await?.into_inner();
        Ok(Self { requests, responses })
    }

    pub(super) async fn open(server: &Running, text: &str) -> Self {
        let mut session = Self::begin(server).await.unwrap();
        let open = v1::OpenDocument { text: text.into(), ..Default::default() };
        assert_eq!(session.ask(Action::Open(open)).await, applied(0, text.len()));
        session
    }

    async fn send(&self, action: Action) {
        self.requests.send(EditRequest { action: Some(action) }).await.unwrap();
    }

    pub(super) async fn next(&mut self) -> Event {
        self.responses.message().await.unwrap().unwrap().event.unwrap()
    }

    pub(super) async fn ask(&mut self, action: Action) -> Event {
        self.send(action).await;
        self.next().await
    }

    /// Returns the failure that a message gets.
    pub(super) async fn refused(&mut self, action: Action) -> v1::EditFailure {
        match self.ask(action).await {
            Event::Failed(failure) => failure,
            other => panic!("{other:?}"),
        }
    }

    pub(super) async fn completed(&mut self, action: Action) -> v1::DocumentCompletions {
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

pub(super) fn many_splices(revision: u64, count: usize) -> Action {
    Action::Splice(v1::SpliceDocument { revision, splices: vec![v1::TextSplice::default(); count] })
}

pub(super) fn complete(id: u64, cursor_byte: u64, count: u32) -> Action {
    let until = Some(Until::MaxChars.into());
    Action::Complete(v1::CompleteDocument {
        id,
        cursor_byte,
        count: Some(count),
        until,
        max_chars: Some(2),
        constraint: None,
    })
}

fn score(id: u64, start_byte: u64, end_byte: u64) -> Action {
    Action::Score(v1::ScoreDocument { id, start_byte, end_byte })
}

pub(super) fn cached() -> Limits {
    Limits { cache_bytes: 1 << 20, ..Limits::default() }
}

async fn editing_server(editing: EditingConfig) -> Server {
    within(TransportConfig { editing, ..TransportConfig::default() }).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_document_is_completed_and_scored_while_it_changes() {
    let server = editing_server(EditingConfig::default()).await;
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
    let cold = editing_server(EditingConfig::default()).await;
    let mut other = Session::open(&cold, "ab é").await;
    assert_eq!(other.completed(complete(3, 5, 2)).await.items, edited.items);
    assert_eq!(session.ask(Action::Close(v1::CloseDocument {})).await, closed(Reason::Client));
    assert!(session.responses.message().await.unwrap().is_none());
}

pub(super) fn closed(reason: Reason) -> Event {
    Event::Closed(v1::DocumentClosed { reason: reason.into() })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_splice_ends_the_work_that_it_overtakes() {
    let server = editing_server(EditingConfig::default()).await;
    let mut session = Session::open(&server, "ab ").await;
    server.model.gate.hold(0);
    session.send(complete(7, 3, 2)).await;
    session.send(score(5, 0, 3)).await;
    server.until_taken(2).await;
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
    server.model.gate.release();
    let Event::Completions(completions) = session.next().await else { panic!() };
    assert_eq!((completions.id, completions.revision), (7, 1));
}

#[tokio::test]
async fn a_keystroke_reuses_what_the_last_search_computed() {
    // the second server has no memory for distributions
    let small = TransportConfig { message_bytes: 1 << 16, request_memory: 1 << 18, ..TransportConfig::default() };
    for (config, reuses) in [(TransportConfig::default(), true), (small, false)] {
        let server = within(config).await;
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
    let server = within(config).await;
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
async fn many_splices_of_a_long_text_apply_or_change_nothing() {
    let server = editing_server(EditingConfig { splice_rate: 1_000_000, ..EditingConfig::default() }).await;
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
    let mut server = editing_server(editing).await;
    let mut session = Session::open(&server, "ab ").await;
    // one caller has half of the sessions
    let status = Session::begin(&server).await.map(drop).unwrap_err();
    assert_refused(&status, Code::ResourceExhausted, "TOO_MANY");
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
    server.shut_down();
    assert_eq!(session.next().await, closed(Reason::Draining));
}

#[tokio::test]
async fn a_half_closed_session_answers_what_is_in_progress() {
    let server = editing_server(EditingConfig::default()).await;
    let session = Session::open(&server, "ab ").await;
    server.model.gate.hold(0);
    session.send(complete(1, 3, 1)).await;
    server.until_running(1).await;
    let Session { requests, mut responses } = session;
    drop(requests);
    server.model.gate.release();
    let answer = responses.message().await.unwrap().unwrap().event.unwrap();
    assert!(matches!(answer, Event::Completions(_)), "{answer:?}");
    assert!(responses.message().await.unwrap().is_none());
    server.at_rest().await;
}

const KEY: &str = "a-key-that-alice-has";

/// `KEY` in base64url, as a subprotocol.
const KEY_PROTOCOL: &str = "weir.v1.bearer.YS1rZXktdGhhdC1hbGljZS1oYXM";

pub(crate) struct Client(pub(super) WebSocket<TcpStream>);

/// Returns the answer to a splice whose texts the normaliser leaves as they are.
fn socket_applied(revision: u64, text_bytes: usize) -> Value {
    json!({ "applied": { "revision": revision, "text_bytes": text_bytes, "normalized_chars": 0 } })
}

impl Client {
    /// Sends a handshake with these additional headers. Fails with the response of a server that refuses it.
    pub(crate) fn connect(port: SocketAddr, headers: &[(&str, &str)]) -> Result<(Self, Response), Box<Response>> {
        let handshake = || {
            let stream = TcpStream::connect(port).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            let mut request = Request::builder()
                .uri(format!("ws://{port}/v1/edit"))
                .header("host", port.to_string())
                .header("connection", "upgrade")
                .header("upgrade", "websocket")
                .header("sec-websocket-version", "13")
                .header("sec-websocket-key", generate_key());
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            match client(request.body(()).unwrap(), stream) {
                Ok((socket, response)) => Ok((Self(socket), response)),
                Err(HandshakeError::Failure(Error::Http(refusal))) => Err(refusal),
                Err(error) => panic!("{error}"),
            }
        };
        block_in_place(handshake)
    }

    pub(super) fn open(server: &Server, text: &str) -> Self {
        let (mut client, _) = Self::connect(server.port, &[]).unwrap();
        let opened = client.ask(&json!({ "open": { "text": text } }));
        assert_eq!(opened, socket_applied(0, text.len()));
        client
    }

    pub(super) fn send(&mut self, message: &Value) {
        self.send_text(&message.to_string());
    }

    fn send_text(&mut self, text: &str) {
        block_in_place(|| self.0.send(Message::text(text)).unwrap());
    }

    /// Returns the next message, without pings.
    pub(super) fn next(&mut self) -> Value {
        loop {
            match block_in_place(|| self.0.read().unwrap()) {
                Message::Text(text) => return serde_json::from_str(&text).unwrap(),
                Message::Ping(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    fn ask(&mut self, message: &Value) -> Value {
        self.ask_text(&message.to_string())
    }

    pub(crate) fn ask_text(&mut self, text: &str) -> Value {
        self.send_text(text);
        self.next()
    }

    /// Sends a ping, and waits for its answer.
    fn ping(&mut self, payload: &'static [u8]) {
        block_in_place(|| {
            self.0.send(Message::Ping(payload.into())).unwrap();
            match self.0.read().unwrap() {
                Message::Pong(answer) => assert_eq!(answer, payload),
                other => panic!("{other:?}"),
            }
        });
    }

    /// Returns the code of the close frame, once the server has also closed the connection.
    fn closed(mut self) -> CloseCode {
        block_in_place(|| {
            let code = match self.0.read().unwrap() {
                Message::Close(Some(frame)) => frame.code,
                other => panic!("{other:?}"),
            };
            assert!(matches!(self.0.read(), Err(Error::ConnectionClosed)), "the server keeps the connection");
            code
        })
    }
}

pub(super) async fn within(config: TransportConfig) -> Server {
    Server::with(cached(), config).await
}

async fn of_access(access: Access) -> Server {
    within(TransportConfig { access, ..TransportConfig::default() }).await
}

fn status(refused: Result<(Client, Response), Box<Response>>) -> u16 {
    refused.map(drop).unwrap_err().status().as_u16()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_document_is_edited_over_a_websocket_as_over_grpc() {
    let server = within(TransportConfig::default()).await;
    let mut client = Client::open(&server, "ab cd ");
    let complete = |id: u64, cursor: u64| {
        let fields = json!({ "id": id, "cursor_byte": cursor, "count": 3, "until": "max_chars", "max_chars": 2 });
        json!({ "complete": fields })
    };
    let completions = client.ask(&complete(1, 6))["completions"].take();
    assert_eq!(
        (&completions["id"], &completions["revision"], &completions["cut"]),
        (&1.into(), &0.into(), &false.into())
    );
    assert_eq!((&completions["reused_chars"], &completions["recomputed_chars"]), (&0.into(), &6.into()));
    assert!(completions["duration_ns"].as_u64() > Some(0) && completions["distributions"].as_u64() > Some(0));
    assert_eq!(completions["reused_distributions"], 0);
    // A session over gRPC has the same completions.
    let mut session = Session::open(&server, "ab cd ").await;
    let expected = session.completed(self::complete(1, 6, 3)).await;
    let items = completions["items"].as_array().unwrap();
    assert_eq!((items.len(), expected.items.len()), (3, 3));
    for (item, expected) in items.iter().zip(&expected.items) {
        assert_eq!((&item["text"], &item["chars"]), (&json!(expected.text), &json!(expected.chars)));
        assert_eq!((&item["logprob"], &item["boundaries"]), (&json!(expected.logprob), &json!(expected.boundaries)));
    }
    // The most probable one has the score of its text.
    let splice = json!({ "splice": { "revision": 3, "splices": [{ "start_byte": 6, "end_byte": 6, "text": items[0]["text"] }] } });
    assert_eq!(client.ask(&splice), socket_applied(3, 8));
    let scores = client.ask(&json!({ "score": { "id": 2, "start_byte": 6, "end_byte": 8 } }))["scores"].take();
    let characters = scores["characters"].as_array().unwrap();
    let sum: f64 = characters.iter().map(|character| character["logprob"].as_f64().unwrap()).sum();
    assert!((sum - expected.items[0].logprob).abs() < 1e-4, "{sum} {scores}");
    assert!(characters.iter().all(|character| character["boundary"].is_boolean()), "{scores}");
    // A splice overtakes a request.
    server.model.gate.hold(0);
    client.send(&complete(7, 8));
    eventually("the request runs", || server.engine.load().running + server.engine.load().queued >= 1).await;
    let splice = json!({ "splice": { "revision": 4, "splices": [{ "start_byte": 0, "end_byte": 2 }] } });
    assert_eq!(client.ask(&splice), socket_applied(4, 6));
    assert_eq!(client.next(), json!({ "stale": { "id": 7 } }));
    server.model.gate.release();
    assert_eq!(client.ask(&json!({ "close": {} })), json!({ "closed": { "reason": "client" } }));
    assert_eq!(client.closed(), CloseCode::Normal);
    drop(session);
    server.at_rest().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn binary_messages_are_refused_and_a_client_that_is_gone_leaves_nothing() {
    let server = within(TransportConfig::default()).await;
    let mut client = Client::open(&server, "a");
    block_in_place(|| client.0.send(Message::binary("{}")).unwrap());
    assert!(client.next()["failed"]["message"].as_str().unwrap().contains("binary"));
    client.send(&json!({ "complete": { "id": 1, "cursor_byte": 1 } }));
    drop(client);
    server.at_rest().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_over_a_websocket_are_limited() {
    let config = TransportConfig { message_bytes: 1000, ..TransportConfig::default() };
    let server = within(config.clone()).await;
    let mut client = Client::open(&server, "a");
    client.send(&json!({ "open": { "text": "a".repeat(1000) } }));
    assert_eq!(client.closed(), CloseCode::Size);
    // The length is checked before anything is received or allocated. The frame is final, a masked text of 2^40 bytes.
    let mut client = Client::open(&server, "a");
    let header = [&[0x81, 0xff][..], &(1_u64 << 40).to_be_bytes(), &[1, 2, 3, 4]].concat();
    block_in_place(|| client.0.get_mut().write_all(&header).unwrap());
    assert_eq!(client.closed(), CloseCode::Size);
    let server = within(TransportConfig { request_memory: 1000, ..config }).await;
    // What has arrived of a message counts as memory of requests. The text is masked with zeros.
    let mut client = Client::open(&server, "a");
    let part = [&[0x81, 0xfe][..], &900_u16.to_be_bytes(), &[0; 4], &[b' '; 800]].concat();
    block_in_place(|| client.0.get_mut().write_all(&part).unwrap());
    let body = json!({ "prompt": "a", "max_tokens": 1, "user": "u".repeat(500) }).to_string();
    let ask = || exchange(server.port, "POST", "/v1/completions", &[], &body);
    eventually_async("the part counts", async || ask().await.0 == 429).await;
    drop(client);
    eventually_async("the part is released", async || ask().await.0 == 200).await;
    // A ping between the parts of a message releases only itself.
    let mut client = Client::open(&server, "a");
    let part = [&[0x01, 0xfe][..], &900_u16.to_be_bytes(), &[0; 4], &[b' '; 900]].concat();
    block_in_place(|| client.0.get_mut().write_all(&part).unwrap());
    client.ping(b"");
    assert_eq!(ask().await.0, 429);
    drop(client);
    eventually_async("the part is released", async || ask().await.0 == 200).await;
    // Pings alone never fill the memory.
    let mut client = Client::open(&server, "a");
    (0..30).for_each(|_| client.ping(&[7; 100]));
    drop(client);
    server.at_rest().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_of_other_origins_open_no_session() {
    let mut checks = Checks::default();
    let cors = Arc::new(checks.cors_origins(&["https://app.example.com".into()]));
    checks.finish().unwrap();
    let server = of_access(Access { cors, ..Access::default() }).await;
    let own = format!("http://{}", server.port);
    for origin in [own.as_str(), "https://app.example.com"] {
        assert!(Client::connect(server.port, &[("origin", origin)]).is_ok(), "{origin}");
    }
    for origin in ["https://evil.example.com", "null", "http://127.0.0.1:1"] {
        let refusal = Client::connect(server.port, &[("origin", origin)]).map(drop).unwrap_err();
        assert_eq!(refusal.status(), 403, "{origin}");
        let body = String::from_utf8(refusal.into_body().unwrap()).unwrap();
        assert!(body.contains("foreign_page"), "{body}");
    }
    server.at_rest().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_key_of_a_session_is_checked_before_it_begins() {
    let server = of_access(alice_and_bob()).await;
    let bearer = format!("Bearer {KEY}");
    let protocols = |key: &str| format!("weir.v1.edit, {key}");
    let own = protocols(KEY_PROTOCOL);
    let other = protocols("weir.v1.bearer.YQ");
    for headers in [
        &[][..],
        &[("authorization", "Bearer another")],
        &[("sec-websocket-protocol", &other)],
        &[("sec-websocket-protocol", "weir.v1.edit, weir.v1.bearer.?")],
        &[("sec-websocket-protocol", &own), ("authorization", &bearer)],
    ] {
        assert_eq!(status(Client::connect(server.port, headers)), 401, "{headers:?}");
    }
    let (mut client, response) = Client::connect(server.port, &[("authorization", &bearer)]).unwrap();
    assert!(response.headers().contains_key("x-request-id"));
    assert!(client.ask(&json!({ "open": {} }))["applied"].is_object());
    let (mut client, response) = Client::connect(server.port, &[("sec-websocket-protocol", &own)]).unwrap();
    // The response does not repeat the key.
    assert_eq!(response.headers()["sec-websocket-protocol"], "weir.v1.edit");
    assert!(client.ask(&json!({ "open": {} }))["applied"].is_object());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_over_websockets_are_limited_with_those_over_grpc() {
    let editing = EditingConfig { sessions: 2, ..EditingConfig::default() };
    let server = editing_server(editing).await;
    let client = Client::open(&server, "");
    // One caller has half of the sessions.
    let refusal = Client::connect(server.port, &[]).map(drop).unwrap_err();
    assert_eq!(refusal.status(), 429);
    assert!(refusal.headers().contains_key("retry-after"));
    drop(client);
    server.at_rest().await;
    let editing = EditingConfig { idle: Duration::from_millis(100), ..editing };
    let server = within(TransportConfig { editing, connections: 2, ..TransportConfig::default() }).await;
    // It may open no document: on a busy machine the session would end before.
    let (mut client, _) = Client::connect(server.port, &[]).unwrap();
    assert_eq!(client.next(), json!({ "closed": { "reason": "idle" } }));
    assert_eq!(client.closed(), CloseCode::Away);
    let is_free = || match Client::connect(server.port, &[]) {
        Ok(_) => true,
        Err(refusal) => {
            assert_eq!(refusal.status(), 429);
            false
        }
    };
    eventually("the session's place is free", is_free).await;
}

/// A connection that has left HTTP keeps its place among the open ones, and frees it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_websocket_holds_the_place_of_its_connection() {
    let server = within(TransportConfig { connections: 1, ..TransportConfig::default() }).await;
    let models = || server.get("/v1/models");
    let client = Client::open(&server, "a");
    assert_eq!(models().await.0, 503);
    drop(client);
    eventually_async("the place is free", async || models().await.0 == 200).await;
    server.at_rest().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn websockets_end_with_their_connections_and_with_the_server() {
    let config = TransportConfig { connection_age: Some(Duration::from_millis(1500)), ..TransportConfig::default() };
    let server = within(config).await;
    let client = Client::open(&server, "a");
    assert_eq!(client.closed(), CloseCode::Away);
    let mut server = within(TransportConfig::default()).await;
    let mut open = Client::open(&server, "a");
    let (mut empty, _) = Client::connect(server.port, &[]).unwrap();
    // This one does not answer, not even the close frame.
    let silent = Client::open(&server, "a");
    server.shut_down();
    for client in [&mut open, &mut empty] {
        assert_eq!(client.next(), json!({ "closed": { "reason": "draining" } }));
    }
    assert_eq!((open.closed(), empty.closed()), (CloseCode::Away, CloseCode::Away));
    tokio::time::timeout(Duration::from_secs(5), server.ended()).await.expect("a WebSocket keeps the server");
    drop(silent);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_message_delays_the_idle_limit() {
    let idle = Duration::from_millis(400);
    let editing = EditingConfig { idle, ..EditingConfig::default() };
    let server = editing_server(editing).await;
    // On a busy machine the session may end before the message.
    for _ in 0..20 {
        let (mut client, _) = Client::connect(server.port, &[]).unwrap();
        tokio::time::sleep(idle / 2).await;
        let sent = Instant::now();
        client.send_text("{");
        if client.next().get("failed").is_some() {
            assert_eq!(client.next(), json!({ "closed": { "reason": "idle" } }));
            assert!(sent.elapsed() >= idle, "{:?}", sent.elapsed());
            return;
        }
    }
    panic!("no session lived for {idle:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pings_are_answered_while_splices_exceed_their_rate() {
    let editing = EditingConfig { splice_rate: 1, ..EditingConfig::default() };
    let server = editing_server(editing).await;
    let mut client = Client::open(&server, "a");
    (1..30).for_each(|revision| client.send(&json!({ "splice": { "revision": revision, "splices": [] } })));
    block_in_place(|| client.0.send(Message::Ping("a".into())).unwrap());
    let mut applied = 0;
    while let Message::Text(_) = block_in_place(|| client.0.read().unwrap()) {
        applied += 1;
    }
    assert!(applied < 20, "the ping waited for {applied} splices");
    drop(client);
    server.at_rest().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_messages_are_answered_in_their_turn_and_count_as_splices() {
    let editing = EditingConfig { splice_rate: 50, ..EditingConfig::default() };
    let server = editing_server(editing).await;
    let mut client = Client::open(&server, "a");
    let began = Instant::now();
    for revision in 1..=35 {
        client.send(&json!({ "splice": { "revision": revision, "splices": [] } }));
        client.send_text("{");
    }
    for revision in 1..=35 {
        assert_eq!(client.next()["applied"]["revision"], revision);
        assert_eq!(client.next()["failed"]["reason"], "UNREADABLE");
    }
    // 50 of the 70 come at once.
    assert!(began.elapsed() >= Duration::from_millis(350), "{:?}", began.elapsed());
    drop(client);
    server.at_rest().await;
}
