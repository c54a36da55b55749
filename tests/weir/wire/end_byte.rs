//! Byte vocabularies with an end byte: a text ends when the model generates it.

use super::{GeneratedResponse, Running, http::exchange, read};
use crate::{hourglass, support::settings};
use serde_json::{Value, json};
use std::{net::SocketAddr, path::Path};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tonic::{Code, Status};
use weir::{
    config::TransportConfig,
    engine::{Handle, Limits},
    family::load::load,
    serve::{Engines, ServerParts},
};
use weir_proto::v1::{
    self, FinishReason, GenerateRequest, generation_client::GenerationClient, logit_bias::Symbol,
    models_client::ModelsClient,
};

/// First byte of "é".
const LEAD: u32 = 0xc3;
const END: u32 = 3;

struct Served {
    running: Running,
    port: SocketAddr,
}

impl Served {
    async fn new() -> Self {
        Self::of(hourglass::folder("ended-ngrams")).await
    }

    async fn of(folder: &Path) -> Self {
        let engine = Handle::start(load(folder, &settings()).unwrap(), Limits::default()).unwrap();
        let http = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = http.local_addr().unwrap();
        let parts = ServerParts { http: Some(http.into()), ..Engines::new(vec![engine]).unwrap().into() };
        Self { running: Running::offering(parts, TransportConfig::default()).await, port }
    }

    async fn answer(&self, request: GenerateRequest) -> GeneratedResponse {
        self.try_answer(request).await.unwrap()
    }

    async fn try_answer(&self, request: GenerateRequest) -> Result<GeneratedResponse, Status> {
        let mut client = GenerationClient::new(self.running.channel.clone());
        read(client.generate(request).await?.into_inner()).await
    }

    async fn complete(&self, body: &Value) -> Value {
        exchange(self.port, "POST", "/v1/completions", &[], &body.to_string()).await.json()["choices"][0].clone()
    }

    async fn marks(&self) -> Vec<(String, u32)> {
        let mut client = ModelsClient::new(self.running.channel.clone());
        let model = client.get_model(v1::GetModelRequest::default()).await.unwrap().into_inner();
        model.vocabulary.unwrap().marks.into_iter().collect()
    }
}

/// Returns the folder of a decoder over bytes with an end byte.
fn decoder(root: &Path) -> std::path::PathBuf {
    let config = json!({
        "format": "weir/1", "family": "decoder", "vocabulary": {"bytes": true, "end": END}, "normaliser": "none",
        "training_length": 64,
        "architecture": {
            "layers": 1, "dim": 16, "heads": 2, "head_dim": 8, "feed_forward": 16, "activation": "gelu",
            "layer_norm_eps": 1e-5, "position": "sinusoidal", "window": "full", "sub_norms": false,
            "scale_embedding": false, "tied": false,
        },
    });
    hourglass::write(root, "decoder", &config, 1)
}

