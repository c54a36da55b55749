//! Models that candle runs, behind all protocols: the Open Inference Protocol, deadlines, cancellation, memory, drain, usage, and the
//! playground's list of models.

use super::{
    GeneratedResponse, Running, eventually,
    http::{Reply, exchange},
    open_inference::{self as inference, streams::next},
    read, reason,
};
use crate::{hugging_face, support::settings};
use serde_json::{Value, json};
use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::net::TcpListener;
use tokio_stream::{StreamExt, wrappers::ReceiverStream};
use tonic::{Code, Request, Status};
use weir::{
    config::TransportConfig,
    decode::contract::Model,
    engine::{Handle, Limits},
    family::load::{Settings, load},
    serve::{Engines, ServerParts},
};
use weir_proto::{
    inference::{ModelConfigRequest, ModelInferRequest, grpc_inference_service_client::GrpcInferenceServiceClient},
    v1::{self, GenerateRequest, generate_response::Event, generation_client::GenerationClient},
};

/// A model with keys and values, and one with a recurrent state.
pub(super) const MODELS: [&str; 2] = ["llama", "mamba"];
pub(super) const PROMPT: &str = "The town was founded by settlers from the north. ";
/// Tokens of an answer that takes many seconds.
pub(super) const ENDLESS: u32 = 8000;

/// A server of one golden checkpoint, with gRPC and HTTP ports.
pub(super) struct Served {
    model: Arc<dyn Model>,
    pub(super) engine: Handle,
    running: Running,
    port: SocketAddr,
}

impl Served {
    /// Starts a server whose segment cache is empty, so that all memory is that of requests.
    async fn new(model_type: &str) -> Self {
        let limits = Limits { cache_bytes: 0, ..Limits::default() };
        Self::with(model_type, settings(), limits, TransportConfig::default()).await
    }

    /// Starts a server. Models of 256 positions get more.
    pub(super) async fn with(model_type: &str, settings: Settings, limits: Limits, config: TransportConfig) -> Self {
        let folder = hugging_face::copied(model_type);
        if model_type == "llama" {
            let key = "\"max_position_embeddings\": ";
            hugging_face::edit(&folder.path().join("config.json"), &format!("{key}256"), &format!("{key}16384"));
        }
        let model = load(folder.path(), &settings).unwrap();
        let engine = Handle::start(Arc::clone(&model), limits).unwrap();
        let http = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = http.local_addr().unwrap();
        let parts = ServerParts { http: Some(http.into()), ..Engines::new(vec![engine.clone()]).unwrap().into() };
        let running = Running::offering(parts, config).await;
        Self { model, engine, running, port }
    }

    pub(super) fn generation(&self) -> GenerationClient<tonic::transport::Channel> {
        GenerationClient::new(self.running.channel.clone())
    }

    fn inference(&self) -> GrpcInferenceServiceClient<tonic::transport::Channel> {
        GrpcInferenceServiceClient::new(self.running.channel.clone())
    }

    async fn answer(&self, request: GenerateRequest) -> Result<GeneratedResponse, Status> {
        read(self.generation().generate(request).await?.into_inner()).await
    }

    async fn post(&self, body: &Value) -> Reply {
        exchange(self.port, "POST", "/v1/completions", &[], &body.to_string()).await
    }

    /// Waits until no request is queued or running, and the model's memory is free.
    pub(super) async fn at_rest(&self) {
        eventually("rows and memory are free", || {
            let load = self.engine.load();
            (load.queued, load.running, load.bytes, self.model.memory().in_use) == (0, 0, 0, 0)
        })
        .await;
    }
}

/// Returns a greedy request for `tokens` tokens, which no end mark stops.
pub(super) fn request(prompt: &str, tokens: u32) -> GenerateRequest {
    GenerateRequest {
        prompt: prompt.into(),
        sampling: Some(v1::Sampling { temperature: Some(0.0), ..Default::default() }),
        stopping: Some(v1::Stopping { max_chars: Some(tokens), ignore_eos: Some(true), ..Default::default() }),
        ..Default::default()
    }
}

