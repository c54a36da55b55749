//! A second implementation of every family, which checks that a checkpoint computes here what its paper says.
//!
//! A [`Reference`] is one plain forward pass over a whole text, written with candle's operations from the paper's formulas: no
//! cache, no pages, no batch. It reads the same safetensors, and `config.json` into the same types. It shares no arithmetic with
//! `nn` and `kernels`, so it is unlikely to repeat their errors. It computes in f64, so a small difference is weir's rounding.
//! `hugging_face` differs: there the family itself uses candle's operations, and the reference is mostly candle-transformers'
//! model, in f32.
//!
//! In reading order: [`Reference`], [`Checkpoint`], the table of families, [`model_outputs`] (weir's side), [`Report`]. Each family
//! has a file; `tensors` has the parts that they share.
//!
//! To add a family: a file with a [`Reference`], and a line in [`FAMILIES`](load::FAMILIES).

mod blt;
pub mod decoder;
mod hnet;
mod hourglass;
mod hugging_face;
pub mod load;
mod lslm;
mod pyramidion;
mod t5;
mod tensors;

use crate::verify::tensors::{Tensors, log_sum_exp, read_tensors};
use candle_core::{DType, Tensor};
use serde::{Serialize, de::DeserializeOwned};
use std::{collections::HashMap, f64::consts::LN_2, path::PathBuf, sync::Arc};
use weir_engine::score::{read_document, run, target_logits};
use weir_kernels::Dtype;
use weir_kernels::error::{Error, Result};
use weir_models::checkpoint::{self, CheckpointSource, Config};
use weir_models::contract::{BoundaryOptions, Card, DocumentEncoder, Model, PoolingChoice, SymbolBoundary, Want};
use weir_models::text::Vocabulary;

/// One family's forward pass.
pub trait Reference {
    /// Returns the maximum length of a text.
    fn limit(&self) -> LengthLimit {
        LengthLimit::PAIRS
    }

    /// Computes all outputs of an input. The outputs' own boundaries are the reference's decisions, whatever is `given`. Fails if
    /// candle fails.
    fn forward(&self, input: &Input, given: Given<'_>) -> candle_core::Result<Outputs>;
}

/// The maximum length of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LengthLimit {
    /// Number of symbols.
    pub symbols: usize,
    /// The reason, for an error.
    pub why: &'static str,
}

impl LengthLimit {
    /// The limit of most references: they have a score for every pair of symbols in memory.
    pub const PAIRS: Self = Self { symbols: 4096, why: "the reference implementation compares every pair of symbols" };
}

/// Decisions that a forward pass takes over.
#[derive(Debug, Clone, Copy, Default)]
pub struct Given<'a> {
    /// True for each symbol with which a segment ends; the reference decides if there are none.
    pub boundaries: Option<&'a [bool]>,
    /// The tokens that a gate keeps; the reference decides if there are none. Poolings decide themselves.
    pub choices: &'a [PoolingChoice],
    /// Near ties with the other outcome: the two scores change places, or the decision is negated.
    pub swapped: &'a [NearTie],
}

/// A decision that is closer than f32 resolves, so that either outcome is right: two neighbours in the order of a top-k pooling's
/// scores, or a boundary of an inner stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NearTie {
    /// Number of the pooling, or of the inner stage.
    pub pooling: usize,
    /// Its round; 0 if it has no rounds.
    pub round: usize,
    /// Rank of the first of two neighbours, or the position that is decided.
    pub rank: usize,
}

/// The input of both implementations.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Input {
    /// Symbols of the text. In a model that reads documents: those fed to its decoder, the start mark included.
    pub symbols: Vec<u32>,
    /// Tokens of the document, the end mark included. Empty in other models.
    pub document: Vec<u32>,
}

