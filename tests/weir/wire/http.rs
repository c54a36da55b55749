//! Completions and models over HTTP and JSON, compared with gRPC.

use super::{
    GeneratedResponse, eventually,
    fake_model::{Fake, Kind},
    long, plain, read, seeded,
};
use serde_json::{Value, json};
use std::{net::SocketAddr, sync::Arc};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::oneshot,
    task::JoinHandle,
};
use tonic::transport::Channel;
use weir::{
    config::{Access, Credentials, Keys, TransportConfig},
    decode::contract::Model,
    engine::{Handle, Limits},
    error::Result,
    serve::{Engines, ServerParts, run},
};
use weir_proto::v1::{GenerateRequest, generation_client::GenerationClient};

const KEY: &str = "a-key-that-alice-has";

/// A server of one model with gRPC and HTTP ports.
pub(super) struct Both {
    pub(super) model: Arc<Fake>,
    pub(super) engine: Handle,
    engines: Engines,
    pub(super) port: SocketAddr,
    /// Address of the gRPC port.
    pub(super) address: SocketAddr,
    pub(super) channel: Channel,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<Result<()>>,
}

impl Both {
    pub(super) async fn new() -> Self {
        Self::with(Limits::default(), TransportConfig::default()).await
    }

    pub(super) async fn with(limits: Limits, config: TransportConfig) -> Self {
        Self::of(Kind::Pooled, limits, config).await
    }

    pub(super) async fn of(kind: Kind, limits: Limits, config: TransportConfig) -> Self {
        let model = Fake::new("fake", kind);
        let engine = Handle::start(Arc::clone(&model) as Arc<dyn Model>, limits).unwrap();
        let grpc = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let http = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = grpc.local_addr().unwrap();
        let port = http.local_addr().unwrap();
        let engines = Engines::new(vec![engine.clone()]).unwrap();
        let offer = ServerParts { http: Some(http.into()), ..engines.clone().into() };
        let (stop, stopped) = oneshot::channel();
        let shutdown = async {
            let _ = stopped.await;
        };
        let task = tokio::spawn(run(grpc, offer, shutdown, config));
        let channel = plain(address).connect().await.unwrap();
        Self { model, engine, engines, port, address, channel, stop: Some(stop), task }
    }

    pub(super) async fn grpc(&self, request: GenerateRequest) -> GeneratedResponse {
        let mut client = GenerationClient::new(self.channel.clone());
        read(client.generate(request).await.unwrap().into_inner()).await.unwrap()
    }

    pub(super) async fn post(&self, body: &Value) -> Reply {
        exchange(self.port, "POST", "/v1/completions", &[], &body.to_string()).await
    }

    /// Returns the metrics as OpenMetrics text.
    pub(super) fn metrics(&self) -> String {
        self.engines.render_metrics().unwrap()
    }

    pub(super) fn shut_down(&mut self) {
        let _ = self.stop.take().map(|stop| stop.send(()));
    }

    /// Waits until the server has ended.
    pub(super) async fn ended(&mut self) {
        (&mut self.task).await.unwrap().unwrap();
    }

    pub(super) async fn at_rest(&self) {
        eventually("all resources are released", || {
            let load = self.engine.load();
            (load.queued, load.running, load.bytes) == (0, 0, 0)
        })
        .await;
    }
}

impl Drop for Both {
    fn drop(&mut self) {
        self.model.release();
        self.model.release_submissions();
        self.task.abort();
    }
}

/// Status, head and body of a response.
pub(super) struct Reply(pub(super) u16, pub(super) String, String);

