//! Hostile gRPC requests. `tests/cases/grpc.txt` has the refusals of well-formed ones.

use super::*;
use crate::wire::connections::{self};

const BAD: Code = Code::InvalidArgument;

/// Returns code, reason and field of a refusal. Checks that message and details agree.
fn refusal(status: &Status) -> (Code, String, String) {
    let details = details(status);
    assert!(details.request_info().is_some_and(|info| !info.request_id.is_empty()), "{status:?}");
    assert!(status.message().len() < 1100, "{} bytes", status.message().len());
    for violation in details.bad_request().into_iter().flat_map(|bad| &bad.field_violations) {
        assert!(status.message().starts_with(violation.description.trim_end_matches('…')), "{status:?}");
    }
    (status.code(), reason(status), field(status))
}

#[tokio::test]
async fn an_oversized_message_is_refused() {
    let server = Server::within(TransportConfig { message_bytes: 4096, ..TransportConfig::default() }).await;
    let status = server.generate(prompt(&"a".repeat(5000))).await.map(drop).unwrap_err();
    assert_refused(&status, Code::OutOfRange, "OVERSIZED");
    server.answer(prompt("a")).await.unwrap();
}

/// Returns a Protobuf field. `kind` is the wire type: 0 varint, 2 length-delimited, 5 four bytes.
fn hostile_field(number: u8, kind: u8, bytes: &[u8]) -> Vec<u8> {
    let length = if kind == 2 { vec![u8::try_from(bytes.len()).unwrap()] } else { Vec::new() };
    [&[(number << 3) | kind][..], &length, bytes].concat()
}

/// Sends `body` and returns the status of the call.
pub(crate) async fn status_of_call(address: SocketAddr, path: &str, body: Vec<u8>, headers: &[(&str, &str)]) -> Status {
    answer_of_call(address, path, body, headers).await.1
}

/// Sends `body` and returns the body of the response and the status of the call.
pub(crate) async fn answer_of_call(
    address: SocketAddr,
    path: &str,
    body: Vec<u8>,
    headers: &[(&str, &str)],
) -> (Vec<u8>, Status) {
    // With a small window h2 counts the many short frames of a stream as an attack, if the client is slow to read them.
    let sender = connect(address, 1 << 20).await;
    let call = async {
        let response = called(sender, path, body, headers).await.unwrap();
        if let Some(status) = Status::from_header_map(response.headers()) {
            return (Vec::new(), status);
        }
        to_end(response).await
    };
    timeout(Duration::from_secs(20), call).await.expect("an answer")
}

/// Sends `body`. Returns what arrives of the response until it `is_expected` and nothing follows for half a second, or until `time`
/// has passed. Fails if the call ends.
pub(crate) async fn answer_while_open(
    time: Duration,
    is_expected: impl Fn(&[u8]) -> bool,
    address: SocketAddr,
    path: &str,
    body: Vec<u8>,
    headers: &[(&str, &str)],
) -> Vec<u8> {
    let deadline = Instant::now() + time;
    let mut response = called(connect(address, 1 << 20).await, path, body, headers).await.unwrap();
    let mut bytes = Vec::new();
    loop {
        let remaining = deadline.saturating_duration_since(Instant::now());
        let quiet = if is_expected(&bytes) { Duration::from_millis(500) } else { remaining };
        match timeout(quiet.min(remaining), response.body_mut().data()).await {
            Ok(part) => bytes.extend_from_slice(&part.expect("the call stays open").unwrap()),
            Err(_) => return bytes,
        }
    }
}

const GENERATE: &str = "/weir.v1.Generation/Generate";
const SCORE: &str = "/weir.v1.Generation/Score";
const SEGMENT: &str = "/weir.v1.Generation/Segment";
const CHECK: &str = "/weir.v1.Generation/Check";
const GET_MODEL: &str = "/weir.v1.Models/GetModel";

