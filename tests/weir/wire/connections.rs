//! Connections: HTTP/2, compression, late headers, TLS and API keys.

use super::{http::Reply, *};
use h2::client::Builder;
use std::net::Ipv4Addr;
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, crypto::ring};
use tonic::codec::CompressionEncoding::{self, Deflate, Gzip};
use tonic::codegen::http::Request;
use tonic::metadata::MetadataMap;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use weir_proto::{inference::ServerLiveRequest, v1::SegmentResponse};

const SOON: Duration = Duration::from_secs(10);

/// The default limit on connections.
const ALL: usize = 1024;

/// Clients that come while the connections are held.
const OTHERS: usize = 20;

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
        let server = Server::reached_by(config, reach).await;
        let address = server.address;
        // Silent; with half a handshake; and after the preface of HTTP/2, without a call.
        for bytes in [&b""[..], b"\x16\x03\x01\x02\x00\x01", &beginning()] {
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
        Server::within(TransportConfig { connections: 8, connections_per_address: 4, ..TransportConfig::default() })
            .await;
    let address = server.address;
    // The streams must run until the end of the test.
    server.model.gate.slow(Duration::from_millis(20));
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
        Server::within(TransportConfig { connections: 4, connections_per_address: 4, ..TransportConfig::default() })
            .await;
    let address = server.address;
    server.model.gate.slow(Duration::from_millis(20));
    let mut busy = Vec::new();
    for host in 1..=4 {
        let mut client = weir_proto::v1::generation_client::GenerationClient::new(channel_from(host, address).await);
        busy.push(client.generate(long("a", 1900)).await.unwrap().into_inner());
    }
    let check = call(1, "/grpc.health.v1.Health/Check");
    let mut held = Vec::new();
    for _ in 0..40 {
        let mut connection = connect_from(5, address).await.unwrap();
        connection.write_all(&[beginning(), check.clone(), frame(PING, 0, 0, &[0; 8])].concat()).await.unwrap();
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
        let server = Server::within(config).await;
        let mut connection = sent(server.address, &beginning()).await;
        let received = timeout(SOON, until_closed(&mut connection)).await.expect("closed");
        assert!(frames(&received).iter().any(|(kind, ..)| *kind == GOAWAY), "{received:?}");
        // Clients connect again by themselves.
        server.answer(prompt("a")).await.unwrap();
    }
}

#[tokio::test]
async fn a_call_in_progress_keeps_its_connection() {
    let server = Server::within(TransportConfig {
        connection_idle: Some(Duration::from_millis(50)),
        ..TransportConfig::default()
    })
    .await;
    server.model.gate.slow(Duration::from_millis(10));
    let mut answer = server.generate(long("a", 60)).await.unwrap();
    let began = Instant::now();
    while answer.message().await.expect("the connection is open").is_some() {}
    assert!(began.elapsed() > Duration::from_millis(200), "too fast to show anything");
}

/// Returns a client that compresses with `way` and accepts both encodings.
fn compressing(server: &Server, way: CompressionEncoding) -> GenerationClient<Channel> {
    let client = server.generation().send_compressed(way);
    client.accept_compressed(Deflate).accept_compressed(Gzip)
}

fn text(text: &str) -> v1::SegmentRequest {
    v1::SegmentRequest { text: text.into(), ..Default::default() }
}

fn way(answer: &MetadataMap) -> Option<&str> {
    answer.get("grpc-encoding").map(|way| way.to_str().unwrap())
}

#[tokio::test]
async fn compressed_requests_get_the_same_answers() {
    let server = Server::new().await;
    let request = crate::wire::long("ab c", 40);
    let plain = server.answer(request.clone()).await.unwrap();
    let segments = server.generation().segment(text("ab cab")).await.unwrap();
    assert_eq!(way(segments.metadata()), None);
    for (sent, name) in [(Gzip, "gzip"), (Deflate, "deflate")] {
        let stream = compressing(&server, sent).generate(request.clone()).await.unwrap();
        assert_eq!(way(stream.metadata()), None, "streams are not compressed");
        assert_eq!(read(stream.into_inner()).await.unwrap().text(), plain.text());
        let answer = compressing(&server, sent).segment(text("ab cab")).await.unwrap();
        assert_eq!(way(answer.metadata()), Some(name), "the encoding of the request");
        assert_eq!(answer.get_ref().segments, segments.get_ref().segments);
        // A client that does not accept compression gets a plain answer.
        let mut plain_reader = server.generation().send_compressed(sent);
        assert_eq!(way(plain_reader.segment(text("ab")).await.unwrap().metadata()), None);
    }
    // A client that accepts compression but sends plain requests gets plain answers.
    let mut reads = server.generation().accept_compressed(Gzip);
    assert_eq!(way(reads.segment(text("ab")).await.unwrap().metadata()), None);
}

