//! Peers that hold connections: other clients and health checks are served all the same.

use super::{
    Server,
    fake_model::Kind,
    http2_frames::{self, GOAWAY, PING, frame, frames, sent, until_closed},
    long, plain, prompt, reason,
};
use crate::certificates::Certificates;
use std::{
    net::{Ipv4Addr, SocketAddr},
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    time::timeout,
};
use tonic::{
    Code,
    transport::{Channel, Endpoint},
};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use weir::{config::TransportConfig, engine::Limits};

const SOON: Duration = Duration::from_secs(10);
/// The default limit on connections.
const ALL: usize = 1024;
/// Clients that come while the connections are held.
const OTHERS: usize = 20;

async fn within(config: TransportConfig) -> Server {
    Server::with(Limits::default(), config, &[("fake", Kind::Pooled)]).await
}

/// Connects from 127.0.0.`host`.
pub(super) async fn connect_from(host: u8, address: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((Ipv4Addr::new(127, 0, 0, host), 0).into())?;
    socket.connect(address).await
}

/// Returns a channel from 127.0.0.`host`.
pub(super) async fn channel_from(host: u8, address: SocketAddr) -> Channel {
    let connector =
        tower::service_fn(move |_| async move { connect_from(host, address).await.map(hyper_util::rt::TokioIo::new) });
    plain(address).connect_with_connector(connector).await.unwrap()
}

/// Checks health over a new connection.
pub(super) async fn is_healthy(endpoint: &Endpoint) -> bool {
    let check = async {
        let channel = endpoint.connect().await.ok()?;
        HealthClient::new(channel).check(HealthCheckRequest::default()).await.ok()
    };
    timeout(SOON, check).await.is_ok_and(|answer| answer.is_some())
}

/// Opens as many connections as the server allows with default limits, each with these bytes, and more.
async fn hold_all(address: SocketAddr, bytes: &[u8]) -> Vec<TcpStream> {
    let mut held = Vec::new();
    for _ in 0..ALL + 176 {
        held.push(sent(address, bytes).await);
    }
    held
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_and_idle_connections_make_room_for_others() {
    let certificates = Certificates::new();
    for encrypted in [false, true] {
        let access = if encrypted { certificates.access(false) } else { Default::default() };
        let reach = |address| if encrypted { certificates.reach(address, None) } else { plain(address) };
        let config = TransportConfig { access, ..TransportConfig::default() };
        let server = Server::reached_by(Limits::default(), config, &[("fake", Kind::Pooled)], reach).await;
        let address = server.running.address;
        // Silent; with half a handshake; and after the preface of HTTP/2, without a call.
        for bytes in [&b""[..], b"\x16\x03\x01\x02\x00\x01", &http2_frames::beginning()] {
            let held = hold_all(address, bytes).await;
            for _ in 0..OTHERS {
                assert!(is_healthy(&reach(address)).await, "{} held, encrypted: {encrypted}", held.len());
            }
        }
    }
}

#[tokio::test]
async fn one_address_leaves_connections_to_others() {
    let server =
        within(TransportConfig { connections: 8, connections_per_address: 4, ..TransportConfig::default() }).await;
    let address = server.running.address;
    // The streams must run until the end of the test.
    server.model.slow(Duration::from_millis(20));
    let mut busy = Vec::new();
    for _ in 0..4 {
        let channel = plain(address).connect().await.unwrap();
        let mut client = weir_proto::v1::generation_client::GenerationClient::new(channel);
        busy.push(client.generate(long("a", 1900)).await.unwrap().into_inner());
    }
    // This address may only check health now.
    let channel = plain(address).connect().await.unwrap();
    HealthClient::new(channel.clone()).check(HealthCheckRequest::default()).await.unwrap();
    let status = segment(channel).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(reason(&status), "TOO_MANY", "{status:?}");
    assert!(status.message().contains("connections"), "{status:?}");
    // Another one is served.
    segment(channel_from(2, address).await).await.unwrap();
}

/// Calls to the health service whose message never comes hold the places for health checks only until others need them.
#[tokio::test]
async fn unfinished_health_checks_make_room_for_others() {
    let server =
        within(TransportConfig { connections: 4, connections_per_address: 4, ..TransportConfig::default() }).await;
    let address = server.running.address;
    server.model.slow(Duration::from_millis(20));
    let mut busy = Vec::new();
    for host in 1..=4 {
        let mut client = weir_proto::v1::generation_client::GenerationClient::new(channel_from(host, address).await);
        busy.push(client.generate(long("a", 1900)).await.unwrap().into_inner());
    }
    let check = http2_frames::call(1, "/grpc.health.v1.Health/Check");
    let mut held = Vec::new();
    for _ in 0..40 {
        let mut connection = connect_from(5, address).await.unwrap();
        connection
            .write_all(&[http2_frames::beginning(), check.clone(), frame(PING, 0, 0, &[0; 8])].concat())
            .await
            .unwrap();
        // The answer to the ping follows the beginning of the call.
        let mut received = Vec::new();
        while !frames(&received).iter().any(|(kind, ..)| *kind == PING) {
            let count = timeout(SOON, connection.read_buf(&mut received)).await.expect("an answer").unwrap_or(0);
            assert!(count > 0, "the connection is closed");
        }
        held.push(connection);
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    for _ in 0..OTHERS {
        assert!(is_healthy(&plain(address)).await, "the places for health are held");
    }
    let status = segment(channel_from(6, address).await).await.unwrap_err();
    assert_eq!(reason(&status), "TOO_MANY", "{status:?}");
}

pub(super) async fn segment(channel: Channel) -> Result<(), tonic::Status> {
    let request = weir_proto::v1::SegmentRequest { text: "a".into(), ..Default::default() };
    weir_proto::v1::generation_client::GenerationClient::new(channel).segment(request).await.map(drop)
}

#[tokio::test]
async fn idle_and_old_connections_get_a_goaway() {
    let short = Some(Duration::from_millis(200));
    let idle = TransportConfig { connection_idle: short, ..TransportConfig::default() };
    let old = TransportConfig {
        connection_age: short,
        connection_age_grace: Duration::from_millis(100),
        ..TransportConfig::default()
    };
    for config in [idle, old] {
        let server = within(config).await;
        let mut connection = sent(server.running.address, &http2_frames::beginning()).await;
        let received = timeout(SOON, until_closed(&mut connection)).await.expect("closed");
        assert!(frames(&received).iter().any(|(kind, ..)| *kind == GOAWAY), "{received:?}");
        // Clients connect again by themselves.
        server.answer(prompt("a")).await.unwrap();
    }
}

#[tokio::test]
async fn a_call_in_progress_keeps_its_connection() {
    let server =
        within(TransportConfig { connection_idle: Some(Duration::from_millis(50)), ..TransportConfig::default() })
            .await;
    server.model.slow(Duration::from_millis(10));
    let mut answer = server.generate(long("a", 60)).await.unwrap();
    let began = Instant::now();
    while answer.message().await.expect("the connection is open").is_some() {}
    assert!(began.elapsed() > Duration::from_millis(200), "too fast to show anything");
}
