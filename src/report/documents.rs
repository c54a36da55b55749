//! Benchmark of given documents: two models in turns encode each document and decode a fixed text about it.
//!
//! Documents are real, because the share of them that a model keeps depends on their text. The decoded texts are fixed, so both
//! models decode equally many tokens.

use crate::report::machine::{Machine, MeasuredModel};
use crate::report::summaries::{encode, reader, text_ids};
use crate::report::{check_range, quantiles, ratios};
use serde::Serialize;
use std::{sync::Arc, time::Instant};
use weir_kernels::error::{Error, Result};
use weir_measure::stats::{Quantiles, median};
use weir_models::contract::{Model, Scratch, SequenceRow, Want, advance, covers_text, kept_share, no_text};
use weir_models::text::{LimitStatus, TokenSpan};

/// Maximum runs of each model.
pub(crate) const MAX_PAIRS: usize = 1024;

/// Maximum documents.
pub(crate) const MAX_DOCUMENTS: usize = 10_000;

/// The plan of the benchmark: the flags of `weir bench documents` describe the fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct DocumentBenchPlan {
    pub tokens: usize,
    pub pairs: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BenchDocument {
    /// Its file, and its line if the file has several documents.
    pub name: String,
    pub text: String,
}

/// What a document costs a model. Times are medians over the runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(crate) struct DocumentCost {
    /// Tokens that were read, the end mark included.
    pub tokens: usize,
    /// Share of the tokens that the last pooling kept. Absent if the model pools without choosing tokens.
    pub kept_share: Option<f64>,
    pub encode_ns: f64,
    pub decode_ns_per_token: f64,
    /// Bytes of the decoder's keys and values.
    pub cross_attention_bytes: usize,
}

/// A document's costs, and the gains: the second model's cost divided by the first one's.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct DocumentResult {
    pub document: String,
    /// Bytes of the text that both models read.
    pub bytes: usize,
    /// True if the document is longer than a model reads.
    pub cut: bool,
    pub a: DocumentCost,
    pub b: DocumentCost,
    pub encode_gain: Quantiles,
    pub decode_gain: Quantiles,
    /// Gain of encoding and decoding together.
    pub total_gain: Quantiles,
    pub cross_attention_gain: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct DocumentComparison {
    #[serde(flatten)]
    pub plan: DocumentBenchPlan,
    pub a: MeasuredModel,
    pub b: MeasuredModel,
    pub documents: Vec<DocumentResult>,
    /// Sums over the documents. Gains are quantiles over the rounds, each summed over all documents.
    pub total: DocumentResult,
    /// Medians over the documents. Gains are quantiles over the documents.
    pub median: DocumentResult,
}

/// Ids of a document, as a model reads them.
struct ReadDocument {
    ids: Vec<u32>,
    /// Bytes of the text up to the last token.
    bytes: usize,
    cut: bool,
}

/// One run of a model on a document.
#[derive(Debug, Clone, Copy, Default)]
struct DocumentRun {
    encode_ns: f64,
    decode_ns: f64,
    kept_share: Option<f64>,
    bytes: usize,
}

