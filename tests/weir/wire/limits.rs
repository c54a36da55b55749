//! Limits on requests, calls and memory, which the server frees afterwards.

use super::*;
use crate::wire::connections::{self, END_STREAM, GOAWAY, SETTINGS, connect_from, frames, until_closed};
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use weir_proto::v1::ScoreResponse;

const SOON: Duration = Duration::from_secs(10);
const GENERATE: &str = "/weir.v1.Generation/Generate";

/// Returns the frames of a complete call.
fn by_hand(stream: u32, request: &impl Message) -> Vec<u8> {
    let data = frame(DATA, END_STREAM, stream, &connections::framed(&request.encode_to_vec()));
    [connections::call(stream, GENERATE), data].concat()
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
    let server = Server::within(config).await;
    let model = server.model().await;
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
    let sender = connections::connect(server.address, 1 << 16).await;
    let names: Vec<_> = (0..440).map(|index| format!("h{index}")).collect();
    let body = connections::framed(&v1::SegmentRequest { text: "a".into(), ..Default::default() }.encode_to_vec());
    // Two headers belong to the call itself.
    for (count, expected) in [(98, Code::Ok), (99, Code::InvalidArgument), (440, Code::InvalidArgument)] {
        let headers: Vec<_> = names[..count].iter().map(|name| (name.as_str(), "")).collect();
        let call = connections::called(sender.clone(), "/weir.v1.Generation/Segment", body.clone(), &headers);
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
        let server = Server::reached_by(config, reach).await;
        // One permit is left, and each of these connections returns it. The first two never complete the preface; the
        // last
        // does not speak HTTP/2 and is closed at once.
        for words in [&b""[..], b"PRI * HTTP/2.0\r\n\r\nSM", b"GET / HTTP/1.1\r\nHost: weir\r\n\r\n"] {
            let mut stream = sent(server.address, words).await;
            timeout(SOON, until_closed(&mut stream)).await.expect("closed");
            // The server may release the permit a moment later.
            let connects = async || reach(server.address).connect().await.is_ok();
            eventually_async("the permit is released", connects).await;
        }
        // The valid connection stays open.
        server.answer(prompt("a")).await.unwrap();
    }
}

#[tokio::test]
async fn headers_have_a_limit() {
    let server = Server::within(TransportConfig { header_bytes: 4096, ..TransportConfig::default() }).await;
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
    let server = Server::within(TransportConfig { concurrent_streams: 2, ..TransportConfig::default() }).await;
    server.model.gate.hold(0);
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
    server.model.gate.release();
    timeout(SOON, third).await.expect("a stream slot is free").unwrap();
}

/// Opening and cancelling calls at once is the rapid reset attack (CVE-2023-44487).
#[tokio::test]
async fn rapid_resets_end_the_connection() {
    let server = Server::within(TransportConfig { pending_resets: 10, ..TransportConfig::default() }).await;
    let cancelled = |count: u32| {
        let mut bytes = connections::beginning();
        for stream in (1..).step_by(2).take(count as usize) {
            bytes.extend(connections::call(stream, GENERATE));
            bytes.extend(frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes()));
        }
        bytes
    };
    let mut stream = sent(server.address, &cancelled(2000)).await;
    let received = timeout(SOON, until_closed(&mut stream)).await.expect("closed");
    let away = frames(&received).into_iter().find(|(kind, ..)| *kind == GOAWAY).expect("a GOAWAY frame");
    // Error code 11 is ENHANCE_YOUR_CALM.
    assert_eq!(away.2[4..8], 11_u32.to_be_bytes());
    // A few resets are normal, and other clients are not affected.
    let mut few = sent(server.address, &cancelled(5)).await;
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
        [connections::beginning(), changes.collect()].concat()
    };
    let mut stream = sent(server.address, &changes(200)).await;
    timeout(SOON, until_closed(&mut stream)).await.expect("closed");
    let mut few = sent(server.address, &changes(50)).await;
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
    let server = Server::within(config).await;
    server.model.gate.slow(Duration::from_millis(2));
    let bytes = [connections::beginning(), by_hand(1, &long("a", 1900))].concat();
    let mut gone = sent(server.address, &bytes).await;
    server.until_running(1).await;
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
    let server = Server::within(TransportConfig::default()).await;
    server.model.gate.slow(Duration::from_millis(20));
    let segment = v1::SegmentRequest { text: "a ".repeat(900), ..Default::default() }.encode_to_vec();
    let data = frame(DATA, END_STREAM, 3, &connections::framed(&segment));
    let calls = [by_hand(1, &long("a", 1900)), connections::call(3, "/weir.v1.Generation/Segment"), data].concat();
    let mut stream = sent(server.address, &[connections::beginning(), calls].concat()).await;
    server.until_running(2).await;
    stream.shutdown().await.unwrap();
    drop(stream);
    let steps = server.model.steps();
    server.at_rest().await;
    assert!(server.model.steps() < steps + 500, "they ran on");
}