#[tokio::test]
async fn every_service_accepts_compression() {
    let server = Server::new().await;
    let mut health = HealthClient::new(server.channel.clone()).send_compressed(Gzip);
    health.check(HealthCheckRequest::default()).await.unwrap();
    let mut other = server.inference().send_compressed(Gzip);
    assert!(other.server_live(ServerLiveRequest {}).await.unwrap().into_inner().live);
}

#[tokio::test]
async fn limits_apply_to_the_decompressed_size() {
    let config = TransportConfig { message_bytes: 64 << 10, ..TransportConfig::default() };
    let server = Server::within(config).await;
    for sent in [Gzip, Deflate] {
        let mut client = compressing(&server, sent);
        let refused =
            async |bytes: usize| client.clone().generate(prompt(&"a".repeat(bytes))).await.map(drop).unwrap_err();
        // Within the limit the message is read, and is too long for the model.
        assert_eq!(refused(60 << 10).await.code(), Code::InvalidArgument);
        // These messages are a few kilobytes on the wire.
        for bytes in [64 << 10, 3 << 20] {
            let status = refused(bytes).await;
            assert_refused(&status, Code::OutOfRange, "OVERSIZED");
        }
        client.segment(text("ab")).await.unwrap();
    }
    server.at_rest().await;
}

const GENERATE: &str = "/weir.v1.Generation/Generate";
const STREAM: &str = "/inference.GRPCInferenceService/ModelStreamInfer";

/// Time after which a call without an answer counts as open.
const OPEN: Duration = Duration::from_millis(200);

/// Time within which an answer must come.
const ANSWERED: Duration = Duration::from_secs(10);

/// Starts a call that sends `incomplete` and stays open. Its answer is `None` if none came within `wait`.
async fn unfinished(
    server: &Server,
    path: &str,
    encoding: &str,
    incomplete: &[u8],
    wait: Duration,
) -> (h2::SendStream<tonic::codegen::Bytes>, impl Future<Output = Option<Status>>) {
    let sender = connect(server.address, 1 << 16).await;
    let request = Request::post(format!("http://weir{path}")).header("te", "trailers");
    let request = request.header("content-type", "application/grpc").header("grpc-encoding", encoding);
    let request = request.version(tonic::codegen::http::Version::HTTP_2).body(()).unwrap();
    let (response, mut sending) = sender.ready().await.unwrap().send_request(request, false).unwrap();
    sending.send_data(incomplete.to_vec().into(), false).unwrap();
    let answer = async move {
        let response = timeout(wait, response).await.ok()?.unwrap();
        Status::from_header_map(response.headers())
    };
    (sending, answer)
}

/// Returns a gRPC message in zlib format: one stored block.
fn deflated(message: &[u8]) -> Vec<u8> {
    let mut a = 1_u32;
    let mut b = 0_u32;
    for byte in message {
        a = (a + u32::from(*byte)) % 65521;
        b = (b + a) % 65521;
    }
    let length = message.len() as u16;
    let block = [&[0x78, 1, 1][..], &length.to_le_bytes(), &(!length).to_le_bytes(), message].concat();
    let message_frame = [block, (b << 16 | a).to_be_bytes().to_vec()].concat();
    [&[1][..], &(message_frame.len() as u32).to_be_bytes(), &message_frame].concat()
}