/// Measures the documents with both models, in turns, after one untimed round. The model that begins alternates. `progress` receives
/// the number of finished rounds. Fails if a document has text outside of a vocabulary, or if a step fails.
pub(crate) fn compare(
    [a, b]: [&dyn Model; 2],
    documents: &[BenchDocument],
    plan: DocumentBenchPlan,
    machine: &Machine,
    progress: &mut dyn FnMut(usize),
) -> Result<DocumentComparison> {
    check_range("documents", documents.len(), 1, MAX_DOCUMENTS)?;
    for model in [a, b] {
        check_range("--tokens", plan.tokens, 2, reader(model)?.limits().targets)?;
    }
    let read: Vec<[ReadDocument; 2]> =
        documents.iter().map(|document| Ok([tokens(a, document)?, tokens(b, document)?])).collect::<Result<_>>()?;
    let mut scratches = [a.scratch(), b.scratch()];
    let mut runs = vec![Vec::with_capacity(plan.pairs); documents.len()];
    for round in 0..=plan.pairs {
        for (index, (read, runs)) in read.iter().zip(&mut runs).enumerate() {
            let mut pair = [DocumentRun::default(); 2];
            let order = if (round + index).is_multiple_of(2) { [0, 1] } else { [1, 0] };
            for model in order {
                pair[model] = run([a, b][model], &read[model].ids, plan.tokens, &mut scratches[model])?;
            }
            // the first round warms up
            if round > 0 {
                runs.push(pair);
            }
        }
        progress(round);
    }
    let each = documents.iter().zip(&read).zip(&runs);
    let results: Vec<DocumentResult> =
        each.map(|((document, read), runs)| result(&document.name, read, runs, plan)).collect::<Result<_>>()?;
    Ok(DocumentComparison {
        plan,
        a: MeasuredModel::new(a.card(), machine),
        b: MeasuredModel::new(b.card(), machine),
        total: total(&results, &runs, plan)?,
        median: medians(&results)?,
        documents: results,
    })
}

/// Cuts a document into tokens, at most as many as the model reads.
fn tokens(model: &dyn Model, document: &BenchDocument) -> Result<ReadDocument> {
    let limits = reader(model)?.limits();
    let in_document = |error: Error| Error::Setting(format!("{}: {error}", document.name));
    let mut reading = limits.tokenizer(Arc::clone(&model.card().vocabulary), "document").with_truncation(true);
    let mut spans: Vec<TokenSpan> = Vec::new();
    let mut status = reading.push(&document.text, &mut spans).map_err(in_document)?;
    if status != LimitStatus::Exceeded {
        status = reading.finish(&mut spans).map_err(in_document)?;
    }
    if !covers_text(&spans) {
        return Err(in_document(no_text("document")));
    }
    let bytes = spans.last().map_or(0, |span| span.end as usize);
    let ids = spans.iter().map(|span| span.id).chain([limits.marks.end]).collect();
    Ok(ReadDocument { ids, bytes, cut: status == LimitStatus::Exceeded })
}

fn run(model: &dyn Model, ids: &[u32], tokens: usize, scratch: &mut Scratch) -> Result<DocumentRun> {
    let reader = reader(model)?;
    let (document, time) = encode(reader, ids, scratch)?;
    let mut rows = [SequenceRow::new(reader.begin(&document)?)];
    let text = text_ids(reader.limits(), model.card().vocabulary.len(), 0, tokens);
    let start = Instant::now();
    for symbol in text.chunks(1) {
        rows[0].set(symbol, Want::Last);
        advance(model, &mut rows, &[0], scratch)?;
    }
    Ok(DocumentRun {
        encode_ns: time.total_ns,
        decode_ns: start.elapsed().as_nanos() as f64,
        kept_share: kept_share(&document.choices, document.vectors, document.tokens),
        bytes: document.bytes,
    })
}

fn result(
    name: &str,
    read: &[ReadDocument; 2],
    runs: &[[DocumentRun; 2]],
    plan: DocumentBenchPlan,
) -> Result<DocumentResult> {
    let cost = |model: usize| {
        let values = |value: fn(&DocumentRun) -> f64| runs.iter().map(move |pair| value(&pair[model]));
        let of = |value| median(values(value).collect()).unwrap_or(0.0);
        let last = runs.last().map(|pair| pair[model]).unwrap_or_default();
        DocumentCost {
            tokens: read[model].ids.len(),
            kept_share: last.kept_share,
            encode_ns: of(|run| run.encode_ns),
            decode_ns_per_token: of(|run| run.decode_ns) / plan.tokens as f64,
            cross_attention_bytes: last.bytes,
        }
    };
    let bytes = read[0].bytes.min(read[1].bytes);
    with_gains(name, bytes, read[0].cut || read[1].cut, [cost(0), cost(1)], runs)
}