/// Returns the same request for the Open Inference Protocol.
fn infer_request(prompt: &str, tokens: u32, streamed: bool) -> ModelInferRequest {
    let sampling = format!(r#"{{"max_tokens": {tokens}, "temperature": 0, "ignore_eos": true}}"#);
    let mut inputs = vec![
        inference::text("text_input", prompt),
        inference::text("sampling_parameters", &sampling),
        inference::flag("exclude_input_in_output", true),
    ];
    if streamed {
        inputs.push(inference::flag("stream", true));
    }
    let outputs = ["text_output", "finish_reason", "num_input_tokens", "num_output_tokens"];
    let wanted = |name: &str| weir_proto::inference::model_infer_request::InferRequestedOutputTensor {
        name: name.into(),
        ..Default::default()
    };
    ModelInferRequest { outputs: outputs.map(wanted).to_vec(), ..inference::request("a", &inputs) }
}

#[tokio::test]
async fn the_open_inference_protocol_writes_the_same_text() {
    for model_type in hugging_face::MODEL_TYPES {
        let server = Served::new(model_type).await;
        let expected = server.answer(request(PROMPT, 40)).await.unwrap();
        let tokens = expected.started.prompt_chars as u32;
        let mut client = server.inference();
        let query = ModelConfigRequest { name: server.model.card().name.clone(), ..Default::default() };
        let config = client.model_config(query).await.unwrap().into_inner().config.unwrap();
        assert_eq!(config.parameters["token"].string_value, "piece", "{model_type}");
        let answer = client.model_infer(infer_request(PROMPT, 40, false)).await.unwrap().into_inner();
        assert_eq!(inference::words(&answer, "text_output"), expected.text(), "{model_type}");
        assert_eq!(inference::words(&answer, "finish_reason"), "length");
        let counts = ["num_input_tokens", "num_output_tokens"].map(|name| inference::count(&answer, name));
        assert_eq!(counts, [tokens, 40], "{model_type}");
        let (send, requests) = tokio::sync::mpsc::channel(1);
        let mut answers = client.model_stream_infer(ReceiverStream::new(requests)).await.unwrap().into_inner();
        send.send(infer_request(PROMPT, 40, true)).await.unwrap();
        let mut text = String::new();
        let mut generated = 0;
        let mut messages = 0;
        loop {
            let message = next(&mut answers).await;
            text += &inference::words(&message, "text_output");
            generated += inference::count(&message, "num_output_tokens");
            messages += 1;
            if inference::is_last(&message) {
                break;
            }
        }
        assert_eq!((text, generated), (expected.text(), 40), "{model_type}");
        assert!(messages > 1, "{model_type}: all text came at once");
        server.at_rest().await;
    }
}

#[tokio::test]
async fn a_deadline_ends_a_request_and_frees_its_memory() {
    for model_type in MODELS {
        let server = Served::new(model_type).await;
        let mut request = Request::new(request(PROMPT, ENDLESS));
        request.set_timeout(Duration::from_millis(300));
        let mut stream = server.generation().generate(request).await.unwrap().into_inner();
        let mut text = String::new();
        let status = loop {
            match stream.next().await.expect("a status ends it") {
                Ok(message) => match message.event {
                    Some(Event::Piece(piece)) => text += &piece.text,
                    Some(Event::Finished(_)) => panic!("{model_type}: it ended before its deadline"),
                    _ => {}
                },
                Err(status) => break status,
            }
        };
        assert_eq!((status.code(), reason(&status).as_str()), (Code::DeadlineExceeded, "DEADLINE"));
        assert!(!text.is_empty(), "{model_type}: text before the deadline is sent");
        server.at_rest().await;
    }
}

#[tokio::test]
async fn a_cancelled_request_frees_its_row_and_memory() {
    for model_type in MODELS {
        let server = Served::new(model_type).await;
        let mut stream = server.generation().generate(request(PROMPT, ENDLESS)).await.unwrap().into_inner();
        for _ in 0..3 {
            stream.next().await.unwrap().unwrap();
        }
        assert!(server.engine.load().running == 1 && server.model.memory().in_use > 0);
        drop(stream);
        server.at_rest().await;
        // So does a client of the other protocols that leaves.
        let (send, requests) = tokio::sync::mpsc::channel(1);
        let answers = server.inference().model_stream_infer(ReceiverStream::new(requests)).await.unwrap();
        let mut answers = answers.into_inner();
        send.send(infer_request(PROMPT, ENDLESS, true)).await.unwrap();
        next(&mut answers).await;
        assert_eq!(server.engine.load().running, 1, "{model_type}");
        drop((send, answers));
        server.at_rest().await;
    }
}

/// Without enough memory for all requests at once, some are preempted; their texts do not change. A request that never fits is
/// refused.
#[tokio::test]
async fn memory_is_limited() {
    for model_type in MODELS {
        let free = Served::new(model_type).await;
        let bytes = free.model.bytes_for(260) + free.model.bytes_for(64) / 2;
        let limits = Limits { rows: 4, cache_bytes: 0, ..Limits::default() };
        let tight = Settings { memory_bytes: bytes, ..settings() };
        let server = Served::with(model_type, tight, limits, TransportConfig::default()).await;
        let prompts: Vec<String> = (0..4).map(|number| PROMPT[number * 3..].repeat(2)).collect();
        let mut calls = Vec::new();
        for prompt in &prompts {
            calls.push(server.generation().generate(request(prompt, 100)).await.unwrap().into_inner());
        }
        for (prompt, call) in prompts.iter().zip(calls) {
            let alone = free.answer(request(prompt, 100)).await.unwrap();
            let answer = read(call).await.unwrap();
            assert_eq!(answer.text(), alone.text(), "{model_type}");
            assert_eq!(answer.finished.usage.unwrap().generated_chars, 100);
        }
        server.at_rest().await;
        if model_type == "llama" {
            assert!(server.engine.counters().preemptions > 0, "memory did not run out");
            let status = server.answer(request(&PROMPT.repeat(40), 10)).await.unwrap_err();
            assert_eq!(reason(&status), "NEVER_FITS", "{status:?}");
        }
        assert!(server.model.memory().limit <= bytes);
    }
}

#[tokio::test]
async fn streams_finish_while_the_server_drains() {
    for model_type in MODELS {
        let mut server = Served::new(model_type).await;
        let mut stream = server.generation().generate(request(PROMPT, 400)).await.unwrap().into_inner();
        stream.next().await.unwrap().unwrap();
        server.running.shut_down();
        while server.generation().generate(request(PROMPT, 1)).await.is_ok() {}
        let mut last = None;
        while let Some(message) = stream.next().await {
            last = message.unwrap().event;
        }
        let Some(Event::Finished(finished)) = last else { panic!("cut off: {last:?}") };
        assert_eq!(finished.usage.unwrap().generated_chars, 400);
        tokio::time::timeout(Duration::from_secs(10), &mut server.running.task).await.unwrap().unwrap().unwrap();
        server.at_rest().await;
    }
}

/// A stream that outlasts the drain gets a status.
#[tokio::test]
async fn a_drain_has_a_limit() {
    let config = TransportConfig { drain: Duration::from_millis(100), ..TransportConfig::default() };
    let limits = Limits { cache_bytes: 0, ..Limits::default() };
    let mut server = Served::with("llama", settings(), limits, config).await;
    let mut stream = server.generation().generate(request(PROMPT, ENDLESS)).await.unwrap().into_inner();
    stream.next().await.unwrap().unwrap();
    let started = Instant::now();
    server.running.shut_down();
    let status = loop {
        if let Err(status) = stream.next().await.expect("a status ends it") {
            break status;
        }
    };
    assert_eq!((status.code(), reason(&status).as_str()), (Code::Unavailable, "DRAINING"));
    assert!(started.elapsed() < Duration::from_secs(10));
    tokio::time::timeout(Duration::from_secs(10), &mut server.running.task).await.unwrap().unwrap().unwrap();
    server.at_rest().await;
}

/// The playground's page fetches `/v1/models` and streams `/v1/completions`.
#[tokio::test]
async fn the_playground_lists_a_model_and_streams_it() {
    let server = Served::new("gemma2").await;
    let page = exchange(server.port, "GET", "/", &[], "").await;
    assert!(page.0 == 200 && page.body().contains("model-a"), "{}", page.0);
    let listed = exchange(server.port, "GET", "/v1/models", &[], "").await.json();
    let model = &listed["data"][0];
    let name = &server.model.card().name;
    assert_eq!(model["id"], json!(name));
    assert_eq!((&model["token"], &model["family"]), (&json!("piece"), &json!("hugging-face")));
    assert_eq!((&model["pooled"], &model["documents"]), (&json!(false), &Value::Null));
    assert!(model["shape"].as_str().unwrap().starts_with("gemma2: "), "{model}");
    let body = json!({
        "model": name, "prompt": PROMPT, "max_tokens": 24, "temperature": 0, "ignore_eos": true, "boundaries": true,
        "logprobs": 1, "stream": true, "stream_options": { "include_usage": true },
    });
    let events = server.post(&body).await.events();
    let text: String = events.iter().filter_map(|event| event["choices"][0]["text"].as_str()).collect();
    assert_eq!(text, server.answer(request(PROMPT, 24)).await.unwrap().text());
    let tokens: usize =
        events.iter().filter_map(|event| event["choices"][0]["logprobs"]["tokens"].as_array()).map(Vec::len).sum();
    assert_eq!(tokens, 24);
}

/// gRPC and OpenAI's API count the same tokens and characters, in whole answers and in streams.
#[tokio::test]
async fn usage_counts_tokens_and_characters() {
    let server = Served::new("qwen2").await;
    let prompt = "Zürich's café – naïve";
    let expected = server.answer(request(prompt, 30)).await.unwrap();
    let usage = expected.finished.usage.unwrap();
    assert_eq!(expected.started.prompt_text_chars(), prompt.chars().count() as u64);
    assert_eq!(usage.prompt_text_chars(), prompt.chars().count() as u64);
    assert_eq!(usage.generated_text_chars(), expected.text().chars().count() as u64);
    assert!(usage.prompt_chars != usage.prompt_text_chars() && usage.generated_chars == 30);
    let counts = |usage: &Value| {
        let keys = ["prompt_tokens", "completion_tokens", "prompt_text_chars", "completion_text_chars"];
        keys.map(|key| usage[key].as_u64().unwrap_or_else(|| panic!("{key}: {usage}")))
    };
    let once = [usage.prompt_chars, 30, usage.prompt_text_chars(), usage.generated_text_chars()];
    let mut body = json!({ "prompt": prompt, "max_tokens": 30, "temperature": 0, "ignore_eos": true });
    assert_eq!(counts(&server.post(&body).await.json()["usage"]), once);
    // A prompt counts once, however many choices it has.
    body["n"] = json!(2);
    assert_eq!(counts(&server.post(&body).await.json()["usage"]), [once[0], 60, once[2], 2 * once[3]]);
    body["n"] = json!(1);
    body["stream"] = json!(true);
    body["stream_options"] = json!({ "include_usage": true, "continuous_usage_stats": true });
    let events = server.post(&body).await.events();
    let mut chars = 0;
    for event in &events {
        chars += event["choices"][0]["text"].as_str().unwrap_or_default().chars().count() as u64;
        let [prompt_tokens, _, prompt_text_chars, completion_text_chars] = counts(&event["usage"]);
        assert_eq!([prompt_tokens, prompt_text_chars, completion_text_chars], [once[0], once[2], chars], "{event}");
    }
    assert_eq!(counts(&events.last().unwrap()["usage"]), once);
}