#[tokio::test]
async fn idle_connections_do_not_block_others() {
    let server =
        Server::within(TransportConfig { handshake: Duration::from_secs(60), ..TransportConfig::default() }).await;
    let mut silent = Vec::new();
    for _ in 0..100 {
        silent.push(TcpStream::connect(server.address).await.unwrap());
    }
    let channel = timeout(SOON, plain(server.address).connect()).await.unwrap().unwrap();
    let mut client = ModelsClient::new(channel);
    timeout(SOON, client.list_models(v1::ListModelsRequest {})).await.unwrap().unwrap();
}

const WATCH: &str = "/grpc.health.v1.Health/Watch";

/// Calls of one connection in the tests that hold calls.
const PER_CONNECTION: u32 = 250;

#[tokio::test]
async fn a_caller_leaves_half_of_the_calls_to_others() {
    let server = Server::within(TransportConfig { calls: 8, ..TransportConfig::default() }).await;
    let address = server.address;
    // The streams must run until they are dropped.
    server.model.gate.slow(Duration::from_millis(20));
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(server.generate(long("a", 1900)).await.unwrap());
    }
    let status = segment(server.channel.clone()).await.unwrap_err();
    assert_refused(&status, Code::ResourceExhausted, "TOO_MANY");
    assert!(is_healthy(&plain(address)).await);
    let mut other = GenerationClient::new(channel_from(2, address).await);
    let stream = other.generate(long("a", 1900)).await.unwrap();
    drop((held, stream));
    server.until_running(0).await;
    segment(server.channel.clone()).await.unwrap();
}

/// Streams that need no key are counted before they have tasks. Beyond its share, a caller may still check health.
#[tokio::test]
async fn a_caller_leaves_half_of_the_streams_without_a_key_to_others() {
    let server = Server::within(TransportConfig { connections: 32, ..TransportConfig::default() }).await;
    let mut health = HealthClient::new(server.channel.clone());
    let mut held = Vec::new();
    for _ in 0..12 {
        held.push(health.watch(HealthCheckRequest::default()).await.unwrap().into_inner());
    }
    for _ in 0..3 {
        let status = health.watch(HealthCheckRequest::default()).await.map(drop).unwrap_err();
        assert_refused(&status, Code::ResourceExhausted, "TOO_MANY");
    }
    let mut reflection = ServerReflectionClient::new(server.channel.clone());
    let status = reflection.server_reflection_info(tokio_stream::pending()).await.map(drop).unwrap_err();
    assert_refused(&status, Code::ResourceExhausted, "TOO_MANY");
    let mut other = HealthClient::new(channel_from(2, server.address).await);
    other.watch(HealthCheckRequest::default()).await.unwrap().into_inner().message().await.unwrap().unwrap();
    health.check(HealthCheckRequest::default()).await.unwrap();
    held[0].message().await.unwrap().unwrap();
    let ended = held[0].message().await.unwrap_err();
    assert_refused(&ended, Code::ResourceExhausted, "TOO_MANY");
    drop(held);
    let has_place = async || health.clone().watch(HealthCheckRequest::default()).await.is_ok();
    eventually_async("the streams end", has_place).await;
}

/// Strangers who repeat refused calls on many connections would delay all other calls.
#[tokio::test]
async fn repeated_refusals_end_the_connection_of_a_stranger() {
    let access = connections::alice_and_bob();
    let server = Server::within(TransportConfig { connections: 32, access, ..TransportConfig::default() }).await;
    let calls = |path: &str, count: u32| {
        let calls = (0..count).map(|call| connections::call(2 * call + 1, path));
        [vec![connections::beginning()], calls.collect()].concat().concat()
    };
    // The streams of a caller's share, and some that are refused.
    let mut few = sent(server.address, &calls(WATCH, 12 + 30)).await;
    assert!(timeout(Duration::from_millis(300), until_closed(&mut few)).await.is_err(), "the connection stays open");
    for path in [WATCH, GENERATE] {
        let mut stream = sent(server.address, &calls(path, 240)).await;
        let received = timeout(SOON, until_closed(&mut stream)).await.expect("closed");
        let count = |kind: u8| frames(&received).iter().filter(|frame| frame.0 == kind).count();
        // Each of these calls has an answer, or none.
        assert!(count(GOAWAY) > 0 && count(connections::HEADERS) < 200, "{path}: {}", count(connections::HEADERS));
    }
    let sender = connections::connect(server.address, 1 << 16).await;
    let list = "/weir.v1.Models/ListModels";
    let body = connections::framed(&[]);
    connections::called(sender.clone(), list, body, &[("authorization", connections::ALICE)]).await.unwrap();
    for _ in 0..100 {
        let refused = connections::called(sender.clone(), WATCH, connections::framed(&[]), &[]).await.unwrap();
        assert_eq!(Status::from_header_map(refused.headers()).unwrap().code(), Code::ResourceExhausted);
    }
    drop(few);
}