/// A compressed message reserves memory for its maximum decompressed size until its call ends.
#[tokio::test]
async fn the_maximum_decompressed_size_is_reserved() {
    let config = TransportConfig { message_bytes: 64 << 10, request_memory: 448 << 10, ..TransportConfig::default() };
    let message = prompt(&"a".repeat(1000)).encode_to_vec();
    let message_frame = deflated(&message);
    let plain = [&[0][..], &(message.len() as u32).to_be_bytes(), &message].concat();
    let incomplete = &message_frame[..message_frame.len() - 1];
    let cases = [
        (GENERATE, "deflate", &message_frame[..], true),
        (STREAM, "deflate", &message_frame[..], true),
        // An incomplete message is not decompressed.
        (GENERATE, "deflate", incomplete, false),
        (GENERATE, "identity", &plain[..], false),
        (STREAM, "deflate", &plain[..], false),
    ];
    for (path, encoding, sent, full) in cases {
        let server = Server::within(config.clone()).await;
        let mut held = Vec::new();
        for _ in 0..3 {
            let (sending, answer) = unfinished(&server, path, encoding, sent, OPEN).await;
            assert!(answer.await.is_none(), "the call stays open");
            held.push(sending);
        }
        let last = async |wait| {
            let (sending, answer) = unfinished(&server, GENERATE, "deflate", &message_frame, wait).await;
            (sending, answer.await.map(|status| (status.code(), reason(&status))))
        };
        let (_sending, status) = last(if full { ANSWERED } else { OPEN }).await;
        assert_eq!(status, full.then(|| (Code::ResourceExhausted, "QUEUE_FULL".to_owned())), "{path} {encoding}");
        // Closing the calls releases their memory.
        drop(held);
        let again = async { while let (_sending, Some(_)) = last(OPEN).await {} };
        timeout(Duration::from_secs(20), again).await.expect("the memory is released");
    }
}

/// An error in the middle of a stream has the same status as a refused call.
#[tokio::test]
async fn a_stream_fails_with_the_same_status() {
    let config = TransportConfig { message_bytes: 64 << 10, ..TransportConfig::default() };
    let server = Server::within(config).await;
    let mut client = server.inference().send_compressed(Gzip);
    let long = ModelInferRequest { model_name: "a".repeat(3 << 20), ..Default::default() };
    let mut answers = client.model_stream_infer(tokio_stream::iter([long])).await.unwrap().into_inner();
    let status = answers.message().await.unwrap_err();
    assert_refused(&status, Code::OutOfRange, "OVERSIZED");
}

#[tokio::test]
async fn wrong_encodings_are_reported() {
    let server = Server::new().await;
    let incomplete = [&[1][..], &4_u32.to_be_bytes(), b"what"].concat();
    for encoding in ["gzip", "deflate"] {
        let (_sending, answer) = unfinished(&server, GENERATE, encoding, &incomplete, ANSWERED).await;
        let status = answer.await.expect("an answer");
        assert_refused(&status, Code::InvalidArgument, "UNREADABLE");
    }
    let (_sending, answer) = unfinished(&server, GENERATE, "zstd", &incomplete, ANSWERED).await;
    let status = answer.await.expect("an answer");
    assert_eq!(status.code(), Code::Unimplemented);
    server.at_rest().await;
}

/// Connects with an initial stream window of `window` bytes.
pub(super) async fn connect(address: SocketAddr, window: u32) -> SendRequest<Bytes> {
    let tcp = TcpStream::connect(address).await.unwrap();
    tcp.set_nodelay(true).unwrap();
    let (sender, connection) = Builder::new().initial_window_size(window).handshake::<_, Bytes>(tcp).await.unwrap();
    tokio::spawn(connection);
    sender
}

/// Calls a method with these headers and this body, valid or not.
pub(super) async fn called(
    sender: SendRequest<Bytes>,
    path: &str,
    body: Vec<u8>,
    headers: &[(&str, &str)],
) -> Result<Response<RecvStream>, h2::Error> {
    let mut request = Request::builder()
        .method("POST")
        .uri(format!("http://weir{path}"))
        .version(Version::HTTP_2)
        .header("te", "trailers");
    for (name, value) in [("content-type", "application/grpc")].iter().chain(headers) {
        request = request.header(*name, *value);
    }
    let mut sender = sender.ready().await?;
    let (response, mut sending) = sender.send_request(request.body(()).unwrap(), false)?;
    // The server may answer before it reads the whole request.
    let _ = sending.send_data(body.into(), true);
    response.await
}

/// Reads a response to its end. Returns its bytes and status.
pub(super) async fn to_end(mut response: Response<RecvStream>) -> (Vec<u8>, Status) {
    let mut bytes = Vec::new();
    while let Some(part) = response.body_mut().data().await {
        let part = part.unwrap();
        response.body_mut().flow_control().release_capacity(part.len()).unwrap();
        bytes.extend_from_slice(&part);
    }
    let trailers = response.body_mut().trailers().await.unwrap().unwrap();
    (bytes, Status::from_header_map(&trailers).unwrap())
}

