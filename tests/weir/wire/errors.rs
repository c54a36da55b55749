//! Errors of gRPC calls, and hostile requests.

use super::*;
use crate::wire::connections::{self};

/// Returns the field of a refusal. Checks that message and details agree.
fn field(status: &Status) -> String {
    let details = details(status);
    assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
    assert!(!details.request_info().unwrap().request_id.is_empty());
    let violation = &details.bad_request().unwrap().field_violations[0];
    assert_eq!(violation.description, status.message());
    violation.field.clone()
}

fn sampling(change: impl FnOnce(&mut v1::Sampling)) -> GenerateRequest {
    let mut sampling = v1::Sampling::default();
    change(&mut sampling);
    GenerateRequest { sampling: Some(sampling), ..prompt("a") }
}

fn stopping(change: impl FnOnce(&mut v1::Stopping)) -> GenerateRequest {
    let mut stopping = v1::Stopping { max_chars: Some(1), ..Default::default() };
    change(&mut stopping);
    GenerateRequest { stopping: Some(stopping), ..prompt("a") }
}

fn biases(count: usize, symbol: Option<Symbol>, bias: f32) -> GenerateRequest {
    sampling(|sampling| sampling.logit_bias = vec![v1::LogitBias { symbol, bias }; count])
}

fn top(top: u32) -> GenerateRequest {
    let details = Some(v1::Details { top_logprobs: Some(top), ..Default::default() });
    GenerateRequest { details, ..stopping(|_| {}) }
}

fn coalesce(count: u32) -> GenerateRequest {
    let stream = Some(v1::Streaming { coalesce_chars: Some(count), ..Default::default() });
    GenerateRequest { stream, ..stopping(|_| {}) }
}

fn text(text: &str) -> Option<Symbol> {
    Some(Symbol::Text(text.into()))
}

/// Returns requests with one option out of bounds, and the field that the refusal names.
fn past_the_bounds() -> Vec<(&'static str, GenerateRequest)> {
    let mut all = vec![
        ("prompt", prompt("")),
        ("prompt", prompt(&"a".repeat(MAX_SYMBOLS + 1))),
        ("prompt", prompt("abX")),
        ("boundary_mode", GenerateRequest { boundary_mode: Some("often".into()), ..prompt("a") }),
        ("boundary_mode", GenerateRequest { boundary_mode: Some("given".into()), ..prompt("a") }),
        ("stopping.max_chars", stopping(|s| s.max_chars = Some(MAX_SYMBOLS as u32 + 1))),
        ("stopping.max_chars", stopping(|s| s.max_chars = Some(u32::MAX))),
        ("stopping.min_chars", stopping(|s| s.min_chars = Some(2))),
        ("stopping.max_segments", stopping(|s| s.max_segments = Some(0))),
        ("stopping.stop", stopping(|s| s.stop = vec!["a".into(); 17])),
        ("stopping.stop[0]", stopping(|s| s.stop = vec![String::new()])),
        ("stopping.stop[2]", stopping(|s| s.stop = vec!["a".into(), "b".into(), "a".repeat(257)])),
        ("sampling.logit_bias", biases(1025, text("a"), 0.0)),
        ("sampling.logit_bias", biases(1, text("ab"), 0.0)),
        ("sampling.logit_bias", biases(1, text("aX"), 0.0)),
        ("prompt_ids", GenerateRequest { prompt_ids: vec![1; MAX_SYMBOLS + 1], ..prompt("") }),
        ("prompt_ids", GenerateRequest { prompt_ids: vec![1, 8], ..prompt("") }),
        ("sampling.logit_bias", biases(1, Some(Symbol::Id(8)), 0.0)),
        ("sampling.logit_bias", biases(1, None, 0.0)),
        ("details.top_logprobs", top(21)),
        ("details.top_logprobs", top(u32::MAX)),
        ("stream.coalesce_chars", coalesce(0)),
        ("stream.coalesce_chars", coalesce(4097)),
    ];
    // NaNs of both signs with several payloads
    let nans = [0x7fc0_0000_u32, 0xffc0_0000, 0x7f80_0001, 0xff80_0001, 0x7fff_ffff].map(f32::from_bits);
    for wrong in nans.into_iter().chain([f32::INFINITY, f32::NEG_INFINITY, f32::MIN, f32::MAX, -1e-3]) {
        all.push(("sampling.temperature", sampling(|s| s.temperature = Some(wrong))));
        all.push(("sampling.top_p", sampling(|s| s.top_p = Some(wrong))));
        all.push(("sampling.min_p", sampling(|s| s.min_p = Some(wrong))));
        all.push(("sampling.repetition_penalty", sampling(|s| s.repetition_penalty = Some(wrong))));
    }
    for wrong in nans.into_iter().chain([f32::INFINITY, f32::NEG_INFINITY, 1000.1, -1000.1]) {
        all.push(("sampling.logit_bias", biases(1, text("a"), wrong)));
    }
    all.extend([100.1, 1e3].map(|wrong| ("sampling.temperature", sampling(|s| s.temperature = Some(wrong)))));
    all.extend([0.0, 1.01].map(|wrong| ("sampling.top_p", sampling(|s| s.top_p = Some(wrong)))));
    all.extend([1.01].map(|wrong| ("sampling.min_p", sampling(|s| s.min_p = Some(wrong)))));
    all.extend(
        [0.0, 100.1].map(|wrong| ("sampling.repetition_penalty", sampling(|s| s.repetition_penalty = Some(wrong)))),
    );
    all
}

