//! Benchmark of summarization: two models in turns encode documents and decode fixed texts, all of equal length.
//!
//! The texts are fixed, so that the work does not depend on the weights. A document arrives in equal parts, and each part is
//! encoded as far as possible before the next one arrives. Work after the last part is what an upload cannot hide.

use crate::report::machine::{LIMIT_TIME, Machine, MeasuredModel};
use crate::report::{check_range, ratios};
use serde::Serialize;
use std::{sync::Arc, time::Instant};
use weir_kernels::error::{Error, Result};
use weir_measure::stats::{Quantiles, median};
use weir_models::contract::{
    Document, DocumentEncoder, DocumentLimits, EncodingStage, LayerTime, Model, Scratch, SequenceRow, Want, advance,
};
use weir_models::random::{Purpose, uniform};

/// Maximum concurrent documents, and maximum runs of each model.
pub(crate) const MAX: usize = 1024;

/// Parts in which a document arrives.
const PARTS: usize = 16;

/// The plan of the benchmark: the flags of `weir bench summarize` describe the fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct SummaryBenchPlan {
    pub batch: usize,
    pub source: usize,
    pub tokens: usize,
    pub pairs: usize,
}

impl SummaryBenchPlan {
    /// Checks that the model reads documents, and the plan against its limits. The error names the option and its limit.
    pub(crate) fn check(&self, model: &dyn Model) -> Result<()> {
        let limits = reader(model)?.limits();
        check_range("--source", self.source, 2, limits.tokens)?;
        check_range("--tokens", self.tokens, 2, limits.targets)
    }
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct SummaryBenchResult {
    #[serde(flatten)]
    pub measured: MeasuredModel,
    /// Median nanoseconds to encode one document.
    pub encode_ns: f64,
    /// Share of `encode_ns` after the last part has arrived.
    pub encode_share_after_upload: f64,
    /// Time of each encoder layer, for one document of the last run.
    pub layers: Vec<LayerMeasurement>,
    /// Nanoseconds to compute the decoder's keys and values of the same document.
    pub memory_ns: u64,
    /// GFLOP/s while a document is encoded: two floating-point operations per multiply-add.
    pub encode_gflops: f64,
    /// Measured peak GFLOP/s of the same threads, in registers.
    pub peak_gflops: f64,
    /// Median nanoseconds of a step, which decodes one token for each document.
    pub decode_ns_per_token: f64,
    /// Bytes that such a step reads: weights, and keys and values of all documents and of half the text.
    pub decode_bytes_per_step: usize,
    /// Measured read bandwidth of the same threads for a working set of that size.
    pub ceiling_bytes_per_second: f64,
    /// Median nanoseconds of a complete run: all documents and all tokens.
    pub request_ns: f64,
    /// Vectors of a document that the decoder attends to.
    pub vectors: usize,
    /// Bytes of their keys and values.
    pub cross_attention_bytes: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct LayerMeasurement {
    /// Input vectors.
    pub length: usize,
    pub ns: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct SummaryComparison {
    #[serde(flatten)]
    pub plan: SummaryBenchPlan,
    pub a: SummaryBenchResult,
    pub b: SummaryBenchResult,
    /// Time of a decoder step of the second model divided by the first model's.
    pub decode_ratio: Quantiles,
    /// Time of a complete run of the second model divided by the first model's.
    pub request_ratio: Quantiles,
}

pub(super) struct EncodeTime {
    pub(super) total_ns: f64,
    /// Nanoseconds after the last part has arrived.
    after_last_part_ns: f64,
}

#[derive(Default)]
struct SummaryRun {
    encode: Vec<EncodeTime>,
    step_ns: Vec<f64>,
    layers: Vec<LayerTime>,
    memory_ns: u64,
    vectors: usize,
    bytes: usize,
}

impl SummaryRun {
    fn request_ns(&self) -> f64 {
        self.encode.iter().map(|time| time.total_ns).sum::<f64>() + self.step_ns.iter().sum::<f64>()
    }
}

/// Runs the plan with both models in turns (A B A B …), after one untimed run of each. `progress` receives the number of
/// finished pairs. Fails if the plan exceeds a limit of a model, or if a step fails.
pub(crate) fn compare(
    [a, b]: [&dyn Model; 2],
    plan: SummaryBenchPlan,
    machine: &Machine,
    progress: &mut dyn FnMut(usize),
) -> Result<SummaryComparison> {
    plan.check(a)?;
    plan.check(b)?;
    let mut scratches = [a.scratch(), b.scratch()];
    let mut runs = [Vec::new(), Vec::new()];
    for pair in 0..=plan.pairs {
        let run_a = run(a, plan, &mut scratches[0])?;
        let run_b = run(b, plan, &mut scratches[1])?;
        // the first pair warms up
        if pair > 0 {
            runs[0].push(run_a);
            runs[1].push(run_b);
            progress(pair);
        }
    }
    // a ratio of speeds is the inverse ratio of times
    let ratio = |time: fn(&SummaryRun) -> f64| ratios(runs[0].iter().zip(&runs[1]).map(|(a, b)| (time(b), time(a))));
    Ok(SummaryComparison {
        plan,
        a: summarize_runs(a, plan, machine, &runs[0])?,
        b: summarize_runs(b, plan, machine, &runs[1])?,
        decode_ratio: ratio(|run| median(run.step_ns.clone()).unwrap_or(0.0))?,
        request_ratio: ratio(SummaryRun::request_ns)?,
    })
}

/// Computes the result of a model's runs and measures the limits of the machine.
fn summarize_runs(
    model: &dyn Model,
    plan: SummaryBenchPlan,
    machine: &Machine,
    runs: &[SummaryRun],
) -> Result<SummaryBenchResult> {
    let documents = || runs.iter().flat_map(|run| &run.encode);
    let last = runs.last();
    let layers = last.into_iter().flat_map(|run| &run.layers);
    let share_after_upload = |time: &EncodeTime| time.after_last_part_ns / time.total_ns.max(1.0);
    let step_ns = runs.iter().flat_map(|run| run.step_ns.iter().copied());
    let encode_ns = median(documents().map(|time| time.total_ns).collect()).unwrap_or(0.0);
    let vectors = last.map_or(0, |run| run.vectors);
    let multiply_adds = reader(model)?.multiply_adds(plan.source, vectors);
    let cost = model.cost(plan.tokens / 2, 0);
    let bytes = cost.symbol.shared_bytes + cost.logits.shared_bytes + plan.batch * cost.symbol.own_bytes;
    Ok(SummaryBenchResult {
        measured: MeasuredModel::new(model.card(), machine),
        encode_ns,
        encode_share_after_upload: median(documents().map(share_after_upload).collect()).unwrap_or(0.0),
        layers: layers.map(|&LayerTime { length, ns }| LayerMeasurement { length, ns }).collect(),
        memory_ns: last.map_or(0, |run| run.memory_ns),
        encode_gflops: 2.0 * multiply_adds as f64 / encode_ns.max(1.0),
        peak_gflops: 2.0 * machine.multiply_adds_per_second() / 1e9,
        decode_ns_per_token: median(step_ns.collect()).unwrap_or(0.0),
        decode_bytes_per_step: bytes,
        ceiling_bytes_per_second: machine.read_bytes_per_second(bytes, LIMIT_TIME)?,
        request_ns: median(runs.iter().map(SummaryRun::request_ns).collect()).unwrap_or(0.0),
        vectors,
        cross_attention_bytes: last.map_or(0, |run| run.bytes),
    })
}

fn run(model: &dyn Model, plan: SummaryBenchPlan, scratch: &mut Scratch) -> Result<SummaryRun> {
    let reader = reader(model)?;
    let limits = reader.limits();
    let vocabulary = model.card().vocabulary.len();
    let mut run = SummaryRun::default();
    let mut rows = Vec::with_capacity(plan.batch);
    for number in 0..plan.batch {
        let mut ids = text_ids(limits, vocabulary, number as u64, plan.source - 1);
        ids.push(limits.marks.end);
        let (document, time) = encode(reader, &ids, scratch)?;
        run.encode.push(time);
        run.layers = document.timings.clone();
        run.memory_ns = document.memory_ns;
        run.vectors = document.vectors;
        run.bytes = document.bytes;
        rows.push(SequenceRow::new(reader.begin(&document)?));
    }
    let indices: Vec<usize> = (0..plan.batch).collect();
    let text = |number| text_ids(limits, vocabulary, u64::MAX - number as u64, plan.tokens);
    let texts: Vec<Vec<u32>> = (0..plan.batch).map(text).collect();
    for step in 0..plan.tokens {
        for (row, text) in rows.iter_mut().zip(&texts) {
            row.set(&text[step..=step], Want::Last);
        }
        let start = Instant::now();
        advance(model, &mut rows, &indices, scratch)?;
        run.step_ns.push(start.elapsed().as_nanos() as f64);
    }
    Ok(run)
}

/// Encodes a document while its parts arrive.
pub(super) fn encode(
    reader: &dyn DocumentEncoder,
    ids: &[u32],
    scratch: &mut Scratch,
) -> Result<(Arc<Document>, EncodeTime)> {
    let mut encoding = reader.open(false)?;
    let start = Instant::now();
    let mut last_part = start;
    for part in ids.chunks(ids.len().div_ceil(PARTS)) {
        while encoding.progress().stage != EncodingStage::Waiting {
            if reader.advance(&mut *encoding, 1, scratch)? == 0 {
                break;
            }
        }
        last_part = Instant::now();
        encoding.push(part)?;
    }
    encoding.close()?;
    loop {
        if let Some(document) = encoding.document() {
            let total_ns = start.elapsed().as_nanos() as f64;
            let after_last_part_ns = last_part.elapsed().as_nanos() as f64;
            return Ok((document, EncodeTime { total_ns, after_last_part_ns }));
        }
        if reader.advance(&mut *encoding, 1, scratch)? == 0 && encoding.document().is_none() {
            return Err(Error::Internal("encoding a complete document made no progress".into()));
        }
    }
}

/// Returns `count` pseudorandom ids that are not special symbols.
pub(super) fn text_ids(limits: &DocumentLimits, vocabulary: usize, seed: u64, count: usize) -> Vec<u32> {
    let marks = [limits.marks.start, limits.marks.pad, limits.marks.end, limits.marks.unknown];
    let candidates: Vec<u32> = (0..vocabulary as u32).filter(|id| !marks.contains(id)).collect();
    let index = |position| (uniform(seed, Purpose::Sampling, position) * candidates.len() as f32) as usize;
    (0..count).filter_map(|position| candidates.get(index(position)).copied()).collect()
}

/// Returns the encoder of a model. Fails if the model reads no documents.
pub(super) fn reader(model: &dyn Model) -> Result<&dyn DocumentEncoder> {
    let card = model.card();
    let wrong = || Error::wrong_kind("this benchmark", &card.name, "reads documents", &card.shape);
    model.document_encoder().ok_or_else(wrong)
}