/// Calls `Segment` with these headers.
async fn raw_segment(sender: SendRequest<Bytes>, text: &str, headers: &[(&str, &str)]) -> Response<RecvStream> {
    let message = SegmentRequest { text: text.into(), ..Default::default() }.encode_to_vec();
    called(sender, "/weir.v1.Generation/Segment", framed(&message), headers).await.unwrap()
}

/// The status has weir's details, whichever of the server's timers fires first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missed_deadline_has_error_details() {
    let server = Server::new().await;
    server.model.gate.slow(Duration::from_millis(30));
    let sender = connect(server.address, 1 << 16).await;
    let text = "a ".repeat(900);
    for round in 0..40 {
        let mut calls = JoinSet::new();
        for call in 0..12 {
            let sender = sender.clone();
            let text = text.clone();
            let timeout = ["0n", "1u", "1m", "2m", "3m", "5m"][call % 6];
            calls.spawn(async move { (timeout, raw_segment(sender, &text, &[("grpc-timeout", timeout)]).await) });
        }
        while let Some(answer) = calls.join_next().await {
            let (timeout, answer) = answer.unwrap();
            let status = Status::from_header_map(answer.headers()).expect("a status without an answer");
            assert_eq!(status.code(), Code::DeadlineExceeded, "round {round}, {timeout}: {status:?}");
            assert_eq!(reason(&status), "DEADLINE", "{timeout}: {status:?}");
            assert!(!answer.headers()[REQUEST_ID].is_empty());
        }
    }
    server.at_rest().await;
}

#[tokio::test]
async fn a_unary_call_ends_at_its_deadline() {
    let server = Server::new().await;
    let sender = connect(server.address, 1 << 16).await;
    for _ in 0..20 {
        server.model.gate.hold(0);
        let answer = raw_segment(sender.clone(), &"a ".repeat(900), &[("grpc-timeout", "60m")]).await;
        let status = Status::from_header_map(answer.headers()).unwrap();
        assert_refused(&status, Code::DeadlineExceeded, "DEADLINE");
        server.model.gate.release();
        server.at_rest().await;
        // The running step finishes; the seven others do not start. On a busy machine the call may end before its first step.
        let steps = server.model.steps();
        assert!(steps <= 1, "{steps}");
        if steps == 1 {
            return;
        }
    }
    panic!("no call reached the engine");
}

/// The call ends for the server when its answer is buffered; the client has not read it then.
#[tokio::test]
async fn an_answer_can_be_read_slowly_during_the_shutdown() {
    let mut server = Server::new().await;
    let sender = connect(server.address, 256).await;
    let response = raw_segment(sender, &"ab ".repeat(600), &[]).await;
    server.at_rest().await;
    server.shut_down();
    // The pause is longer than the idle timeout of connections.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert!(!server.running.task.is_finished(), "cut off");
    let (answer, status) = to_end(response).await;
    assert_eq!(status.code(), Code::Ok);
    assert_eq!(SegmentResponse::decode(&answer[5..]).unwrap().segments.len(), 600);
    // With nothing left to send, the shutdown does not wait for the drain limit of 30 s.
    server.ended().await;
}

#[tokio::test]
async fn incomplete_requests_time_out() {
    let config = TransportConfig { upload: Duration::from_millis(300), ..TransportConfig::default() };
    let server = Server::within(config).await;
    let sender = connect(server.address, 1 << 20).await;
    let request = Request::post("http://weir/weir.v1.Generation/Segment").version(Version::HTTP_2);
    let request = request.header("te", "trailers").header("content-type", "application/grpc").body(()).unwrap();
    let (response, mut sending) = sender.ready().await.unwrap().send_request(request, false).unwrap();
    let incomplete = [&[0][..], &1000_u32.to_be_bytes(), b"no more"].concat();
    sending.send_data(incomplete.into(), false).unwrap();
    let response = tokio::time::timeout(Duration::from_secs(20), response).await.expect("an answer").unwrap();
    let status = Status::from_header_map(response.headers()).unwrap();
    assert_refused(&status, Code::DeadlineExceeded, "DEADLINE");
    assert!(status.message().contains("while the request came in"), "{status:?}");
    server.at_rest().await;
}