/// Returns requests with each option at its bounds.
fn at_the_bounds() -> Vec<GenerateRequest> {
    let mut all = vec![
        GenerateRequest { boundary_mode: Some(String::new()), ..stopping(|_| {}) },
        GenerateRequest { boundary_mode: Some("threshold".into()), ..stopping(|_| {}) },
        GenerateRequest { prompt: "a".repeat(MAX_SYMBOLS), ..stopping(|_| {}) },
        stopping(|s| s.max_chars = Some(0)),
        stopping(|s| s.max_chars = Some(MAX_SYMBOLS as u32)),
        stopping(|s| s.min_chars = Some(1)),
        stopping(|s| s.max_segments = Some(u32::MAX)),
        stopping(|s| s.stop = vec!["é".repeat(256); 16]),
        stopping(|s| s.stop = vec!["a".into(), "aX".into(), "\n\n".into()]),
        biases(1, text("X"), 0.0),
        GenerateRequest { prompt: String::new(), prompt_ids: vec![1; MAX_SYMBOLS], ..stopping(|_| {}) },
        biases(1024, text("a"), 1000.0),
        biases(1, Some(Symbol::Id(7)), -1000.0),
        top(20),
        coalesce(1),
        coalesce(4096),
        sampling(|s| s.top_k = Some(u32::MAX)),
        sampling(|s| s.seed = Some(u64::MAX)),
    ];
    // with the smallest subnormal number and negative zero
    all.extend([0.0, -0.0, f32::from_bits(1), 100.0].map(|right| sampling(|s| s.temperature = Some(right))));
    all.extend([f32::MIN_POSITIVE, 1.0].map(|right| sampling(|s| s.top_p = Some(right))));
    all.extend([0.0, 1.0].map(|right| sampling(|s| s.min_p = Some(right))));
    all.extend([0.01, 100.0].map(|right| sampling(|s| s.repetition_penalty = Some(right))));
    all
}

#[tokio::test]
async fn an_option_out_of_bounds_is_named() {
    let server = Server::new().await;
    for (name, request) in past_the_bounds() {
        let status = server.generate(request.clone()).await.map(drop).expect_err(name);
        assert_eq!(field(&status), name, "{request:?}");
    }
    server.at_rest().await;
}

#[tokio::test]
async fn an_option_at_its_bounds_is_accepted() {
    let server = Server::new().await;
    for request in at_the_bounds() {
        server.answer(request.clone()).await.unwrap_or_else(|status| panic!("{request:?}: {status:?}"));
    }
    server.at_rest().await;
}

