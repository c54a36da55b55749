//! Clients on raw HTTP/2, which neither wait nor time out themselves.

use super::{Server, fake_model::Kind, http::Both, http2_frames, reason};
use h2::{
    RecvStream,
    client::{Builder, SendRequest},
};
use prost::Message;
use std::{net::SocketAddr, time::Duration};
use tokio::{net::TcpStream, task::JoinSet};
use tonic::{
    Code, Status,
    codegen::{
        Bytes,
        http::{Request, Response, Version},
    },
};
use weir::{config::TransportConfig, engine::Limits, serve::REQUEST_ID};
use weir_proto::v1::{SegmentRequest, SegmentResponse};

/// Connects with an initial stream window of `window` bytes.
pub(super) async fn connect(address: SocketAddr, window: u32) -> SendRequest<Bytes> {
    let tcp = TcpStream::connect(address).await.unwrap();
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

/// Calls `Segment` with these headers.
async fn segment(sender: SendRequest<Bytes>, text: &str, headers: &[(&str, &str)]) -> Response<RecvStream> {
    let message = SegmentRequest { text: text.into(), ..Default::default() }.encode_to_vec();
    called(sender, "/weir.v1.Generation/Segment", http2_frames::message(&message), headers).await.unwrap()
}

/// The status has weir's details, whichever of the server's timers fires first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missed_deadline_has_error_details() {
    let server = Server::new().await;
    server.model.slow(Duration::from_millis(30));
    let sender = connect(server.running.address, 1 << 16).await;
    let text = "a ".repeat(900);
    for round in 0..40 {
        let mut calls = JoinSet::new();
        for call in 0..12 {
            let sender = sender.clone();
            let text = text.clone();
            let timeout = ["0n", "1u", "1m", "2m", "3m", "5m"][call % 6];
            calls.spawn(async move { (timeout, segment(sender, &text, &[("grpc-timeout", timeout)]).await) });
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
    let sender = connect(server.running.address, 1 << 16).await;
    for _ in 0..20 {
        server.model.hold();
        let answer = segment(sender.clone(), &"a ".repeat(900), &[("grpc-timeout", "60m")]).await;
        let status = Status::from_header_map(answer.headers()).unwrap();
        assert_eq!((status.code(), reason(&status).as_str()), (Code::DeadlineExceeded, "DEADLINE"));
        server.model.release();
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
    let sender = connect(server.running.address, 256).await;
    let mut body = segment(sender, &"ab ".repeat(600), &[]).await.into_body();
    server.at_rest().await;
    server.running.shut_down();
    // The pause is longer than the idle timeout of connections.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert!(!server.running.task.is_finished(), "cut off");
    let mut answer = Vec::new();
    while let Some(part) = body.data().await {
        let part = part.unwrap();
        body.flow_control().release_capacity(part.len()).unwrap();
        answer.extend_from_slice(&part);
    }
    assert_eq!(body.trailers().await.unwrap().unwrap()["grpc-status"], "0");
    assert_eq!(SegmentResponse::decode(&answer[5..]).unwrap().segments.len(), 600);
    // With nothing left to send, the shutdown does not wait for the drain limit of 30 s.
    tokio::time::timeout(Duration::from_secs(10), &mut server.running.task).await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn incomplete_requests_time_out() {
    let config = TransportConfig { upload: Duration::from_millis(300), ..TransportConfig::default() };
    let server = Server::with(Limits::default(), config, &[("fake", Kind::Pooled)]).await;
    let sender = connect(server.running.address, 1 << 20).await;
    let request = Request::post("http://weir/weir.v1.Generation/Segment").version(Version::HTTP_2);
    let request = request.header("te", "trailers").header("content-type", "application/grpc").body(()).unwrap();
    let (response, mut sending) = sender.ready().await.unwrap().send_request(request, false).unwrap();
    let incomplete = [&[0][..], &1000_u32.to_be_bytes(), b"no more"].concat();
    sending.send_data(incomplete.into(), false).unwrap();
    let response = tokio::time::timeout(Duration::from_secs(20), response).await.expect("an answer").unwrap();
    let status = Status::from_header_map(response.headers()).unwrap();
    assert_eq!((status.code(), reason(&status).as_str()), (Code::DeadlineExceeded, "DEADLINE"));
    assert!(status.message().contains("while the request came in"), "{status:?}");
    server.at_rest().await;
}

/// An HTTP/2 client that calls the HTTP API on the gRPC port is told to use another port. A gRPC call of an unknown method gets gRPC's
/// own answer.
#[tokio::test]
async fn requests_that_are_no_grpc_calls_get_a_readable_answer() {
    let server = Both::new().await;
    for (method, path) in [("GET", "/v1/completions"), ("POST", "/v1/completions"), ("GET", "/"), ("HEAD", "/")] {
        let request = Request::builder().method(method).uri(format!("http://weir{path}")).version(Version::HTTP_2);
        let mut sender = connect(server.address, 1 << 16).await.ready().await.unwrap();
        let (response, _) = sender.send_request(request.body(()).unwrap(), true).unwrap();
        let response = response.await.unwrap();
        assert_eq!(
            (response.status().as_u16(), &response.headers()["content-type"]),
            (415, &"text/plain; charset=utf-8".parse().unwrap())
        );
        let mut body = response.into_body();
        let mut text = Vec::new();
        while let Some(part) = body.data().await {
            text.extend_from_slice(&part.unwrap());
        }
        let text = String::from_utf8(text).unwrap();
        assert!(text.is_empty() == (method == "HEAD"), "{method} {path}: {text}");
        assert!(
            method == "HEAD" || text.contains("gRPC port") && text.contains("--http-listen"),
            "{method} {path}: {text}"
        );
    }
    let sender = connect(server.address, 1 << 16).await;
    let unknown = called(sender, "/weir.v1.Generation/Nothing", Vec::new(), &[]).await.unwrap();
    assert_eq!(Status::from_header_map(unknown.headers()).unwrap().code(), Code::Unimplemented);
    server.at_rest().await;
}
