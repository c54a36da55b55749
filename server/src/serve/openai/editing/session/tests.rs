//! The session on connections in memory, with a paused clock.

use super::*;
use crate::{config::TransportConfig, serve::middleware::body_limits::RequestMemory};
use axum::{Router, extract::WebSocketUpgrade, routing::get};
use hyper::server::conn::http1;
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream},
    sync::mpsc::{self, Receiver},
    task::JoinHandle,
};
use tokio_stream::wrappers::ReceiverStream;
use weir_proto::v1::{DocumentApplied, DocumentScores, EditFailure};

/// Buffer of a connection, in bytes.
const BUFFER: usize = 256;
const HANDSHAKE: &[u8] = b"GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
    sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
/// The shortest message.
const CLOSE: &str = r#"{"close": {}}"#;
/// A ping, masked with zeros.
const PING: [u8; 6] = [0x89, 0x80, 0, 0, 0, 0];
/// The answer to a ping, masked with zeros.
const PONG: [u8; 6] = [0x8a, 0x80, 0, 0, 0, 0];

/// A client, and the call of its session.
struct Session {
    client: DuplexStream,
    requests: Receiver<EditMessage>,
    responses: Sender<Result<EditResponse, Status>>,
    memory: Arc<BodyMemory>,
    ending: CancellationToken,
    task: JoinHandle<()>,
}

impl Session {
    async fn begin() -> Self {
        Self::reading_ahead(100).await
    }

    /// Begins a session that reads no further once it has read `limit` bytes ahead.
    async fn reading_ahead(limit: usize) -> Self {
        let (server, mut client) = tokio::io::duplex(BUFFER);
        let received = ReceivedBytes::default();
        let (sender, mut upgraded) = mpsc::channel(1);
        let take = move |upgrade: WebSocketUpgrade| {
            let sender = sender.clone();
            let taken = async move |socket| drop(sender.send(socket).await);
            std::future::ready(upgrade.write_buffer_size(0).on_upgrade(taken))
        };
        let service = TowerToHyperService::new(Router::new().route("/", get(take)));
        let server = TokioIo::new(ReceivedBytes::wrap(server, received.clone()));
        tokio::spawn(http1::Builder::new().serve_connection(server, service).with_upgrades());
        client.write_all(HANDSHAKE).await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(client.read_u8().await.unwrap());
        }
        let config = TransportConfig { message_bytes: 200, request_memory: 200, ..TransportConfig::default() };
        let memory = BodyMemory::new(&config);
        let tenant = Arc::<str>::from("a");
        let reservation = || Reservation::new(Arc::clone(&memory), Arc::clone(&tenant));
        received.begin(reservation());
        let (requests, receiver) = mpsc::channel(1);
        let (responses, answers) = mpsc::channel(1);
        let ending = CancellationToken::new();
        let socket = EditSocket {
            socket: upgraded.recv().await.unwrap(),
            requests,
            queue: MessageQueue::new(reservation(), RequestMemory::new(reservation()), limit),
            received,
            tenant,
            memory: Arc::clone(&memory),
            workers: TokenizationWorkers::new(1),
            max_message: config.message_bytes,
        };
        let task = tokio::spawn(socket.run(ReceiverStream::new(answers), ending.clone()));
        Self { client, requests: receiver, responses, memory, ending, task }
    }

    /// Sends a text message, masked with zeros.
    async fn send(&mut self, text: &str) {
        let frame = [&[0x81, 0x80 | text.len() as u8, 0, 0, 0, 0][..], text.as_bytes()].concat();
        self.client.write_all(&frame).await.unwrap();
    }

    /// Returns the first byte and the payload of the next frame, or `None` at the end of the connection.
    async fn frame(&mut self) -> Option<(u8, Vec<u8>)> {
        let first = self.client.read_u8().await.ok()?;
        let length = match self.client.read_u8().await.unwrap() {
            126 => self.client.read_u16().await.unwrap().into(),
            length => usize::from(length),
        };
        let mut payload = vec![0; length];
        self.client.read_exact(&mut payload).await.unwrap();
        Some((first, payload))
    }

    /// Counts the pings until the end of the connection, at most `limit`. Sends `answer` to each.
    async fn pings(&mut self, limit: usize, answer: &[u8]) -> usize {
        for count in 0..limit {
            let Some((first, _)) = self.frame().await else { return count };
            assert_eq!(first, 0x89);
            self.client.write_all(answer).await.unwrap();
        }
        limit
    }

    async fn answer(&self, event: Event) {
        self.responses.send(Ok(EditResponse { event: Some(event) })).await.unwrap();
    }

    async fn text(&mut self) -> String {
        let (first, payload) = self.frame().await.unwrap();
        assert_eq!(first, 0x81);
        String::from_utf8(payload).unwrap()
    }

    /// Returns the code of the close frame.
    async fn closed(&mut self) -> u16 {
        let (first, payload) = self.frame().await.unwrap();
        assert_eq!(first, 0x88);
        u16::from_be_bytes([payload[0], payload[1]])
    }
}

