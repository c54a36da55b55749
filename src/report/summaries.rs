//! Summaries, timed: two models in turns read documents of one length and write texts of one length, which are given, so that both
//! do as much whatever their weights are.
//!
//! A document arrives in equal parts, each of which is encoded as far as can be before the next one comes: what is left after the
//! last part is what an upload cannot hide.

use super::{bounded, compare::Ratio, head::Head, machine::Machine, quantiles::Quantiles};
use crate::{
    decode::{
        contract::{Model, Scratch, SequenceRow, Want, advance},
        document::{Document, DocumentEncoder, DocumentLimits, EncodingStage, LayerTime},
        random::{Purpose, uniform},
    },
    error::{Error, Result},
};
use serde::Serialize;
use std::{sync::Arc, time::Instant};

/// The most documents side by side, and the most runs of each model.
pub const MAX: usize = 1024;
/// Parts that a document arrives in.
const PARTS: usize = 16;

/// What is to be timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Documents that are written about side by side.
    pub batch: usize,
    /// Tokens of each, the end mark included.
    pub source: usize,
    /// Tokens that are written about each.
    pub tokens: usize,
    /// Runs of each model.
    pub pairs: usize,
}

impl Plan {
    /// Whether the model can do it.
    ///
    /// # Errors
    /// [`Error::BadOption`] with the command line's option and its bound, [`Error::WrongKind`].
    pub fn check(&self, model: &dyn Model) -> Result<()> {
        let limits = reader(model)?.limits();
        bounded("--batch", self.batch, 1, MAX)?;
        bounded("--source", self.source, 2, limits.tokens)?;
        bounded("--tokens", self.tokens, 2, limits.targets)?;
        bounded("--pairs", self.pairs, 1, MAX)
    }
}

/// What one model took, by its median run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Entry {
    /// The model, and what it runs on.
    #[serde(flatten)]
    pub head: Head,
    /// Nanoseconds of encoding one document.
    pub encode_ns: f64,
    /// Of these, those after its last part had come, as a share.
    pub encode_share_after_upload: f64,
    /// Of these, by layer: vectors that came in, and nanoseconds. One document of the last run.
    pub layers: Vec<Layer>,
    /// Nanoseconds of one document's keys and values for the decoder; of the same.
    pub memory_ns: u64,
    /// Multiply-adds of f32 a second while a document is encoded, in units of 2 · 10⁹: GFLOP/s.
    pub encode_gflops: f64,
    /// What the same threads do in registers alone.
    pub peak_gflops: f64,
    /// Nanoseconds of a step, which writes a token about each document: the median of all steps.
    pub decode_ns_per_token: f64,
    /// Bytes that such a step has to read: weights, and the keys and values of all documents and of half the text.
    pub decode_bytes_per_step: usize,
    /// Bytes a second that the same threads read when they go through as many again and again.
    pub ceiling_bytes_per_second: f64,
    /// Nanoseconds of the whole: all documents, all tokens.
    pub request_ns: f64,
    /// Vectors that the decoder attends to.
    pub vectors: usize,
    /// Bytes of their keys and values, of one document.
    pub cross_attention_bytes: usize,
}

/// What one layer of the encoder took.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Layer {
    /// Vectors that came in.
    pub length: usize,
    /// Nanoseconds.
    pub ns: u64,
}

/// Two models beside each other.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// Documents side by side.
    pub batch: usize,
    /// Tokens of each.
    pub source: usize,
    /// Tokens written about each.
    pub tokens: usize,
    /// Runs of each model.
    pub pairs: usize,
    /// The first model.
    pub a: Entry,
    /// The second.
    pub b: Entry,
    /// Time of the second ÷ time of the first: of a step of the decoder.
    pub decode_ratio: Ratio,
    /// Of the whole.
    pub request_ratio: Ratio,
}

/// One run.
struct Run {
    /// Of each document: nanoseconds, and those after its last part.
    encode: Vec<(f64, f64)>,
    step_ns: Vec<f64>,
    layers: Vec<LayerTime>,
    memory_ns: u64,
    vectors: usize,
    bytes: usize,
}

impl Run {
    fn request_ns(&self) -> f64 {
        let encode: f64 = self.encode.iter().map(|(all, _)| all).sum();
        encode + self.step_ns.iter().sum::<f64>()
    }

    fn step_p50(&self) -> f64 {
        median(self.step_ns.clone())
    }
}

/// Runs the plan with both models, A B A B …, after a run of each that is not timed; `progress` is told the pairs done.
///
/// # Errors
/// A plan that one of the models cannot do, and what their steps say.
pub fn compare(
    [a, b]: [&dyn Model; 2],
    plan: Plan,
    machine: &Machine,
    progress: &mut dyn FnMut(usize),
) -> Result<Comparison> {
    plan.check(a)?;
    plan.check(b)?;
    let mut scratches = [a.scratch(), b.scratch()];
    let mut pair = || -> Result<[Run; 2]> { Ok([run(a, plan, &mut scratches[0])?, run(b, plan, &mut scratches[1])?]) };
    pair()?;
    let mut runs = [Vec::new(), Vec::new()];
    for done in 0..plan.pairs {
        let [of_a, of_b] = pair()?;
        runs[0].push(of_a);
        runs[1].push(of_b);
        progress(done + 1);
    }
    // a ratio of speeds: of times, the other way round
    let ratio = |of: fn(&Run) -> f64| {
        let speeds: Vec<_> = runs[0].iter().zip(&runs[1]).map(|(a, b)| (of(b), of(a))).collect();
        Ratio::of(&speeds).ok_or_else(|| Error::Internal("no pair was timed".into()))
    };
    let (decode_ratio, request_ratio) = (ratio(Run::step_p50)?, ratio(Run::request_ns)?);
    let [of_a, of_b] = &runs;
    let (a, b) = (entry(a, plan, machine, of_a)?, entry(b, plan, machine, of_b)?);
    let Plan { batch, source, tokens, pairs } = plan;
    Ok(Comparison { batch, source, tokens, pairs, a, b, decode_ratio, request_ratio })
}

