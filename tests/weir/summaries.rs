//! Summaries of converted fixtures: the engine and the command line give the official generator's ids and scores.

use crate::pyramidion::{Case, stripped};
use crate::support::*;
use crate::*;
use weir::engine::{DocumentEvent, DocumentSource, Event};

/// Tolerance of scores: sums of a few logits, each within 5e-5.
const SCORES: f32 = 1e-4;

/// Returns the options of the official generator.
fn request(case: &Case, way: &str) -> Summarize {
    let generation = &case.config["generation"][way];
    let size = |key: &str| generation[key].as_u64().unwrap() as usize;
    Summarize {
        beam: Some(size("beam")),
        min_tokens: Some(size("min_len")),
        max_tokens: Some(size("max_len_b")),
        length_penalty: Some(generation["lenpen"].as_f64().unwrap() as f32),
        no_repeat_ngram: Some(0),
        hypotheses: Some(size("beam")),
        ..Summarize::default()
    }
}

/// Returns the official ids and the official score of a hypothesis.
fn hypothesis(case: &Case, way: &str, document: usize, rank: usize) -> (Vec<u32>, f32) {
    let tokens = case.ids(&format!("{way}.tokens"), document);
    let length = case.golden.shape(&format!("{way}.tokens"))[2];
    let score = case.golden.row(&format!("{way}.scores"), document)[rank];
    (stripped(&tokens[rank * length..][..length]).to_vec(), score)
}

/// Reads events to the end, and returns ids and scores of all hypotheses.
fn read(mut events: Events) -> Vec<(Vec<u32>, f32)> {
    loop {
        let event = events.blocking_recv().expect("the last event is the summary").unwrap();
        if let Event::Document(DocumentEvent::Summarized(summary)) = event {
            return summary.hypotheses.into_iter().map(|hypothesis| (hypothesis.tokens, hypothesis.score)).collect();
        }
    }
}

/// Summarizes all documents of a case on one engine at the same time, greedily and with two beams.
#[test]
fn ids_and_scores_equal_the_official_ones() {
    for case in PYRAMIDION_CASES {
        let model = load(&checkpoint("pyramidion", case), &settings()).unwrap();
        let case = Case::load(case);
        let limits = Limits { document_bytes: 1 << 20, ..Limits::default() };
        let engine = Handle::start(Arc::clone(&model), limits).unwrap();
        let mut requests = Vec::new();
        for way in ["greedy", "beam2"] {
            let request = request(&case, way);
            for index in 0..case.count() {
                let (upload, arriving) = engine.upload();
                let events = engine.summarize(&request, DocumentSource::Uploading(arriving), None).unwrap();
                let ids = case.source(index);
                ids.chunks(7).for_each(|part| upload.push(part, &vec![Default::default(); part.len()]));
                upload.close(false);
                requests.push((way, index, events));
            }
        }
        for (way, index, events) in requests {
            let found = read(events);
            assert_eq!(found.len(), case.golden.shape(&format!("{way}.tokens"))[1], "{} {way}", case.name);
            for (rank, (ids, score)) in found.into_iter().enumerate() {
                let (expected, expected_score) = hypothesis(&case, way, index, rank);
                let name = format!("{} {way} document {index} rank {rank}", case.name);
                assert_eq!(ids, expected, "{name}");
                assert!((score - expected_score).abs() < SCORES, "{name}: {score}, not {expected_score}");
            }
        }
        let spare = engine.document_cache_usage().bytes;
        assert!(spare > 0 && engine.load().bytes == 0);
        drop(engine);
        // The model keeps the encodings of complete blocks of padding.
        assert!(model.memory().in_use < spare, "{}: all pages are given back", case.name);
    }
}

fn weir(args: &[&str]) -> Result<Value, String> {
    process::weir(args).map(|printed| serde_json::from_str(&printed).unwrap_or_default())
}

/// Writes a small random model with a tokenizer, and returns its folder.
pub(crate) fn write_random_model(out: &Path) -> String {
    write_model_with(out, "")
}

/// Does the same with pieces for more characters.
pub(crate) fn write_model_with(out: &Path, more: &str) -> String {
    let shape = out.join("shape.json");
    let marks = ["<s>", "<pad>", "</s>", "<unk>"];
    let letters = ('a'..='z').chain(['.', ',']).chain(more.chars()).map(String::from);
    let pieces: Vec<String> = ["▁".to_owned(), "▁the".into(), "ing".into()].into_iter().chain(letters).collect();
    let vocab: Vec<Value> =
        marks.iter().map(|mark| json!([mark, 0.0])).chain(pieces.iter().map(|piece| json!([piece, -3.0]))).collect();
    let added = marks.iter().enumerate().map(|(id, mark)| {
        json!({"id": id, "content": mark, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true})
    });
    let metaspace = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true});
    let tokenizer = json!({"version": "1.0", "truncation": null, "padding": null,
        "added_tokens": added.collect::<Vec<_>>(), "normalizer": {"type": "NFKC"}, "pre_tokenizer": metaspace,
        "post_processor": null, "decoder": metaspace,
        "model": {"type": "Unigram", "unk_id": 3, "vocab": vocab, "byte_fallback": false}});
    fs::write(out.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let config = fs::read_to_string(checkpoint("pyramidion", "pyramidion").join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&config).unwrap();
    config["vocabulary"] = json!({"tokenizer": "tokenizer.json", "size": vocab.len()});
    fs::write(&shape, config.to_string()).unwrap();
    let model = out.join("model");
    weir(&["init", "--config", shape.to_str().unwrap(), model.to_str().unwrap()]).unwrap();
    model.to_str().unwrap().to_owned()
}

#[test]
fn two_models_are_measured_alternately() {
    let [a, b] = ["pyramidion", "blockwise"].map(|case| checkpoint("pyramidion", case).to_str().unwrap().to_owned());
    let plan = ["--batch", "1,2", "--source", "64", "--tokens", "8", "--pairs", "2", "--threads", "1", "--json"];
    let report = weir(&[&["bench", "summarize", &a, &b][..], &plan].concat()).unwrap();
    let entries = report.as_array().unwrap();
    assert_eq!(entries.len(), 2);
    for (entry, batch) in entries.iter().zip([1, 2]) {
        assert_eq!((entry["batch"].as_u64(), entry["source"].as_u64()), (Some(batch), Some(64)));
        for side in ["a", "b"] {
            let side = &entry[side];
            let number = |key: &str| side[key].as_f64().unwrap();
            assert!(number("encode_ns") > 0.0 && number("decode_ns_per_token") > 0.0);
            assert!(number("request_ns") >= number("encode_ns"));
            assert!((0.0..=1.0).contains(&number("encode_share_after_upload")));
            assert_eq!(side["layers"].as_array().unwrap().len(), 3);
        }
        assert!(entry["a"]["vectors"].as_u64() < entry["b"]["vectors"].as_u64());
        for ratio in ["decode_ratio", "request_ratio"] {
            assert!(entry[ratio]["median"].as_f64().unwrap() > 0.0);
        }
    }
}