#[tokio::test]
async fn an_unknown_symbol_has_an_offset() {
    let server = Server::new().await;
    let status = server.generate(prompt("éa\u{1f600}b")).await.map(drop).unwrap_err();
    assert_eq!((field(&status).as_str(), reason(&status).as_str()), ("prompt", "UNKNOWN_SYMBOL"));
    assert_eq!(details(&status).error_info().unwrap().metadata["offset"], "2");
    let request = v1::ScoreRequest { text: "aaZ".into(), ..Default::default() };
    let status = server.generation().score(request).await.map(drop).unwrap_err();
    assert_eq!(field(&status), "text");
    let request = v1::SegmentRequest { text: "aaZ".into(), ..Default::default() };
    let status = server.generation().segment(request).await.map(drop).unwrap_err();
    assert_eq!(details(&status).error_info().unwrap().metadata["offset"], "2");
}

#[tokio::test]
async fn length_errors_name_length_and_limit() {
    let server = Server::new().await;
    let request = v1::ScoreRequest { text: "a".repeat(MAX_SYMBOLS + 3), ..Default::default() };
    let status = server.generation().score(request).await.map(drop).unwrap_err();
    assert_eq!((field(&status).as_str(), reason(&status).as_str()), ("text", "TOO_LONG"));
    let info = details(&status).error_info().unwrap().metadata.clone();
    assert_eq!(
        (info["length"].as_str(), info["limit"].as_str(), info["unit"].as_str()),
        ("2003", "2000", "characters")
    );
    for empty in ["", " "] {
        let request = v1::ScoreRequest { text: empty.into(), top_logprobs: Some(21), ..Default::default() };
        let status = server.generation().score(request).await.map(drop).unwrap_err();
        assert_eq!(field(&status), if empty.is_empty() { "text" } else { "top_logprobs" });
    }
}

#[tokio::test]
async fn models_are_selected_by_name() {
    let kinds = [("one", Kind::Pooled), ("two", Kind::Vanilla)];
    let server = Server::with(Limits::default(), TransportConfig::default(), &kinds).await;
    let named = |name: &str| GenerateRequest { model: Some(name.into()), ..prompt("a") };
    let status = server.generate(named("three")).await.map(drop).unwrap_err();
    assert_eq!((status.code(), reason(&status).as_str()), (Code::NotFound, "UNKNOWN_MODEL"));
    assert_eq!(details(&status).error_info().unwrap().metadata["known"], "one, two");
    // A name of a million letters is shortened in the answer, since headers are limited.
    let status = server.generate(named(&"x".repeat(1 << 20))).await.map(drop).unwrap_err();
    assert_eq!(status.code(), Code::NotFound);
    assert!(status.message().contains("one, two"));
    let status = server.generate(prompt("a")).await.map(drop).unwrap_err();
    assert_eq!(field(&status), "model");
    let request = v1::GetModelRequest { name: Some("three".into()) };
    assert_eq!(server.models().get_model(request).await.unwrap_err().code(), Code::NotFound);
    let request = v1::GetModelRequest { name: None };
    assert_eq!(field(&server.models().get_model(request).await.unwrap_err()), "name");
}

#[tokio::test]
async fn pooled_options_need_a_pooled_model() {
    let server = Server::with(Limits::default(), TransportConfig::default(), &[("flat", Kind::Vanilla)]).await;
    let stream = Some(v1::Streaming { per_segment: Some(true), ..Default::default() });
    let requests = [GenerateRequest { stream, ..prompt("a") }, stopping(|s| s.max_segments = Some(3))];
    for request in requests {
        let status = server.generate(request).await.map(drop).unwrap_err();
        assert_eq!((status.code(), reason(&status).as_str()), (Code::FailedPrecondition, "WRONG_KIND_OF_MODEL"));
    }
    let request = v1::SegmentRequest { text: "a".into(), ..Default::default() };
    let status = server.generation().segment(request).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert_eq!(details(&status).error_info().unwrap().metadata["found"], "a model without pooling: Vanilla");
}