/// The outputs of one implementation.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Outputs {
    /// Logits (rows, V): one row for each symbol. A model with a start mark has one row more, before the others.
    pub logits: Vec<f64>,
    /// The decision for each symbol; empty in a model without segments.
    pub boundaries: Vec<SymbolBoundary>,
    /// The distance of each decision from the opposite one, in units of the probability, or of the entropy if spikes decide, or as a
    /// fraction of the largest entropy if entropies above a threshold do. Infinite if a rule decides. In a model with a gate: one for each token of the document, in units of the gate's value. Empty on
    /// weir's side.
    pub margins: Vec<f64>,
    /// The vectors that each top-k pooling or gate kept.
    pub choices: Vec<PoolingChoice>,
    /// The smallest difference between two scores that are neighbours in the order of a top-k pooling.
    pub smallest_gap: Option<f64>,
    /// All near ties.
    pub near_ties: Vec<NearTie>,
}

impl Outputs {
    /// Returns outputs without decisions, with these logits: (rows, V).
    fn of_logits(logits: &Tensor) -> candle_core::Result<Self> {
        Ok(Self { logits: logits.flatten_all()?.to_vec1()?, ..Self::default() })
    }
}

/// Reads a checkpoint whose configuration was read.
pub type ReferenceReader = fn(Checkpoint) -> Result<Box<dyn Reference>>;

/// Loads the reference implementation of a checkpoint.
pub type LoadReference = fn(&CheckpointSource) -> Result<Box<dyn Reference>>;

/// A checkpoint's files and its configuration.
pub struct Checkpoint {
    source: CheckpointSource,
    config: Config,
    /// Loads the entropy model, if the checkpoint has one: of any family.
    load: LoadReference,
    /// Number format of the model that is compared.
    dtype: Dtype,
}

impl Checkpoint {
    /// Reads the configuration. Fails if it cannot be read.
    pub fn read(source: &CheckpointSource, load: LoadReference, dtype: Dtype) -> Result<Self> {
        Ok(Self { source: source.clone(), config: weir_models::load::config(source)?, load, dtype })
    }

    /// Returns an error about a key of the configuration.
    fn error(&self, key: &str, expected: String, found: String) -> Error {
        Error::checkpoint(self.file(), key, expected, found)
    }

    /// Parses the family's own part of the configuration. Fails if it does not have the family's keys.
    fn architecture<T: DeserializeOwned>(&self) -> Result<T> {
        checkpoint::architecture(&self.config, &self.file())
    }

    /// Returns the vocabulary. Fails if it is invalid.
    fn vocabulary(&self) -> Result<Arc<Vocabulary>> {
        self.config.vocabulary(&self.file())
    }

    /// Reads all tensors. Fails if a file cannot be read.
    fn tensors(&self) -> Result<Tensors> {
        Tensors::read(&self.source)
    }

    /// Reads all tensors in f32. Fails if a file cannot be read.
    fn tensors_f32(&self) -> Result<HashMap<String, Tensor>> {
        read_tensors(&self.source, DType::F32)
    }

    fn file(&self) -> PathBuf {
        self.source.config_file()
    }
}

/// Symbols of one step.
const CHUNK: usize = 512;

/// Runs the model on an input. `boundaries` selects how its boundaries are decided. Fails if a step fails.
pub fn model_outputs(model: &dyn Model, input: &Input, boundaries: BoundaryOptions) -> Result<Outputs> {
    if let Some(encoder) = model.document_encoder() {
        return document_outputs(model, encoder, input);
    }
    let mut outputs = Outputs::default();
    let card = model.card();
    let mut push = |logits: &[f32]| outputs.logits.extend(logits.iter().map(|&logit| f64::from(logit)));
    card.first_logits.iter().for_each(|logits| push(logits));
    let mut decisions = Vec::with_capacity(input.symbols.len());
    run(model, &input.symbols, CHUNK, boundaries, Want::All, &mut |_, logits, decision| {
        push(logits);
        decisions.push(decision);
        Ok(())
    })?;
    if card.pooled {
        outputs.boundaries = decisions;
    }
    Ok(outputs)
}

fn document_outputs(model: &dyn Model, encoder: &dyn DocumentEncoder, input: &Input) -> Result<Outputs> {
    let mut scratch = model.scratch();
    let document = read_document(encoder, encoder.open(false)?, &input.document, &mut scratch)?;
    let logits = target_logits(model, encoder.begin(&document)?, &input.symbols, &mut scratch)?;
    Ok(Outputs {
        logits: logits.into_iter().map(f64::from).collect(),
        choices: document.choices.clone(),
        ..Outputs::default()
    })
}

