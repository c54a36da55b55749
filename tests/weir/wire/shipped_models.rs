//! Shipped models behind the wire: what they answer is what their cards say, which PyTorch has computed from the same
//! weights (`models/training/card.py`).

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
    config::Wire,
    engine::{Handle, Limits},
    family::load::load,
};
use weir_proto::v1::{
    self, DocumentChunk, SummarizeOptions, SummarizeRequest, generation_client::GenerationClient,
    models_client::ModelsClient, summarization_client::SummarizationClient, summarize_request::Part,
};

/// How far bits per character may be from the card's.
const BITS: f64 = 0.002;
/// What the weights of all shipped models may take together.
const BYTES: u64 = 120_000_000;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The folders of shipped models with their cards. A model without a card is not to be shipped.
fn shipped() -> Vec<(PathBuf, Value)> {
    let places = ["models", "models/compared"].map(|place| fs::read_dir(root().join(place)).unwrap());
    let folders = places.into_iter().flatten().map(|entry| entry.unwrap().path());
    let models = folders.filter(|folder| folder.join("model.safetensors").exists());
    let found: Vec<_> = models
        .map(|folder| {
            let card = fs::read_to_string(folder.join("card.json")).expect("a shipped model has a card.json");
            (folder, serde_json::from_str(&card).unwrap())
        })
        .collect();
    let page = fs::read_to_string(root().join("models/README.md")).unwrap();
    let told = page.lines().filter_map(|line| Some(line.strip_prefix("| [`")?.split_once("`](")?.0));
    let names = found.iter().map(|(folder, _)| folder.file_name().unwrap().to_str().unwrap());
    assert_eq!(names.collect::<BTreeSet<_>>(), told.collect(), "models, and those that models/README.md tells of");
    found
}

async fn served(folder: &Path) -> Running {
    let engine = Handle::start(load(folder, &settings()).unwrap(), Limits::default()).unwrap();
    Running::start(vec![engine], Wire::default()).await
}

/// A file that a card names.
fn named(entry: &Value, key: &str) -> String {
    fs::read_to_string(root().join(entry[key].as_str().unwrap())).unwrap()
}

/// Bits per character of a text in the windows that a card tells.
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

/// The best summary of a document, as the checkpoint says that it is to be written.
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
async fn shipped_models_answer_as_their_cards_say() {
    for (folder, card) in shipped() {
        let name = card["name"].as_str().unwrap();
        assert!(folder.ends_with(name), "{name} lies in {}", folder.display());
        let running = served(&folder).await;
        let told = ModelsClient::new(running.channel.clone()).get_model(v1::GetModelRequest::default()).await;
        let told = told.unwrap().into_inner();
        assert_eq!(
            (card["sha256"].as_str(), card["family"].as_str()),
            (Some(&*told.sha256), Some(&*told.family)),
            "{name}"
        );
        let entries = card["served"].as_array().unwrap();
        assert!(!entries.is_empty(), "{name}");
        for entry in entries {
            if entry["document"].is_string() {
                let found = summary(&running, named(entry, "document")).await;
                let expected: Vec<_> = entry["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect();
                let ids: Vec<_> = found.ids.iter().map(|&id| u64::from(id)).collect();
                assert_eq!((ids, found.text.as_str()), (expected, entry["text"].as_str().unwrap()), "{name}");
            } else {
                let (found, expected) = (bits(&running, entry).await, entry["bpc"].as_f64().unwrap());
                assert!((found - expected).abs() <= BITS, "{name}: {found}, not {expected}, in {entry}");
            }
        }
    }
}

/// Each card for people tells the weights that lie beside it.
#[test]
fn shipped_weights_are_those_of_the_cards_and_few() {
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
