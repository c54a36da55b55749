//! `/v1/edit`: documents edited over a WebSocket, its limits, and the pages that may open one.

use super::{
    eventually, eventually_async,
    http::{Both, exchange},
};
use serde_json::{Value, json};
use std::{
    io::Write as _,
    net::{SocketAddr, TcpStream},
    sync::Arc,
    time::Duration,
};
use tokio::{sync::mpsc, task::block_in_place};
use tokio_stream::wrappers::ReceiverStream;
use tungstenite::{
    HandshakeError, Message, WebSocket,
    client::client,
    error::Error,
    handshake::client::{Request, Response, generate_key},
    protocol::frame::coding::CloseCode,
};
use weir::{
    config::{Access, Checks, Credentials, EditingConfig, Keys, TransportConfig},
    engine::Limits,
};
use weir_proto::v1::{self, EditRequest, edit_request::Action, edit_response::Event, editing_client::EditingClient};

const KEY: &str = "a-key-that-alice-has";
/// `KEY` in base64url, as a subprotocol.
const KEY_PROTOCOL: &str = "weir.v1.bearer.YS1rZXktdGhhdC1hbGljZS1oYXM";

pub(super) struct Client(pub(super) WebSocket<TcpStream>);

/// Returns the answer to a splice whose texts the normaliser leaves as they are.
fn applied(revision: u64, text_bytes: usize) -> Value {
    json!({ "applied": { "revision": revision, "text_bytes": text_bytes, "normalized_chars": 0 } })
}