/// Each of these calls announces a message, or not even that, and waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_without_a_message_leave_calls_to_others() {
    let server = Server::within(TransportConfig::default()).await;
    let address = server.address;
    let mut held = Vec::new();
    // Three times the share of one caller, and all places of the streams that watch health.
    for path in [GENERATE, WATCH] {
        for _ in 0..24 {
            let mut bytes = connections::beginning();
            for call in 0..PER_CONNECTION {
                bytes.extend(connections::call(2 * call + 1, path));
                bytes.extend(connections::frame(connections::DATA, 0, 2 * call + 1, &[0, 0, 64, 0, 0]));
            }
            held.push(sent(address, &bytes).await);
        }
        // The server holds the share of this caller and no more.
        let is_refused =
            async || segment(server.channel.clone()).await.is_err_and(|status| reason(&status) == "TOO_MANY");
        eventually_async("the share is used up", is_refused).await;
        let channel = channel_from(2, address).await;
        segment(channel.clone()).await.unwrap();
        HealthClient::new(channel).check(HealthCheckRequest::default()).await.unwrap();
    }
    drop(held);
}

/// More callers than it takes to hold all places of such calls, if each may hold half of what the others leave.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_of_many_callers_leave_room_for_checks() {
    let server = Server::within(TransportConfig::default()).await;
    let address = server.address;
    let mut watcher = HealthClient::new(channel_from(2, address).await);
    let mut watched = watcher.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
    watched.message().await.unwrap().unwrap();
    let mut bytes = connections::beginning();
    // SETTINGS_INITIAL_WINDOW_SIZE (4) is 0: no response can be sent.
    bytes.extend(connections::frame(connections::SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]));
    for call in 0..PER_CONNECTION {
        bytes.extend(connections::call(2 * call + 1, WATCH));
        bytes.extend(connections::frame(connections::DATA, 1, 2 * call + 1, &[0, 0, 0, 0, 0]));
    }
    let mut held = Vec::new();
    for host in 3..17 {
        let mut stream = connect_from(host, address).await.unwrap();
        stream.write_all(&bytes).await.unwrap();
        held.push(stream);
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    // a check of a caller with streams ends the oldest of these
    for host in [3, 20, 21, 22, 23, 24] {
        let mut health = HealthClient::new(channel_from(host, address).await);
        health.check(HealthCheckRequest::default()).await.unwrap();
    }
    // A caller with one stream loses it to none of these.
    assert!(tokio::time::timeout(Duration::from_millis(100), watched.message()).await.is_err());
    // Clients that read nothing keep calls that were ended, until their connections are closed.
    let closed = connections::until_closed(&mut held[0]);
    tokio::time::timeout(Duration::from_secs(30), closed).await.unwrap();
}

/// Each connection has a stream that watches health, or a health check whose answer is not read. Neither needs a key. A closed connection
/// is opened again. Other clients connect and are served all the while.
#[tokio::test]
async fn calls_without_a_key_on_all_connections_leave_some_to_others() {
    let unread = connections::frame(connections::SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]);
    for (settings, path) in [(Vec::new(), WATCH), (unread, "/grpc.health.v1.Health/Check")] {
        let server = Server::within(TransportConfig { connections: 32, ..TransportConfig::default() }).await;
        let address = server.address;
        let data = connections::frame(connections::DATA, 1, 1, &[0, 0, 0, 0, 0]);
        let call = [connections::beginning(), settings, connections::call(1, path), data].concat();
        let mut held = Vec::new();
        for turn in 0..6 {
            for connection in 0..32 {
                let mut stream = connect_from(3 + connection % 4, address).await.unwrap();
                // The server may have closed it already in favour of the next one.
                let _ = stream.write_all(&call).await;
                held.push(stream);
            }
            let other = channel_from(20 + turn, address).await;
            segment(other).await.unwrap();
        }
    }
}