/// All string fields of all requests: method, path of field numbers, and name.
const STRINGS: [(&str, &[u8], &str); 16] = [
    (GENERATE, &[1], "model"),
    (GENERATE, &[2], "prompt"),
    (GENERATE, &[3, 7, 1], "logit_bias"),
    (GENERATE, &[4, 4], "stop"),
    (GENERATE, &[7], "boundary_mode"),
    (GENERATE, &[10], "resume_text"),
    (GENERATE, &[12], "speculate"),
    (SCORE, &[1], "model"),
    (SCORE, &[2], "text"),
    (SCORE, &[4], "boundary_mode"),
    (SEGMENT, &[1], "model"),
    (SEGMENT, &[2], "text"),
    (SEGMENT, &[3], "boundary_mode"),
    (CHECK, &[1], "model"),
    (CHECK, &[2], "text"),
    (GET_MODEL, &[1], "name"),
];

/// prost cannot decode such a message; the server names the field in its own error.
#[tokio::test]
async fn invalid_utf8_is_reported_with_its_field() {
    let server = Server::new().await;
    let bytes: [&[u8]; 5] = [b"\xff", b"a\xc3", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80"];
    for (path, way, name) in STRINGS {
        for bytes in bytes {
            let message = way.iter().rev().fold(bytes.to_vec(), |inner, number| hostile_field(*number, 2, &inner));
            let status = status_of_call(server.address, path, connections::framed(&message), &[]).await;
            let (code, reason, field) = refusal(&status);
            assert_eq!((code, reason.as_str()), (BAD, "UNREADABLE"), "{path} {name} {bytes:?}: {status:?}");
            assert!(field.contains(name) && status.message().contains("UTF-8"), "{path} {field}: {status:?}");
        }
    }
    server.at_rest().await;
    server.answer(prompt("a")).await.unwrap();
}

/// Fails if a string field of the schema is missing in `STRINGS`.
#[test]
fn all_string_fields_are_listed() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("proto/weir/v1");
    let mut strings = 0;
    for file in ["generation.proto", "models.proto"] {
        let text = std::fs::read_to_string(folder.join(file)).unwrap();
        for message in text.split("\nmessage ").skip(1) {
            let name = message.split_whitespace().next().unwrap();
            let is_request = name.ends_with("Request")
                || ["Sampling", "LogitBias", "Stopping", "Streaming", "Details"].contains(&name);
            let end = message.find("\n}").unwrap_or(0);
            let fields = message[..end].lines().map(str::trim).filter(|line| !line.starts_with("//"));
            strings += fields.filter(|line| is_request && line.contains("string ")).count();
        }
    }
    assert_eq!(strings, STRINGS.len());
}

#[tokio::test]
async fn invalid_frames_are_refused() {
    let config = TransportConfig { message_bytes: 4096, ..TransportConfig::default() };
    let server = Server::within(config).await;
    let right = v1::SegmentRequest { text: "ab".into(), ..Default::default() }.encode_to_vec();
    let framed = connections::framed(&right);
    let table: [(&str, Vec<u8>, &[Code]); 10] = [
        ("nothing at all", Vec::new(), &[Code::Internal]),
        ("a head cut off", framed[..3].to_vec(), &[Code::Internal]),
        ("a message cut off", framed[..framed.len() - 1].to_vec(), &[Code::Internal]),
        ("a length over the limit", [&[0], &u32::MAX.to_be_bytes()[..], &right].concat(), &[Code::OutOfRange]),
        ("compressed, by nothing", [&[1], &framed[1..]].concat(), &[Code::Internal]),
        ("a flag that there is not", [&[7], &framed[1..]].concat(), &[Code::Internal]),
        ("a field of another kind", connections::framed(&hostile_field(2, 5, &[0; 4])), &[BAD]),
        ("a field without a number", connections::framed(&[0, 0]), &[BAD]),
        ("groups without an end", connections::framed(&[0x7b; 4000]), &[BAD]),
        ("text that is longer than the message", connections::framed(&[0x12, 0xff, 0xff, 0x03]), &[BAD]),
    ];
    for (what, body, codes) in table {
        let status = status_of_call(server.address, SEGMENT, body, &[]).await;
        assert!(codes.contains(&status.code()), "{what}: {status:?}");
    }
    // Unknown fields may come from a newer client.
    let unknown = [right, hostile_field(15, 2, b"new"), hostile_field(14, 0, &[1])].concat();
    assert_eq!(status_of_call(server.address, SEGMENT, connections::framed(&unknown), &[]).await.code(), Code::Ok);
    server.at_rest().await;
    server.answer(prompt("a")).await.unwrap();
}