/// Returns the result with these costs, and with the gains over the runs.
fn with_gains(
    document: &str,
    bytes: usize,
    cut: bool,
    [a, b]: [DocumentCost; 2],
    runs: &[[DocumentRun; 2]],
) -> Result<DocumentResult> {
    let gain = |value: fn(&DocumentRun) -> f64| ratios(runs.iter().map(|[a, b]| (value(b), value(a))));
    Ok(DocumentResult {
        document: document.to_owned(),
        bytes,
        cut,
        a,
        b,
        encode_gain: gain(|run| run.encode_ns)?,
        decode_gain: gain(|run| run.decode_ns)?,
        total_gain: gain(|run| run.encode_ns + run.decode_ns)?,
        cross_attention_gain: b.cross_attention_bytes as f64 / (a.cross_attention_bytes as f64).max(1.0),
    })
}

/// Adds up documents.
fn total(
    results: &[DocumentResult],
    runs: &[Vec<[DocumentRun; 2]>],
    plan: DocumentBenchPlan,
) -> Result<DocumentResult> {
    let mut rounds = vec![[DocumentRun::default(); 2]; plan.pairs];
    for (round, sums) in rounds.iter_mut().enumerate() {
        for pair in runs.iter().filter_map(|document| document.get(round)) {
            for (sum, run) in sums.iter_mut().zip(pair) {
                sum.encode_ns += run.encode_ns;
                sum.decode_ns += run.decode_ns;
            }
        }
    }
    let decoded = (plan.tokens * results.len()) as f64;
    let cost = |model: usize, of: fn(&DocumentResult) -> &DocumentCost| {
        let costs = || results.iter().map(of);
        let tokens = costs().map(|cost| cost.tokens).sum::<usize>();
        let kept: Option<f64> = costs().map(|cost| Some(cost.kept_share? * cost.tokens as f64)).sum();
        let values = |value: fn(&DocumentRun) -> f64| rounds.iter().map(move |round| value(&round[model]));
        let time = |value| median(values(value).collect()).unwrap_or(0.0);
        DocumentCost {
            tokens,
            kept_share: kept.map(|kept| kept / tokens.max(1) as f64),
            encode_ns: time(|run| run.encode_ns),
            decode_ns_per_token: time(|run| run.decode_ns) / decoded.max(1.0),
            cross_attention_bytes: costs().map(|cost| cost.cross_attention_bytes).sum(),
        }
    };
    let bytes = results.iter().map(|result| result.bytes).sum();
    let cut = results.iter().any(|result| result.cut);
    let costs = [cost(0, |result| &result.a), cost(1, |result| &result.b)];
    with_gains("all documents", bytes, cut, costs, &rounds)
}

fn medians(results: &[DocumentResult]) -> Result<DocumentResult> {
    let of = |value: &dyn Fn(&DocumentResult) -> f64| median(results.iter().map(value).collect()).unwrap_or(0.0);
    let cost = |cost: fn(&DocumentResult) -> &DocumentCost| {
        let kept: Option<Vec<f64>> = results.iter().map(|result| cost(result).kept_share).collect();
        DocumentCost {
            tokens: of(&|result| cost(result).tokens as f64) as usize,
            kept_share: kept.and_then(median),
            encode_ns: of(&|result| cost(result).encode_ns),
            decode_ns_per_token: of(&|result| cost(result).decode_ns_per_token),
            cross_attention_bytes: of(&|result| cost(result).cross_attention_bytes as f64) as usize,
        }
    };
    let gains = |gain: fn(&DocumentResult) -> f64| quantiles(results.iter().map(gain).collect());
    Ok(DocumentResult {
        document: "median document".into(),
        bytes: of(&|result| result.bytes as f64) as usize,
        cut: results.iter().any(|result| result.cut),
        a: cost(|result| &result.a),
        b: cost(|result| &result.b),
        encode_gain: gains(|result| result.encode_gain.median)?,
        decode_gain: gains(|result| result.decode_gain.median)?,
        total_gain: gains(|result| result.total_gain.median)?,
        cross_attention_gain: of(&|result| result.cross_attention_gain),
    })
}