/// Sends a request over HTTP/2.
pub(crate) async fn exchange_http2(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[&str],
    body: Vec<u8>,
) -> Reply {
    let mut request = Request::builder().method(method).uri(format!("http://weir{path}")).version(Version::HTTP_2);
    for (name, value) in headers.iter().filter_map(|header| header.split_once(": ")) {
        request = request.header(name, value);
    }
    let mut sender = connect(address, 1 << 20).await.ready().await.unwrap();
    let (response, mut sending) = sender.send_request(request.body(()).unwrap(), body.is_empty()).unwrap();
    // The server may answer before it reads the whole request.
    let _ = sending.send_data(body.into(), true);
    let response = response.await.unwrap();
    let fields = response.headers().iter().map(|(name, value)| format!("\r\n{name}: {}", value.to_str().unwrap()));
    let (status, head) = (response.status().as_u16(), fields.collect());
    let mut body = response.into_body();
    let mut text = Vec::new();
    while let Some(part) = body.data().await {
        text.extend_from_slice(&part.unwrap());
    }
    Reply(status, head, String::from_utf8(text).unwrap())
}

pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
pub(super) const RST_STREAM: u8 = 3;
pub(super) const PING: u8 = 6;
pub(super) const GOAWAY: u8 = 7;
pub(super) const END_STREAM: u8 = 1;
pub(super) const SETTINGS: u8 = 4;
const END_HEADERS: u8 = 4;

/// Returns one frame.
pub(super) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Returns the connection preface with empty settings.
pub(super) fn beginning() -> Vec<u8> {
    [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), frame(SETTINGS, 0, 0, &[])].concat()
}

/// Returns the headers of a gRPC call.
pub(super) fn call(stream: u32, path: &str) -> Vec<u8> {
    // `:method POST` and `:scheme http` are indices of the static table; other headers are literals.
    let mut block = vec![0x83, 0x86];
    for (name, value) in
        [(":path", path), (":authority", "weir"), ("content-type", "application/grpc"), ("te", "trailers")]
    {
        block.push(0);
        for text in [name, value] {
            block.push(u8::try_from(text.len()).unwrap());
            block.extend_from_slice(text.as_bytes());
        }
    }
    frame(HEADERS, END_HEADERS, stream, &block)
}

/// Returns a message with its gRPC prefix.
pub(crate) fn framed(bytes: &[u8]) -> Vec<u8> {
    [&[0], &u32::try_from(bytes.len()).unwrap().to_be_bytes()[..], bytes].concat()
}

/// Connects and sends `bytes`.
pub(super) async fn sent(address: SocketAddr, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    // The server may have closed the connection already; a later read shows it.
    let _ = stream.write_all(bytes).await;
    stream
}

/// Reads until the server closes the connection. Answers nothing, not even pings.
pub(super) async fn until_closed(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    // A reset also ends the connection.
    let _ = stream.read_to_end(&mut bytes).await;
    bytes
}

