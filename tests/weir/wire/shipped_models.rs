//! Shipped models over gRPC: their answers equal those in their cards, which PyTorch computed from the same weights
//! (`models/training/card.py`).

use super::Running;
use crate::support::settings;
use serde_json::Value;
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};
use tokio_stream::StreamExt;
use weir::{
    config::TransportConfig,
    engine::{Handle, Limits},
    family::load::load,
};
use weir_proto::v1::{
    self, DocumentChunk, SummarizeOptions, SummarizeRequest, generation_client::GenerationClient,
    models_client::ModelsClient, summarization_client::SummarizationClient, summarize_request::Part,
};

/// Tolerance of bits per character, compared with the card.
const BITS: f64 = 0.002;
/// Maximum bytes of the weights of all shipped models.
const BYTES: u64 = 120_000_000;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the folders of shipped models with their cards. Fails if a model has no card.
fn shipped() -> Vec<(PathBuf, Value)> {
    let folders = ["models", "models/compared"].map(|folder| fs::read_dir(root().join(folder)).unwrap());
    let folders = folders.into_iter().flatten().map(|entry| entry.unwrap().path());
    let models = folders.filter(|folder| folder.join("model.safetensors").exists());
    let cards: Vec<_> = models
        .map(|folder| {
            let card = fs::read_to_string(folder.join("card.json")).expect("a shipped model has a card.json");
            (folder, serde_json::from_str(&card).unwrap())
        })
        .collect();
    let page = fs::read_to_string(root().join("models/README.md")).unwrap();
    let listed = page.lines().filter_map(|line| Some(line.strip_prefix("| [`")?.split_once("`](")?.0));
    let names = cards.iter().map(|(folder, _)| folder.file_name().unwrap().to_str().unwrap());
    assert_eq!(names.collect::<BTreeSet<_>>(), listed.collect(), "models, and those that models/README.md lists");
    cards
}

async fn served(folder: &Path) -> Running {
    let engine = Handle::start(load(folder, &settings()).unwrap(), Limits::default()).unwrap();
    Running::start(vec![engine], TransportConfig::default()).await
}

/// Reads a file that a card names.
fn named(entry: &Value, key: &str) -> String {
    fs::read_to_string(root().join(entry[key].as_str().unwrap())).unwrap()
}

/// Returns the bits per character of a text, scored in the windows that the card names.
async fn bits(running: &Running, entry: &Value) -> f64 {
    let number = |key: &str| u32::try_from(entry[key].as_u64().unwrap()).unwrap();
    let windows = Some(v1::Windows { length: number("length"), stride: number("stride") });
    let request = v1::ScoreRequest { text: named(entry, "text"), windows, ..Default::default() };
    let mut stream = GenerationClient::new(running.channel.clone()).score(request).await.unwrap().into_inner();
    while let Some(message) = stream.next().await {
        if let v1::score_response::Event::Summary(summary) = message.unwrap().event.unwrap() {
            return summary.bits_per_char.unwrap();
        }
    }
    panic!("no summary");
}

/// Returns the best summary of a document with the checkpoint's default options.
async fn summary(running: &Running, document: String) -> v1::Hypothesis {
    let parts = [Part::Options(SummarizeOptions::default()), Part::Chunk(DocumentChunk { text: document })];
    let requests = parts.map(|part| SummarizeRequest { part: Some(part) });
    let call = SummarizationClient::new(running.channel.clone()).summarize(tokio_stream::iter(requests)).await;
    let mut stream = call.unwrap().into_inner();
    while let Some(message) = stream.next().await {
        if let v1::summarize_response::Event::Finished(finished) = message.unwrap().event.unwrap() {
            return finished.hypotheses.into_iter().next().unwrap();
        }
    }
    panic!("no summary");
}

#[tokio::test(flavor = "multi_thread")]
async fn shipped_models_answer_as_in_their_cards() {
    for (folder, card) in shipped() {
        let name = card["name"].as_str().unwrap();
        assert!(folder.ends_with(name), "{name} lies in {}", folder.display());
        let running = served(&folder).await;
        let model = ModelsClient::new(running.channel.clone()).get_model(v1::GetModelRequest::default()).await;
        let model = model.unwrap().into_inner();
        assert_eq!(
            (card["sha256"].as_str(), card["family"].as_str()),
            (Some(&*model.sha256), Some(&*model.family)),
            "{name}"
        );
        let entries = card["served"].as_array().unwrap();
        assert!(!entries.is_empty(), "{name}");
        for entry in entries {
            if entry["document"].is_string() {
                let actual = summary(&running, named(entry, "document")).await;
                let expected: Vec<_> = entry["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect();
                let ids: Vec<_> = actual.ids.iter().map(|&id| u64::from(id)).collect();
                assert_eq!((ids, actual.text.as_str()), (expected, entry["text"].as_str().unwrap()), "{name}");
            } else {
                let actual = bits(&running, entry).await;
                let expected = entry["bpc"].as_f64().unwrap();
                assert!((actual - expected).abs() <= BITS, "{name}: {actual}, not {expected}, in {entry}");
            }
        }
    }
}

/// Each model's README names the checksum of its weights.
#[test]
fn shipped_weights_match_their_cards_and_are_small() {
    let mut bytes = 0;
    for (folder, card) in shipped() {
        let length = fs::metadata(folder.join("model.safetensors")).unwrap().len();
        assert_eq!(card["bytes"].as_u64(), Some(length), "{}", folder.display());
        let text = fs::read_to_string(folder.join("README.md")).unwrap();
        assert!(text.contains(card["sha256"].as_str().unwrap()), "{}", folder.display());
        bytes += length;
    }
    assert!(bytes <= BYTES, "{bytes} bytes");
}
