//! Hourglasses in shapes that the official fixtures lack: d_head ≠ d_model / n_heads, a vocabulary with a newline and non-ASCII
//! letters whose space is not id 0, ReLU, last-token pooling, and boundaries at a companion's entropy spikes. The tests of
//! `verify` compare their logits and boundaries with a second implementation; these test companions and text.

mod int8_files;
mod ngrams;
mod shapes;
#[cfg(feature = "candle")]
mod verified_texts;

pub(super) use shapes::{folder, shapes, write};

use super::support::{Alone, Dice, full, settings};
use serde_json::{Value, json};
use shapes::{SYMBOLS, config, spikes, three_stacks};
use std::{fs, path::Path};
use tempfile::TempDir;
use weir::{
    decode::contract::{BoundaryOptions, Want, advance},
    family::{
        checkpoint::Config,
        load::{blueprint, load},
    },
};

/// Returns the entropy of softmax(x).
fn entropy(x: &[f64]) -> f64 {
    let total: f64 = x.iter().map(|x| x.exp()).sum();
    -x.iter().map(|x| (x.exp() / total) * (x.exp() / total).ln()).sum::<f64>()
}

/// A companion with a shorter training length accepts texts as long as its model's, because a prefill feeds both.
#[test]
fn a_companion_accepts_the_lengths_of_its_model() {
    let root = TempDir::new().unwrap();
    let folder = spikes(root.path(), &config(json!({"pre": 1}), json!({"kind": "none"}), &[]));
    let file = folder.join("config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    config["training_length"] = json!(2500);
    fs::write(&file, config.to_string()).unwrap();
    let model = load(&folder, &settings()).unwrap();
    assert_eq!(model.card().max_symbols, 10_000);
    let mut alone = Alone::new(&*model, BoundaryOptions::default());
    // The limit of the companion alone is 8,192.
    for chunk in Dice::new(5).text(8_200, SYMBOLS.len()).chunks(512) {
        alone.rows[0].set(chunk, Want::Nothing);
        advance(&*model, &mut alone.rows, &[0], &mut alone.scratch).unwrap();
    }
    assert_eq!(alone.rows[0].state.len(), 8_200);
}

/// Fixed boundaries of a companion count from the start of the whole stream.
#[test]
fn a_companion_keeps_the_phase_of_the_stream() {
    let root = TempDir::new().unwrap();
    let folder = spikes(root.path(), &config(three_stacks(), json!({"kind": "fixed", "every": 5}), &[]));
    let model = load(&folder, &settings()).unwrap();
    let companion = load(&folder.join("companion"), &settings()).unwrap();
    let text = Dice::new(3).text(70, SYMBOLS.len());
    let closes = |offset| {
        let (_, marks) = full(&*model, &text, &BoundaryOptions { offset, ..Default::default() });
        marks.iter().map(|mark| mark.boundary).collect::<Vec<_>>()
    };
    let (logits, _) = full(&*companion, &text, &BoundaryOptions { offset: 3, ..Default::default() });
    let wide = |logits: &[f32]| logits.iter().map(|&logit| f64::from(logit)).collect::<Vec<_>>();
    let entropies: Vec<f64> = logits.chunks(SYMBOLS.len()).map(|logits| entropy(&wide(logits))).collect();
    let spike = |t: usize| entropies[t.saturating_sub(2)..t].iter().all(|&before| entropies[t] > before);
    assert_eq!(closes(3), (0..text.len()).map(spike).collect::<Vec<_>>());
    assert_ne!(closes(3), closes(0));
}

/// Returns the error for a configuration.
fn refusal(config: &Value) -> String {
    let file = Path::new("config.json");
    let config = Config::parse(config.to_string().as_bytes(), file).unwrap();
    blueprint(&config, file).unwrap_err().to_string()
}

/// Pooling reads as many outputs as the window keeps, also directly after a rollback to the earliest length that is possible.
#[test]
fn hops_reach_as_far_as_the_window() {
    let root = TempDir::new().unwrap();
    // A segment ends with symbol `every`, the first one after the rollback.
    for (name, window, hops, every) in [
        ("sliding", json!({"sliding": {"keys": 8}}), 7, 519),
        ("blockwise", json!({"blockwise": {"length": 22}}), 11, 363),
    ] {
        let shape = |hops: usize| {
            let extra = [("window", window.clone()), ("pooling", json!({"hops": hops}))];
            config(three_stacks(), json!({"kind": "fixed", "every": every}), &extra)
        };
        let model = load(&write(root.path(), name, &shape(hops), 7), &settings()).unwrap();
        let text = Dice::new(5).text(every + 41, SYMBOLS.len());
        let (logits, marks) = full(&*model, &text, &BoundaryOptions::default());
        let mut alone = Alone::new(&*model, BoundaryOptions::default());
        alone.feed(&text[..every + 36]);
        text[every + 36..].iter().for_each(|&symbol| drop(alone.feed(&[symbol])));
        assert_eq!(alone.rows[0].state.earliest(), every, "{name}");
        alone.rows[0].state.rollback(every).unwrap();
        let again = alone.feed(&text[every..]);
        assert!(again.1[0].boundary, "{name}");
        assert_eq!(again, (logits[every * SYMBOLS.len()..].to_vec(), marks[every..].to_vec()), "{name}");
        let message = refusal(&shape(hops + 1));
        let expected = format!("config.json: architecture.pooling.hops: expected at most {hops} (");
        assert!(message.starts_with(&expected) && message.ends_with(&format!("found {}", hops + 1)), "{message}");
    }
    let one_key = [("window", json!({"sliding": {"keys": 1}}))];
    let message = refusal(&config(three_stacks(), json!({"kind": "fixed", "every": 5}), &one_key));
    assert!(message.contains("architecture.window.sliding.keys: expected at least 2 ("), "{message}");
}

#[test]
fn text_of_an_unusual_vocabulary_round_trips() {
    let (_, model) = shapes().into_iter().find(|(name, _)| name == "odd-shape").unwrap();
    let vocabulary = &model.card().vocabulary;
    let text = "語 é\nł😀 שa";
    let ids = vocabulary.encode("text", text, usize::MAX).unwrap();
    assert_eq!(ids, [6, 3, 2, 1, 4, 8, 3, 5, 7]);
    assert_eq!(vocabulary.decode(&ids), text);
    // A newline closes no segment, a space does.
    let (_, marks) = full(&*model, &ids, &BoundaryOptions::default());
    let closes: Vec<bool> = marks.iter().map(|mark| mark.boundary).collect();
    assert_eq!(closes, [false, true, false, false, false, false, true, false, false]);
}