/// Splits `bytes` into complete frames: kind, stream and payload.
pub(super) fn frames(mut bytes: &[u8]) -> Vec<(u8, u32, Vec<u8>)> {
    let mut frames = Vec::new();
    while let Some((head, rest)) = bytes.split_at_checked(9) {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let stream = u32::from_be_bytes(head[5..].try_into().unwrap());
        let Some((payload, rest)) = rest.split_at_checked(length) else { break };
        frames.push((head[3], stream, payload.to_vec()));
        bytes = rest;
    }
    frames
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_come_with_the_first_characters() {
    let config = TransportConfig { late_headers: true, ..TransportConfig::default() };
    let server = Server::within(config).await;
    server.model.gate.hold(0);
    let mut client = server.generation();
    let call = tokio::spawn(async move { client.generate(long("a", 20)).await });
    server.until_running(1).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!call.is_finished());
    server.model.gate.release();
    let answer = read(call.await.unwrap().unwrap().into_inner()).await.unwrap();
    assert_eq!(answer.text(), Server::new().await.answer(long("a", 20)).await.unwrap().text());
    let request = v1::ScoreRequest { text: "ab c".into(), ..Default::default() };
    server.score(request).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_early_failure_is_the_status_of_the_call() {
    let config = TransportConfig { late_headers: true, drain: Duration::ZERO, ..TransportConfig::default() };
    let mut server = Server::within(config).await;
    let status = server.generate(prompt("ab!")).await.map(drop).unwrap_err();
    assert_refused(&status, Code::Internal, "INTERNAL");
    server.model.gate.hold(0);
    let mut client = server.generation();
    let call = tokio::spawn(async move { client.generate(long("a", 20)).await });
    server.until_running(1).await;
    server.shut_down();
    let status = call.await.unwrap().map(drop).unwrap_err();
    assert_refused(&status, Code::Unavailable, "DRAINING");
    server.model.gate.release();
    server.at_rest().await;
}

/// All choices of a completion run at the same time, and the headers come with the first one's text.
#[tokio::test]
async fn choices_over_http_start_together() {
    let config = TransportConfig { late_headers: true, ..TransportConfig::default() };
    let server = Server::within(config).await;
    server.model.gate.hold(0);
    let body = json!({ "prompt": "a", "max_tokens": 9, "n": 3, "seed": 1, "stream": true }).to_string();
    let mut client = connect_and_send(server.port, "POST", "/v1/completions", &[], &body).await;
    server.until_running(3).await;
    let mut answer = String::new();
    let early = tokio::time::timeout(Duration::from_millis(100), client.read_to_string(&mut answer)).await;
    assert!(early.is_err() && answer.is_empty(), "{answer}");
    server.model.gate.release();
    client.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("[DONE]"), "{answer}");
    server.at_rest().await;
}

#[tokio::test]
async fn an_early_failure_over_http_is_the_status_of_the_request() {
    let config = TransportConfig { late_headers: true, drain: Duration::ZERO, ..TransportConfig::default() };
    let mut server = Server::within(config).await;
    server.model.gate.hold(0);
    let body = json!({ "prompt": "a", "max_tokens": 9, "n": 2, "seed": 1, "stream": true }).to_string();
    let mut client = connect_and_send(server.port, "POST", "/v1/completions", &[], &body).await;
    server.until_running(2).await;
    server.shut_down();
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    server.model.gate.release();
    server.ended().await;
}

/// The header of the tenant alice, and of bob.
pub(super) const ALICE: &str = "Bearer a-key-that-alice-has";

pub(super) const BOB: &str = "Bearer another-key-that-bob-has";

async fn behind(access: Access, certificates: &Certificates, shown: Option<&Certificates>) -> Server {
    let config = TransportConfig { access, ..TransportConfig::default() };
    Server::reached_by(config, |address| certificates.reach(address, shown)).await
}

/// Calls a method on a connection that may fail.
pub(super) async fn tried(endpoint: tonic::transport::Endpoint) -> Result<(), Status> {
    let channel = endpoint.connect_timeout(Duration::from_secs(10)).connect_lazy();
    let mut client = ModelsClient::new(channel);
    client.list_models(v1::ListModelsRequest {}).await.map(drop)
}

#[tokio::test]
async fn connections_can_use_tls() {
    let certificates = Certificates::new();
    let server = behind(certificates.access(false), &certificates, None).await;
    assert_eq!(server.answer(long("ab", 9)).await.unwrap().text().chars().count(), 9);
    let address = server.address;
    tried(plain(address)).await.expect_err("it is not encrypted");
    tried(Certificates::new().reach(address, None))
        .await
        .expect_err("the server's certificate is of another authority");
    tried(certificates.reach(address, None)).await.unwrap();
    server.at_rest().await;
}

/// Returns what a client sends first.
fn client_hello() -> Vec<u8> {
    let provider = Arc::new(ring::default_provider());
    let versions = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let mut config = versions.with_root_certificates(RootCertStore::empty()).with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let mut connection = ClientConnection::new(Arc::new(config), "localhost".try_into().unwrap()).unwrap();
    let mut hello = Vec::new();
    connection.write_tls(&mut hello).unwrap();
    hello
}