/// Forward passes that a search for the outcome of near ties may take.
const MAX_PASSES: usize = 200;

/// The length up to which the smaller tolerance of f32 holds: rounding grows with the terms of a sum.
const SHORT: usize = 160;

/// Maximum differences that pass.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Tolerance {
    /// Tolerance of a logit, relative to the largest absolute logit.
    pub logits: f64,
    /// Tolerance of a probability or score by which a boundary or a kept vector is decided. A decision may differ if the
    /// reference's margin is at most this.
    pub decisions: f64,
}

impl Tolerance {
    /// Returns the tolerance of a number format for `symbols` symbols.
    pub fn new(dtype: &str, symbols: usize) -> Self {
        match dtype {
            "bf16" => Self { logits: 0.05, decisions: 0.1 },
            "int8" => Self { logits: 0.2, decisions: 0.3 },
            "int4" => Self { logits: 0.4, decisions: 0.5 },
            _ if symbols <= SHORT => Self { logits: 2e-5, decisions: 2e-5 },
            _ => Self { logits: 1e-4, decisions: 1e-4 },
        }
    }
}

/// The result of a comparison.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Symbols fed.
    pub symbols: usize,
    /// Tokens of the document; 0 in a model that reads none.
    pub document_tokens: usize,
    /// The largest difference between two logits.
    pub max_abs: f64,
    /// The mean difference.
    pub mean_abs: f64,
    /// `max_abs` as a fraction of the largest absolute logit.
    pub max_rel: f64,
    /// The symbol that the logits with the largest difference predict.
    pub max_abs_symbol: usize,
    /// True if all boundaries, or all kept vectors, agree.
    pub boundaries_equal: bool,
    /// Number of segments that end in the text.
    pub segments: usize,
    /// Number of boundaries that differ.
    pub boundary_differences: usize,
    /// The first symbol whose boundary differs, within the tolerance or not; the first token of the document in a model that reads
    /// one. `None` if all agree.
    pub first_boundary_difference: Option<usize>,
    /// The largest difference between two boundary probabilities, between two entropies as fractions of the largest possible, between two probabilities of a segment's end, or between two
    /// scores of kept vectors. Values of a gate count as fractions of the largest, if that is above 1. `None` if nothing is decided
    /// by numbers.
    pub max_abs_decision: Option<f64>,
    /// The mean of these differences. A kept vector that differs counts as 1.
    pub mean_abs_decision: Option<f64>,
    /// The smallest difference between scores that are neighbours in the order of a top-k pooling. `None` without one.
    pub smallest_gap: Option<f64>,
    /// Near ties to which the reference gave weir's outcome.
    pub swapped: usize,
    /// Bits per symbol of the text by weir's logits. `None` if no symbol is predicted.
    pub bits_per_char: Option<f64>,
    /// Bits per symbol by the reference's logits.
    pub bits_per_char_reference: Option<f64>,
    /// `tolerance_parts.logits`: the maximum of `max_rel`.
    pub tolerance: f64,
    /// All limits of the verdict.
    pub tolerance_parts: Tolerance,
    /// The first difference beyond the tolerance.
    pub first_difference: Option<String>,
    /// True if there is none.
    pub ok: bool,
}

/// Runs both implementations on an input and compares them. The reference's segments end where weir's do, so that its logits stay
/// comparable; its own decisions are compared one by one. Fails if the input is too long, or an implementation fails.
pub fn verify(model: &dyn Model, reference: &dyn Reference, input: &Input) -> Result<Report> {
    let length = input.symbols.len();
    let LengthLimit { symbols: limit, why } = reference.limit();
    if length > limit {
        return Err(Error::TooLong { field: "text", length, limit, unit: "symbols", why: Some(why) });
    }
    let weir = model_outputs(model, input, BoundaryOptions::default())?;
    let ends: Vec<bool> = weir.boundaries.iter().map(|decision| decision.boundary).collect();
    let boundaries = model.card().pooled.then_some(ends.as_slice());
    let compare = |swapped: &[NearTie]| -> Result<(Report, Vec<NearTie>)> {
        let outputs = reference.forward(input, Given { boundaries, choices: &weir.choices, swapped });
        let outputs = outputs.map_err(|error| Error::Internal(format!("the reference implementation: {error}")))?;
        let tolerance = Tolerance::new(model.card().dtype, summed(model, input));
        let report = Report::within(tolerance, model.card(), input, &weir, &outputs)?;
        Ok((Report { swapped: swapped.len(), ..report }, outputs.near_ties))
    };
    let best = compare(&[])?;
    if best.0.ok || best.0.tolerance > Tolerance::new("f32", usize::MAX).logits {
        return Ok(best.0);
    }
    order_near_ties(best, compare)
}

