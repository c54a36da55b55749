//! Summaries of T5 checkpoints as Hugging Face stores them: transformers' texts and scores over gRPC and HTTP, deleted bytes, and
//! limits.

use super::{
    super::{Running, details, http::exchange, reason},
    SummaryResponse, parts, read,
};
use crate::{
    golden::Golden,
    support::{settings, t5_golden, t5_shortened},
};
use serde_json::{Value, json};
use std::{collections::BTreeMap, fs, net::SocketAddr, path::Path};
use tokio::net::TcpListener;
use tonic::{Code, Status};
use weir::{
    config::TransportConfig,
    engine::{Handle, Limits},
    family::load::load,
    serve::{Engines, ServerParts},
};
use weir_proto::v1::{self, SummarizeOptions, models_client::ModelsClient, summarization_client::SummarizationClient};

/// FIXTURES.md: scores.
const SCORES: f32 = 1e-5;
/// Tolerance of gate values.
const GATES: f32 = 2e-4;

/// A server of one checkpoint, with gRPC and HTTP ports.
struct T5Server {
    running: Running,
    http: SocketAddr,
}

impl T5Server {
    async fn new(folder: &Path) -> Self {
        let limits = Limits { document_bytes: 1 << 22, ..Limits::default() };
        let engine = Handle::start(load(folder, &settings()).unwrap(), limits).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let http = listener.local_addr().unwrap();
        let offer = ServerParts { http: Some(listener.into()), ..Engines::new(vec![engine]).unwrap().into() };
        Self { running: Running::offering(offer, TransportConfig::default()).await, http }
    }

    async fn answer(&self, options: SummarizeOptions, chunks: &[&str]) -> Result<SummaryResponse, Status> {
        let mut client = SummarizationClient::new(self.running.channel.clone());
        read(client.summarize(tokio_stream::iter(parts(options, chunks))).await?.into_inner()).await
    }

    /// Returns status code, reason and field of a refused call.
    async fn refused(&self, options: SummarizeOptions, chunks: &[&str]) -> (Code, String, String) {
        let status = self.answer(options, chunks).await.unwrap_err();
        let field = details(&status).bad_request().map(|bad| bad.field_violations[0].field.clone());
        (status.code(), reason(&status), field.unwrap_or_default())
    }

    async fn post(&self, path: &str, body: &Value) -> super::super::http::Reply {
        exchange(self.http, "POST", path, &[], &body.to_string()).await
    }
}

/// A fixture: its description and its golden tensors.
struct Fixture {
    about: Value,
    golden: Golden,
}

impl Fixture {
    fn open(case: &str) -> Self {
        let about = fs::read(t5_golden(case).join("golden.json")).unwrap();
        Self { about: serde_json::from_slice(&about).unwrap(), golden: Golden::open(&t5_golden(case)) }
    }

    fn text(&self, source: &str) -> String {
        let sources = self.about["sources"].as_array().unwrap();
        let found = sources.iter().find(|other| other["name"] == source).unwrap();
        found["text"].as_str().unwrap().to_owned()
    }

    /// Compares the hypotheses of one setting with those of transformers.
    fn check(&self, source: &str, setting: &str, answer: &SummaryResponse) {
        let key = |part: &str| format!("{source}.{setting}.{part}");
        let lengths = self.golden.ids(&key("lengths"));
        let hypotheses = &answer.finished.hypotheses;
        assert_eq!(hypotheses.len(), lengths.len(), "{source} {setting}");
        for (rank, (hypothesis, length)) in hypotheses.iter().zip(lengths).enumerate() {
            let ids: Vec<u32> = self.golden.row(&key("ids"), rank).iter().map(|&id| id as u32).collect();
            assert_eq!(hypothesis.ids, ids[..length as usize], "{source} {setting} {rank}");
            if self.golden.has(&key("scores")) {
                let difference = (hypothesis.score - self.golden.get(&key("scores"))[rank]).abs();
                assert!(difference <= SCORES, "{source} {setting} {rank}: {difference}");
            }
        }
        assert_eq!(answer.text, hypotheses[0].text, "{source} {setting}");
    }
}

