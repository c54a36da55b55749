//! `ModelInfer`: single requests, their errors, and access control.

use super::{
    super::{
        Running, Server,
        fake_model::{Fake, Kind},
        long, reason,
    },
    Client, client, count, flag, is_last, output, request, streamed,
    streams::next,
    text, words,
};
use crate::document_model::DocumentModel;
use std::{collections::HashMap, sync::Arc};
use tonic::{Code, Request};
use tonic_types::StatusExt;
use weir::{
    config::{Access, Credentials, Keys, TransportConfig},
    decode::contract::Model,
    engine::{Handle, Limits},
    serve::Engines,
};
use weir_proto::inference::{self as oip, ModelInferRequest, model_infer_request::InferRequestedOutputTensor};

#[tokio::test]
async fn an_answer_equals_that_of_the_own_api() {
    let server = Server::new().await;
    let expected = server.answer(long("ab c", 40)).await.unwrap();
    let sampling = text("sampling_parameters", r#"{"max_tokens": "40", "seed": 1}"#);
    let infer_request = request("seven", &[text("text_input", "ab c"), sampling.clone()]);
    let answer = client(&server).model_infer(infer_request).await.unwrap().into_inner();
    assert_eq!((answer.id.as_str(), answer.model_name.as_str(), answer.model_version.as_str()), ("seven", "fake", "1"));
    // by default the text is the only output, and begins with the prompt
    assert_eq!((words(&answer, "text_output"), answer.outputs.len()), (format!("ab c{}", expected.text()), 1));
    assert!(is_last(&answer));
    let returns = ["finish_reason", "cumulative_logprob", "logprobs", "num_input_tokens", "num_output_tokens"];
    let mut inputs = vec![text("text_input", "ab c"), flag("exclude_input_in_output", true), sampling];
    let flags = returns.map(|name| format!("return_{name}"));
    inputs.extend(flags.iter().map(|name| (name.as_str(), "BOOL", vec![1])));
    let answer = client(&server).model_infer(request("", &inputs)).await.unwrap().into_inner();
    assert_eq!((words(&answer, "text_output"), words(&answer, "finish_reason")), (expected.text(), "length".into()));
    assert_eq!((count(&answer, "num_input_tokens"), count(&answer, "num_output_tokens")), (4, 40));
    let logprobs: Vec<HashMap<String, serde_json::Value>> = serde_json::from_str(&words(&answer, "logprobs")).unwrap();
    let sum: f64 = logprobs.iter().map(|token| token.values().next().unwrap()["logprob"].as_f64().unwrap()).sum();
    let cumulative = f32::from_le_bytes(output(&answer, "cumulative_logprob").unwrap().try_into().unwrap());
    assert!(logprobs.len() == 40 && (sum - f64::from(cumulative)).abs() < 1e-3, "{sum} {cumulative}");
    let spoken: String =
        logprobs.iter().map(|token| token.values().next().unwrap()["decoded_token"].as_str().unwrap()).collect();
    assert_eq!(spoken, expected.text());
    // only the listed outputs are sent
    let mut listed = request("", &[text("text_input", "ab c")]);
    listed.outputs = vec![InferRequestedOutputTensor { name: "finish_reason".into(), ..Default::default() }];
    let answer = client(&server).model_infer(listed).await.unwrap().into_inner();
    assert_eq!((answer.outputs.len(), words(&answer, "finish_reason")), (1, "length".into()));
    server.at_rest().await;
}

#[tokio::test]
async fn a_single_request_fails_with_a_status() {
    let server = Server::new().await;
    let sampling = text("sampling_parameters", r#"{"max_tokens": 999999999}"#);
    let cases = [
        (request("", &[text("text_input", "a"), sampling]), Code::InvalidArgument, "max_tokens"),
        (request("", &[text("text_input", "?")]), Code::InvalidArgument, "text_input"),
        (streamed("", "a", 1), Code::InvalidArgument, "stream"),
        (request(&"i".repeat(300), &[text("text_input", "a")]), Code::InvalidArgument, "id"),
    ];
    for (request, code, field) in cases {
        let status = client(&server).model_infer(request).await.unwrap_err();
        assert_eq!(status.code(), code, "{status:?}");
        assert_eq!(status.get_error_details().bad_request().unwrap().field_violations[0].field, field);
        assert!(status.message().starts_with(field), "{}", status.message());
    }
    let unknown = ModelInferRequest { model_name: "nobody".into(), ..request("", &[text("text_input", "a")]) };
    let status = client(&server).model_infer(unknown).await.unwrap_err();
    assert_eq!((status.code(), reason(&status).as_str()), (Code::NotFound, "UNKNOWN_MODEL"));
    let version = ModelInferRequest { model_version: "2".into(), ..request("", &[text("text_input", "a")]) };
    assert!(client(&server).model_infer(version).await.unwrap_err().message().starts_with("model_version: expected "));
    server.at_rest().await;
}

/// A request without a name is for the model that continues text.
#[tokio::test]
async fn the_only_model_that_continues_text_needs_no_name() {
    let reader = DocumentModel::new();
    let models = [Fake::new("fake", Kind::Pooled) as Arc<dyn Model>, Arc::clone(&reader) as Arc<dyn Model>];
    let engines = models.map(|model| Handle::start(model, Limits::default()).unwrap());
    let engines = Engines::new(engines.to_vec()).unwrap();
    let running = Running::offering(engines, TransportConfig::default()).await;
    let mut client = Client::new(running.channel.clone());
    let asked = request("", &[text("text_input", "a")]);
    assert_eq!(client.model_infer(asked.clone()).await.unwrap().into_inner().model_name, "fake");
    let (mut first, mut streamed) = (asked.clone(), asked);
    first.model_name = "nobody".into();
    first.inputs[0].shape = vec![2];
    streamed.id = "second".into();
    let mut answers = client.model_stream_infer(tokio_stream::iter([first, streamed])).await.unwrap().into_inner();
    for _ in 0..2 {
        let answer = answers.message().await.unwrap().unwrap();
        match answer.infer_response {
            Some(response) if response.id == "second" => assert_eq!(response.model_name, "fake"),
            // An unknown model is reported before a wrong shape.
            _ => assert!(answer.error_message.contains("model: expected one of "), "{}", answer.error_message),
        }
    }
    reader.release();
}

#[tokio::test]
async fn keys_and_request_ids_work_as_in_all_calls() {
    let keys = Keys::parse("alice:a-key-that-alice-has").unwrap();
    let access = Access::from(Credentials { keys: Some(keys), ..Credentials::default() });
    let config = TransportConfig { access, ..TransportConfig::default() };
    let server = Server::with(Limits::default(), config, &[("fake", Kind::Pooled)]).await;
    let mut client = client(&server);
    assert!(client.server_live(oip::ServerLiveRequest {}).await.unwrap().into_inner().live, "probes have no key");
    assert!(client.server_ready(oip::ServerReadyRequest {}).await.unwrap().into_inner().ready);
    let infer_request = || request("", &[text("text_input", "a")]);
    assert_eq!(client.model_infer(infer_request()).await.unwrap_err().code(), Code::Unauthenticated);
    let index = client.repository_index(oip::RepositoryIndexRequest::default()).await.unwrap_err();
    assert_eq!(index.code(), Code::Unauthenticated);
    let empty = tokio_stream::iter(Vec::<ModelInferRequest>::new());
    assert_eq!(client.model_stream_infer(empty).await.unwrap_err().code(), Code::Unauthenticated);
    let mut with = Request::new(infer_request());
    with.metadata_mut().insert("authorization", "Bearer a-key-that-alice-has".parse().unwrap());
    with.metadata_mut().insert("x-request-id", "mine".parse().unwrap());
    let answer = client.model_infer(with).await.unwrap();
    assert_eq!(answer.metadata().get("x-request-id").unwrap(), "mine");
    let mut with = Request::new(tokio_stream::iter(vec![infer_request(), infer_request()]));
    with.metadata_mut().insert("authorization", "Bearer a-key-that-alice-has".parse().unwrap());
    let mut answers = client.model_stream_infer(with).await.unwrap().into_inner();
    for _ in 0..2 {
        assert!(is_last(&next(&mut answers).await));
    }
    server.at_rest().await;
}

/// Each list is refused by its length, before its elements are copied or parsed.
#[tokio::test]
async fn oversized_lists_are_refused() {
    let server = Server::new().await;
    let valid = || request("", &[text("text_input", "a")]);
    let text_parameter = |text: String| oip::InferParameter {
        parameter_choice: Some(oip::infer_parameter::ParameterChoice::StringParam(text)),
    };
    let output = InferRequestedOutputTensor { name: "text_output".into(), ..Default::default() };
    let outputs = ModelInferRequest { outputs: vec![output; 1000], ..valid() };
    let names = (0..1000).map(|name| (name.to_string(), text_parameter(String::new())));
    let parameters = ModelInferRequest { parameters: names.collect(), ..valid() };
    let long = [("stop".to_owned(), text_parameter("[".repeat(1 << 20)))].into();
    let long_parameter = ModelInferRequest { parameters: long, ..valid() };
    let lists = format!("{{\"x\": [{}[]]}}", "[],".repeat(300_000));
    let tensor = request("", &[text("text_input", "a"), text("sampling_parameters", &lists)]);
    for (request, start) in [
        (outputs, "outputs: expected at most 6, found 1000"),
        (parameters, "parameters: expected at most 64, found 1000"),
        (long_parameter, "parameters: expected at most "),
        (tensor, "sampling_parameters: expected at most "),
    ] {
        let status = client(&server).model_infer(request).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().starts_with(start), "{status}");
    }
    server.at_rest().await;
}