/// Returns the number of vectors that a sum over all keys has at most: with a document's padding, if the model processes it.
fn summed(model: &dyn Model, input: &Input) -> usize {
    let length = input.symbols.len().max(input.document.len());
    let Some(limits) = model.document_encoder().map(|encoder| encoder.limits()).filter(|limits| limits.padded) else {
        return length;
    };
    length.max(limits.poolings.last().map_or(limits.tokens, |pooling| pooling.to))
}

/// Searches weir's outcome of near ties: swaps those that bring logits and scores closer to weir's, one after the other.
fn order_near_ties(
    mut best: (Report, Vec<NearTie>),
    compare: impl Fn(&[NearTie]) -> Result<(Report, Vec<NearTie>)>,
) -> Result<Report> {
    let mut swapped: Vec<NearTie> = Vec::new();
    let mut next = 0;
    let mut improved = false;
    for _ in 0..MAX_PASSES {
        if next == best.1.len() && improved {
            next = 0;
            improved = false;
        }
        let Some(&tie) = best.1.get(next).filter(|_| !best.0.ok) else { break };
        next += 1;
        let mut candidate = swapped.clone();
        match candidate.iter().position(|swapped| *swapped == tie) {
            Some(index) => drop(candidate.remove(index)),
            None => candidate.push(tie),
        }
        let found = compare(&candidate)?;
        if found.0.distance() < best.0.distance() {
            best = found;
            swapped = candidate;
            improved = true;
        }
    }
    Ok(best.0)
}

/// A difference beyond the tolerance, at a symbol.
struct Difference {
    symbol: usize,
    text: String,
}

impl Report {
    /// How far the implementations are apart, on average.
    fn distance(&self) -> f64 {
        self.mean_abs + self.mean_abs_decision.unwrap_or(0.0)
    }

    /// Compares the outputs of weir and of the reference for an input, within the tolerance of its length. Fails if they have
    /// different numbers of outputs.
    pub fn new(card: &Card, input: &Input, weir: &Outputs, reference: &Outputs) -> Result<Self> {
        let tolerance = Tolerance::new(card.dtype, input.symbols.len().max(input.document.len()));
        Self::within(tolerance, card, input, weir, reference)
    }

