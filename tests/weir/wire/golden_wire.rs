//! Official checkpoints over gRPC: the answers equal those of one forward pass.

use super::{Running, read};
use crate::support::{CASES, fixture, full, golden};
use std::{f64::consts::LN_2, sync::Arc};
use tokio_stream::StreamExt;
use weir::{
    config::TransportConfig,
    decode::contract::{BoundaryMode, BoundaryOptions, Model, Noise},
    engine::{Handle, Limits},
};
use weir_proto::v1::{self, generation_client::GenerationClient, score_response::Event};

/// Maximum distance of a log-probability from the f64 reference, in steps between adjacent f32.
const ULPS: u32 = 1;
/// Tolerance in bits of a sum of log-probabilities, each rounded to f32.
const BITS: f64 = 1e-6;

/// The fixture's first text, shortened.
fn text(case: &str) -> String {
    let file = std::fs::read_to_string(golden(case).join("text.json")).unwrap();
    let file: serde_json::Value = serde_json::from_str(&file).unwrap();
    file["rows"][0].as_str().unwrap().chars().take(60).collect()
}

fn log_probability(logits: &[f32], symbol: u32) -> f64 {
    let max_logit = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let total: f64 = logits.iter().map(|&logit| (f64::from(logit) - max_logit).exp()).sum();
    f64::from(logits[symbol as usize]) - max_logit - total.ln()
}

async fn scored(running: &Running, request: v1::ScoreRequest) -> (Vec<v1::Character>, v1::ScoreSummary) {
    let mut client = GenerationClient::new(running.channel.clone());
    let mut stream = client.score(request).await.unwrap().into_inner();
    let mut characters = Vec::new();
    while let Some(message) = stream.next().await {
        match message.unwrap().event.unwrap() {
            Event::Chunk(chunk) => characters.extend(chunk.characters),
            Event::Summary(summary) => return (characters, summary),
        }
    }
    panic!("no summary");
}

/// Starts one server of all fixtures.
async fn all() -> (Vec<Arc<dyn Model>>, Running) {
    let models: Vec<_> = CASES.iter().map(|case| fixture(case)).collect();
    let start = |model: &Arc<dyn Model>| Handle::start(Arc::clone(model), Limits::default()).unwrap();
    let running = Running::start(models.iter().map(start).collect(), TransportConfig::default()).await;
    (models, running)
}

#[tokio::test]
async fn scores_equal_the_forward_pass() {
    let (models, running) = all().await;
    for (case, model) in CASES.iter().zip(&models) {
        let text = text(case);
        let vocabulary = &model.card().vocabulary;
        let symbols = vocabulary.encode("text", &text, usize::MAX).unwrap();
        for &mode in &model.card().boundary_modes {
            let boundaries = BoundaryOptions { mode: Some(mode), noise: Noise::Seeded(9), ..Default::default() };
            let (logits, marks) = full(&**model, &symbols, &boundaries);
            let request = v1::ScoreRequest {
                model: Some((*case).to_owned()),
                text: text.clone(),
                boundary_mode: Some(mode.name().to_owned()),
                seed: Some(9),
                ..Default::default()
            };
            let (characters, summary) = scored(&running, request).await;
            assert_eq!(characters.iter().map(|c| c.id).collect::<Vec<_>>(), symbols, "{case}");
            let marked = marks.iter().map(|mark| Some(mark.boundary));
            assert!(characters.iter().map(|c| c.boundary).eq(marked), "{case}");
            let mut total = 0.0;
            for (index, character) in characters.iter().enumerate().skip(1) {
                let expected =
                    log_probability(&logits[(index - 1) * vocabulary.len()..][..vocabulary.len()], symbols[index]);
                let actual = character.logprob.unwrap();
                let ulps = actual.to_bits().abs_diff((expected as f32).to_bits());
                assert!(ulps <= ULPS, "{case}, {index}: {actual}, not {expected}");
                total -= expected / LN_2;
            }
            let bits = total / (symbols.len() - 1) as f64;
            assert!((summary.bits_per_char.unwrap() - bits).abs() < BITS, "{case}");
            assert_eq!(summary.usage.unwrap().shortening_factor.is_some(), model.card().pooled, "{case}");
        }
    }
}

#[tokio::test]
async fn generated_text_equals_the_forward_pass() {
    let (models, running) = all().await;
    let mut client = GenerationClient::new(running.channel.clone());
    for (case, model) in CASES.iter().zip(&models) {
        let request = v1::GenerateRequest {
            model: Some((*case).to_owned()),
            prompt: text(case),
            sampling: Some(v1::Sampling { temperature: Some(0.0), ..Default::default() }),
            stopping: Some(v1::Stopping { max_chars: Some(40), ..Default::default() }),
            ..Default::default()
        };
        let answer = read(client.generate(request.clone()).await.unwrap().into_inner()).await.unwrap();
        let vocabulary = &model.card().vocabulary;
        let prompt = vocabulary.encode("prompt", &request.prompt, usize::MAX).unwrap();
        let generated = vocabulary.encode("text", &answer.text(), usize::MAX).unwrap();
        assert_eq!(generated.len(), 40, "{case}");
        let complete = [&prompt[..], &generated].concat();
        let (logits, _) = full(&**model, &complete, &BoundaryOptions::default());
        for (row, &symbol) in logits.chunks(vocabulary.len()).skip(prompt.len() - 1).zip(&generated) {
            let max_logit = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            assert_eq!(row[symbol as usize], max_logit, "{case}");
        }
    }
}

#[tokio::test]
async fn segments_equal_the_forward_pass() {
    let (models, running) = all().await;
    let mut client = GenerationClient::new(running.channel.clone());
    for (case, model) in CASES.iter().zip(&models).filter(|(_, model)| model.card().pooled) {
        let text = text(case);
        let request = v1::SegmentRequest { model: Some((*case).to_owned()), text: text.clone(), ..Default::default() };
        let answer = client.segment(request).await.unwrap().into_inner();
        let symbols = model.card().vocabulary.encode("text", &text, usize::MAX).unwrap();
        let (_, marks) = full(&**model, &symbols, &BoundaryOptions::default());
        assert_eq!(answer.segments.iter().map(|segment| segment.text.as_str()).collect::<String>(), text, "{case}");
        let closed = answer.segments.iter().filter(|segment| !segment.open).map(|segment| segment.char_end as usize);
        let marked = marks.iter().enumerate().filter(|(_, mark)| mark.boundary).map(|(position, _)| position + 1);
        assert!(closed.eq(marked), "{case}");
        let learned = model.card().boundary_modes.contains(&BoundaryMode::Threshold);
        assert!(answer.segments.iter().all(|segment| segment.boundary_probability.is_some() == learned), "{case}");
    }
}