#[tokio::test(start_paused = true)]
async fn clients_that_answer_no_pings_are_left() {
    let mut session = Session::begin().await;
    assert_eq!(session.pings(10, &[]).await, 2);
    let mut session = Session::begin().await;
    assert_eq!(session.pings(10, &PONG).await, 10);
    assert_eq!(session.pings(10, &[]).await, 2);
}

#[tokio::test(start_paused = true)]
async fn answers_that_the_server_does_not_read_are_not_missed() {
    let mut session = Session::reading_ahead(1).await;
    // The call does not take the first request. The second one fills the queue, so the server reads nothing more.
    session.send(CLOSE).await;
    session.send(CLOSE).await;
    assert_eq!(session.pings(10, &[]).await, 10);
    session.requests.recv().await.unwrap().unwrap();
    assert_eq!(session.pings(10, &[]).await, 2);
}

#[tokio::test(start_paused = true)]
async fn pings_are_answered_while_the_call_takes_nothing() {
    let mut session = Session::begin().await;
    session.send(CLOSE).await;
    session.send(CLOSE).await;
    session.client.write_all(&PING).await.unwrap();
    assert_eq!(session.frame().await, Some((0x8a, Vec::new())));
    for _ in 0..2 {
        assert!(session.requests.recv().await.is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_message_keeps_its_place() {
    let mut session = Session::begin().await;
    for text in [r#"{"open": {}}"#, r#"{"score": {"id": 7}}"#] {
        session.send(text).await;
        // The call is held back: it does not take the message yet.
        assert!(timeout(PING_INTERVAL / 4, session.frame()).await.is_err());
    }
    assert!(session.requests.recv().await.unwrap().is_ok());
    let Some(Err(refusal)) = session.requests.recv().await else { panic!("it is not refused") };
    let Some(Event::Failed(failure)) = refusal.event else { panic!("{refusal:?}") };
    assert_eq!((failure.id, &*failure.code), (Some(7), "INVALID_ARGUMENT"));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_reads_nothing_does_not_delay_the_end() {
    for reads in [false, true] {
        let mut session = Session::begin().await;
        let message = "m".repeat(3 * BUFFER);
        session.answer(Event::Failed(EditFailure { message, ..EditFailure::default() })).await;
        tokio::time::sleep(PING_INTERVAL * 5).await;
        assert!(!session.task.is_finished());
        session.ending.cancel();
        if reads {
            assert!(session.text().await.contains("mmm"));
            assert_eq!(session.closed().await, close_code::AWAY);
        }
        timeout(CLOSE_TIME * 2, &mut session.task).await.expect("the session goes on").unwrap();
    }
}

#[tokio::test]
async fn only_long_responses_need_free_memory() {
    let mut session = Session::begin().await;
    let all = Reservation::new(Arc::clone(&session.memory), "a".into());
    while all.add(1).is_ok() {}
    session.answer(Event::Applied(DocumentApplied::default())).await;
    assert!(session.text().await.starts_with(r#"{"applied":"#));
    session.answer(Event::Scores(DocumentScores { id: 7, ..DocumentScores::default() })).await;
    let failed = session.text().await;
    assert!(failed.starts_with(r#"{"failed":{"id":7,"code":"RESOURCE_EXHAUSTED""#), "{failed}");
    drop(all);
    session.answer(Event::Scores(DocumentScores { id: 8, ..DocumentScores::default() })).await;
    assert!(session.text().await.starts_with(r#"{"scores":{"id":8"#));
}

#[tokio::test(start_paused = true)]
async fn a_broken_message_closes_with_the_code_of_its_fault() {
    let not_utf8 = [0x81, 0x81, 0, 0, 0, 0, 0xff];
    let without_mask = [0x81, 1, b'a'];
    // A part of a message, longer than the memory of requests.
    let part = [&[0x01, 0xfe, 1, 0, 0, 0, 0, 0][..], &[b' '; 220]].concat();
    for (sent, code) in
        [(&without_mask[..], close_code::PROTOCOL), (&not_utf8, close_code::INVALID), (&part, close_code::AGAIN)]
    {
        let mut session = Session::begin().await;
        session.client.write_all(sent).await.unwrap();
        assert_eq!(session.closed().await, code);
    }
    // Nothing is sent to a client that is gone.
    let Session { client, task, .. } = Session::begin().await;
    drop(client);
    task.await.unwrap();
}