/// Returns a request whose `favoured` symbols are far more probable than all others, the later ones more than the earlier ones.
fn request(prompt: &str, favoured: &[u32], stopping: v1::Stopping) -> GenerateRequest {
    let bias = |(place, &id)| v1::LogitBias { symbol: Some(Symbol::Id(id)), bias: 400.0 * f32::from(place) };
    let logit_bias = (1_u8..).zip(favoured).map(bias).collect();
    GenerateRequest {
        prompt: prompt.into(),
        sampling: Some(v1::Sampling { seed: Some(1), logit_bias, ..Default::default() }),
        stopping: Some(v1::Stopping { max_chars: Some(8), ..stopping }),
        details: Some(v1::Details {
            logprobs: Some(true),
            top_logprobs: Some(3),
            ids: Some(true),
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn ids(answer: &GeneratedResponse) -> Vec<u32> {
    answer.pieces.iter().flat_map(|piece| piece.ids.clone()).collect()
}

#[tokio::test]
async fn a_generation_ends_at_the_end_byte() {
    let root = TempDir::new().unwrap();
    for folder in [hourglass::folder("ended-ngrams"), &decoder(root.path())] {
        let served = Served::of(folder).await;
        let ended = served.answer(request("The ", &[END], v1::Stopping::default())).await;
        assert_eq!((ended.finished.reason(), ended.text()), (FinishReason::EndOfText, String::new()));
        assert_eq!((ids(&ended), ended.finished.usage.unwrap().generated_chars), (vec![END], 0));
        let end = &ended.pieces[0].characters[0];
        assert_eq!((end.id, end.text.as_str(), end.ends_text, end.logprob.is_some()), (END, "", true, true));

        let later = v1::Stopping { min_chars: Some(5), ..Default::default() };
        let later = served.answer(request("The ", &[u32::from(b'x'), END], later)).await;
        assert_eq!((later.finished.reason(), later.text()), (FinishReason::EndOfText, "xxxxx".into()));

        let ignored = v1::Stopping { ignore_eos: Some(true), ..Default::default() };
        let ignored = served.answer(request("The ", &[END], ignored)).await;
        assert_eq!((ignored.finished.reason(), ids(&ignored).len()), (FinishReason::MaxChars, 8));
        assert!(!ids(&ignored).contains(&END));
    }
}

/// The start of a stop string is held back until the next character, here the end.
#[tokio::test]
async fn a_held_stop_string_is_sent_before_the_end_byte() {
    let served = Served::new().await;
    let stopping = v1::Stopping { min_chars: Some(1), stop: vec!["xy".into()], ..Default::default() };
    let answer = served.answer(request("The ", &[u32::from(b'x'), END], stopping)).await;
    assert_eq!((answer.finished.reason(), answer.text()), (FinishReason::EndOfText, "x".into()));
    assert_eq!(answer.finished.matched_stop, None);
}

#[tokio::test]
async fn an_unfinished_code_point_before_the_end_byte_is_replaced() {
    let served = Served::new().await;
    let one = v1::Stopping { min_chars: Some(1), ..Default::default() };
    let whole = request("The ", &[LEAD, END], one);
    let answer = served.answer(whole.clone()).await;
    assert_eq!((answer.text(), ids(&answer)), ("\u{fffd}".into(), vec![LEAD, END]));
    // the stream broke before the event `finished`
    let resumed = GenerateRequest { resume_ids: ids(&answer), ..whole };
    let rest = served.answer(resumed).await;
    assert_eq!((rest.finished.reason(), rest.text(), ids(&rest)), (FinishReason::EndOfText, String::new(), vec![]));
    let (usage, before) = (rest.finished.usage.unwrap(), answer.finished.usage.unwrap());
    assert_eq!((usage.generated_chars, usage.generated_text_chars), (1, Some(1)));
    assert_eq!(usage.generated_text_chars, before.generated_text_chars);
}

#[tokio::test]
async fn a_resumed_text_ends_only_where_its_stream_may_end() {
    let served = Served::new().await;
    let resumed = |min_chars, ignore_eos| GenerateRequest {
        resume_ids: vec![u32::from(b'x'), END],
        ..request("The ", &[], v1::Stopping { min_chars: Some(min_chars), ignore_eos, ..Default::default() })
    };
    let rest = served.answer(resumed(1, None)).await;
    assert_eq!((rest.finished.reason(), rest.text()), (FinishReason::EndOfText, String::new()));
    for (refused, message) in [
        (resumed(2, None), "resume_ids: expected at least 2 ids before the end of the text (min_chars), found 1"),
        (resumed(1, Some(true)), "resume_ids: expected no id that ends the text (ignore_eos), found one at the end"),
    ] {
        let status = served.try_answer(refused).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::InvalidArgument, message));
    }
}

/// The end byte of the prompt is guessed again after the same characters.
#[tokio::test]
async fn a_guessed_end_byte_ends_the_text() {
    let served = Served::new().await;
    let one = v1::Stopping { min_chars: Some(1), ..Default::default() };
    let whole = request("One.\u{3}Two One", &[u32::from(b'.'), END], one);
    for speculate in ["off", "4", "4"] {
        let answer = served.answer(GenerateRequest { speculate: Some(speculate.into()), ..whole.clone() }).await;
        assert_eq!((answer.text(), ids(&answer)), (".".into(), vec![u32::from(b'.'), END]), "{speculate}");
        assert_eq!(answer.finished.reason(), FinishReason::EndOfText);
    }
}

#[tokio::test]
async fn a_prompt_may_contain_the_end_byte() {
    let served = Served::new().await;
    assert_eq!(served.marks().await, [("end".to_owned(), END)]);
    let mut request = request("One.\u{3}Two", &[], v1::Stopping::default());
    request.details.as_mut().unwrap().echo = Some(true);
    let answer = served.answer(request).await;
    let echoed: String = answer.pieces.iter().filter(|piece| piece.prompt).map(|piece| piece.text.as_str()).collect();
    assert_eq!((echoed.as_str(), answer.started.prompt_chars), ("One.\u{3}Two", 8));
    let mut characters = answer.pieces.iter().filter(|piece| piece.prompt).flat_map(|piece| &piece.characters);
    assert!(characters.any(|character| character.text == "\u{3}" && !character.ends_text));
}

#[tokio::test]
async fn completions_over_http_end_at_the_end_byte() {
    let served = Served::new().await;
    let mut body = json!({
        "prompt": "The ", "max_tokens": 8, "seed": 1, "logit_bias": { "3": 100 }, "temperature": 0, "logprobs": 0,
    });
    let ended = served.complete(&body).await;
    assert_eq!((&ended["finish_reason"], &ended["text"]), (&json!("stop"), &json!("")));
    assert_eq!(ended["logprobs"]["tokens"], json!([""]));
    body["ignore_eos"] = json!(true);
    assert_eq!(served.complete(&body).await["finish_reason"], "length");
}

#[tokio::test]
async fn the_default_model_has_an_end_byte() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/hourglass-english");
    assert_eq!(Served::of(&folder).await.marks().await, [("end".to_owned(), END)]);
}
