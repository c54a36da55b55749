//! The Open Inference Protocol, compared with weir's own API.

use super::*;
use tonic::{
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    codegen::http::uri::PathAndQuery,
};
use weir_proto::inference as oip;

/// Returns a request with raw inputs: name, datatype and bytes.
pub(super) fn request(id: &str, inputs: &[(&str, &str, Vec<u8>)]) -> ModelInferRequest {
    let tensor = |(name, datatype, _): &(&str, &str, Vec<u8>)| InferInputTensor {
        name: (*name).into(),
        datatype: (*datatype).into(),
        shape: vec![1],
        ..Default::default()
    };
    ModelInferRequest {
        id: id.into(),
        inputs: inputs.iter().map(tensor).collect(),
        raw_input_contents: inputs.iter().map(|(.., raw)| raw.clone()).collect(),
        ..Default::default()
    }
}

/// Returns a request for `tokens` tokens after `prompt`, without raw input contents.
pub(super) fn continuation(prompt: &str, tokens: i64) -> ModelInferRequest {
    let text = oip::InferTensorContents { bytes_contents: vec![prompt.into()], ..Default::default() };
    let tokens = oip::InferParameter { parameter_choice: Some(ParameterChoice::Int64Param(tokens)) };
    let mut request = request("", &[("text_input", "BYTES", Vec::new())]);
    request.raw_input_contents.clear();
    request.inputs[0].contents = Some(text);
    request.parameters = [("max_tokens".to_owned(), tokens)].into();
    request
}

pub(super) fn text(name: &'static str, text: &str) -> (&'static str, &'static str, Vec<u8>) {
    let length = u32::try_from(text.len()).unwrap().to_le_bytes();
    (name, "BYTES", [&length[..], text.as_bytes()].concat())
}

pub(super) fn flag(name: &'static str, value: bool) -> (&'static str, &'static str, Vec<u8>) {
    (name, "BOOL", vec![value.into()])
}

/// Returns a streaming request for `chars` characters.
fn streamed(id: &str, prompt: &str, chars: u32) -> ModelInferRequest {
    let sampling = format!(r#"{{"max_tokens": {chars}, "seed": 1}}"#);
    request(id, &[text("text_input", prompt), flag("stream", true), text("sampling_parameters", &sampling)])
}

fn output<'a>(answer: &'a ModelInferResponse, name: &str) -> Option<&'a [u8]> {
    let index = answer.outputs.iter().position(|output| output.name == name)?;
    assert_eq!(answer.outputs[index].shape, [1]);
    Some(&answer.raw_output_contents[index])
}

pub(super) fn words(answer: &ModelInferResponse, name: &str) -> String {
    let raw = output(answer, name).unwrap_or_else(|| panic!("no {name}"));
    assert_eq!(raw[..4], u32::try_from(raw.len() - 4).unwrap().to_le_bytes());
    String::from_utf8(raw[4..].to_vec()).unwrap()
}

pub(super) fn count(answer: &ModelInferResponse, name: &str) -> u32 {
    u32::from_le_bytes(output(answer, name).unwrap().try_into().unwrap())
}

pub(super) fn is_last(answer: &ModelInferResponse) -> bool {
    match answer.parameters["triton_final_response"].parameter_choice {
        Some(ParameterChoice::BoolParam(last)) => last,
        ref other => panic!("{other:?}"),
    }
}

/// Codec that sends raw bytes.
#[derive(Clone, Copy, Default)]
struct RawCodec;

impl Encoder for RawCodec {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, bytes: Vec<u8>, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        prost::bytes::BufMut::put_slice(into, &bytes);
        Ok(())
    }
}

impl Decoder for RawCodec {
    type Item = ModelStreamInferResponse;
    type Error = Status;

    fn decode(&mut self, bytes: &mut DecodeBuf<'_>) -> Result<Option<Self::Item>, Status> {
        Ok(Some(ModelStreamInferResponse::decode(bytes).unwrap()))
    }
}