#[tokio::test]
async fn unknown_methods_are_refused() {
    let server = Server::new().await;
    let body = || connections::framed(&[]);
    let inference = ["RepositoryModelLoad", "SystemSharedMemoryStatus", "TraceSetting", "Nothing"]
        .map(|method| format!("/inference.GRPCInferenceService/{method}"));
    let others = ["/weir.v1.Generation/Nothing", "/weir.v1.Nothing/Generate", "/", "/weir.v1.Generation"];
    for path in inference.iter().map(String::as_str).chain(others) {
        let status = status_of_call(server.address, path, body(), &[]).await;
        assert_eq!(refusal(&status), (Code::Unimplemented, "UNKNOWN_METHOD".into(), String::new()), "{path}");
        assert!(status.message().contains(&format!("{path:?}")), "{status:?}");
    }
    let headers = [("grpc-encoding", "nonsense")];
    assert_eq!(status_of_call(server.address, SEGMENT, body(), &headers).await.code(), Code::Unimplemented);
    server.answer(prompt("a")).await.unwrap();
}

/// An empty element has two bytes on the wire and hundreds in memory.
#[tokio::test]
async fn messages_that_decode_to_far_more_are_refused() {
    let server = Server::new().await;
    let address = server.address;
    let refused = async |path: &str, body: Vec<u8>, code: Code| {
        let status = status_of_call(address, path, body, &[]).await;
        assert_eq!(refusal(&status).0, code, "{path}: {status:?}");
        status.message().to_owned()
    };
    let inputs = |count| connections::framed(&[5 << 3 | 2, 0].repeat(count));
    let stops = |count| {
        let stopping = v1::Stopping { stop: vec![String::new(); count], ..Default::default() };
        let request = v1::GenerateRequest { stopping: Some(stopping), ..Default::default() };
        connections::framed(&request.encode_to_vec())
    };
    let infer = "/inference.GRPCInferenceService/ModelInfer";
    let message = refused(infer, inputs(60_000), Code::OutOfRange).await;
    assert!(message.starts_with("the decoded message: expected at most "), "{message}");
    // Each field takes time, also if it is unknown.
    let unknown = connections::framed(&[0xf8, 0x07, 0].repeat(1 << 20));
    // Each byte is a number, which takes eight in memory.
    let input = InferInputTensor { shape: vec![0; 1 << 20], ..Default::default() };
    let shapes = connections::framed(&ModelInferRequest { inputs: vec![input], ..Default::default() }.encode_to_vec());
    let long_lists =
        [(infer, inputs(1 << 20)), (infer, shapes), (GENERATE, stops(1 << 20)), (GENERATE, unknown.clone())];
    for (path, body) in long_lists {
        let message = refused(path, body, Code::InvalidArgument).await;
        assert!(message.starts_with("message: expected at most 65536 fields"), "{message}");
    }
    let message = refused("/grpc.health.v1.Health/Check", unknown, Code::OutOfRange).await;
    assert!(message.starts_with("the message: expected at most 4096 bytes"), "{message}");
    server.answer(prompt("a")).await.unwrap();
    server.at_rest().await;
}