    /// Compares outputs within a tolerance. Fails as [`new`](Self::new) does.
    fn within(tolerance: Tolerance, card: &Card, input: &Input, weir: &Outputs, reference: &Outputs) -> Result<Self> {
        let vocabulary = card.vocabulary.len();
        let counts = |outputs: &Outputs| (outputs.logits.len(), outputs.boundaries.len(), outputs.choices.len());
        if counts(weir) != counts(reference) || weir.logits.is_empty() {
            let found = format!("{:?} and {:?}", counts(weir), counts(reference));
            return Err(Error::Internal(format!("the implementations have different numbers of outputs: {found}")));
        }
        // The symbol that a row of logits predicts.
        let first = usize::from(card.first_logits.is_none());
        let finite = reference.logits.iter().filter(|logit| logit.is_finite());
        let largest = finite.fold(0.0, |largest: f64, logit| largest.max(logit.abs()));
        let differences = || weir.logits.iter().zip(&reference.logits).map(|(a, b)| distance(*a, *b));
        let (max_index, max_abs) =
            differences().enumerate().fold((0, 0.0), |max, next| if next.1 > max.1 { next } else { max });
        let beyond = differences().position(|difference| exceeds(difference, tolerance.logits * largest));
        let bits = |outputs: &Outputs| bits(&outputs.logits, vocabulary, &input.symbols, first);
        let mut all: Vec<Difference> =
            beyond.map(|index| logit_difference(index, vocabulary, first, weir, reference)).into_iter().collect();
        let decisions = Decisions::compare(weir, reference, tolerance.decisions);
        all.extend(decisions.first);
        let first_difference =
            all.into_iter().min_by_key(|difference| difference.symbol).map(|difference| difference.text);
        Ok(Self {
            symbols: input.symbols.len(),
            document_tokens: input.document.len(),
            max_abs,
            mean_abs: differences().sum::<f64>() / weir.logits.len() as f64,
            max_rel: max_abs / largest,
            max_abs_symbol: max_index / vocabulary + first,
            boundaries_equal: decisions.unequal == 0,
            segments: weir.boundaries.iter().filter(|decision| decision.boundary).count(),
            boundary_differences: decisions.unequal,
            first_boundary_difference: decisions.first_unequal,
            max_abs_decision: decisions.max_abs,
            mean_abs_decision: (decisions.count > 0).then(|| decisions.sum / decisions.count as f64),
            smallest_gap: reference.smallest_gap,
            swapped: 0,
            bits_per_char: bits(weir),
            bits_per_char_reference: bits(reference),
            tolerance: tolerance.logits,
            tolerance_parts: tolerance,
            ok: first_difference.is_none(),
            first_difference,
        })
    }
}

/// The comparison of boundaries, segment ends and kept vectors.
#[derive(Default)]
struct Decisions {
    /// Tolerance of a probability, and of a score in units of `unit`.
    tolerance: f64,
    /// 1 for probabilities and poolings; the largest absolute value of a gate, if that is above 1.
    unit: f64,
    unequal: usize,
    /// The first symbol, or token of the document, whose decision differs.
    first_unequal: Option<usize>,
    max_abs: Option<f64>,
    /// Sum of all differences, and their number.
    sum: f64,
    count: usize,
    first: Option<Difference>,
}

impl Decisions {
    fn compare(weir: &Outputs, reference: &Outputs, tolerance: f64) -> Self {
        let mut all = Self { tolerance, unit: 1.0, ..Self::default() };
        // entropies count as fractions of a uniform prediction's
        let most = (weir.logits.len() as f64 / weir.boundaries.len().max(1) as f64).max(2.0).ln() as f32;
        for (symbol, (a, b)) in weir.boundaries.iter().zip(&reference.boundaries).enumerate() {
            let margin = reference.margins.get(symbol).copied().unwrap_or(f64::INFINITY);
            if a.boundary != b.boundary {
                let (yes, no) = if a.boundary { ("weir", "the reference") } else { ("the reference", "weir") };
                let decided = if margin.is_finite() { format!(", decided by {margin:.2e}") } else { String::new() };
                let text = format!("symbol {symbol} is a boundary in {yes}, not in {no}{decided}");
                all.decision(symbol, exceeds(margin, tolerance), text);
            }
            all.number(symbol, "the boundary's probability", a.probability, b.probability);
            let [entropy, other] = [a, b].map(|decision| decision.entropy.map(|entropy| entropy / most));
            all.number(symbol, "the entropy, as a fraction of the largest,", entropy, other);
            let probability = |logprob: Option<f32>| logprob.map(f32::exp);
            let ends = [probability(a.end_logprob), probability(b.end_logprob)];
            all.number(symbol, "the probability of the segment's end", ends[0], ends[1]);
        }
        for (a, b) in weir.choices.iter().zip(&reference.choices) {
            // Gates have a margin for each token.
            match reference.margins.is_empty() {
                true => all.kept(a, b, reference.smallest_gap.is_none_or(|gap| exceeds(gap, 2.0 * tolerance))),
                false => all.gated(a, b, &reference.margins),
            }
        }
        all
    }

    /// Compares the vectors that one top-k pooling kept, in order. `decided` is false if two scores may come in either order.
    fn kept(&mut self, weir: &PoolingChoice, reference: &PoolingChoice, decided: bool) {
        for (index, (kept, expected)) in weir.kept.iter().zip(&reference.kept).enumerate() {
            if kept.token != expected.token {
                let text = format!(
                    "the pooling after layer {} keeps token {} at place {index} in weir, token {} in the reference",
                    weir.layer, kept.token, expected.token
                );
                self.decision(kept.token.min(expected.token), decided, text);
            } else {
                let what = format!("the score after layer {}", weir.layer);
                self.number(kept.token, &what, Some(kept.score), Some(expected.score));
            }
        }
    }

