//! Limits of one client: time, headers, calls. Other clients are not affected.

use super::{
    Server, eventually,
    fake_model::Kind,
    http2_frames::{self, DATA, END_STREAM, GOAWAY, RST_STREAM, SETTINGS, frame, frames, sent, until_closed},
    long, plain, prompt, raw_http2, reason,
};
use crate::certificates::Certificates;
use prost::Message;
use std::time::Duration;
use tokio::{io::AsyncWriteExt, net::TcpStream, time::timeout};
use tonic::{Code, Request, Status, metadata::MetadataValue};
use weir::{config::TransportConfig, engine::Limits};
use weir_proto::v1::{self, models_client::ModelsClient};

const SOON: Duration = Duration::from_secs(10);
const GENERATE: &str = "/weir.v1.Generation/Generate";

async fn within(config: TransportConfig) -> Server {
    Server::with(Limits::default(), config, &[("fake", Kind::Pooled)]).await
}

fn running(server: &Server, count: usize) -> bool {
    server.engine.load().running == count
}

/// Returns the frames of a complete call.
fn by_hand(stream: u32, request: &impl Message) -> Vec<u8> {
    let data = frame(DATA, END_STREAM, stream, &http2_frames::message(&request.encode_to_vec()));
    [http2_frames::call(stream, GENERATE), data].concat()
}

#[tokio::test]
async fn limits_are_reported() {
    let config = TransportConfig {
        keepalive_interval: None,
        pending_resets: 7,
        header_bytes: 5000,
        tokenization_workers: 3,
        ..TransportConfig::default()
    };
    let server = within(config).await;
    let model = server.models().get_model(v1::GetModelRequest::default()).await.unwrap().into_inner();
    let limits = model.limits.unwrap();
    assert_eq!((limits.header_bytes, limits.pending_resets, limits.keepalive_interval_ns), (5000, 7, 0));
    assert_eq!(limits.keepalive_timeout_ns, 20_000_000_000);
    assert_eq!((limits.message_bytes, limits.concurrent_streams), (4 << 20, 256));
    assert_eq!((limits.calls, limits.connections_per_address, limits.tokenization_workers), (4096, 256, 3));
    assert_eq!((limits.connection_idle_ns, limits.connection_age_ns), (300_000_000_000, 0));
    assert_eq!((limits.request_work, limits.request_time_ns), (1 << 26, 3_600_000_000_000));
    assert_eq!(limits.response_bytes, 64 << 20);
}

/// Each header takes more memory than its bytes.
#[tokio::test]
async fn calls_have_a_limited_number_of_headers() {
    let server = Server::new().await;
    let sender = raw_http2::connect(server.running.address, 1 << 16).await;
    let names: Vec<_> = (0..440).map(|index| format!("h{index}")).collect();
    let body = http2_frames::message(&v1::SegmentRequest { text: "a".into(), ..Default::default() }.encode_to_vec());
    // Two headers belong to the call itself.
    for (count, expected) in [(98, Code::Ok), (99, Code::InvalidArgument), (440, Code::InvalidArgument)] {
        let headers: Vec<_> = names[..count].iter().map(|name| (name.as_str(), "")).collect();
        let call = raw_http2::called(sender.clone(), "/weir.v1.Generation/Segment", body.clone(), &headers);
        let response = call.await.unwrap();
        let status = Status::from_header_map(response.headers());
        assert_eq!(status.as_ref().map_or(Code::Ok, Status::code), expected, "{count} headers: {status:?}");
        if let Some(status) = status {
            assert_eq!(reason(&status), "TOO_LONG");
            assert_eq!(status.message(), "headers: expected at most 100 headers, found more");
        }
    }
    server.at_rest().await;
}