impl Reply {
    pub(super) fn body(&self) -> &str {
        &self.2
    }

    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.2).unwrap_or_else(|_| panic!("{} {}", self.0, self.2))
    }

    /// Returns the events of a complete stream except the last, which must be `[DONE]`.
    pub(super) fn events(&self) -> Vec<Value> {
        let mut events = self.all_events();
        assert_eq!(events.pop().as_deref(), Some("[DONE]"));
        events.iter().map(|event| serde_json::from_str(event).unwrap()).collect()
    }

    /// Returns all events of a stream.
    pub(super) fn all_events(&self) -> Vec<String> {
        assert_eq!(self.0, 200, "{}", self.2);
        assert!(self.1.contains("text/event-stream"), "{}", self.1);
        let lines = self.2.split("\n\n").filter(|line| !line.is_empty());
        lines.map(|line| line.strip_prefix("data: ").unwrap().to_owned()).collect()
    }

    /// Returns the status and the error's type and field.
    pub(super) fn refused(&self) -> (u16, String, String) {
        let error = self.json()["error"].clone();
        assert!(!error["message"].as_str().unwrap().is_empty());
        (self.0, error["type"].as_str().unwrap().into(), error["param"].as_str().unwrap_or_default().into())
    }
}

pub(super) async fn connect_and_send(
    port: SocketAddr,
    method: &str,
    path: &str,
    headers: &[&str],
    body: &str,
) -> TcpStream {
    send_request(TcpStream::connect(port).await.unwrap(), method, path, headers, body).await
}

/// Sends a request on a connection. Its body is announced as JSON unless `headers` say otherwise.
pub(super) async fn send_request(
    mut stream: TcpStream,
    method: &str,
    path: &str,
    headers: &[&str],
    body: &str,
) -> TcpStream {
    let mut headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
    for (name, value) in [("host", "x"), ("content-type", "application/json")] {
        if !headers.to_ascii_lowercase().contains(&format!("{name}:")) {
            headers.push_str(&format!("{name}: {value}\r\n"));
        }
    }
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.1\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    // The body is sent even if the server refuses the head.
    stream.write_all(body.as_bytes()).await.unwrap();
    stream
}

pub(super) async fn exchange(port: SocketAddr, method: &str, path: &str, headers: &[&str], body: &str) -> Reply {
    let mut stream = connect_and_send(port, method, path, headers, body).await;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await.unwrap();
    let answer = String::from_utf8(bytes).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let body = if head.contains("transfer-encoding: chunked") { unchunked(body) } else { body.to_owned() };
    Reply(status, head.to_owned(), body)
}

fn unchunked(mut body: &str) -> String {
    let mut complete = String::new();
    while let Some((length, rest)) = body.split_once("\r\n") {
        let length = usize::from_str_radix(length, 16).unwrap();
        complete.push_str(&rest[..length]);
        body = &rest[length + 2..];
        if length == 0 {
            break;
        }
    }
    complete
}

fn text(choice: &Value) -> &str {
    choice["text"].as_str().unwrap()
}

#[tokio::test]
async fn a_completion_equals_the_grpc_answer() {
    let server = Both::new().await;
    let expected = server.grpc(long("ab c", 40)).await;
    let reply = server.post(&json!({ "prompt": "ab c", "max_tokens": 40, "seed": 1, "model": "fake" })).await;
    assert_eq!(reply.0, 200);
    let answer = reply.json();
    let choice = &answer["choices"][0];
    assert_eq!(text(choice), expected.text());
    assert_eq!((&choice["finish_reason"], &choice["logprobs"]), (&json!("length"), &Value::Null));
    assert_eq!((&answer["object"], &answer["model"]), (&json!("text_completion"), &json!("fake")));
    let usage = &answer["usage"];
    assert_eq!((&usage["prompt_tokens"], &usage["completion_tokens"]), (&json!(4), &json!(40)));
    assert_eq!(choice["weir"]["shortening_factor"], json!(expected.finished.usage.unwrap().shortening_factor));
    let name = answer["id"].as_str().unwrap().strip_prefix("cmpl-").unwrap().to_owned();
    assert!(reply.1.contains(&format!("x-request-id: {name}")), "{}", reply.1);
    // The default is 16, as in OpenAI's API.
    assert_eq!(server.post(&json!({ "prompt": "ab c" })).await.json()["usage"]["completion_tokens"], 16);
    server.at_rest().await;
}

