//! `ModelStreamInfer`: concurrent requests on one stream, their errors, limits and end.

use super::{
    super::{Server, eventually, fake_model::Kind, long},
    RawCodec, client, count, flag, is_last, request, streamed, text, words,
};
use prost::Message;
use std::{collections::HashMap, time::Duration};
use tokio::sync::mpsc;
use tokio_stream::{StreamExt, wrappers::ReceiverStream};
use tonic::{Code, Request, Streaming, codegen::http::uri::PathAndQuery};
use weir::{config::TransportConfig, engine::Limits};
use weir_proto::inference::{
    self as oip, InferParameter, ModelInferRequest, ModelInferResponse, ModelStreamInferResponse,
    infer_parameter::ParameterChoice, model_infer_request::InferRequestedOutputTensor,
};

/// Opens a stream, which stays open until its sender is dropped.
async fn stream(server: &Server) -> (mpsc::Sender<ModelInferRequest>, Streaming<ModelStreamInferResponse>) {
    let (send, requests) = mpsc::channel(16);
    let answers = client(server).model_stream_infer(ReceiverStream::new(requests)).await.unwrap();
    (send, answers.into_inner())
}

/// Returns the next message, which must not be an error.
pub(in super::super) async fn next(answers: &mut Streaming<ModelStreamInferResponse>) -> ModelInferResponse {
    let message = answers.next().await.unwrap().unwrap();
    assert_eq!(message.error_message, "");
    message.infer_response.unwrap()
}

/// Sends one request on its own stream and returns all responses.
async fn all(server: &Server, request: ModelInferRequest) -> Vec<ModelInferResponse> {
    let (send, mut answers) = stream(server).await;
    send.send(request).await.unwrap();
    drop(send);
    let mut responses = Vec::new();
    while let Some(message) = answers.next().await {
        let message = message.unwrap();
        assert_eq!(message.error_message, "");
        responses.push(message.infer_response.unwrap());
    }
    responses
}

/// Triton's clients send the largest number for no limit.
#[tokio::test]
async fn any_timeout_is_accepted() {
    let server = Server::new().await;
    for timeout in [1 << 62, u64::MAX] {
        let mut request = streamed("a", "ab c", 9);
        let timeout = InferParameter { parameter_choice: Some(ParameterChoice::Uint64Param(timeout)) };
        request.parameters.insert("timeout".into(), timeout);
        let text: String = all(&server, request).await.iter().map(|response| words(response, "text_output")).collect();
        assert_eq!(text.chars().count(), 9);
    }
}

#[tokio::test]
async fn a_stream_sends_text_incrementally() {
    let server = Server::new().await;
    let full_text = server.answer(long("ab c", 1000)).await.unwrap().text();
    let mut infer_request = streamed("a", "ab c", 1000);
    infer_request.outputs = ["text_output", "num_output_tokens", "finish_reason"]
        .map(|name| InferRequestedOutputTensor { name: name.into(), ..Default::default() })
        .to_vec();
    let responses = all(&server, infer_request.clone()).await;
    assert!(responses.len() > 2, "all text came at once");
    assert_eq!(responses.iter().map(|response| words(response, "text_output")).collect::<String>(), full_text);
    assert_eq!(responses.iter().map(|response| count(response, "num_output_tokens")).sum::<u32>(), 1000);
    let (last, before) = responses.split_last().unwrap();
    assert!(
        before
            .iter()
            .all(|response| { !is_last(response) && words(response, "finish_reason") == "None" && response.id == "a" })
    );
    assert!(is_last(last) && words(last, "finish_reason") == "length");
    // the end as a separate message
    let wanted = oip::InferParameter { parameter_choice: Some(ParameterChoice::BoolParam(true)) };
    infer_request.parameters.insert("triton_enable_empty_final_response".into(), wanted);
    let responses = all(&server, infer_request.clone()).await;
    let (last, before) = responses.split_last().unwrap();
    assert!(is_last(last) && last.outputs.is_empty() && last.id == "a");
    assert!(before.iter().all(|response| !is_last(response)));
    assert_eq!(before.iter().map(|response| words(response, "text_output")).collect::<String>(), full_text);
    // a complete answer on a stream
    let responses = all(&server, request("b", &[text("text_input", "ab c")])).await;
    assert!(responses.len() == 1 && is_last(&responses[0]) && words(&responses[0], "text_output").starts_with("ab c"));
    server.at_rest().await;
}

