//! Errors of gRPC calls, and hostile requests.

use super::*;
use crate::wire::connections::{self};

/// A request of a call that refuses it before its response.
#[derive(Debug, Clone)]
enum Asked {
    Generate(GenerateRequest),
    Score(v1::ScoreRequest),
    Segment(SegmentRequest),
    Model(v1::GetModelRequest),
}

impl Asked {
    /// Returns the status of the call.
    async fn refused(self, server: &Server) -> Status {
        let mut client = server.generation();
        let answered = match self {
            Self::Generate(request) => client.generate(request).await.map(drop),
            Self::Score(request) => client.score(request).await.map(drop),
            Self::Segment(request) => client.segment(request).await.map(drop),
            Self::Model(request) => server.models().get_model(request).await.map(drop),
        };
        answered.expect_err("a refusal")
    }
}

/// Expected code, reason and field of a refusal.
type Expected = (Code, &'static str, &'static str);

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

/// Checks that each request is refused, and that the server continues.
async fn check_refusals(server: &Server, wrong: Vec<(Asked, Expected)>) {
    for (asked, (code, reason, field)) in wrong {
        let shown: String = format!("{asked:?}").chars().take(200).collect();
        assert_eq!(refusal(&asked.refused(server).await), (code, reason.to_owned(), field.to_owned()), "{shown}");
    }
    server.at_rest().await;
    server.answer(prompt("a")).await.unwrap();
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

/// Returns requests of `Generate` with one field out of bounds, and the field that the refusal names. The engine's tests have the
/// bounds of all options that need no conversion.
fn past_the_bounds() -> Vec<(&'static str, GenerateRequest)> {
    vec![
        ("prompt", prompt("")),
        ("prompt", prompt(&"a".repeat(MAX_SYMBOLS + 1))),
        ("prompt", prompt("abX")),
        ("boundary_mode", GenerateRequest { boundary_mode: Some("often".into()), ..prompt("a") }),
        ("boundary_mode", GenerateRequest { boundary_mode: Some("given".into()), ..prompt("a") }),
        ("stopping.max_chars", stopping(|s| s.max_chars = Some(u32::MAX))),
        ("stopping.min_chars", stopping(|s| s.min_chars = Some(2))),
        ("sampling.temperature", sampling(|s| s.temperature = Some(f32::NAN))),
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
        ("stream.coalesce_chars", coalesce(0)),
        ("stream.coalesce_chars", coalesce(4097)),
    ]
}

/// Returns requests with each option at its bounds.
fn at_the_bounds() -> Vec<GenerateRequest> {
    vec![
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
        // a negative zero and the smallest subnormal number
        sampling(|s| s.temperature = Some(-0.0)),
        sampling(|s| s.temperature = Some(f32::from_bits(1))),
        sampling(|s| s.top_p = Some(f32::MIN_POSITIVE)),
        sampling(|s| {
            s.temperature = Some(100.0);
            s.min_p = Some(1.0);
            s.repetition_penalty = Some(0.01);
        }),
        sampling(|s| s.repetition_penalty = Some(100.0)),
    ]
}

#[tokio::test]
async fn an_option_out_of_bounds_is_named() {
    let server = Server::new().await;
    for (name, request) in past_the_bounds() {
        let (code, _, field) = refusal(&Asked::Generate(request.clone()).refused(&server).await);
        assert_eq!((code, field.as_str()), (BAD, name), "{request:?}");
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

/// The wording of errors, by the rule that a request breaks. Other tests compare codes, fields and values.
#[tokio::test]
#[allow(clippy::too_many_lines, reason = "the lines are a table")]
async fn errors_are_worded_by_their_rule() {
    let kinds = [("fake", Kind::Pooled), ("flat", Kind::Vanilla)];
    let server = Server::of(&kinds, Limits::default(), TransportConfig::default()).await;
    let named = |model: &str, request| Asked::Generate(GenerateRequest { model: Some(model.into()), ..request });
    let fake = |request| named("fake", request);
    let score = |text: &str, change: &dyn Fn(&mut v1::ScoreRequest)| {
        let mut request = v1::ScoreRequest { model: Some("fake".into()), text: text.into(), ..Default::default() };
        change(&mut request);
        Asked::Score(request)
    };
    let windows = |length, stride| score("a", &|score| score.windows = Some(v1::Windows { length, stride }));
    let segment = |model: &str| {
        Asked::Segment(SegmentRequest { model: Some(model.into()), text: "a".into(), ..Default::default() })
    };
    let model = |name: Option<&str>| Asked::Model(v1::GetModelRequest { name: name.map(Into::into) });
    let per_segment = |coalesce_chars| GenerateRequest {
        stream: Some(v1::Streaming { coalesce_chars, per_segment: Some(true) }),
        ..prompt("a")
    };
    let resumed = |text: &str| GenerateRequest { resume_text: text.into(), ..long("ab", 3) };
    let no_text: &dyn Fn(&mut v1::ScoreRequest) = &|score| score.top_logprobs = Some(21);
    let too_long = "a".repeat(MAX_SYMBOLS + 3);
    let mut found = Vec::new();
    for (asked, expected, message, values) in [
        (
            fake(prompt("éa\u{1f600}b")),
            (BAD, "UNKNOWN_SYMBOL", "prompt"),
            "prompt: expected symbols of the model's vocabulary, found '\u{1f600}' at character 2",
            &[("offset", "2")][..],
        ),
        (
            score(&too_long, &|_| {}),
            (BAD, "TOO_LONG", "text"),
            "text: expected at most 2000 characters, found 2003",
            &[("length", "2003"), ("limit", "2000"), ("unit", "characters")],
        ),
        (score("", no_text), (BAD, "BAD_OPTION", "text"), "text: expected at least one symbol, found \"\"", &[]),
        (
            score(" ", no_text),
            (BAD, "BAD_OPTION", "top_logprobs"),
            "top_logprobs: expected at most 20, found 21",
            &[("bound", "at most 20"), ("value", "21")],
        ),
        (
            named("three", prompt("a")),
            (Code::NotFound, "UNKNOWN_MODEL", ""),
            "model: expected one of fake, flat, found \"three\"",
            &[("known", "fake, flat")],
        ),
        (
            Asked::Generate(prompt("a")),
            (BAD, "BAD_OPTION", "model"),
            "model: expected one of fake, flat, found no name",
            &[],
        ),
        (model(None), (BAD, "BAD_OPTION", "name"), "name: expected one of fake, flat, found no name", &[]),
        (
            model(Some("three")),
            (Code::NotFound, "UNKNOWN_MODEL", ""),
            "model: expected one of fake, flat, found \"three\"",
            &[],
        ),
        (
            named("flat", per_segment(None)),
            (Code::FailedPrecondition, "WRONG_KIND_OF_MODEL", ""),
            "stream.per_segment: expected a model that pools its input, found \"flat\", a model without pooling: Vanilla",
            &[],
        ),
        (
            named("flat", stopping(|s| s.max_segments = Some(3))),
            (Code::FailedPrecondition, "WRONG_KIND_OF_MODEL", ""),
            "stopping.max_segments: expected a model that pools its input, found \"flat\", a model without pooling: Vanilla",
            &[("call", "stopping.max_segments")],
        ),
        (
            segment("flat"),
            (Code::FailedPrecondition, "WRONG_KIND_OF_MODEL", ""),
            "model: expected one that pools its input (for Segment), found \"flat\", a model without pooling: Vanilla",
            &[("found", "a model without pooling: Vanilla")],
        ),
        (
            fake(per_segment(Some(1))),
            (BAD, "EXCLUSIVE_OPTIONS", "stream.coalesce_chars"),
            "stream.coalesce_chars and stream.per_segment exclude each other: give one",
            &[],
        ),
        (
            fake(stopping(|s| s.min_chars = Some(2))),
            (BAD, "BAD_OPTION", "stopping.min_chars"),
            "stopping.min_chars: expected 0 to 1 (the value of max_chars), found 2",
            &[("value", "2")],
        ),
        (
            fake(GenerateRequest { priority: Some(8), ..prompt("a") }),
            (BAD, "BAD_OPTION", "priority"),
            "priority: expected -8 to 7, found 8",
            &[],
        ),
        (
            fake(GenerateRequest { speculate: Some("on".into()), ..prompt("a") }),
            (BAD, "BAD_OPTION", "speculate"),
            "speculate: expected \"auto\", \"off\" or a whole number from 1 to 16, found \"on\"",
            &[],
        ),
        (
            windows(2001, 1),
            (BAD, "BAD_OPTION", "windows.length"),
            "windows.length: expected 1 to 2000, found 2001",
            &[("bound", "1 to 2000")],
        ),
        (
            windows(10, 11),
            (BAD, "BAD_OPTION", "windows.stride"),
            "windows.stride: expected 1 to 10 (the length of a window), found 11",
            &[],
        ),
        (
            fake(GenerateRequest { sampling: None, ..resumed("a") }),
            (BAD, "BAD_OPTION", "sampling.seed"),
            "sampling.seed: expected the seed of the stream that is resumed, found nothing",
            &[],
        ),
        (
            fake(resumed("abab")),
            (BAD, "BAD_OPTION", "resume_text"),
            "resume_text: expected at most 3 characters (max_chars, and the room after the prompt), found 4 characters",
            &[],
        ),
        (
            fake(GenerateRequest { resume_ids: vec![1], ..resumed("a") }),
            (BAD, "EXCLUSIVE_OPTIONS", "resume_text"),
            "resume_text and resume_ids exclude each other: give one",
            &[],
        ),
    ] {
        let status = asked.clone().refused(&server).await;
        let (code, reason, field) = expected;
        assert_eq!(refusal(&status), (code, reason.to_owned(), field.to_owned()), "{asked:?}");
        found.push((status.message().to_owned(), message));
        let info = details(&status).error_info().unwrap().metadata.clone();
        for (key, value) in values {
            assert_eq!(info[*key], *value, "{asked:?}");
        }
    }
    assert_worded(&found);
    server.at_rest().await;
}

/// A name of a million letters is shortened in the answer, since headers are limited.
#[tokio::test]
async fn texts_names_and_modes_are_checked_by_every_call() {
    type Build = fn(String, Option<String>, Option<String>) -> Asked;
    let calls: [(&'static str, Build); 3] = [
        ("prompt", |prompt, model, boundary_mode| {
            Asked::Generate(GenerateRequest { prompt, model, boundary_mode, ..Default::default() })
        }),
        ("text", |text, model, boundary_mode| {
            Asked::Score(v1::ScoreRequest { text, model, boundary_mode, ..Default::default() })
        }),
        ("text", |text, model, boundary_mode| {
            Asked::Segment(SegmentRequest { text, model, boundary_mode, ..Default::default() })
        }),
    ];
    let million = || "x".repeat(1 << 20);
    let names = || ["nothing".into(), "fake ".into(), "../fake".into(), "\0".into(), million()];
    let mut wrong = Vec::new();
    for (field, build) in calls {
        for (text, reason) in [
            (String::new(), "BAD_OPTION"),
            ("aX".into(), "UNKNOWN_SYMBOL"),
            ("a\0".into(), "UNKNOWN_SYMBOL"),
            ("\u{202e}\u{feff}".into(), "UNKNOWN_SYMBOL"),
            ("a".repeat(MAX_SYMBOLS + 1), "TOO_LONG"),
            ("é".repeat(1 << 20), "TOO_LONG"),
            ("\u{10ffff}".repeat(1 << 19), "UNKNOWN_SYMBOL"),
        ] {
            wrong.push((build(text, None, None), (BAD, reason, field)));
        }
        for mode in ["often".into(), "given".into(), "THRESHOLD".into(), " threshold".into(), "\0".into(), million()] {
            wrong.push((build("ab c".into(), None, Some(mode)), (BAD, "BAD_OPTION", "boundary_mode")));
        }
        for name in names() {
            wrong.push((build("ab c".into(), Some(name), None), (Code::NotFound, "UNKNOWN_MODEL", "")));
        }
    }
    for name in names() {
        wrong.push((Asked::Model(v1::GetModelRequest { name: Some(name) }), (Code::NotFound, "UNKNOWN_MODEL", "")));
    }
    for (stop, reason) in
        [("a".repeat(257), "BAD_OPTION"), ("é".repeat(1 << 20), "TOO_LONG"), (String::new(), "BAD_OPTION")]
    {
        let request = stopping(|stopping| stopping.stop = vec![stop]);
        wrong.push((Asked::Generate(request), (BAD, reason, "stopping.stop[0]")));
    }
    for top_logprobs in [21, u32::MAX] {
        let request = v1::ScoreRequest { text: "ab c".into(), top_logprobs: Some(top_logprobs), ..Default::default() };
        wrong.push((Asked::Score(request), (BAD, "BAD_OPTION", "top_logprobs")));
    }
    for (length, stride, field) in
        [(0, 0, "windows.length"), (u32::MAX, u32::MAX, "windows.length"), (10, 0, "windows.stride")]
    {
        let windows = Some(v1::Windows { length, stride });
        let request = v1::ScoreRequest { text: "a".into(), windows, ..Default::default() };
        wrong.push((Asked::Score(request), (BAD, "BAD_OPTION", field)));
    }
    let text = || "a b".to_owned();
    let priority = Some(8);
    wrong.push((
        Asked::Score(v1::ScoreRequest { text: text(), priority, ..Default::default() }),
        (BAD, "BAD_OPTION", "priority"),
    ));
    wrong.push((
        Asked::Segment(SegmentRequest { text: text(), priority, ..Default::default() }),
        (BAD, "BAD_OPTION", "priority"),
    ));
    for speculate in ["0", "17", "-1", "auto "] {
        let request = GenerateRequest { speculate: Some(speculate.into()), ..prompt("ab") };
        wrong.push((Asked::Generate(request), (BAD, "BAD_OPTION", "speculate")));
    }
    let ids = |resume_ids| Asked::Generate(GenerateRequest { resume_ids, ..long("ab", 3) });
    wrong.push((ids(vec![1000]), (BAD, "UNKNOWN_SYMBOL", "resume_ids")));
    wrong.push((ids(vec![1; 4]), (BAD, "BAD_OPTION", "resume_ids")));
    let resumed = GenerateRequest { resume_text: "a?".into(), ..long("ab", 3) };
    wrong.push((Asked::Generate(resumed), (BAD, "UNKNOWN_SYMBOL", "resume_text")));
    check_refusals(&Server::new().await, wrong).await;
}

#[tokio::test]
async fn extreme_values_are_accepted() {
    let server = Server::new().await;
    let text = || "ab c".to_owned();
    for (top_logprobs, seed) in [(0, 0), (20, u64::MAX)] {
        let request = v1::ScoreRequest {
            text: text(),
            top_logprobs: Some(top_logprobs),
            seed: Some(seed),
            priority: Some(-8),
            ..Default::default()
        };
        let mut stream = server.generation().score(request).await.unwrap().into_inner();
        while stream.message().await.unwrap().is_some() {}
    }
    for priority in [-8, 7] {
        let request =
            SegmentRequest { text: text(), seed: Some(u64::MAX), priority: Some(priority), ..Default::default() };
        server.generation().segment(request).await.unwrap();
        server.answer(GenerateRequest { priority: Some(priority), ..prompt("a") }).await.unwrap();
    }
    server.at_rest().await;
}

#[tokio::test]
async fn exclusive_options_are_both_named() {
    let server = Server::new().await;
    let stream = Some(v1::Streaming { coalesce_chars: Some(1), per_segment: Some(true) });
    let status = server.generate(GenerateRequest { stream, ..prompt("a") }).await.map(drop).unwrap_err();
    let fields = details(&status).bad_request().unwrap().field_violations.clone();
    assert_eq!(
        fields.iter().map(|v| v.field.as_str()).collect::<Vec<_>>(),
        ["stream.coalesce_chars", "stream.per_segment"]
    );
}

#[tokio::test]
async fn an_oversized_message_is_refused() {
    let server = Server::within(TransportConfig { message_bytes: 4096, ..TransportConfig::default() }).await;
    let status = server.generate(prompt(&"a".repeat(5000))).await.map(drop).unwrap_err();
    assert_refused(&status, Code::OutOfRange, "OVERSIZED");
    server.answer(prompt("a")).await.unwrap();
}

#[tokio::test]
async fn an_invalid_timeout_is_refused() {
    let server = Server::new().await;
    for wrong in ["1", "1x", "123456789S", "-1S"] {
        let mut request = tonic::Request::new(prompt("a"));
        request.metadata_mut().insert("grpc-timeout", wrong.parse().unwrap());
        let status = server.generation().generate(request).await.map(drop).unwrap_err();
        assert_eq!(refusal(&status), (BAD, "BAD_OPTION".into(), "grpc-timeout".into()), "{wrong}");
    }
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
    for path in ["/weir.v1.Generation/Nothing", "/weir.v1.Nothing/Generate", "/", "/weir.v1.Generation"] {
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