#[tokio::test]
async fn exclusive_options_are_refused() {
    let server = Server::new().await;
    let stream = Some(v1::Streaming { coalesce_chars: Some(1), per_segment: Some(true) });
    let status = server.generate(GenerateRequest { stream, ..prompt("a") }).await.map(drop).unwrap_err();
    assert_eq!((status.code(), reason(&status).as_str()), (Code::InvalidArgument, "EXCLUSIVE_OPTIONS"));
    let fields = details(&status).bad_request().unwrap().field_violations.clone();
    assert_eq!(
        fields.iter().map(|v| v.field.as_str()).collect::<Vec<_>>(),
        ["stream.coalesce_chars", "stream.per_segment"]
    );
}

#[tokio::test]
async fn an_oversized_message_is_refused() {
    let server = Server::with(
        Limits::default(),
        TransportConfig { message_bytes: 4096, ..TransportConfig::default() },
        &[("m", Kind::Pooled)],
    )
    .await;
    let status = server.generate(prompt(&"a".repeat(5000))).await.map(drop).unwrap_err();
    assert_eq!(status.code(), Code::OutOfRange);
    server.answer(prompt("a")).await.unwrap();
}

#[tokio::test]
async fn an_invalid_timeout_is_refused() {
    let server = Server::new().await;
    for wrong in ["1", "1x", "123456789S", "-1S"] {
        let mut request = tonic::Request::new(prompt("a"));
        request.metadata_mut().insert("grpc-timeout", wrong.parse().unwrap());
        let status = server.generation().generate(request).await.map(drop).unwrap_err();
        assert_eq!(field(&status), "grpc-timeout", "{wrong}");
    }
}

/// Expected code, reason and field of a refusal.
type Expected = (Code, &'static str, &'static str);

const BAD: Code = Code::InvalidArgument;

fn refusal(status: &Status) -> (Code, String, String) {
    let details = details(status);
    let violations = details.bad_request().map(|bad| bad.field_violations.clone()).unwrap_or_default();
    let field = violations.first().map(|violation| violation.field.clone()).unwrap_or_default();
    assert!(details.request_info().is_some_and(|info| !info.request_id.is_empty()), "{status:?}");
    assert!(status.message().len() < 1100, "{} bytes", status.message().len());
    (status.code(), reason(status), field)
}

fn check_refusal(status: &Status, expected: Expected, what: &dyn std::fmt::Debug) {
    let (code, reason, field) = expected;
    let what = format!("{what:?}").chars().take(200).collect::<String>();
    assert_eq!(refusal(status), (code, reason.to_owned(), field.to_owned()), "{what}");
}

/// Returns texts that a model cannot accept, with the expected refusals.
fn wrong_texts(field: &'static str) -> Vec<(String, Expected)> {
    vec![
        (String::new(), (BAD, "BAD_OPTION", field)),
        ("aX".into(), (BAD, "UNKNOWN_SYMBOL", field)),
        ("a\0".into(), (BAD, "UNKNOWN_SYMBOL", field)),
        ("\u{202e}\u{feff}".into(), (BAD, "UNKNOWN_SYMBOL", field)),
        ("a".repeat(MAX_SYMBOLS + 1), (BAD, "TOO_LONG", field)),
        ("é".repeat(1 << 20), (BAD, "TOO_LONG", field)),
        ("\u{10ffff}".repeat(1 << 19), (BAD, "UNKNOWN_SYMBOL", field)),
    ]
}

fn wrong_modes() -> Vec<(String, Expected)> {
    ["often", "given", "THRESHOLD", " threshold", "\0"]
        .map(str::to_owned)
        .into_iter()
        .chain(["x".repeat(1 << 20)])
        .map(|mode| (mode, (BAD, "BAD_OPTION", "boundary_mode")))
        .collect()
}