/// Incomplete requests of all connections share `request_memory`.
#[tokio::test]
async fn incomplete_requests_share_the_request_memory() {
    let server = Server::within(TransportConfig {
        message_bytes: 64 << 10,
        request_memory: 100 << 10,
        ..TransportConfig::default()
    })
    .await;
    // Each text exceeds the model's limit, which is reported once the message is read.
    let large = || server.generate(prompt(&"a".repeat(60 << 10)));
    assert_eq!(large().await.map(drop).unwrap_err().code(), Code::InvalidArgument);
    let incomplete = [&[0][..], &(60_u32 << 10).to_be_bytes(), &[b'a'; 8000]].concat();
    let mut bytes = [connections::beginning(), connections::call(1, GENERATE), frame(DATA, 0, 1, &incomplete)].concat();
    for _ in 0..5 {
        bytes.extend(frame(DATA, 0, 1, &[b'a'; 8000]));
    }
    let unfinished = sent(server.address, &bytes).await;
    let code = async || large().await.map(drop).unwrap_err().code();
    eventually_async("the memory is used up", async || code().await == Code::ResourceExhausted).await;
    let refused = large().await.map(drop).unwrap_err();
    assert_refused(&refused, Code::ResourceExhausted, "QUEUE_FULL");
    assert!(details(&refused).retry_info().is_some());
    // Requests that fit are served, and all requests once the memory is released.
    server.answer(prompt("a")).await.unwrap();
    drop(unfinished);
    eventually_async("the memory is released", async || code().await == Code::InvalidArgument).await;
}

/// Two callers that hold all that they may leave memory to a third.
#[tokio::test]
async fn incomplete_requests_leave_memory_to_the_next_caller() {
    let config = TransportConfig { message_bytes: 16 << 10, request_memory: 128 << 10, ..TransportConfig::default() };
    let server = Server::within(config).await;
    let address = server.address;
    // Each text exceeds the model's limit, which is reported once the message is read.
    let large = async |channel: Channel| {
        let request = prompt(&"a".repeat(12 << 10));
        GenerationClient::new(channel).generate(request).await.map(drop).unwrap_err().code()
    };
    // The first caller may hold 64 KiB, and the second 32 KiB.
    let mut held = Vec::new();
    for (host, connections) in [(1, 2), (2, 1)] {
        let channel = channel_from(host, address).await;
        assert_eq!(large(channel.clone()).await, Code::InvalidArgument);
        // Two requests of 14,000 bytes leave less than the large one of each share.
        let mut bytes = connections::beginning();
        for stream in [1, 3] {
            bytes.extend(connections::call(stream, GENERATE));
            let begin = [&[0][..], &(15_u32 << 10).to_be_bytes(), &[b'a'; 6995]].concat();
            for part in [&begin[..], &[b'a'; 7000]] {
                bytes.extend(frame(DATA, 0, stream, part));
            }
        }
        for _ in 0..connections {
            let mut connection = connect_from(host, address).await.unwrap();
            connection.write_all(&bytes).await.unwrap();
            held.push(connection);
        }
        let is_refused = async || large(channel.clone()).await == Code::ResourceExhausted;
        eventually_async(&format!("the share of caller {host} is used up"), is_refused).await;
    }
    let third = channel_from(3, address).await;
    for _ in 0..20 {
        assert_eq!(large(third.clone()).await, Code::InvalidArgument, "the message of the third caller is read");
    }
}

/// A score of 10 KiB in windows: 10 KiB while it arrives, and 40 KiB of symbols until its response ends.
async fn start_score(channel: &Channel) -> Result<Streaming<ScoreResponse>, tonic::Status> {
    let windows = Some(v1::Windows { length: 1024, stride: 512 });
    let request = v1::ScoreRequest { text: "a".repeat(10 << 10), windows, ..Default::default() };
    GenerationClient::new(channel.clone()).score(request).await.map(tonic::Response::into_inner)
}

/// Symbols take four times the memory of their text, and a score may run for long.
#[tokio::test]
async fn symbols_count_until_the_response_ends() {
    let config = TransportConfig { message_bytes: 16 << 10, request_memory: 448 << 10, ..TransportConfig::default() };
    let server = Server::within(config).await;
    server.model.gate.hold(0);
    // Half of 448 KiB holds five such lists of symbols, and not six.
    let mut running = Vec::new();
    for _ in 0..5 {
        running.push(start_score(&server.channel).await.unwrap());
    }
    let refused = start_score(&server.channel).await.unwrap_err();
    assert_refused(&refused, Code::ResourceExhausted, "QUEUE_FULL");
    assert!(refused.message().contains("one caller's requests"), "{refused:?}");
    assert!(details(&refused).retry_info().is_some());
    // Small requests of this caller, and of others, have room.
    let small = server.generate(prompt("a")).await.unwrap();
    let other = channel_from(2, server.address).await;
    let of_other = GenerationClient::new(other).generate(prompt(&"a".repeat(1900))).await.unwrap();
    running.clear();
    drop((small, of_other));
    server.model.gate.release();
    server.at_rest().await;
    let mut again = start_score(&server.channel).await.unwrap();
    while again.message().await.unwrap().is_some() {}
    server.model.gate.hold(0);
    for _ in 0..5 {
        running.push(start_score(&server.channel).await.expect("a finished response holds nothing"));
    }
    server.model.gate.release();
}
