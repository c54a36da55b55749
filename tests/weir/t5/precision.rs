//! Summaries with weights in bf16 and int8, compared with those in f32.

use super::*;
use weir::{
    decode::summary::Summarize,
    engine::{DocumentEvent, DocumentSource, Event, Handle, Limits},
};

/// Returns the best summary of a document, end mark included.
fn summary(engine: &Handle, request: &Summarize, ids: &[u32]) -> Vec<u32> {
    let (upload, arriving) = engine.upload();
    let mut events = engine.summarize(request, DocumentSource::Uploading(arriving), None).unwrap();
    upload.push(ids, &vec![Default::default(); ids.len()]);
    upload.close(false);
    loop {
        if let Event::Document(DocumentEvent::Summarized(summary)) = events.blocking_recv().unwrap().unwrap() {
            return summary.hypotheses.into_iter().next().unwrap().tokens;
        }
    }
}

/// Returns the least number of tokens to insert, remove or replace that turns one text into the other.
fn edits(from: &[u32], to: &[u32]) -> usize {
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (index, token) in from.iter().enumerate() {
        let mut diagonal = index;
        row[0] = index + 1;
        for (column, other) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(token != other);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(row[column] + 1).min(diagonal + 1);
        }
    }
    row[to.len()]
}

/// Returns the tokens of the summaries of all fixtures, greedy and of four beams, and how many of them change.
fn changed_tokens(dtype: Dtype) -> (usize, usize) {
    let mut tokens = 0;
    let mut changed = 0;
    for case in Case::all() {
        let [exact, other] =
            [Dtype::F32, dtype].map(|dtype| Handle::start(t5_in(case.name, dtype), Limits::default()).unwrap());
        for beam in [1, 4] {
            let request =
                Summarize { beam: Some(beam), max_tokens: Some(24), min_tokens: Some(0), ..Summarize::default() };
            for source in case.sources() {
                let ids = case.golden.ids(&format!("{source}.ids"));
                let [expected, actual] = [&exact, &other].map(|engine| summary(engine, &request, &ids));
                tokens += expected.len();
                changed += edits(&expected, &actual);
            }
        }
    }
    (tokens, changed)
}

#[test]
fn summaries_in_bf16_and_int8_are_close_to_those_in_f32() {
    assert_eq!(edits(&[1, 2, 3], &[2, 3, 4]), 2);
    for dtype in [Dtype::Bf16, Dtype::Int8] {
        let (tokens, changed) = changed_tokens(dtype);
        // docs/summarization.md states the figures
        assert!(tokens > 700 && changed * 20 < tokens, "{}: {changed} of {tokens} tokens changed", dtype.name());
    }
}
