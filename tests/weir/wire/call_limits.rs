//! Callers that hold calls: other callers and health checks are served all the same.

use super::{
    Server,
    connections::{channel_from, connect_from, is_healthy, segment},
    eventually,
    fake_model::Kind,
    http2_frames::{self, sent},
    long, plain, reason,
};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tonic::Code;
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use weir::{config::TransportConfig, engine::Limits};
use weir_proto::v1::generation_client::GenerationClient;

const GENERATE: &str = "/weir.v1.Generation/Generate";
const WATCH: &str = "/grpc.health.v1.Health/Watch";
/// Calls of one connection in the tests that hold calls.
const PER_CONNECTION: u32 = 250;

async fn within(config: TransportConfig) -> Server {
    Server::with(Limits::default(), config, &[("fake", Kind::Pooled)]).await
}

#[tokio::test]
async fn a_caller_leaves_half_of_the_calls_to_others() {
    let server = within(TransportConfig { calls: 8, ..TransportConfig::default() }).await;
    let address = server.running.address;
    // The streams must run until they are dropped.
    server.model.slow(Duration::from_millis(20));
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(server.generate(long("a", 1900)).await.unwrap());
    }
    let status = segment(server.channel.clone()).await.unwrap_err();
    assert_eq!((status.code(), reason(&status).as_str()), (Code::ResourceExhausted, "TOO_MANY"), "{status:?}");
    assert!(is_healthy(&plain(address)).await);
    let mut other = GenerationClient::new(channel_from(2, address).await);
    let stream = other.generate(long("a", 1900)).await.unwrap();
    drop((held, stream));
    eventually("the calls end", || server.engine.load().running == 0).await;
    segment(server.channel.clone()).await.unwrap();
}

/// Each of these calls announces a message, or not even that, and waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_without_a_message_leave_calls_to_others() {
    let server = within(TransportConfig::default()).await;
    let address = server.running.address;
    let mut held = Vec::new();
    // Three times the share of one caller, and all places of the streams that watch health.
    for path in [GENERATE, WATCH] {
        for _ in 0..24 {
            let mut bytes = http2_frames::beginning();
            for call in 0..PER_CONNECTION {
                bytes.extend(http2_frames::call(2 * call + 1, path));
                bytes.extend(http2_frames::frame(http2_frames::DATA, 0, 2 * call + 1, &[0, 0, 64, 0, 0]));
            }
            held.push(sent(address, &bytes).await);
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
        let channel = channel_from(2, address).await;
        segment(channel.clone()).await.unwrap();
        HealthClient::new(channel).check(HealthCheckRequest::default()).await.unwrap();
    }
    // The server holds the share of this caller and no more.
    let status = segment(server.channel.clone()).await.unwrap_err();
    assert_eq!(reason(&status), "TOO_MANY", "{status:?}");
    drop(held);
}

/// More callers than it takes to hold all places of such calls, if each may hold half of what the others leave.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_of_many_callers_leave_room_for_checks() {
    let server = within(TransportConfig::default()).await;
    let address = server.running.address;
    let mut watcher = HealthClient::new(channel_from(2, address).await);
    let mut watched = watcher.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
    watched.message().await.unwrap().unwrap();
    let mut bytes = http2_frames::beginning();
    // SETTINGS_INITIAL_WINDOW_SIZE (4) is 0: no response can be sent.
    bytes.extend(http2_frames::frame(http2_frames::SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]));
    for call in 0..PER_CONNECTION {
        bytes.extend(http2_frames::call(2 * call + 1, WATCH));
        bytes.extend(http2_frames::frame(http2_frames::DATA, 1, 2 * call + 1, &[0, 0, 0, 0, 0]));
    }
    let mut held = Vec::new();
    for host in 3..17 {
        let mut stream = connect_from(host, address).await.unwrap();
        stream.write_all(&bytes).await.unwrap();
        held.push(stream);
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    for host in 20..25 {
        let mut health = HealthClient::new(channel_from(host, address).await);
        health.check(HealthCheckRequest::default()).await.unwrap();
    }
    // A caller with one stream loses it to none of these.
    assert!(tokio::time::timeout(Duration::from_millis(100), watched.message()).await.is_err());
    // Clients that read nothing keep calls that were ended, until their connections are closed.
    let closed = http2_frames::until_closed(&mut held[0]);
    tokio::time::timeout(Duration::from_secs(30), closed).await.unwrap();
}

/// Each connection has a stream that watches health, for which its client needs no key.
#[tokio::test]
async fn watches_on_all_connections_leave_some_to_others() {
    let server = within(TransportConfig { connections: 32, ..TransportConfig::default() }).await;
    let address = server.running.address;
    let watch = [
        http2_frames::beginning(),
        http2_frames::call(1, WATCH),
        http2_frames::frame(http2_frames::DATA, 1, 1, &[0, 0, 0, 0, 0]),
    ];
    let mut held = Vec::new();
    for connection in 0..32 {
        let mut stream = connect_from(3 + connection % 4, address).await.unwrap();
        stream.write_all(&watch.concat()).await.unwrap();
        held.push(stream);
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    segment(channel_from(20, address).await).await.unwrap();
    drop(held);
}

/// Each connection has an unread health check, and a closed one is opened again. Other clients connect and are served all the while.
#[tokio::test]
async fn checks_that_are_not_read_leave_connections_to_others() {
    let server = within(TransportConfig { connections: 32, ..TransportConfig::default() }).await;
    let address = server.running.address;
    let initial_window_size = [0, 4, 0, 0, 0, 0];
    let check = [
        http2_frames::beginning(),
        http2_frames::frame(http2_frames::SETTINGS, 0, 0, &initial_window_size),
        http2_frames::call(1, "/grpc.health.v1.Health/Check"),
        http2_frames::frame(http2_frames::DATA, 1, 1, &[0, 0, 0, 0, 0]),
    ];
    let mut held = Vec::new();
    for turn in 0..6 {
        for connection in 0..32 {
            let mut stream = connect_from(3 + connection % 4, address).await.unwrap();
            // The server may have closed it already in favour of the next one.
            let _ = stream.write_all(&check.concat()).await;
            held.push(stream);
        }
        let other = channel_from(20 + turn, address).await;
        segment(other).await.unwrap();
    }
    drop(held);
}