/// The server computes one signature at a time, but waits for no client meanwhile.
#[tokio::test]
async fn unfinished_handshakes_let_others_pass() {
    let certificates = Certificates::new();
    let config = TransportConfig {
        access: certificates.access(false),
        handshake: Duration::from_secs(600),
        ..TransportConfig::default()
    };
    let reach = |address| certificates.reach(address, None);
    let server = Server::reached_by(config, reach).await;
    let mut silent = Vec::new();
    for _ in 0..3 {
        let mut client = TcpStream::connect(server.address).await.unwrap();
        client.write_all(&client_hello()).await.unwrap();
        // The server has answered, and waits for the client.
        client.read_u8().await.unwrap();
        silent.push(client);
    }
    tried(certificates.reach(server.address, None)).await.unwrap();
}

#[tokio::test]
async fn client_certificates_can_be_required() {
    let certificates = Certificates::new();
    let others = Certificates::new();
    let server = behind(certificates.access(true), &certificates, Some(&certificates)).await;
    server.answer(prompt("ab")).await.unwrap();
    let address = server.address;
    tried(certificates.reach(address, None)).await.expect_err("no certificate");
    tried(certificates.reach(address, Some(&others))).await.expect_err("a certificate of another authority");
    tried(certificates.reach(address, Some(&certificates))).await.unwrap();
}

#[tokio::test]
async fn encrypted_streams_finish_while_the_server_drains() {
    let certificates = Certificates::new();
    let mut server = behind(certificates.access(true), &certificates, Some(&certificates)).await;
    server.model.gate.slow(Duration::from_millis(2));
    let mut stream = server.generate(long("a", 100)).await.unwrap();
    stream.next().await.unwrap().unwrap();
    server.shut_down();
    rest(stream).await;
    server.ended().await;
    server.at_rest().await;
}

/// Returns the access of the two owners of keys.
pub(super) fn alice_and_bob() -> Access {
    let keys = Keys::parse("alice:a-key-that-alice-has\nbob:another-key-that-bob-has").unwrap();
    Access::from(Credentials { keys: Some(keys), ..Credentials::default() })
}

pub(super) async fn with_keys(limits: Limits) -> Server {
    let config = TransportConfig { access: alice_and_bob(), ..TransportConfig::default() };
    Server::with(limits, config).await
}

/// Returns a request with these `authorization` values.
pub(super) fn bearing<T>(message: T, values: &[&str]) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    for value in values {
        request.metadata_mut().append("authorization", MetadataValue::try_from(*value).unwrap());
    }
    request
}

/// Tenants share neither cached prompts nor their part of the queue.
#[tokio::test]
async fn each_key_owner_is_a_tenant() {
    let server = with_keys(Limits { rows: 1, queue: 8, cache_bytes: 1 << 20, ..Limits::default() }).await;
    let ask = async |key: &str, prompt: &str| {
        let stream = server.generation().generate(bearing(long(prompt, 3), &[key])).await?.into_inner();
        read(stream).await
    };
    let cached = async |key: &str| ask(key, "ab cd ab e").await.unwrap().started.cached_chars;
    assert_eq!(cached(ALICE).await, 0);
    assert!(cached(ALICE).await > 0);
    assert_eq!(cached(BOB).await, 0, "the cached prompt belongs to alice");
    assert!(cached(BOB).await > 0);

    server.model.gate.hold(0);
    let call = |key: &str| {
        let mut client = server.generation();
        let request = bearing(long("a", 3), &[key]);
        async move { client.generate(request).await }
    };
    let mut taken = vec![call(ALICE).await.unwrap()];
    server.until_running(1).await;
    for _ in 0..4 {
        taken.push(call(ALICE).await.unwrap());
    }
    let status = call(ALICE).await.map(drop).unwrap_err();
    assert_refused(&status, Code::ResourceExhausted, "QUEUE_FULL");
    taken.push(call(BOB).await.unwrap());
    server.model.gate.release();
    for stream in taken {
        read(stream.into_inner()).await.unwrap();
    }
    server.at_rest().await;
}

#[tokio::test]
async fn health_and_reflection_need_no_key() {
    let server = with_keys(Limits::default()).await;
    let mut health = HealthClient::new(server.channel.clone());
    health.check(HealthCheckRequest { service: String::new() }).await.unwrap();
    let mut reflection: ServerReflectionClient<Channel> = ServerReflectionClient::new(server.channel.clone());
    let message_request = Some(MessageRequest::ListServices(String::new()));
    let question = ServerReflectionRequest { host: String::new(), message_request };
    let mut answers = reflection.server_reflection_info(tokio_stream::iter([question])).await.unwrap().into_inner();
    answers.next().await.unwrap().unwrap();
}