#[tokio::test]
async fn a_stream_gives_the_same_text() {
    let server = Both::new().await;
    // The body exceeds one message.
    let body = json!({ "prompt": "ab c", "max_tokens": 1000, "seed": 1, "stream": true });
    let events = server.post(&body).await.events();
    assert!(events.len() > 2, "it came at once");
    let streamed: String = events.iter().map(|event| text(&event["choices"][0])).collect();
    assert_eq!(streamed, server.grpc(long("ab c", 1000)).await.text());

    let complete = server.grpc(long("ab c", 60)).await.text();
    let ask = |more: Value| {
        let mut body = json!({ "prompt": "ab c", "max_tokens": 60, "seed": 1, "stream": true });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let events = server.post(&ask(json!({}))).await.events();
    assert_eq!(events.iter().map(|event| text(&event["choices"][0])).collect::<String>(), complete);
    assert!(events.iter().all(|event| event.get("usage").is_none()));
    let (last, before) = events.split_last().unwrap();
    assert_eq!(last["choices"][0]["finish_reason"], "length");
    assert!(before.iter().all(|event| event["choices"][0]["finish_reason"].is_null()));

    let events = server.post(&ask(json!({ "stream_options": { "include_usage": true } }))).await.events();
    let (last, before) = events.split_last().unwrap();
    assert_eq!((&last["choices"], &last["usage"]["completion_tokens"]), (&json!([]), &json!(60)));
    assert!(before.iter().all(|event| event["usage"].is_null() && event.get("usage").is_some()));

    let options = json!({ "include_usage": true, "continuous_usage_stats": true });
    let events = server.post(&ask(json!({ "stream_options": options }))).await.events();
    let mut characters = 0;
    let mut counted = Vec::new();
    for event in &events[..events.len() - 1] {
        characters += text(&event["choices"][0]).chars().count();
        assert_eq!(event["usage"]["completion_tokens"], characters);
        assert_eq!(event["choices"][0]["logprobs"], Value::Null, "logprobs were not requested");
        counted.push(characters);
    }
    assert!(counted.is_sorted() && characters == 60);
    server.at_rest().await;
}

#[tokio::test]
async fn requested_character_details_are_sent() {
    let server = Both::new().await;
    let body = json!({ "prompt": "ab c", "max_tokens": 9, "seed": 1, "logprobs": 2, "echo": true, "boundaries": true });
    let choice = server.post(&body).await.json()["choices"][0].clone();
    let list = |name: &str| choice["logprobs"][name].as_array().unwrap().clone();
    assert_eq!(list("tokens").len(), 13);
    assert_eq!(list("tokens").iter().map(|token| token.as_str().unwrap()).collect::<String>(), text(&choice));
    assert_eq!(list("text_offset"), (0..13).map(Value::from).collect::<Vec<_>>());
    assert!(list("token_logprobs")[0].is_null() && list("token_logprobs")[1].is_number());
    // The response has the two most likely tokens, and the sampled token if it is not among them.
    let top = list("top_logprobs")[5].clone();
    let sampled_token = list("tokens")[5].clone();
    assert!((2..=3).contains(&top.as_object().unwrap().len()));
    assert_eq!(top[sampled_token.as_str().unwrap()], list("token_logprobs")[5]);
    assert_eq!(list("boundaries")[..3], [json!(false), json!(false), json!(true)]);
    let mut streamed = body.clone();
    streamed["stream"] = true.into();
    let times: Vec<_> =
        server.post(&streamed).await.events().iter().map(|event| event["elapsed_ns"].as_u64().unwrap()).collect();
    assert!(times.is_sorted() && times[0] > 0);
    server.at_rest().await;
}

#[tokio::test]
async fn several_choices_equal_separate_requests() {
    let server = Both::new().await;
    let body = json!({ "prompt": ["ab", "c d"], "n": 2, "seed": 5, "max_tokens": 16 });
    let answer = server.post(&body).await.json();
    let choices = answer["choices"].as_array().unwrap();
    for (index, (prompt, seed)) in [("ab", 5), ("ab", 6), ("c d", 5), ("c d", 6)].into_iter().enumerate() {
        let mut alone = long(prompt, 16);
        alone.sampling = seeded("", seed).sampling;
        assert_eq!(
            (text(&choices[index]), &choices[index]["index"]),
            (&*server.grpc(alone).await.text(), &json!(index))
        );
    }
    assert_eq!((&answer["usage"]["prompt_tokens"], &answer["usage"]["completion_tokens"]), (&json!(5), &json!(64)));
    let mut streamed = body.clone();
    streamed["stream"] = true.into();
    let events = server.post(&streamed).await.events();
    for (index, choice) in choices.iter().enumerate() {
        let own = events.iter().map(|event| &event["choices"][0]).filter(|choice| choice["index"] == index);
        assert_eq!(own.map(text).collect::<String>(), text(choice));
    }
    server.at_rest().await;
}

#[tokio::test]
async fn a_prompt_alone_is_scored() {
    let server = Both::new().await;
    let body = |tokens: u32| json!({ "prompt": "ab c", "max_tokens": tokens, "echo": true, "logprobs": 2, "seed": 1 });
    let answer = server.post(&body(0)).await.json();
    let choice = &answer["choices"][0];
    assert_eq!((text(choice), &choice["finish_reason"]), ("ab c", &json!("length")));
    assert_eq!((&answer["usage"]["prompt_tokens"], &answer["usage"]["completion_tokens"]), (&json!(4), &json!(0)));
    // The logprobs equal those with generated text.
    let longer = server.post(&body(3)).await.json()["choices"][0]["logprobs"]["token_logprobs"].clone();
    let logprobs = choice["logprobs"]["token_logprobs"].as_array().unwrap();
    assert_eq!((logprobs.len(), &logprobs[..]), (4, &longer.as_array().unwrap()[..4]));
    // An empty answer is valid.
    let empty_answer = server.post(&json!({ "prompt": "ab c", "max_tokens": 0 })).await.json();
    assert_eq!(text(&empty_answer["choices"][0]), "");
    server.at_rest().await;
}

#[tokio::test]
async fn stop_strings_end_the_text() {
    let server = Both::new().await;
    let complete = server.grpc(long("ab c", 60)).await.text();
    let stop = &complete[20..23];
    let body = json!({ "prompt": "ab c", "max_tokens": 60, "seed": 1, "stop": stop });
    let choice = server.post(&body).await.json()["choices"][0].clone();
    assert_eq!(text(&choice), &complete[..complete.find(stop).unwrap()]);
    assert_eq!((&choice["finish_reason"], &choice["stop_reason"]), (&json!("stop"), &json!(stop)));
}

#[tokio::test]
async fn http_uses_the_same_keys_as_grpc() {
    let keys = Keys::parse(&format!("alice:{KEY}")).unwrap();
    let access = Access::from(Credentials { keys: Some(keys), ..Credentials::default() });
    let server = Both::with(Limits::default(), TransportConfig { access, ..TransportConfig::default() }).await;
    let body = json!({ "prompt": "a" }).to_string();
    for (headers, status) in [
        (&[][..], 401),
        (&["authorization: Bearer another-one-altogether"][..], 401),
        (&["authorization: Bearer a-key-that-alice-has"][..], 200),
    ] {
        for (method, path, body) in
            [("POST", "/v1/completions", &*body), ("GET", "/v1/models", ""), ("GET", "/v1/models/fake", "")]
        {
            let reply = exchange(server.port, method, path, headers, body).await;
            assert_eq!(reply.0, status, "{path}");
            if status == 401 {
                assert_eq!(reply.refused().1, "authentication_error");
            }
        }
    }
    assert_eq!(exchange(server.port, "GET", "/health", &[], "").await.0, 200, "load balancers have no key");
}

#[tokio::test]
async fn models_are_listed() {
    let server = Both::new().await;
    let listed = exchange(server.port, "GET", "/v1/models", &[], "").await.json();
    assert_eq!(listed["object"], "list");
    let model = &listed["data"][0];
    assert_eq!(
        (&model["id"], &model["object"], &model["token"]),
        (&json!("fake"), &json!("model"), &json!("character"))
    );
    assert_eq!(exchange(server.port, "GET", "/v1/models/fake", &[], "").await.json(), *model);
    assert_eq!(exchange(server.port, "GET", "/v1/models/nobody", &[], "").await.refused().0, 404);
}
