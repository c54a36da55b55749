//! Texts that the search writes, compared with those of transformers.

use super::*;
use serde_json::Value;
use weir::decode::{
    beam::{BeamSearch, Hypothesis, SearchOptions, SearchStep},
    search_rules::SearchRules,
};

const SCORES: f32 = 1e-5;

/// Returns the options for settings in the names of transformers.
fn options(settings: &Value) -> SearchOptions {
    let number = |key: &str| settings[key].as_u64().map(|number| number as usize);
    let float = |key: &str| settings[key].as_f64().unwrap_or(1.0) as f32;
    // lengths in total count the start symbol
    let length = |new: &str, total: &str| number(new).or(number(total).map(|total| total - 1));
    SearchOptions {
        beam: number("num_beams").unwrap(),
        length_penalty: float("length_penalty"),
        min_tokens: length("min_new_tokens", "min_length").unwrap_or(0),
        max_tokens: length("max_new_tokens", "max_length").unwrap(),
        no_repeat_ngram: number("no_repeat_ngram_size").unwrap_or(0),
        rules: SearchRules::Transformers,
        early_stopping: match &settings["early_stopping"] {
            Value::Null => Default::default(),
            other => serde_json::from_value(other.clone()).unwrap(),
        },
        repetition_penalty: float("repetition_penalty"),
        sampling: None,
    }
}

/// Runs a search on rows of the model.
fn search(model: &dyn Model, document: &dyn Document, options: SearchOptions) -> Vec<Hypothesis> {
    let marks = encoder(model).limits().marks;
    let mut search = BeamSearch::new(options, marks, model.card().vocabulary.len());
    let mut scratch = model.scratch();
    let mut rows = vec![SequenceRow::new(encoder(model).begin(document).unwrap())];
    rows[0].set(&[marks.start], Want::Last);
    loop {
        let all: Vec<usize> = (0..rows.len()).collect();
        advance(model, &mut rows, &all, &mut scratch).unwrap();
        match search.advance(rows.iter().map(|row| row.logits.as_slice())).unwrap() {
            SearchStep::Done => return search.finished().to_vec(),
            SearchStep::Continue(moves) => {
                let next = |step: &weir::decode::beam::RowMove| {
                    let mut row = SequenceRow::new(rows[step.parent].state.fork());
                    row.set(&[step.token], Want::Last);
                    row
                };
                rows = moves.iter().map(next).collect();
            }
        }
    }
}

#[test]
fn texts_and_scores_equal_those_of_transformers() {
    for case in Case::all() {
        let model = t5_in(case.name, Dtype::F32);
        let mut compared = 0;
        for source in case.sources() {
            let document = encode(&*model, &case.golden.ids(&format!("{source}.ids")), &mut model.scratch());
            for (name, settings) in case.about["settings"].as_object().unwrap() {
                let key = |part: &str| format!("{source}.{name}.{part}");
                // forced tokens are not supported
                if name == "forced" || !case.golden.has(&key("ids")) {
                    continue;
                }
                let hypotheses = search(&*model, &*document, options(settings));
                let lengths = case.golden.ids(&key("lengths"));
                assert_eq!(hypotheses.len(), lengths.len(), "{} {source} {name}", case.name);
                for (index, (hypothesis, &length)) in hypotheses.iter().zip(&lengths).enumerate() {
                    let ids = case.golden.row(&key("ids"), index);
                    let ids: Vec<u32> = ids[..length as usize].iter().map(|&id| id as u32).collect();
                    assert_eq!(hypothesis.tokens, ids, "{} {source} {name} {index}", case.name);
                    if case.golden.has(&key("scores")) {
                        let expected = case.golden.get(&key("scores"))[index];
                        let error = (hypothesis.score - expected).abs();
                        assert!(error <= SCORES, "{} {source} {name} {index}: {error}", case.name);
                    }
                    compared += 1;
                }
            }
        }
        assert!(compared >= 8, "{}: {compared}", case.name);
    }
}