/// What a model's runs found, beside the machine's ceilings, which are measured now.
fn entry(model: &dyn Model, plan: Plan, machine: &Machine, runs: &[Run]) -> Result<Entry> {
    let documents = || runs.iter().flat_map(|run| &run.encode);
    let last = runs.last();
    let layers = last.into_iter().flat_map(|run| &run.layers);
    let encode_ns = median(documents().map(|(all, _)| *all).collect());
    let cost = model.cost(plan.tokens / 2, 0);
    let bytes = cost.symbol.shared_bytes + cost.logits.shared_bytes + plan.batch * cost.symbol.own_bytes;
    Ok(Entry {
        head: Head::new(model.card(), machine),
        encode_ns,
        encode_share_after_upload: median(documents().map(|(all, rest)| rest / all.max(1.0)).collect()),
        layers: layers.map(|&LayerTime { length, ns }| Layer { length, ns }).collect(),
        memory_ns: last.map_or(0, |run| run.memory_ns),
        encode_gflops: 2.0 * reader(model)?.multiply_adds(plan.source) as f64 / encode_ns.max(1.0),
        peak_gflops: 2.0 * machine.multiply_adds_per_second() / 1e9,
        decode_ns_per_token: median(runs.iter().flat_map(|run| run.step_ns.iter().copied()).collect()),
        decode_bytes_per_step: bytes,
        ceiling_bytes_per_second: machine.read_bytes_per_second(bytes)?,
        request_ns: median(runs.iter().map(Run::request_ns).collect()),
        vectors: last.map_or(0, |run| run.vectors),
        cross_attention_bytes: last.map_or(0, |run| run.bytes),
    })
}

fn median(numbers: Vec<f64>) -> f64 {
    Quantiles::of(numbers).map_or(0.0, |found| found.p50)
}

fn run(model: &dyn Model, plan: Plan, scratch: &mut Scratch) -> Result<Run> {
    let reader = reader(model)?;
    let limits = reader.limits();
    let vocabulary = model.card().vocabulary.len();
    let mut run =
        Run { encode: Vec::new(), step_ns: Vec::new(), layers: Vec::new(), memory_ns: 0, vectors: 0, bytes: 0 };
    let mut rows = Vec::with_capacity(plan.batch);
    for number in 0..plan.batch {
        let mut ids = given(limits, vocabulary, number as u64, plan.source - 1);
        ids.push(limits.marks.end);
        let (document, times) = encode(reader, &ids, scratch)?;
        run.encode.push(times);
        (run.layers, run.memory_ns) = (document.timings().to_vec(), document.memory_ns());
        (run.vectors, run.bytes) = (document.vectors(), document.bytes());
        rows.push(SequenceRow::new(reader.begin(&*document)?));
    }
    let which: Vec<usize> = (0..plan.batch).collect();
    let texts: Vec<Vec<u32>> =
        (0..plan.batch).map(|number| given(limits, vocabulary, u64::MAX - number as u64, plan.tokens)).collect();
    for step in 0..plan.tokens {
        for (row, text) in rows.iter_mut().zip(&texts) {
            row.set(&text[step..=step], Want::Last);
        }
        let began = Instant::now();
        advance(model, &mut rows, &which, scratch)?;
        run.step_ns.push(began.elapsed().as_nanos() as f64);
    }
    Ok(run)
}

/// Encodes a document as it arrives: the whole time, and that after its last part.
fn encode(reader: &dyn DocumentEncoder, ids: &[u32], scratch: &mut Scratch) -> Result<(Arc<dyn Document>, (f64, f64))> {
    let mut encoding = reader.open();
    let (began, parts) = (Instant::now(), ids.chunks(ids.len().div_ceil(PARTS)));
    let mut last = began;
    for part in parts {
        while encoding.progress().stage != EncodingStage::Waiting {
            if reader.advance(&mut *encoding, 1, scratch)? == 0 {
                break;
            }
        }
        last = Instant::now();
        encoding.push(part)?;
    }
    encoding.close()?;
    loop {
        if let Some(document) = encoding.document() {
            let ended = Instant::now();
            let since = |from: Instant| ended.duration_since(from).as_nanos() as f64;
            return Ok((document, (since(began), since(last))));
        }
        if reader.advance(&mut *encoding, 1, scratch)? == 0 && encoding.document().is_none() {
            return Err(Error::Internal("a document that is whole does not come to its end".into()));
        }
    }
}

/// Ids that are no marks, always the same ones.
fn given(limits: &DocumentLimits, vocabulary: usize, seed: u64, count: usize) -> Vec<u32> {
    let marks = [limits.marks.start, limits.marks.pad, limits.marks.end, limits.marks.unknown];
    let plain: Vec<u32> = (0..vocabulary as u32).filter(|id| !marks.contains(id)).collect();
    let place = |at| (uniform(seed, Purpose::Sampling, at) * plain.len() as f32) as usize;
    (0..count).filter_map(|at| plain.get(place(at)).copied()).collect()
}

fn reader(model: &dyn Model) -> Result<&dyn DocumentEncoder> {
    let found = || (model.card().name.clone(), model.card().shape.clone());
    model.document_encoder().ok_or_else(|| {
        let (model, found) = found();
        Error::WrongKind { call: "bench summarize", model, wanted: "reads documents", found }
    })
}
