//! Summaries over HTTP and JSON, compared with gRPC.

use super::{eventually, http::exchange, plain};
use crate::document_model::DocumentModel;
use serde_json::{Value, json};
use std::{net::SocketAddr, sync::Arc};
use tokio::{net::TcpListener, task::JoinHandle};
use weir::{
    config::TransportConfig,
    decode::contract::Model,
    engine::{Handle, Limits},
    error::Result,
    serve::{Engines, ServerParts, run},
};
use weir_proto::v1::{
    self, SummarizeOptions, SummarizeRequest, summarization_client::SummarizationClient, summarize_request::Part,
    summarize_response::Event,
};

const DOCUMENT: &str = "a document of some length, which is read before a word is written about it";

struct Server {
    model: Arc<DocumentModel>,
    engine: Handle,
    port: SocketAddr,
    grpc: SocketAddr,
    task: JoinHandle<Result<()>>,
}

impl Server {
    async fn new() -> Self {
        let model = DocumentModel::new();
        let limits = Limits { document_bytes: 1 << 20, ..Limits::default() };
        let engine = Handle::start(Arc::clone(&model) as Arc<dyn Model>, limits).unwrap();
        let grpc = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let http = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = grpc.local_addr().unwrap();
        let port = http.local_addr().unwrap();
        let offer = ServerParts { http: Some(http.into()), ..Engines::new(vec![engine.clone()]).unwrap().into() };
        let task = tokio::spawn(run(grpc, offer, std::future::pending(), TransportConfig::default()));
        Self { model, engine, port, grpc: address, task }
    }

    async fn post(&self, body: &Value) -> super::http::Reply {
        exchange(self.port, "POST", "/v1/summaries", &[], &body.to_string()).await
    }

    /// Returns the text and the kept spans that gRPC sends.
    async fn grpc_summary(&self) -> (String, Vec<v1::Selected>) {
        let mut client = SummarizationClient::new(plain(self.grpc).connect().await.unwrap());
        let parts = [
            Part::Options(SummarizeOptions { max_tokens: Some(9), ..Default::default() }),
            Part::Chunk(v1::DocumentChunk { text: DOCUMENT.into() }),
        ];
        let parts = parts.map(|part| SummarizeRequest { part: Some(part) });
        let mut answer = client.summarize(tokio_stream::iter(parts)).await.unwrap().into_inner();
        let mut text = String::new();
        let mut kept = Vec::new();
        while let Some(message) = answer.message().await.unwrap() {
            match message.event {
                Some(Event::Piece(piece)) => text.push_str(&piece.text),
                Some(Event::Selected(selected)) => kept.push(selected),
                _ => {}
            }
        }
        (text, kept)
    }

    async fn at_rest(&self) {
        eventually("all resources are released", || {
            let load = self.engine.load();
            (load.queued, load.running, load.bytes) == (0, 0, 0)
        })
        .await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.model.release();
        self.task.abort();
    }
}

#[tokio::test]
async fn a_chat_names_the_call_that_a_summarizer_answers() {
    let server = Server::new().await;
    let name = server.engine.card().name.clone();
    for body in [json!({ "model": name, "messages": [] }), json!({ "messages": [] })] {
        let refused = exchange(server.port, "POST", "/v1/chat/completions", &[], &body.to_string()).await;
        assert_eq!(refused.refused(), (400, "invalid_request_error".into(), "messages".into()));
        let message = refused.json()["error"]["message"].as_str().unwrap().to_owned();
        let start =
            format!("messages: {name:?} summarizes documents and has no chat template: send POST /v1/summaries with ");
        let call = message.strip_prefix(&start).unwrap_or_else(|| panic!("{message}"));
        let mut call: Value = serde_json::from_str(call).unwrap();
        assert_eq!(call["model"], json!(name));
        // The body in the message is a request that the server accepts, but for the model's alphabet.
        call["document"] = DOCUMENT.into();
        assert_eq!(server.post(&call).await.0, 200);
    }
}

#[tokio::test]
async fn a_summary_equals_the_grpc_answer() {
    let server = Server::new().await;
    let (text, kept) = server.grpc_summary().await;
    assert!(!text.is_empty() && !kept.is_empty());
    let answer = server.post(&json!({ "document": DOCUMENT, "max_tokens": 9 })).await.json();
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
    let events = server.post(&json!({ "document": DOCUMENT, "max_tokens": 9, "stream": true })).await.events();
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
    let again = server.post(&json!({ "document_id": id, "max_tokens": 9 })).await.json();
    assert_eq!(
        (&again["text"], &again["usage"]["cached_tokens"]),
        (&answer["text"], &answer["usage"]["document_tokens"])
    );
}