impl Codec for RawCodec {
    type Encode = Vec<u8>;
    type Decode = ModelStreamInferResponse;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

#[tokio::test]
async fn statistics_count_request_outcomes() {
    let engines = Engines::default();
    let model = Fake::new("fake", Kind::Pooled);
    let own = engines.clone();
    // a launch blocks until the warm-up ends
    let launched = tokio::task::spawn_blocking(move || own.add(own.launch(model, Limits::default(), None).unwrap()));
    launched.await.unwrap().unwrap();
    let running = Running::offering(engines, TransportConfig::default()).await;
    let mut client = running.inference();
    let mut statistics = async || {
        let response = client.model_statistics(oip::ModelStatisticsRequest::default()).await.unwrap().into_inner();
        let [model] = &response.model_stats[..] else { panic!("{response:?}") };
        model.clone()
    };
    let before = statistics().await;
    assert_eq!((before.inference_count, before.last_inference, before.execution_count), (0, 0, 0));
    let mut generation = running.generation();
    read(generation.generate(prompt("ab")).await.unwrap().into_inner()).await.unwrap();
    let after = statistics().await;
    let stats = after.inference_stats.unwrap();
    let [success, queue, input, infer] =
        [stats.success, stats.queue, stats.compute_input, stats.compute_infer].map(Option::unwrap);
    assert_eq!((after.inference_count, success.count, stats.fail.unwrap().count), (1, 1, 0));
    assert_eq!(success.ns, queue.ns + input.ns + infer.ns);
    assert!(after.execution_count > 0 && after.last_inference > 1_600_000_000_000);
}

#[tokio::test]
async fn an_answer_equals_that_of_the_own_api() {
    let server = Server::new().await;
    let expected = server.answer(long("ab c", 40)).await.unwrap();
    let sampling = text("sampling_parameters", r#"{"max_tokens": "40", "seed": 1}"#);
    let infer_request = request("seven", &[text("text_input", "ab c"), sampling.clone()]);
    let answer = server.inference().model_infer(infer_request).await.unwrap().into_inner();
    assert_eq!((answer.id.as_str(), answer.model_name.as_str(), answer.model_version.as_str()), ("seven", "fake", "1"));
    // by default the text is the only output, and begins with the prompt
    assert_eq!((words(&answer, "text_output"), answer.outputs.len()), (format!("ab c{}", expected.text()), 1));
    assert!(is_last(&answer));
    let returns = ["finish_reason", "cumulative_logprob", "logprobs", "num_input_tokens", "num_output_tokens"];
    let mut inputs = vec![text("text_input", "ab c"), flag("exclude_input_in_output", true), sampling];
    let flags = returns.map(|name| format!("return_{name}"));
    inputs.extend(flags.iter().map(|name| (name.as_str(), "BOOL", vec![1])));
    let answer = server.inference().model_infer(request("", &inputs)).await.unwrap().into_inner();
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
    let answer = server.inference().model_infer(listed).await.unwrap().into_inner();
    assert_eq!((answer.outputs.len(), words(&answer, "finish_reason")), (1, "length".into()));
    for (service, method, calls) in
        [("inference.GRPCInferenceService", "ModelInfer", 3), ("weir.v1.Generation", "Generate", 1)]
    {
        let labels = format!("{{service=\"{service}\",method=\"{method}\",code=\"OK\"}}");
        let expected = format!("weir_grpc_calls_total{labels} {calls}");
        eventually(&expected, || server.metrics().lines().any(|line| line == expected)).await;
    }
    server.at_rest().await;
}

#[tokio::test]
async fn keys_and_request_ids_work_as_in_all_calls() {
    let server = with_keys(Limits::default()).await;
    let mut client = server.inference();
    let infer_request = || request("", &[text("text_input", "a")]);
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

/// Opens a stream, which stays open until its sender is dropped.
async fn stream(server: &Server) -> (mpsc::Sender<ModelInferRequest>, Streaming<ModelStreamInferResponse>) {
    let (send, requests) = mpsc::channel(16);
    let answers = server.inference().model_stream_infer(ReceiverStream::new(requests)).await.unwrap();
    (send, answers.into_inner())
}

/// Returns the next message, which must not be an error.
pub(crate) async fn next(answers: &mut Streaming<ModelStreamInferResponse>) -> ModelInferResponse {
    let message = answers.next().await.unwrap().unwrap();
    assert_eq!(message.error_message, "");
    message.infer_response.unwrap()
}

/// Reads the answer to one request. Returns its text.
async fn text_to_end(answers: &mut Streaming<ModelStreamInferResponse>) -> String {
    let mut text = String::new();
    loop {
        let message = next(answers).await;
        text += &words(&message, "text_output");
        if is_last(&message) {
            return text;
        }
    }
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
    server.model.gate.slow(Duration::from_millis(2));
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
    let full_text = server.answer(long("a", 20)).await.unwrap().text();
    for (id, model, code) in [("unknown", "nobody", "NOT_FOUND"), ("empty", "fake", "INVALID_ARGUMENT")] {
        send.send(ModelInferRequest { model_name: model.into(), id: id.into(), ..Default::default() }).await.unwrap();
        let message = answers.next().await.unwrap().unwrap();
        let answer = message.infer_response.unwrap();
        assert!(is_last(&answer) && answer.id == id && !message.error_message.is_empty(), "{answer:?}");
        let code = ParameterChoice::StringParam(code.into());
        assert_eq!(answer.parameters["code"].parameter_choice, Some(code));
        // the stream continues
        send.send(streamed("good", "a", 20)).await.unwrap();
        assert_eq!(text_to_end(&mut answers).await, full_text);
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
    server.model.gate.hold(0);
    for name in ["a", "b", "c"] {
        send.send(streamed(name, name, 1900)).await.unwrap();
    }
    server.until_taken(3).await;
    drop((send, answers));
    server.model.gate.release();
    server.at_rest().await;
}

#[tokio::test]
async fn a_request_of_a_stream_has_its_own_timeout() {
    let server = Server::new().await;
    server.model.gate.slow(Duration::from_millis(2));
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
    let server = Server::within(config).await;
    let (send, mut answers) = stream(&server).await;
    server.model.gate.hold(0);
    for name in 0..8 {
        send.send(streamed(&name.to_string(), "a", 20)).await.unwrap();
    }
    server.until_taken(2).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    let load = server.engine.load();
    assert_eq!(load.queued + load.running, 2);
    server.model.gate.release();
    let mut ended = 0;
    while ended < 8 {
        ended += usize::from(is_last(&next(&mut answers).await));
    }
    server.at_rest().await;
}

#[tokio::test]
async fn an_idle_stream_does_not_time_out() {
    let config = TransportConfig { upload: Duration::from_millis(200), ..TransportConfig::default() };
    let server = Server::within(config).await;
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
    server.model.gate.hold(0);
    send.send(streamed("a", "a", 30)).await.unwrap();
    server.until_running(1).await;
    server.shut_down();
    server.model.gate.release();
    assert_eq!(text_to_end(&mut answers).await, full_text);
    assert_eq!(answers.next().await.unwrap().unwrap_err().code(), Code::Unavailable);
    server.ended().await;
    drop(send);
}

/// The server reads no more requests of a stream than it answers at a time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_is_not_read_leaves_room_for_other_calls() {
    let server = Server::new().await;
    server.model.gate.hold(0);
    let (send, _answers) = stream(&server).await;
    let prompt = "a ".repeat(900);
    let sending = tokio::spawn(async move { while send.send(streamed("a", &prompt, 9)).await.is_ok() {} });
    eventually("requests run", || server.engine.load().running > 0).await;
    // by now the client has filled the stream's window
    tokio::time::sleep(Duration::from_millis(300)).await;
    let mut other = server.inference();
    let live = other.server_live(oip::ServerLiveRequest {});
    let live = tokio::time::timeout(Duration::from_secs(20), live).await.expect("the connection is blocked");
    assert!(live.unwrap().into_inner().live);
    sending.abort();
    server.model.gate.release();
}