    /// Compares the tokens that one gate kept. A token within the tolerance of the threshold may be kept or deleted.
    fn gated(&mut self, weir: &PoolingChoice, reference: &PoolingChoice, margins: &[f64]) {
        let finite = reference.kept.iter().map(|kept| f64::from(kept.score).abs()).filter(|score| score.is_finite());
        self.unit = finite.fold(1.0, f64::max);
        let what = format!("the gate's value before layer {}", weir.layer);
        let score = |choice: &PoolingChoice, token: usize| {
            choice.kept.iter().find(|kept| kept.token == token).map(|kept| kept.score)
        };
        for (token, margin) in margins.iter().enumerate() {
            let (kept, expected) = (score(weir, token), score(reference, token));
            self.number(token, &what, kept, expected);
            if kept.is_some() != expected.is_some() {
                let (yes, no) = if kept.is_some() { ("weir", "the reference") } else { ("the reference", "weir") };
                let layer = weir.layer;
                let text = format!("layer {layer} keeps token {token} in {yes}, not in {no}, decided by {margin:.2e}");
                self.decision(token, exceeds(*margin, self.tolerance * self.unit), text);
            }
        }
    }

    fn decision(&mut self, symbol: usize, fails: bool, text: String) {
        self.unequal += 1;
        self.first_unequal = Some(self.first_unequal.map_or(symbol, |first| first.min(symbol)));
        self.sum += 1.0;
        self.count += 1;
        if fails {
            self.add(symbol, text);
        }
    }

    fn number(&mut self, symbol: usize, what: &str, weir: Option<f32>, reference: Option<f32>) {
        let (a, b) = match (weir, reference) {
            (Some(a), Some(b)) => (f64::from(a), f64::from(b)),
            _ => return,
        };
        let difference = distance(a, b) / self.unit;
        self.max_abs = Some(self.max_abs.unwrap_or(0.0).max(difference));
        self.sum += difference;
        self.count += 1;
        if difference > self.tolerance {
            self.add(symbol, format!("{what} at symbol {symbol} is {a:.6} in weir, {b:.6} in the reference"));
        }
    }

    fn add(&mut self, symbol: usize, text: String) {
        if self.first.as_ref().is_none_or(|first| symbol < first.symbol) {
            self.first = Some(Difference { symbol, text });
        }
    }
}

fn logit_difference(index: usize, vocabulary: usize, first: usize, weir: &Outputs, reference: &Outputs) -> Difference {
    let symbol = index / vocabulary + first;
    let a = weir.logits[index];
    let b = reference.logits[index];
    let not = if a.is_finite() && b.is_finite() { "" } else { "not a finite number: " };
    let id = index % vocabulary;
    let text = format!("the logit of id {id} for symbol {symbol} is {not}{a:.6} in weir, {b:.6} in the reference");
    Difference { symbol, text }
}

/// Returns true if `value` is above `bound`, or is not a number.
fn exceeds(value: f64, bound: f64) -> bool {
    value > bound || value.is_nan()
}

/// Returns |a − b|; infinity if one of them is not finite, so that no tolerance allows it.
fn distance(a: f64, b: f64) -> f64 {
    if a.is_finite() && b.is_finite() { (a - b).abs() } else { f64::INFINITY }
}

/// Returns the mean −log2 p of the symbols that rows of logits predict; row 0 predicts symbol `first`.
fn bits(logits: &[f64], vocabulary: usize, symbols: &[u32], first: usize) -> Option<f64> {
    let rows = logits.chunks_exact(vocabulary).zip(symbols.iter().skip(first));
    let nats: Vec<f64> = rows.map(|(row, &symbol)| log_sum_exp(row) - row[symbol as usize]).collect();
    (!nats.is_empty()).then(|| nats.iter().sum::<f64>() / nats.len() as f64 / LN_2)
}