#[tokio::test]
async fn handshakes_time_out() {
    let certificates = Certificates::new();
    for encrypted in [false, true] {
        let access = if encrypted { certificates.access(false) } else { Default::default() };
        let config = TransportConfig {
            handshake: Duration::from_millis(300),
            connections: 2,
            access,
            ..TransportConfig::default()
        };
        let reach = |address| if encrypted { certificates.reach(address, None) } else { plain(address) };
        let server = Server::reached_by(Limits::default(), config, &[("fake", Kind::Pooled)], reach).await;
        // One permit is left, and each of these connections returns it. The first two never complete the preface; the
        // last
        // does not speak HTTP/2 and is closed at once.
        for words in [&b""[..], b"PRI * HTTP/2.0\r\n\r\nSM", b"GET / HTTP/1.1\r\nHost: weir\r\n\r\n"] {
            let mut stream = sent(server.running.address, words).await;
            timeout(SOON, until_closed(&mut stream)).await.expect("closed");
            // The server may release the permit a moment later.
            let mut again = reach(server.running.address).connect().await;
            for _ in 0..1000 {
                if again.is_ok() {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
                again = reach(server.running.address).connect().await;
            }
            again.expect("the permit is released");
        }
        // The valid connection stays open.
        server.answer(prompt("a")).await.unwrap();
    }
}

#[tokio::test]
async fn headers_have_a_limit() {
    let server = within(TransportConfig { header_bytes: 4096, ..TransportConfig::default() }).await;
    let with = |bytes: usize| {
        let mut request = Request::new(v1::SegmentRequest { text: "a".into(), ..Default::default() });
        request.metadata_mut().insert("x-long", MetadataValue::try_from("x".repeat(bytes)).unwrap());
        request
    };
    let mut client = server.generation();
    client.segment(with(2000)).await.unwrap();
    let status = client.segment(with(8000)).await.unwrap_err();
    assert!(status.message().contains("431"), "Request Header Fields Too Large: {status:?}");
    server.answer(prompt("a")).await.unwrap();
    server.at_rest().await;
}

#[tokio::test]
async fn calls_of_a_connection_have_a_limit() {
    let server = within(TransportConfig { concurrent_streams: 2, ..TransportConfig::default() }).await;
    server.model.hold();
    let first = server.generate(long("a", 5)).await.unwrap();
    let _second = server.generate(long("a", 5)).await.unwrap();
    let third = server.generate(long("a", 5));
    tokio::pin!(third);
    assert!(timeout(Duration::from_millis(200), &mut third).await.is_err(), "the third call must wait");
    assert_eq!(
        {
            let load = server.engine.load();
            load.queued + load.running
        },
        2
    );
    drop(first);
    server.model.release();
    timeout(SOON, third).await.expect("a stream slot is free").unwrap();
}

/// Opening and cancelling calls at once is the rapid reset attack (CVE-2023-44487).
#[tokio::test]
async fn rapid_resets_end_the_connection() {
    let server = within(TransportConfig { pending_resets: 10, ..TransportConfig::default() }).await;
    let cancelled = |count: u32| {
        let mut bytes = http2_frames::beginning();
        for stream in (1..).step_by(2).take(count as usize) {
            bytes.extend(http2_frames::call(stream, GENERATE));
            bytes.extend(frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes()));
        }
        bytes
    };
    let mut stream = sent(server.running.address, &cancelled(2000)).await;
    let received = timeout(SOON, until_closed(&mut stream)).await.expect("closed");
    let away = frames(&received).into_iter().find(|(kind, ..)| *kind == GOAWAY).expect("a GOAWAY frame");
    // Error code 11 is ENHANCE_YOUR_CALM.
    assert_eq!(away.2[4..8], 11_u32.to_be_bytes());
    // A few resets are normal, and other clients are not affected.
    let mut few = sent(server.running.address, &cancelled(5)).await;
    assert!(timeout(Duration::from_millis(300), until_closed(&mut few)).await.is_err(), "the connection stays open");
    server.answer(prompt("a")).await.unwrap();
    server.at_rest().await;
}

/// Each change of settings costs the server time for every call of the connection.
#[tokio::test]
async fn frequent_changes_of_settings_end_the_connection() {
    let server = Server::new().await;
    // The initial window: 0 and 1 bytes in turn.
    let changes = |count: u8| {
        let changes = (0..count).flat_map(|number| frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, number % 2]));
        [http2_frames::beginning(), changes.collect()].concat()
    };
    let mut stream = sent(server.running.address, &changes(200)).await;
    timeout(SOON, until_closed(&mut stream)).await.expect("closed");
    let mut few = sent(server.running.address, &changes(50)).await;
    assert!(timeout(Duration::from_millis(300), until_closed(&mut few)).await.is_err(), "the connection stays open");
    server.answer(prompt("a")).await.unwrap();
    server.at_rest().await;
}

/// A client whose machine or network fails sends nothing, not even a reset.
#[tokio::test]
async fn a_silent_disconnect_frees_its_row() {
    let interval = Some(Duration::from_millis(100));
    let config = TransportConfig {
        keepalive_interval: interval,
        keepalive_timeout: Duration::from_millis(200),
        ..TransportConfig::default()
    };
    let server = within(config).await;
    server.model.slow(Duration::from_millis(2));
    let bytes = [http2_frames::beginning(), by_hand(1, &long("a", 1900))].concat();
    let mut gone = sent(server.running.address, &bytes).await;
    eventually("the request runs", || running(&server, 1)).await;
    timeout(SOON, until_closed(&mut gone)).await.expect("closed");
    server.at_rest().await;
    assert!(server.model.steps() < 1900, "it ran to its end");
    // A client that answers pings stays connected.
    tokio::time::sleep(Duration::from_millis(500)).await;
    server.answer(prompt("a")).await.unwrap();
}

/// Covers streaming and unary calls.
#[tokio::test]
async fn a_connection_that_closes_frees_its_rows() {
    let server = within(TransportConfig::default()).await;
    server.model.slow(Duration::from_millis(20));
    let segment = v1::SegmentRequest { text: "a ".repeat(900), ..Default::default() }.encode_to_vec();
    let data = frame(DATA, END_STREAM, 3, &http2_frames::message(&segment));
    let calls = [by_hand(1, &long("a", 1900)), http2_frames::call(3, "/weir.v1.Generation/Segment"), data].concat();
    let mut stream = sent(server.running.address, &[http2_frames::beginning(), calls].concat()).await;
    eventually("both run", || running(&server, 2)).await;
    stream.shutdown().await.unwrap();
    drop(stream);
    let steps = server.model.steps();
    server.at_rest().await;
    assert!(server.model.steps() < steps + 500, "they ran on");
}

#[tokio::test]
async fn idle_connections_do_not_block_others() {
    let server = within(TransportConfig { handshake: Duration::from_secs(60), ..TransportConfig::default() }).await;
    let mut silent = Vec::new();
    for _ in 0..100 {
        silent.push(TcpStream::connect(server.running.address).await.unwrap());
    }
    let channel = timeout(SOON, plain(server.running.address).connect()).await.unwrap().unwrap();
    let mut client = ModelsClient::new(channel);
    timeout(SOON, client.list_models(v1::ListModelsRequest {})).await.unwrap().unwrap();
}