fn wrong_names() -> Vec<(String, Expected)> {
    ["nothing".into(), "fake ".into(), "../fake".into(), "\0".into(), "x".repeat(1 << 20)]
        .map(|name| (name, (Code::NotFound, "UNKNOWN_MODEL", "")))
        .into()
}

#[tokio::test]
async fn generate_refuses_invalid_texts() {
    let server = Server::new().await;
    for (text, expected) in wrong_texts("prompt") {
        let status = server.generate(prompt(&text)).await.map(drop).unwrap_err();
        check_refusal(&status, expected, &text);
    }
    for (name, expected) in wrong_names() {
        let request = v1::GenerateRequest { model: Some(name.clone()), ..prompt("a") };
        check_refusal(&server.generate(request).await.map(drop).unwrap_err(), expected, &name);
    }
    for (mode, expected) in wrong_modes() {
        let request = v1::GenerateRequest { boundary_mode: Some(mode.clone()), ..prompt("a") };
        check_refusal(&server.generate(request).await.map(drop).unwrap_err(), expected, &mode);
    }
    for stop in ["a".repeat(257), "é".repeat(1 << 20), String::new()] {
        let stopping = Some(v1::Stopping { stop: vec![stop.clone()], ..Default::default() });
        let status = server.generate(v1::GenerateRequest { stopping, ..prompt("a") }).await.map(drop).unwrap_err();
        let (code, _, field) = refusal(&status);
        assert_eq!((code, field.as_str()), (BAD, "stopping.stop[0]"), "{} bytes", stop.len());
    }
    server.at_rest().await;
    server.answer(prompt("a")).await.unwrap();
}

#[tokio::test]
async fn score_refuses_invalid_fields() {
    let server = Server::new().await;
    let right = || v1::ScoreRequest { text: "ab c".into(), ..Default::default() };
    let mut wrong: Vec<(v1::ScoreRequest, Expected)> = Vec::new();
    wrong.extend(wrong_texts("text").into_iter().map(|(text, what)| (v1::ScoreRequest { text, ..right() }, what)));
    let named = |(name, what)| (v1::ScoreRequest { model: Some(name), ..right() }, what);
    wrong.extend(wrong_names().into_iter().map(named));
    let decided = |(mode, what)| (v1::ScoreRequest { boundary_mode: Some(mode), ..right() }, what);
    wrong.extend(wrong_modes().into_iter().map(decided));
    for top in [21, u32::MAX] {
        let request = v1::ScoreRequest { top_logprobs: Some(top), ..right() };
        wrong.push((request, (BAD, "BAD_OPTION", "top_logprobs")));
    }
    for (request, expected) in wrong {
        check_refusal(&server.generation().score(request.clone()).await.map(drop).unwrap_err(), expected, &request);
    }
    for (top, seed) in [(0, 0), (20, u64::MAX)] {
        let request = v1::ScoreRequest { top_logprobs: Some(top), seed: Some(seed), ..right() };
        let mut stream = server.generation().score(request).await.unwrap().into_inner();
        while stream.message().await.unwrap().is_some() {}
    }
    server.at_rest().await;
}

#[tokio::test]
async fn segment_refuses_invalid_fields() {
    let server = Server::new().await;
    let right = || v1::SegmentRequest { text: "ab c".into(), ..Default::default() };
    let mut wrong: Vec<(v1::SegmentRequest, Expected)> = Vec::new();
    wrong.extend(wrong_texts("text").into_iter().map(|(text, what)| (v1::SegmentRequest { text, ..right() }, what)));
    let named = |(name, what)| (v1::SegmentRequest { model: Some(name), ..right() }, what);
    wrong.extend(wrong_names().into_iter().map(named));
    let decided = |(mode, what)| (v1::SegmentRequest { boundary_mode: Some(mode), ..right() }, what);
    wrong.extend(wrong_modes().into_iter().map(decided));
    for (request, expected) in wrong {
        check_refusal(&server.generation().segment(request.clone()).await.unwrap_err(), expected, &request);
    }
    let request = v1::SegmentRequest { seed: Some(u64::MAX), ..right() };
    server.generation().segment(request).await.unwrap();
    server.at_rest().await;
}