#[tokio::test]
async fn requests_of_one_stream_run_concurrently() {
    let server = Server::new().await;
    let mut full_text = HashMap::new();
    for prompt in ["a", "b", "c"] {
        full_text.insert(prompt, server.answer(long(prompt, 600)).await.unwrap().text());
    }
    server.model.slow(Duration::from_millis(2));
    let (send, mut answers) = stream(&server).await;
    for name in ["a", "b", "c"] {
        send.send(streamed(name, name, 600)).await.unwrap();
    }
    let mut texts = HashMap::<String, String>::new();
    let mut order = Vec::new();
    let mut ended = 0;
    while ended < 3 {
        let message = next(&mut answers).await;
        texts.entry(message.id.clone()).or_default().push_str(&words(&message, "text_output"));
        ended += usize::from(is_last(&message));
        order.push(message.id);
    }
    let turns = order.windows(2).filter(|pair| pair[0] != pair[1]).count();
    assert!(turns > 10, "one after the other: {order:?}");
    for (name, text) in full_text {
        assert_eq!(texts[name], text, "{name}");
    }
    drop(send);
    assert!(answers.next().await.is_none());
    server.at_rest().await;
}

#[tokio::test]
async fn errors_are_sent_within_the_stream() {
    let server = Server::new().await;
    let (send, mut answers) = stream(&server).await;
    let no_such = ModelInferRequest { model_name: "nobody".into(), ..streamed("", "a", 1) };
    let mut shaped = streamed("", "a", 1);
    shaped.inputs[0].shape = vec![2, 1];
    let mut typed = streamed("", "a", 1);
    typed.inputs[0].datatype = "FP32".into();
    let mut listed = streamed("", "a", 1);
    listed.outputs = vec![InferRequestedOutputTensor { name: "logits".into(), ..Default::default() }];
    let sampled = |text_of: &str| {
        request("", &[text("text_input", "a"), flag("stream", true), text("sampling_parameters", text_of)])
    };
    let cases = [
        (no_such, "NOT_FOUND", "model: expected one of "),
        (shaped, "INVALID_ARGUMENT", "text_input: expected the shape [1] or [1, 1], found [2, 1]"),
        (typed, "INVALID_ARGUMENT", "text_input: expected the datatype BYTES, found \"FP32\""),
        (listed, "INVALID_ARGUMENT", "outputs: expected one of text_output"),
        (sampled("{"), "INVALID_ARGUMENT", "sampling_parameters: "),
        (sampled(r#"{"top_p": 3}"#), "INVALID_ARGUMENT", "top_p: expected a number above 0 and at most 1, found 3"),
        (sampled(r#"{"max_tokens": 999999999}"#), "INVALID_ARGUMENT", "max_tokens: expected 0 to "),
        (
            request("", &[text("text_input", "a?")]),
            "INVALID_ARGUMENT",
            "text_input: expected symbols of the model's vocabulary, found '?' at character 1",
        ),
        (request("", &[text("image", "")]), "INVALID_ARGUMENT", "inputs: expected one of text_input"),
        (ModelInferRequest::default(), "INVALID_ARGUMENT", "inputs: expected one named text_input, found none"),
    ];
    let full_text = server.answer(long("a", 20)).await.unwrap().text();
    for (number, (mut bad, code, expected)) in cases.into_iter().enumerate() {
        bad.id = number.to_string();
        send.send(bad).await.unwrap();
        let message = answers.next().await.unwrap().unwrap();
        assert!(message.error_message.starts_with(expected), "{}", message.error_message);
        let answer = message.infer_response.unwrap();
        assert!(is_last(&answer) && answer.id == number.to_string());
        let code = ParameterChoice::StringParam(code.into());
        assert_eq!(answer.parameters["code"].parameter_choice, Some(code), "{expected}");
        // the stream continues
        send.send(streamed("good", "a", 20)).await.unwrap();
        let mut text = String::new();
        loop {
            let message = next(&mut answers).await;
            text += &words(&message, "text_output");
            if is_last(&message) {
                break;
            }
        }
        assert_eq!(text, full_text);
    }
    server.at_rest().await;
}

#[tokio::test]
async fn garbage_between_requests_does_not_end_the_stream() {
    let server = Server::new().await;
    let full_text = server.answer(long("a", 400)).await.unwrap().text();
    let mut messages = Vec::new();
    for round in 0..3_u8 {
        messages.push(streamed(&format!("good {round}"), "a", 400).encode_to_vec());
        messages.push(vec![0xff; 1 + usize::from(round) * 100]);
        messages.push(b"GET / HTTP/1.1\r\n\r\n".to_vec());
    }
    let mut raw = tonic::client::Grpc::new(server.channel.clone());
    raw.ready().await.unwrap();
    let path = PathAndQuery::from_static("/inference.GRPCInferenceService/ModelStreamInfer");
    let requests = Request::new(tokio_stream::iter(messages));
    let mut answers = raw.streaming(requests, path, RawCodec).await.unwrap().into_inner();
    let mut refused = 0;
    let mut texts = HashMap::<String, String>::new();
    while let Some(message) = answers.next().await {
        let message = message.unwrap();
        if message.error_message.is_empty() {
            let answer = message.infer_response.unwrap();
            texts.entry(answer.id.clone()).or_default().push_str(&words(&answer, "text_output"));
        } else {
            // the same error as for a single request
            assert!(
                message.error_message.starts_with("failed to decode Protobuf message: "),
                "{}",
                message.error_message
            );
            refused += 1;
        }
    }
    assert_eq!((refused, texts.len()), (6, 3));
    assert!(texts.values().all(|text| *text == full_text));
    server.at_rest().await;
}

#[tokio::test]
async fn a_closed_stream_frees_all_rows() {
    let server = Server::new().await;
    let (send, answers) = stream(&server).await;
    server.model.hold();
    for name in ["a", "b", "c"] {
        send.send(streamed(name, name, 1900)).await.unwrap();
    }
    eventually("all requests are admitted", || {
        let load = server.engine.load();
        load.queued + load.running == 3
    })
    .await;
    drop((send, answers));
    server.model.release();
    server.at_rest().await;
}

#[tokio::test]
async fn a_request_of_a_stream_has_its_own_timeout() {
    let server = Server::new().await;
    server.model.slow(Duration::from_millis(2));
    let (send, mut answers) = stream(&server).await;
    let mut short = streamed("short", "a", 1900);
    let timeout = oip::InferParameter { parameter_choice: Some(ParameterChoice::Int64Param(50_000)) };
    short.parameters.insert("timeout".into(), timeout);
    send.send(short).await.unwrap();
    send.send(streamed("other", "a", 200)).await.unwrap();
    let mut failed = None;
    let mut ended = false;
    while failed.is_none() || !ended {
        let message = answers.next().await.unwrap().unwrap();
        let answer = message.infer_response.unwrap();
        if message.error_message.is_empty() {
            ended |= answer.id == "other" && is_last(&answer);
        } else {
            failed = Some((answer.id.clone(), answer.parameters["code"].parameter_choice.clone().unwrap()));
        }
    }
    assert_eq!(failed.unwrap(), ("short".into(), ParameterChoice::StringParam("DEADLINE_EXCEEDED".into())));
    server.at_rest().await;
}

#[tokio::test]
async fn a_stream_limits_its_concurrent_requests() {
    let config = TransportConfig { concurrent_streams: 2, ..TransportConfig::default() };
    let server = Server::with(Limits::default(), config, &[("fake", Kind::Pooled)]).await;
    let (send, mut answers) = stream(&server).await;
    server.model.hold();
    for name in 0..8 {
        send.send(streamed(&name.to_string(), "a", 20)).await.unwrap();
    }
    eventually("two requests are admitted", || {
        let load = server.engine.load();
        load.queued + load.running == 2
    })
    .await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    let load = server.engine.load();
    assert_eq!(load.queued + load.running, 2);
    server.model.release();
    let mut ended = 0;
    while ended < 8 {
        ended += usize::from(is_last(&next(&mut answers).await));
    }
    server.at_rest().await;
}

#[tokio::test]
async fn an_idle_stream_does_not_time_out() {
    let config = TransportConfig { upload: Duration::from_millis(200), ..TransportConfig::default() };
    let server = Server::with(Limits::default(), config, &[("fake", Kind::Pooled)]).await;
    let (send, mut answers) = stream(&server).await;
    for _ in 0..3 {
        send.send(streamed("a", "a", 5)).await.unwrap();
        while !is_last(&next(&mut answers).await) {}
        // longer than the upload timeout
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    drop(send);
    assert!(answers.next().await.is_none());
}

#[tokio::test]
async fn an_open_stream_does_not_delay_the_shutdown() {
    let mut server = Server::new().await;
    let full_text = server.answer(long("a", 30)).await.unwrap().text();
    let (send, mut answers) = stream(&server).await;
    server.model.hold();
    send.send(streamed("a", "a", 30)).await.unwrap();
    eventually("the request runs", || server.engine.load().running == 1).await;
    server.running.shut_down();
    server.model.release();
    let mut streamed = String::new();
    loop {
        let message = next(&mut answers).await;
        streamed += &words(&message, "text_output");
        if is_last(&message) {
            break;
        }
    }
    assert_eq!(streamed, full_text);
    assert_eq!(answers.next().await.unwrap().unwrap_err().code(), Code::Unavailable);
    tokio::time::timeout(Duration::from_secs(20), &mut server.running.task).await.unwrap().unwrap().unwrap();
    drop(send);
}

/// The server reads no more requests of a stream than it answers at a time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_is_not_read_leaves_room_for_other_calls() {
    let server = Server::new().await;
    server.model.hold();
    let (send, _answers) = stream(&server).await;
    let prompt = "a ".repeat(900);
    let sending = tokio::spawn(async move { while send.send(streamed("a", &prompt, 9)).await.is_ok() {} });
    eventually("requests run", || server.engine.load().running > 0).await;
    // by now the client has filled the stream's window
    tokio::time::sleep(Duration::from_millis(300)).await;
    let mut other = client(&server);
    let live = other.server_live(oip::ServerLiveRequest {});
    let live = tokio::time::timeout(Duration::from_secs(20), live).await.expect("the connection is blocked");
    assert!(live.unwrap().into_inner().live);
    sending.abort();
    server.model.release();
}