#[tokio::test]
async fn invalid_requests_are_refused_with_the_field() {
    let server = Server::new().await;
    let invalid = "invalid_request_error";
    for (body, status, kind, field) in [
        (json!({ "document": "" }), 400, invalid, "document"),
        (json!({ "document": DOCUMENT, "max_tokens": 0 }), 400, invalid, "max_tokens"),
        (json!({ "document": DOCUMENT, "beam_size": 1000 }), 400, invalid, "beam_size"),
        (json!({ "document": DOCUMENT, "beam": 2 }), 400, invalid, "beam"),
        (json!({ "document": 7 }), 400, invalid, "document"),
        (json!({ "document": "a".repeat(1 << 20) }), 400, invalid, "document"),
        (json!({ "document_id": "nobody's" }), 404, "not_found_error", "document_id"),
        (json!({ "document": DOCUMENT, "model": "nobody" }), 404, "not_found_error", "model"),
    ] {
        let refused = server.post(&body).await.refused();
        let body = body.to_string();
        assert_eq!(refused, (status, kind.into(), field.into()), "{}", &body[..body.len().min(99)]);
    }
    let models = exchange(server.port, "GET", "/v1/models", &[], "").await.json();
    assert!(models["data"][0]["documents"]["max_tokens"].as_u64().unwrap() > 0);
    server.at_rest().await;
}

#[tokio::test]
async fn a_long_document_is_summarized_in_parts() {
    let server = Server::new().await;
    let document: String = (0..40).map(|number| format!("Sentence {number} of a long document. ")).collect();
    let body = |more: &[(&str, Value)]| {
        let mut body = json!({ "document": document, "max_tokens": 9, "long_documents": "chunk" });
        more.iter().for_each(|(name, value)| body[*name] = value.clone());
        body
    };
    let answer = server.post(&body(&[])).await.json();
    let parts = answer["parts"].as_array().unwrap();
    assert!(parts.len() > 2 && answer["document_id"].is_null(), "{answer}");
    for (index, part) in parts.iter().enumerate() {
        assert_eq!((&part["round"], &part["part"]), (&json!(1), &json!(index + 1)));
        assert_eq!(part["round_bytes"], document.len());
        assert_eq!(part["selected"][0]["spans"][0]["byte_start"], part["byte_start"]);
    }
    let joined: Vec<&str> = parts.iter().map(|part| part["summary"].as_str().unwrap()).collect();
    let last = server.post(&json!({ "document": joined.join("\n"), "max_tokens": 9 })).await.json();
    assert_eq!((&answer["text"], &answer["hypotheses"]), (&last["text"], &last["hypotheses"]));
    // A stream has the parts first; its last event repeats them without spans.
    let events = server.post(&body(&[("stream", true.into())])).await.events();
    let streamed: Vec<&Value> = events.iter().filter_map(|event| event.get("part")).collect();
    assert_eq!(streamed, parts.iter().collect::<Vec<_>>());
    let finished = &events.last().unwrap()["finished"];
    assert_eq!(finished["parts"].as_array().unwrap().len(), parts.len());
    assert!(finished["parts"][0].get("selected").is_none());
    // OpenAI's call counts all tokens.
    let prompt = json!({ "prompt": document, "max_tokens": 9, "long_documents": "chunk" });
    let completion = exchange(server.port, "POST", "/v1/completions", &[], &prompt.to_string()).await.json();
    assert_eq!(completion["choices"][0]["text"], answer["text"], "{completion}");
    assert_eq!(completion["choices"][0]["weir"]["parts"].as_array().unwrap().len(), parts.len());
    assert_eq!(completion["usage"]["prompt_tokens"], answer["usage"]["document_tokens"]);
    assert_eq!(completion["usage"]["completion_tokens"], answer["usage"]["summary_tokens"]);
    for (more, field) in [
        (&[("cut", true.into())][..], "long_documents"),
        (&[("long_documents", "all".into())], "long_documents"),
        (&[("document", "".into())], "document"),
    ] {
        let refused = server.post(&body(more)).await.refused();
        assert_eq!(refused, (400, "invalid_request_error".into(), field.into()), "{more:?}");
    }
    server.at_rest().await;
}
