//! Refused requests: code, field and error details.

use super::{
    Server, details,
    fake_model::{Kind, MAX_SYMBOLS},
    prompt, reason,
};
use tonic::{Code, Status};
use weir::{config::TransportConfig, engine::Limits};
use weir_proto::v1::{self, GenerateRequest, logit_bias::Symbol};

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
    for wrong in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -1e-3, 1e30] {
        all.push(("sampling.temperature", sampling(|s| s.temperature = Some(wrong))));
        all.push(("sampling.top_p", sampling(|s| s.top_p = Some(wrong))));
        all.push(("sampling.min_p", sampling(|s| s.min_p = Some(wrong))));
        all.push(("sampling.repetition_penalty", sampling(|s| s.repetition_penalty = Some(wrong))));
    }
    for wrong in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1000.1, -1000.1] {
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
    all.extend([0.0, 100.0].map(|right| sampling(|s| s.temperature = Some(right))));
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