/// Returns the options for settings in the names of transformers.
fn search(settings: &Value) -> SummarizeOptions {
    let number = |key: &str| settings[key].as_u64().map(|number| number as u32);
    // lengths in total count the start symbol
    let length = |new: &str, total: &str| number(new).or(number(total).map(|total| total - 1));
    let float = |key: &str| Some(settings[key].as_f64().unwrap_or(1.0) as f32);
    let early_stopping = match &settings["early_stopping"] {
        Value::Null => "false".to_owned(),
        Value::String(word) => word.clone(),
        flag => flag.to_string(),
    };
    SummarizeOptions {
        beam_size: number("num_beams"),
        hypotheses: number("num_beams"),
        length_penalty: float("length_penalty"),
        min_tokens: length("min_new_tokens", "min_length").or(Some(0)),
        max_tokens: length("max_new_tokens", "max_length"),
        no_repeat_ngram: number("no_repeat_ngram_size").or(Some(0)),
        early_stopping: Some(early_stopping),
        repetition_penalty: float("repetition_penalty"),
        ..Default::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn texts_and_scores_are_those_of_transformers() {
    for case in ["t5_v10", "byt5", "mrt5"] {
        let fixture = Fixture::open(case);
        let server = T5Server::new(&t5_golden(case)).await;
        let mut compared = BTreeMap::new();
        for source in ["s0", "s1"] {
            let text = fixture.text(source);
            let tokens = fixture.golden.ids(&format!("{source}.ids")).len() as u64;
            let mut document_id = None;
            for (setting, values) in fixture.about["settings"].as_object().unwrap() {
                // forced tokens are not supported
                if setting == "forced" {
                    continue;
                }
                let chunks: Vec<String> = text.chars().map(String::from).collect();
                let chunks: Vec<&str> = chunks.iter().map(String::as_str).collect();
                let uploads = document_id.is_none();
                let options = SummarizeOptions { document_id: document_id.clone(), ..search(values) };
                let answer = server.answer(options, if uploads { &chunks } else { &[] }).await.unwrap();
                fixture.check(source, setting, &answer);
                let usage = answer.finished.usage.unwrap();
                assert_eq!((usage.document_tokens, usage.cut), (tokens, false), "{case} {source}");
                assert_eq!(usage.cached_tokens, if uploads { 0 } else { tokens }, "{case} {source} {setting}");
                assert_eq!(usage.document_bytes, Some(text.len() as u64));
                // an encoder that looks both ways begins when the upload is complete
                let early = answer.progress.iter().filter(|progress| progress.blocks_encoded > 0);
                assert!(early.clone().all(|progress| progress.tokens_read == tokens), "{:?}", answer.progress);
                assert_eq!(answer.finished.timing.as_ref().unwrap().blocks_at_end, 0);
                document_id = answer.finished.document_id.clone();
                assert!(document_id.is_some());
                *compared.entry(source).or_insert(0) += answer.finished.hypotheses.len();
            }
        }
        assert!(compared.values().all(|count| *count >= 8), "{case}: {compared:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kept_bytes_of_mrt5_are_spans_with_gate_values() {
    let fixture = Fixture::open("mrt5");
    let server = T5Server::new(&t5_golden("mrt5")).await;
    for source in ["s0", "s1", "s2"] {
        let text = fixture.text(source);
        let kept = fixture.golden.ids(&format!("{source}.gate.kept"));
        let values = fixture.golden.get(&format!("{source}.gate.values"));
        let options = SummarizeOptions { max_tokens: Some(3), ..Default::default() };
        let answer = server.answer(options, &[&text]).await.unwrap();
        let [selected] = &answer.selected[..] else { panic!("{:?}", answer.selected) };
        // the gate is before layer 3; a byte is a token, and the end mark has no bytes
        assert_eq!((selected.layer, selected.tokens), (3, kept.len() as u64), "{source}");
        let bytes: Vec<u32> =
            selected.spans.iter().flat_map(|span| span.byte_start as u32..span.byte_end as u32).collect();
        let expected: Vec<u32> = kept.iter().copied().filter(|position| (*position as usize) < text.len()).collect();
        assert_eq!(bytes, expected, "{source}");
        for span in &selected.spans {
            let gates = &values[span.byte_start as usize..span.byte_end as usize];
            let mean = gates.iter().sum::<f32>() / gates.len() as f32;
            assert!((span.score - mean).abs() <= GATES, "{source}: {span:?}, not {mean}");
        }
        let usage = answer.finished.usage.unwrap();
        assert_eq!((usage.vectors, usage.document_tokens), (kept.len() as u64, values.len() as u64), "{source}");
        assert!(usage.cross_attention_bytes <= usage.unpooled_cross_attention_bytes, "{usage:?}");
        let timing = answer.finished.timing.unwrap();
        assert_eq!(timing.kept_share, Some(kept.len() as f64 / values.len() as f64), "{source}");
        let bytes = (timing.cross_attention_bytes, timing.unpooled_cross_attention_bytes);
        assert_eq!(bytes, (usage.cross_attention_bytes, usage.unpooled_cross_attention_bytes), "{source}");
        let layers = timing.layers;
        assert_eq!(timing.encode_ns, layers.iter().map(|layer| layer.ns).sum::<u64>() + timing.memory_ns, "{source}");
        let lengths: Vec<u64> = layers.iter().map(|layer| layer.length).collect();
        let [all, fewer] = [values.len() as u64, kept.len() as u64];
        assert_eq!(lengths, [all, all, all, fewer, fewer], "{source}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_documents_and_options_are_refused_with_the_field() {
    let folder = t5_shortened(24);
    let server = T5Server::new(folder.path()).await;
    let invalid = |field: &str| (Code::InvalidArgument, "BAD_OPTION".to_owned(), field.to_owned());
    let short = || SummarizeOptions { max_tokens: Some(6), min_tokens: Some(0), ..Default::default() };
    for chunks in [&[][..], &[""], &["", ""]] {
        assert_eq!(server.refused(short(), chunks).await, invalid("chunk.text"), "{chunks:?}");
    }
    for (options, field) in [
        (SummarizeOptions { early_stopping: Some("sometimes".into()), ..short() }, "options.early_stopping"),
        (SummarizeOptions { early_stopping: Some(String::new()), ..short() }, "options.early_stopping"),
        (SummarizeOptions { repetition_penalty: Some(0.0), ..short() }, "options.repetition_penalty"),
        (SummarizeOptions { repetition_penalty: Some(f32::NAN), ..short() }, "options.repetition_penalty"),
        (SummarizeOptions { repetition_penalty: Some(100.5), ..short() }, "options.repetition_penalty"),
        (SummarizeOptions { length_penalty: Some(-10.5), ..short() }, "options.length_penalty"),
        (SummarizeOptions { no_repeat_ngram: Some(65), ..short() }, "options.no_repeat_ngram"),
        (SummarizeOptions { min_tokens: Some(7), ..short() }, "options.min_tokens"),
        (SummarizeOptions { max_tokens: Some(4096), ..short() }, "options.max_tokens"),
        (SummarizeOptions { max_tokens: Some(0), ..short() }, "options.max_tokens"),
        (SummarizeOptions { hard_topk: Some(true), ..short() }, ""),
    ] {
        let (code, _, found) = server.refused(options.clone(), &["a river"]).await;
        let expected = if field.is_empty() { Code::FailedPrecondition } else { Code::InvalidArgument };
        assert_eq!((code, found.as_str()), (expected, field), "{options:?}");
    }
    // longer than the model takes: refused, or cut
    let long = "the river goes on and on and on past the old mill, and the lake, and the hills";
    let (code, reason, _) = server.refused(short(), &[long]).await;
    assert_eq!((code, reason.as_str()), (Code::InvalidArgument, "TOO_LONG"));
    let cut = SummarizeOptions { cut: Some(true), ..short() };
    let cut = server.answer(cut, &[long]).await.unwrap().finished;
    let usage = cut.usage.unwrap();
    assert_eq!((usage.cut, usage.document_tokens), (true, 24));
    let read = usage.document_bytes.unwrap() as usize;
    assert!(read > 0 && read < long.len(), "{read}");
    let same = server.answer(short(), &[&long[..read]]).await.unwrap().finished;
    assert_eq!((same.hypotheses, same.usage.unwrap().cut), (cut.hypotheses, false));
    // the prefix alone is longer than the model takes
    let folder = t5_shortened(4);
    let error = load(folder.path(), &settings()).err().unwrap().to_string();
    assert!(error.contains("config.json: generation.prefix: expected at most 2 tokens"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn defaults_of_the_checkpoint_are_described() {
    let server = T5Server::new(&t5_golden("t5_v10")).await;
    let mut models = ModelsClient::new(server.running.channel.clone());
    let model = models.get_model(v1::GetModelRequest::default()).await.unwrap().into_inner();
    let documents = model.documents.unwrap();
    assert_eq!((model.family.as_str(), documents.beam_size, documents.no_repeat_ngram), ("t5", 4, 3));
    assert_eq!((documents.search_rules.as_str(), documents.early_stopping.as_str()), ("transformers", "true"));
    assert_eq!((documents.repetition_penalty, documents.prefix.as_str()), (1.0, "summarize: "));
}

#[tokio::test(flavor = "multi_thread")]
async fn http_gives_the_same_summaries_under_both_names() {
    let fixture = Fixture::open("t5_v10");
    let server = T5Server::new(&t5_golden("t5_v10")).await;
    let text = fixture.text("s1");
    let options = search(&fixture.about["settings"]["beam4_es_never"]);
    let expected = server.answer(options, &[&text]).await.unwrap();
    fixture.check("s1", "beam4_es_never", &expected);
    let texts: Vec<&str> = expected.finished.hypotheses.iter().map(|other| other.text.as_str()).collect();
    let search = json!({ "max_new_tokens": 30, "min_new_tokens": 6, "length_penalty": 2.0, "no_repeat_ngram_size": 3,
        "early_stopping": "never", "repetition_penalty": 1.0 });
    let with = |own: Value| {
        let all = [&search, &own].into_iter().flat_map(|part| part.as_object().unwrap().clone());
        Value::Object(all.collect())
    };
    let body = with(json!({ "document": text, "num_beams": 4, "hypotheses": 4 }));
    let answer = server.post("/v1/summaries", &body).await.json();
    assert_eq!(answer["text"], texts[0]);
    let timing = &answer["timing"];
    assert!(timing["kept_share"] == 1.0 && timing["encode_ns"].as_u64() > Some(0), "{timing}");
    assert_eq!(timing["cross_attention_bytes"], answer["usage"]["cross_attention_bytes"], "{timing}");
    let found = answer["hypotheses"].as_array().unwrap().iter().map(|other| other["text"].as_str().unwrap());
    assert_eq!(found.collect::<Vec<_>>(), texts);
    // OpenAI's call: the prompt is the document
    let names = json!({ "max_tokens": 30, "min_tokens": 6, "prompt": text, "n": 4, "best_of": 4, "temperature": 0 });
    let mut body = with(names);
    ["max_new_tokens", "min_new_tokens"].iter().for_each(|name| drop(body.as_object_mut().unwrap().remove(*name)));
    let answer = server.post("/v1/completions", &body).await.json();
    let choices = answer["choices"].as_array().unwrap();
    assert_eq!(choices.iter().map(|choice| choice["text"].as_str().unwrap()).collect::<Vec<_>>(), texts);
    for (rank, (choice, hypothesis)) in choices.iter().zip(&expected.finished.hypotheses).enumerate() {
        let reason = if hypothesis.ids.last() == Some(&1) { "stop" } else { "length" };
        assert_eq!((&choice["index"], choice["finish_reason"].as_str()), (&json!(rank), Some(reason)));
        assert!((choice["weir"]["score"].as_f64().unwrap() - f64::from(hypothesis.score)).abs() < 1e-6);
    }
    let usage = expected.finished.usage.unwrap();
    let generated: usize = expected.finished.hypotheses.iter().map(|other| other.ids.len()).sum();
    assert_eq!(answer["usage"]["prompt_tokens"], usage.document_tokens);
    assert_eq!(answer["usage"]["completion_tokens"], generated);
    assert_eq!((&answer["object"], &answer["model"]), (&json!("text_completion"), &json!("t5_v10")));
    assert_eq!(choices[0]["weir"]["usage"]["cut"], false);
    // a stream
    body["stream"] = true.into();
    body["stream_options"] = json!({ "include_usage": true });
    let mut events = server.post("/v1/completions", &body).await.events();
    let last = events.pop().unwrap();
    assert_eq!((&last["choices"], &last["usage"]), (&json!([]), &answer["usage"]));
    let mut streamed = vec![String::new(); 4];
    for choice in events.iter().flat_map(|event| event["choices"].as_array().unwrap()) {
        streamed[choice["index"].as_u64().unwrap() as usize] += choice["text"].as_str().unwrap();
    }
    assert_eq!(streamed, texts);
    assert!(events.iter().all(|event| event["usage"].is_null() && event["id"] == last["id"]));
    assert!(events[0]["choices"][0]["finish_reason"].is_null(), "{}", events[0]);
    // a prompt without options takes the checkpoint's defaults; a list is answered in its order
    let both = json!({ "prompt": [text, "also known"], "max_tokens": 12, "min_tokens": 0 });
    let answer = server.post("/v1/completions", &both).await.json();
    let choices = answer["choices"].as_array().unwrap();
    assert_eq!((choices.len(), &choices[1]["index"]), (2, &json!(1)));
    let alone = json!({ "document": "also known", "max_tokens": 12, "min_tokens": 0 });
    let alone = server.post("/v1/summaries", &alone).await.json();
    assert_eq!(choices[1]["text"], alone["text"]);
    // sampling
    let drawn = json!({ "prompt": text, "max_tokens": 8, "min_tokens": 0, "temperature": 1.5, "seed": 3 });
    let [first, second] = [server.post("/v1/completions", &drawn).await, server.post("/v1/completions", &drawn).await];
    assert_eq!(first.json()["choices"][0]["text"], second.json()["choices"][0]["text"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn completions_by_summaries_are_refused_with_the_field() {
    let folder = t5_shortened(24);
    let server = T5Server::new(folder.path()).await;
    let invalid = "invalid_request_error";
    for (own, status, kind, field) in [
        (json!({ "prompt": "" }), 400, invalid, "prompt"),
        (json!({}), 400, invalid, "prompt"),
        (json!({ "prompt": [3, 4] }), 400, invalid, "prompt"),
        (json!({ "prompt": "on and on ".repeat(30) }), 400, invalid, "prompt"),
        (json!({ "prompt": "a", "n": 65 }), 400, invalid, "n"),
        (json!({ "prompt": "a", "best_of": 65 }), 400, invalid, "best_of"),
        (json!({ "prompt": "a", "max_tokens": 5000 }), 400, invalid, "max_tokens"),
        (json!({ "prompt": "a", "early_stopping": "sometimes" }), 400, invalid, "early_stopping"),
        (json!({ "prompt": "a", "repetition_penalty": 0 }), 400, invalid, "repetition_penalty"),
        (json!({ "prompt": "a", "echo": true }), 400, invalid, "echo"),
        (json!({ "prompt": "a", "stop": ["."] }), 400, invalid, "stop"),
        (json!({ "prompt": "a", "model": "nobody" }), 404, "not_found_error", "model"),
    ] {
        let refused = server.post("/v1/completions", &own).await.refused();
        assert_eq!(refused, (status, kind.into(), field.into()), "{own}");
    }
    // an error of the document in a stream, and the message's field
    let long = json!({ "prompt": "on and on ".repeat(30), "stream": true });
    let answer = server.post("/v1/completions", &long).await;
    assert!(answer.body().contains("\"param\":\"prompt\"") && !answer.body().contains("[DONE]"), "{}", answer.body());
    let message = server.post("/v1/completions", &json!({ "prompt": "" })).await.json()["error"]["message"].clone();
    assert!(message.as_str().unwrap().starts_with("prompt: "), "{message}");
    let answer = json!({ "prompt": "on and on ".repeat(30), "cut": true, "max_tokens": 4, "min_tokens": 0 });
    let answer = server.post("/v1/completions", &answer).await.json();
    assert_eq!(answer["choices"][0]["weir"]["usage"]["cut"], true, "{answer}");
}

/// fairseq's search has neither option.
#[tokio::test]
async fn options_of_transformers_are_refused_for_fairseq() {
    let server = super::Server::new().await;
    for (options, field) in [
        (SummarizeOptions { early_stopping: Some("true".into()), ..Default::default() }, "options.early_stopping"),
        (SummarizeOptions { repetition_penalty: Some(1.5), ..Default::default() }, "options.repetition_penalty"),
    ] {
        let status = server.answer(options, &["text"]).await.unwrap_err();
        let found = details(&status).bad_request().unwrap().field_violations[0].field.clone();
        assert_eq!((status.code(), found.as_str()), (Code::InvalidArgument, field));
        assert!(status.message().contains("follows fairseq"), "{}", status.message());
    }
    let sampling = Some(v1::Sampling { temperature: Some(1.0), seed: Some(3), ..Default::default() });
    let sampled = SummarizeOptions { sampling, repetition_penalty: Some(1.5), ..Default::default() };
    server.answer(sampled, &["text"]).await.unwrap();
    server.at_rest().await;
}