impl Client {
    /// Sends a handshake with these additional headers. Fails with the response of a server that refuses it.
    pub(super) fn connect(port: SocketAddr, headers: &[(&str, &str)]) -> Result<(Self, Response), Box<Response>> {
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

    pub(super) fn open(server: &Both, text: &str) -> Self {
        let (mut client, _) = Self::connect(server.port, &[]).unwrap();
        let opened = client.ask(&json!({ "open": { "text": text } }));
        assert_eq!(opened, applied(0, text.len()));
        client
    }

    pub(super) fn send(&mut self, message: &Value) {
        block_in_place(|| self.0.send(Message::text(message.to_string())).unwrap());
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
        self.send(message);
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

pub(super) async fn within(config: TransportConfig) -> Both {
    Both::with(Limits { cache_bytes: 1 << 20, ..Limits::default() }, config).await
}

async fn of_access(access: Access) -> Both {
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
    let (requests, receiver) = mpsc::channel(4);
    let mut grpc = EditingClient::new(server.channel.clone());
    let mut responses = grpc.edit(ReceiverStream::new(receiver)).await.unwrap().into_inner();
    let open = v1::OpenDocument { text: "ab cd ".into(), ..Default::default() };
    let until = Some(v1::Until::MaxChars.into());
    let asked = v1::CompleteDocument { id: 1, cursor_byte: 6, count: Some(3), until, max_chars: Some(2) };
    for action in [Action::Open(open), Action::Complete(asked)] {
        requests.send(EditRequest { action: Some(action) }).await.unwrap();
    }
    responses.message().await.unwrap().unwrap();
    let Some(Event::Completions(expected)) = responses.message().await.unwrap().unwrap().event else { panic!() };
    let items = completions["items"].as_array().unwrap();
    assert_eq!((items.len(), expected.items.len()), (3, 3));
    for (item, expected) in items.iter().zip(&expected.items) {
        assert_eq!((&item["text"], &item["chars"]), (&json!(expected.text), &json!(expected.chars)));
        assert_eq!((&item["logprob"], &item["boundaries"]), (&json!(expected.logprob), &json!(expected.boundaries)));
    }
    // The most probable one has the score of its text.
    let splice = json!({ "splice": { "revision": 3, "splices": [{ "start_byte": 6, "end_byte": 6, "text": items[0]["text"] }] } });
    assert_eq!(client.ask(&splice), applied(3, 8));
    let scores = client.ask(&json!({ "score": { "id": 2, "start_byte": 6, "end_byte": 8 } }))["scores"].take();
    let characters = scores["characters"].as_array().unwrap();
    let sum: f64 = characters.iter().map(|character| character["logprob"].as_f64().unwrap()).sum();
    assert!((sum - expected.items[0].logprob).abs() < 1e-4, "{sum} {scores}");
    assert!(characters.iter().all(|character| character["boundary"].is_boolean()), "{scores}");
    // A splice overtakes a request.
    server.model.hold();
    client.send(&complete(7, 8));
    eventually("the request runs", || server.engine.load().running + server.engine.load().queued >= 1).await;
    let splice = json!({ "splice": { "revision": 4, "splices": [{ "start_byte": 0, "end_byte": 2 }] } });
    assert_eq!(client.ask(&splice), applied(4, 6));
    assert_eq!(client.next(), json!({ "stale": { "id": 7 } }));
    server.model.release();
    assert_eq!(client.ask(&json!({ "close": {} })), json!({ "closed": { "reason": "client" } }));
    assert_eq!(client.closed(), CloseCode::Normal);
    drop((requests, responses));
    server.at_rest().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_messages_over_a_websocket_leave_the_session_open() {
    let server = within(TransportConfig::default()).await;
    let (mut client, _) = Client::connect(server.port, &[]).unwrap();
    for (message, reason, part) in [
        ("{", "UNREADABLE", "the message: "),
        ("[1]", "UNREADABLE", "the message: expected an object, found a list"),
        (r#"{"open": {"txt": "a"}}"#, "UNREADABLE", "open.txt: expected one of `model`"),
        (r#"{"open": {}, "close": {}}"#, "UNREADABLE", "the message: "),
        (r#"{"complete": {"id": 4, "cursor_byte": 0}}"#, "BAD_OPTION", "open first"),
        (r#"{"complete": {"id": 4, "cursor_byte": -1}}"#, "UNREADABLE", "complete.cursor_byte"),
    ] {
        block_in_place(|| client.0.send(Message::text(message)).unwrap());
        let failed = client.next()["failed"].take();
        assert_eq!((&failed["code"], &failed["reason"]), (&json!("INVALID_ARGUMENT"), &json!(reason)), "{failed}");
        assert!(failed["message"].as_str().unwrap().contains(part), "{failed}");
        assert_eq!(failed["id"], if message.contains("complete") { json!(4) } else { Value::Null });
    }
    block_in_place(|| client.0.send(Message::binary("{}")).unwrap());
    assert!(client.next()["failed"]["message"].as_str().unwrap().contains("binary"));
    assert!(client.ask(&json!({ "open": { "text": "a" } }))["applied"].is_object());
    let failed = client.ask(&json!({ "splice": { "revision": 0, "splices": [] } }))["failed"].take();
    assert_eq!((&failed["field"], &failed["id"]), (&json!("splice.revision"), &Value::Null));
    // A client that is gone leaves nothing behind.
    client.send(&json!({ "complete": { "id": 1, "cursor_byte": 1 } }));
    drop(client);
    server.at_rest().await;
    // Other requests are answered with the way to do it.
    let plain = exchange(server.port, "GET", "/v1/edit", &[], "").await;
    assert_eq!(plain.0, 426);
    assert!(
        plain.1.contains("\nupgrade: websocket")
            && plain.1.contains("\nconnection: upgrade")
            && plain.1.contains("\nsec-websocket-version: 13")
            && plain.body().contains("handshake"),
        "{} {}",
        plain.1,
        plain.body()
    );
    assert_eq!(exchange(server.port, "POST", "/v1/edit", &[], "{}").await.0, 405);
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
    let keys = Keys::parse(&format!("alice:{KEY}")).unwrap();
    let server = of_access(Access::from(Credentials { keys: Some(keys), ..Credentials::default() })).await;
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
    let server = within(TransportConfig { editing, ..TransportConfig::default() }).await;
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
    let models = || exchange(server.port, "GET", "/v1/models", &[], "");
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
