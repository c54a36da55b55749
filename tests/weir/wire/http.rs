//! HTTP: texts, chats, summaries, inference and metrics.

use super::*;
use crate::wire::editing::Client;

/// Status, head and body of a response.
pub(crate) struct Reply(pub(crate) u16, pub(super) String, pub(super) String);

impl Reply {
    pub(crate) fn body(&self) -> &str {
        &self.2
    }

    /// Returns the values of all headers of this name.
    pub(crate) fn headers(&self, name: &str) -> impl Iterator<Item = &str> {
        self.1.lines().filter_map(move |line| line.strip_prefix(name)?.strip_prefix(": "))
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
    body: impl AsRef<[u8]>,
) -> TcpStream {
    send_request(TcpStream::connect(port).await.unwrap(), method, path, headers, body).await
}

/// Sends a request on a connection. Its body is announced as JSON unless `headers` say otherwise.
pub(super) async fn send_request(
    mut stream: TcpStream,
    method: &str,
    path: &str,
    headers: &[&str],
    body: impl AsRef<[u8]>,
) -> TcpStream {
    let mut headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
    for (name, value) in [("host", "x"), ("content-type", "application/json")] {
        if !headers.to_ascii_lowercase().contains(&format!("{name}:")) {
            headers.push_str(&format!("{name}: {value}\r\n"));
        }
    }
    let body = body.as_ref();
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.1\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    // The body is sent even if the server refuses the head.
    stream.write_all(body).await.unwrap();
    stream
}

pub(crate) async fn exchange(
    port: SocketAddr,
    method: &str,
    path: &str,
    headers: &[&str],
    body: impl AsRef<[u8]>,
) -> Reply {
    let mut stream = connect_and_send(port, method, path, headers, body).await;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await.unwrap();
    let answer = String::from_utf8(bytes).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{method} {port}{path}: {answer:?}"));
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
async fn a_stream_gives_the_same_text() {
    let server = Server::new().await;
    // The body exceeds one message.
    let body = json!({ "prompt": "ab c", "max_tokens": 1000, "seed": 1, "stream": true });
    let events = server.post(&body).await.events();
    assert!(events.len() > 2, "it came at once");
    let streamed: String = events.iter().map(|event| text(&event["choices"][0])).collect();
    assert_eq!(streamed, server.answer(long("ab c", 1000)).await.unwrap().text());

    let complete = server.answer(long("ab c", 60)).await.unwrap().text();
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
    let server = Server::new().await;
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
    let streamed = changed(&body, "stream", true);
    let times: Vec<_> =
        server.post(&streamed).await.events().iter().map(|event| event["elapsed_ns"].as_u64().unwrap()).collect();
    assert!(times.is_sorted() && times[0] > 0);
    server.at_rest().await;
}

#[tokio::test]
async fn several_choices_equal_separate_requests() {
    let server = Server::new().await;
    let body = json!({ "prompt": ["ab", "c d"], "n": 2, "seed": 5, "max_tokens": 16 });
    let answer = server.post(&body).await.json();
    let choices = answer["choices"].as_array().unwrap();
    for (index, (prompt, seed)) in [("ab", 5), ("ab", 6), ("c d", 5), ("c d", 6)].into_iter().enumerate() {
        let mut alone = long(prompt, 16);
        alone.sampling = seeded("", seed).sampling;
        assert_eq!(
            (text(&choices[index]), &choices[index]["index"]),
            (&*server.answer(alone).await.unwrap().text(), &json!(index))
        );
    }
    assert_eq!((&answer["usage"]["prompt_tokens"], &answer["usage"]["completion_tokens"]), (&json!(5), &json!(64)));
    let streamed = changed(&body, "stream", true);
    let events = server.post(&streamed).await.events();
    for (index, choice) in choices.iter().enumerate() {
        let own = events.iter().map(|event| &event["choices"][0]).filter(|choice| choice["index"] == index);
        assert_eq!(own.map(text).collect::<String>(), text(choice));
    }
    server.at_rest().await;
}

/// Waits until a series has this value.
async fn until(server: &Server, handler: &str, method: &str, status: u16, value: u32) {
    let series = format!("weir_http_requests_total{{handler=\"{handler}\",method=\"{method}\",status=\"{status}\"}}");
    let expected = format!("{series} {value}");
    eventually(&expected, || server.metrics().lines().any(|line| line == expected)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_are_counted_by_path_method_and_status() {
    let server = Server::within(TransportConfig { message_bytes: 1000, ..Default::default() }).await;
    let complete = async |body: &str| exchange(server.port, "POST", "/v1/completions", &[], body).await.0;
    for stream in [false, true] {
        let body = json!({ "prompt": "a", "max_tokens": 2, "stream": stream });
        assert_eq!(complete(&body.to_string()).await, 200);
    }
    until(&server, "/v1/completions", "POST", 200, 2).await;
    assert_eq!(complete("{}").await, 400);
    until(&server, "/v1/completions", "POST", 400, 1).await;
    // Refused by its length, before it becomes a call.
    assert_eq!(complete(&"a".repeat(2000)).await, 413);
    until(&server, "/v1/completions", "POST", 413, 1).await;
    for (method, path, counted_method, handler, status) in [
        ("GET", "/v1/models/fake", "GET", "/v1/models/{name}", 200),
        ("GET", "/v1/models/none", "GET", "/v1/models/{name}", 404),
        ("HEAD", "/health", "HEAD", "/health", 200),
        ("OPTIONS", "/v1/completions", "OPTIONS", "/v1/completions", 204),
        ("GET", "/v1/completions", "GET", "/v1/completions", 405),
        ("BREW", "/v1/completions", "other", "/v1/completions", 405),
        ("GET", "/v1/edit", "GET", "/v1/edit", 426),
        ("GET", "/v1/nothing", "GET", "other", 404),
    ] {
        assert_eq!(exchange(server.port, method, path, &[], "").await.0, status, "{method} {path}");
        until(&server, handler, counted_method, status, 1).await;
    }
    let socket = Client::connect(server.port, &[]).unwrap();
    until(&server, "/v1/edit", "GET", 101, 1).await;
    drop(socket);
    let page = ["origin: https://elsewhere.example.com"];
    assert_eq!(exchange(server.port, "GET", "/v1/models", &page, "").await.0, 403);
    until(&server, "/v1/models", "GET", 403, 1).await;
}

#[tokio::test]
async fn a_client_that_leaves_frees_its_row_and_is_counted() {
    let server = Server::new().await;
    server.model.gate.slow(Duration::from_millis(5));
    for stream in [false, true] {
        let body = json!({ "prompt": "a", "max_tokens": 1900, "stream": stream }).to_string();
        let client = connect_and_send(server.port, "POST", "/v1/completions", &[], &body).await;
        server.until_running(1).await;
        drop(client);
        server.at_rest().await;
        if !stream {
            until(&server, "/v1/completions", "POST", 499, 1).await;
        }
    }
}

#[tokio::test]
async fn connections_for_health_checks_are_counted_by_path() {
    let config = TransportConfig { connections: 4, connections_per_address: 2, ..Default::default() };
    let server = Server::within(config).await;
    server.model.gate.slow(Duration::from_millis(20));
    let body = json!({ "prompt": "a", "max_tokens": 1900 }).to_string();
    let mut busy = Vec::new();
    for running in 1..=2 {
        busy.push(connect_and_send(server.port, "POST", "/v1/completions", &[], &body).await);
        server.until_running(running).await;
    }
    assert_eq!(server.get("/health").await.0, 200);
    let refused = server.get("/v1/models").await;
    assert_eq!((refused.0, &refused.json()["error"]["code"]), (503, &json!("connections")));
    until(&server, "/v1/models", "GET", 503, 1).await;
    until(&server, "/health", "GET", 200, 1).await;
}

const DOCUMENT: &str = "a document of some length, which is read before a word is written about it";

/// Returns the text and the kept spans that gRPC sends.
async fn grpc_summary(server: &Summarizer) -> (String, Vec<v1::Selected>) {
    let options = SummarizeOptions { max_tokens: Some(9), ..Default::default() };
    let answer = server.summarize(options, &[DOCUMENT]).await.unwrap();
    (answer.text, answer.selected)
}

#[tokio::test]
async fn a_summary_equals_the_grpc_answer() {
    let server = Server::summarizing().await;
    let (text, kept) = grpc_summary(&server).await;
    assert!(!text.is_empty() && !kept.is_empty());
    let answer = server.post_to("/v1/summaries", &json!({ "document": DOCUMENT, "max_tokens": 9 })).await.json();
    assert_eq!((&answer["text"], &answer["object"]), (&json!(text), &json!("summary")));
    assert_eq!(answer["hypotheses"][0]["text"], json!(text));
    let selected = answer["selected"].as_array().unwrap();
    assert_eq!(selected.len(), kept.len());
    for (actual, kept) in selected.iter().zip(&kept) {
        assert_eq!((&actual["layer"], &actual["tokens"]), (&json!(kept.layer), &json!(kept.tokens)));
        assert_eq!(actual["spans"].as_array().unwrap().len(), kept.spans.len());
        assert_eq!(actual["spans"][0]["byte_end"], kept.spans[0].byte_end);
    }
    // A stream sends the same in order.
    let events = server
        .post_to("/v1/summaries", &json!({ "document": DOCUMENT, "max_tokens": 9, "stream": true }))
        .await
        .events();
    let names: Vec<&str> =
        events.iter().map(|event| event.as_object().unwrap().keys().next().unwrap().as_str()).collect();
    // Kept spans are sent as soon as they are known, while encoding continues.
    let order = [&["started"][..], &["progress", "selected"], &["piece"], &["finished"]];
    let positions: Vec<_> =
        names.iter().map(|name| order.iter().position(|group| group.contains(name)).unwrap()).collect();
    assert!(
        positions.is_sorted() && names.first() == Some(&"started") && names.last() == Some(&"finished"),
        "{names:?}"
    );
    let pieces: String = events.iter().filter_map(|event| event["piece"]["text"].as_str()).collect();
    assert_eq!(pieces, text);
    // Requests the same document again by its id.
    let id = answer["document_id"].as_str().unwrap();
    let again = server.post_to("/v1/summaries", &json!({ "document_id": id, "max_tokens": 9 })).await.json();
    assert_eq!(
        (&again["text"], &again["usage"]["cached_tokens"]),
        (&answer["text"], &answer["usage"]["document_tokens"])
    );
}

#[tokio::test]
async fn a_long_document_is_summarized_in_parts() {
    let server = Server::summarizing().await;
    let document: String = (0..40).map(|number| format!("Sentence {number} of a long document. ")).collect();
    let body = |more: &[(&str, Value)]| {
        let mut body = json!({ "document": document, "max_tokens": 9, "long_documents": "chunk" });
        more.iter().for_each(|(name, value)| body[*name] = value.clone());
        body
    };
    let answer = server.post_to("/v1/summaries", &body(&[])).await.json();
    let parts = answer["parts"].as_array().unwrap();
    assert!(parts.len() > 2 && answer["document_id"].is_null(), "{answer}");
    for (index, part) in parts.iter().enumerate() {
        assert_eq!((&part["round"], &part["part"]), (&json!(1), &json!(index + 1)));
        assert_eq!(part["round_bytes"], document.len());
        assert_eq!(part["selected"][0]["spans"][0]["byte_start"], part["byte_start"]);
    }
    let joined: Vec<&str> = parts.iter().map(|part| part["summary"].as_str().unwrap()).collect();
    let last = server.post_to("/v1/summaries", &json!({ "document": joined.join("\n"), "max_tokens": 9 })).await.json();
    assert_eq!((&answer["text"], &answer["hypotheses"]), (&last["text"], &last["hypotheses"]));
    // A stream has the parts first; its last event repeats them without spans.
    let events = server.post_to("/v1/summaries", &body(&[("stream", true.into())])).await.events();
    let streamed: Vec<&Value> = events.iter().filter_map(|event| event.get("part")).collect();
    assert_eq!(streamed, parts.iter().collect::<Vec<_>>());
    let finished = &events.last().unwrap()["finished"];
    assert_eq!(finished["parts"].as_array().unwrap().len(), parts.len());
    assert!(finished["parts"][0].get("selected").is_none());
    // OpenAI's call counts all tokens.
    let prompt = json!({ "prompt": document, "max_tokens": 9, "long_documents": "chunk" });
    let completion = server.post(&prompt).await.json();
    assert_eq!(completion["choices"][0]["text"], answer["text"], "{completion}");
    assert_eq!(completion["choices"][0]["weir"]["parts"].as_array().unwrap().len(), parts.len());
    assert_eq!(completion["usage"]["prompt_tokens"], answer["usage"]["document_tokens"]);
    assert_eq!(completion["usage"]["completion_tokens"], answer["usage"]["summary_tokens"]);
    server.at_rest().await;
}