#[tokio::test]
async fn get_model_refuses_invalid_names() {
    let server = Server::new().await;
    for (name, expected) in wrong_names() {
        let status = server.models().get_model(v1::GetModelRequest { name: Some(name.clone()) }).await.unwrap_err();
        check_refusal(&status, expected, &name);
    }
    server.models().get_model(v1::GetModelRequest { name: Some("fake".into()) }).await.unwrap();
}

/// Returns a Protobuf field. `kind` is the wire type: 0 varint, 2 length-delimited, 5 four bytes.
fn hostile_field(number: u8, kind: u8, bytes: &[u8]) -> Vec<u8> {
    let length = if kind == 2 { vec![u8::try_from(bytes.len()).unwrap()] } else { Vec::new() };
    [&[(number << 3) | kind][..], &length, bytes].concat()
}

/// Sends `body` and returns the status of the call.
pub(super) async fn status_of_call(address: SocketAddr, path: &str, body: Vec<u8>, headers: &[(&str, &str)]) -> Status {
    // With a small window h2 counts the many short frames of a stream as an attack, if the client is slow to read them.
    let sender = connect(address, 1 << 20).await;
    let call = async {
        let response = called(sender, path, body, headers).await.unwrap();
        if let Some(status) = Status::from_header_map(response.headers()) {
            return status;
        }
        let mut body = response.into_body();
        while let Some(part) = body.data().await {
            let part = part.unwrap();
            body.flow_control().release_capacity(part.len()).unwrap();
        }
        Status::from_header_map(&body.trailers().await.unwrap().unwrap()).unwrap()
    };
    timeout(Duration::from_secs(20), call).await.expect("an answer")
}

const GENERATE: &str = "/weir.v1.Generation/Generate";

const SCORE: &str = "/weir.v1.Generation/Score";

const SEGMENT: &str = "/weir.v1.Generation/Segment";

const GET_MODEL: &str = "/weir.v1.Models/GetModel";

/// All string fields of all requests: method, path of field numbers, and name.
const STRINGS: [(&str, &[u8], &str); 14] = [
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
            let status = status_of_call(server.running.address, path, connections::framed(&message), &[]).await;
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
    let server = Server::with(Limits::default(), config, &[("fake", Kind::Pooled)]).await;
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
        let status = status_of_call(server.running.address, SEGMENT, body, &[]).await;
        assert!(codes.contains(&status.code()), "{what}: {status:?}");
    }
    // Unknown fields may come from a newer client.
    let unknown = [right, hostile_field(15, 2, b"new"), hostile_field(14, 0, &[1])].concat();
    assert_eq!(
        status_of_call(server.running.address, SEGMENT, connections::framed(&unknown), &[]).await.code(),
        Code::Ok
    );
    server.at_rest().await;
    server.answer(prompt("a")).await.unwrap();
}

#[tokio::test]
async fn unknown_methods_are_refused() {
    let server = Server::new().await;
    let body = || connections::framed(&[]);
    for path in ["/weir.v1.Generation/Nothing", "/weir.v1.Nothing/Generate", "/", "/weir.v1.Generation"] {
        let status = status_of_call(server.running.address, path, body(), &[]).await;
        assert_eq!(refusal(&status), (Code::Unimplemented, "UNKNOWN_METHOD".into(), String::new()), "{path}");
        assert!(status.message().contains(&format!("{path:?}")), "{status:?}");
    }
    let headers = [("grpc-encoding", "nonsense")];
    assert_eq!(status_of_call(server.running.address, SEGMENT, body(), &headers).await.code(), Code::Unimplemented);
    server.answer(prompt("a")).await.unwrap();
}

/// An empty element has two bytes on the wire and hundreds in memory.
#[tokio::test]
async fn messages_that_decode_to_far_more_are_refused() {
    let server = Server::new().await;
    let address = server.running.address;
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
