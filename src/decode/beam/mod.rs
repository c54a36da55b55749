//! Beam search with the semantics of fairseq's `SequenceGenerator`, and sampling beside it: given the logits of the rows, which
//! rows go on, which are forked, what each is fed next, and which texts are finished. Pure: neither rows nor models here.
//!
//! *The beam.* A search follows `beam` paths; it begins with one row, since all paths are alike then. Each step weighs all
//! continuations of all paths by the sum of their tokens' log-probabilities, and takes the 2 · `beam` best. Those that end the
//! text are finished hypotheses if they are among the first `beam`; the first `beam` of the others go on. Padding is never
//! written; the end neither before `min_tokens` nor, once `max_tokens` are there, anything else. The search is over as soon as
//! `beam` hypotheses are finished, however good those that still run might become, or with the step that may only write the end.
//! A hypothesis' score is its sum divided by its length, the end counted, to the power of `length_penalty`. Of equals the
//! earlier path goes first, then the lower token, where fairseq leaves it open. With a beam of one this is greedy search.
//!
//! *Sampling* draws each path by itself, as [`Sampler`] draws, path i with seed + i, until each has written its end.
//!
//! Sums are kept in `f32`, as fairseq keeps them: it decides whose rank is next where two are close.

mod ngrams;
#[cfg(test)]
mod tests;

use super::{
    document::SpecialIds,
    options::Sampling,
    sampling::{logprobs::LogSoftmax, sampler::Sampler},
};
use crate::error::{Error, Result};
use ngrams::Ngrams;
use std::cmp::Ordering;

/// How a text is written.
#[derive(Debug, Clone, PartialEq)]
pub struct SearchOptions {
    /// Paths that are followed, at least 1.
    pub beam: usize,
    /// The power of the length that scores are divided by.
    pub length_penalty: f32,
    /// Tokens before the end, at least.
    pub min_tokens: usize,
    /// And at most.
    pub max_tokens: usize,
    /// No run of so many tokens is written twice, the start counted; 0: no such rule.
    pub no_repeat_ngram: usize,
    /// How tokens are drawn; none: the best are searched for.
    pub sampling: Option<Sampling>,
}

/// A finished text.
#[derive(Debug, Clone, PartialEq)]
pub struct Hypothesis {
    /// Its tokens, the end mark last.
    pub tokens: Vec<u32>,
    /// Each token's log-probability.
    pub logprobs: Vec<f32>,
    /// The sum of these, divided by the length to the power of the penalty.
    pub score: f32,
}

/// What becomes of the rows.
#[derive(Debug, Clone, PartialEq)]
pub enum SearchStep {
    /// These rows take the place of those before, in this order.
    Continue(Vec<RowMove>),
    /// The search is over: no row is needed any more.
    Done,
}

/// A row of the next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowMove {
    /// The row that it goes on from, by its place among those of this step. Several may go on from one, and none from another.
    pub from: usize,
    /// What it is fed.
    pub token: u32,
}

/// A text on its way.
#[derive(Debug, Clone)]
struct Path {
    tokens: Vec<u32>,
    logprobs: Vec<f32>,
    sum: f32,
    /// Draws its tokens, if they are drawn.
    sampler: Option<Sampler>,
    ngrams: Ngrams,
}

/// A continuation of a path.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    sum: f32,
    logprob: f32,
    from: usize,
    token: u32,
}

/// One document's search.
#[derive(Debug, Clone)]
pub struct BeamSearch {
    rules: SearchOptions,
    marks: SpecialIds,
    vocabulary: usize,
    /// As the rows stand.
    paths: Vec<Path>,
    finished: Vec<Hypothesis>,
    /// Tokens that each path has.
    step: usize,
}

impl BeamSearch {
    /// A search that has seen no logits: its one row is to be fed [`SpecialIds::start`].
    pub fn new(rules: SearchOptions, marks: SpecialIds, vocabulary: usize) -> Self {
        let sampler = rules.sampling.clone().map(|sampling| Sampler::new(sampling, vocabulary));
        let ngrams = Ngrams::new(rules.no_repeat_ngram, marks.start);
        let path = Path { tokens: Vec::new(), logprobs: Vec::new(), sum: 0.0, sampler, ngrams };
        Self { rules, marks, vocabulary, paths: vec![path], finished: Vec::new(), step: 0 }
    }

    /// Rows that it has.
    pub fn rows(&self) -> usize {
        self.paths.len()
    }

    /// The most rows that it can come to have.
    pub fn most_rows(&self) -> usize {
        self.rules.beam
    }

    /// What the row at that place is to have been fed in all, beginning with [`SpecialIds::start`].
    pub fn symbols_fed(&self, row: usize) -> impl Iterator<Item = u32> {
        let tokens = self.paths.get(row).map(|path| path.tokens.as_slice()).unwrap_or_default();
        std::iter::once(self.marks.start).chain(tokens.iter().copied())
    }

    /// Tokens that each row has been given, the start left out.
    pub fn tokens(&self) -> usize {
        self.step
    }

    /// Takes the logits after each row's last token, each (vocab).
    ///
    /// # Errors
    /// [`Error::Internal`]: logits of another number of rows, of another length, or that are no distribution.
    pub fn advance<'a>(&mut self, logits: impl Iterator<Item = &'a [f32]>) -> Result<SearchStep> {
        let logits: Vec<_> = logits.collect();
        if logits.len() != self.paths.len() || logits.iter().any(|row| row.len() != self.vocabulary) {
            let (rows, paths, vocabulary) = (logits.len(), self.paths.len(), self.vocabulary);
            return Err(Error::Internal(format!("logits of {rows} rows for {paths} paths over {vocabulary} symbols")));
        }
        // all paths begin from the first step's one row
        let first = self.step == 0;
        let candidates = match &self.rules.sampling {
            None => self.best(&logits)?,
            Some(_) => self.drawn(&logits)?,
        };
        let goes_on = self.sort_out(candidates);
        self.step += 1;
        if goes_on.is_empty() {
            self.paths.clear();
            self.finished.sort_by(|a, b| b.score.total_cmp(&a.score));
            return Ok(SearchStep::Done);
        }
        let row = |from| if first { 0 } else { from };
        let moves = goes_on.iter().map(|&Candidate { from, token, .. }| RowMove { from: row(from), token }).collect();
        self.paths = goes_on.into_iter().map(|candidate| self.grown(candidate)).collect();
        Ok(SearchStep::Continue(moves))
    }

    /// The finished hypotheses, once it is over the best first; none if every continuation was forbidden.
    pub fn finished(&self) -> &[Hypothesis] {
        &self.finished
    }

    /// The tokens that the best hypothesis will begin with, whatever comes: what all paths have in common, and the best of those
    /// finished, which any of them may still beat. Once it is over, all of the best one but its end.
    pub fn settled_prefix(&self) -> &[u32] {
        let best = self.finished.iter().max_by(|a, b| match a.score.total_cmp(&b.score) {
            // the earlier of equals stays first
            Ordering::Equal => Ordering::Greater,
            order => order,
        });
        let best = best.map(|best| best.tokens.split_last().map_or(&[][..], |(_, text)| text));
        let mut all = best.into_iter().chain(self.paths.iter().map(|path| path.tokens.as_slice()));
        let first = all.next().unwrap_or_default();
        let len = all.fold(first.len(), |len, other| {
            first[..len].iter().zip(other).take_while(|(own, others)| own == others).count()
        });
        &first[..len]
    }

    /// What of a row's vocabulary may not be written now, padding left out: everything but the end, or single tokens.
    fn only_end(&self) -> bool {
        self.step >= self.rules.max_tokens
    }

    fn no_end(&self) -> bool {
        self.step < self.rules.min_tokens && !self.only_end()
    }

    /// The best continuations of all paths, best first.
    fn best(&self, logits: &[&[f32]]) -> Result<Vec<Candidate>> {
        let SpecialIds { pad, end, .. } = self.marks;
        let (only_end, no_end) = (self.only_end(), self.no_end());
        let count = 2 * self.rules.beam;
        let mut best: Vec<Candidate> = Vec::with_capacity(count + 1);
        for (from, (path, logits)) in self.paths.iter().zip(logits).enumerate() {
            let (normaliser, banned) = (LogSoftmax::of(logits)?, path.ngrams.banned());
            for (token, &logit) in (0_u32..).zip(*logits) {
                let ends = token == end;
                if token == pad || (ends && no_end) || (!ends && only_end) {
                    continue;
                }
                let logprob = normaliser.logprob(logit);
                let sum = path.sum + logprob;
                let full = best.len() == count;
                if sum == f32::NEG_INFINITY || (full && best.last().is_some_and(|last| last.sum >= sum)) {
                    continue;
                }
                if banned.contains(&token) {
                    continue;
                }
                // equals stay behind those that were there before them
                let place = best.partition_point(|other| other.sum >= sum);
                best.insert(place, Candidate { sum, logprob, from, token });
                best.truncate(count);
            }
        }
        Ok(best)
    }

    /// A continuation of each path.
    fn drawn(&mut self, logits: &[&[f32]]) -> Result<Vec<Candidate>> {
        if self.step == 0 {
            self.spread();
        }
        let SpecialIds { pad, end, .. } = self.marks;
        let (only_end, no_end, step) = (self.only_end(), self.no_end(), self.step);
        let one = |(index, path): (usize, &mut Path)| {
            let row = if step == 0 { logits[0] } else { logits[index] };
            let banned = path.ngrams.banned();
            let token = match &mut path.sampler {
                Some(sampler) if !only_end => {
                    sampler.ban(banned.iter().copied().chain([pad]).chain(no_end.then_some(end)));
                    sampler.choose(row, step)?
                }
                _ => end,
            };
            let missing = || Error::Internal(format!("symbol {token} has no logit among {}", row.len()));
            let logprob = LogSoftmax::of(row)?.logprob(*row.get(token as usize).ok_or_else(missing)?);
            Ok(Candidate { sum: path.sum + logprob, logprob, from: index, token })
        };
        self.paths.iter_mut().enumerate().map(one).collect()
    }

    /// Makes one path as many, each with draws of its own.
    fn spread(&mut self) {
        let Some(first) = self.paths.pop() else { return };
        let seeded = |index: usize| {
            let sampling = self.rules.sampling.clone().map(|sampling| {
                let seed = sampling.seed.wrapping_add(index as u64);
                Sampler::new(Sampling { seed, ..sampling }, self.vocabulary)
            });
            Path { sampler: sampling, ..first.clone() }
        };
        self.paths = (0..self.rules.beam).map(seeded).collect();
    }

    /// Finishes what ends, and says which candidates go on: none if the search is over.
    fn sort_out(&mut self, candidates: Vec<Candidate>) -> Vec<Candidate> {
        let (beam, end, drawn) = (self.rules.beam, self.marks.end, self.rules.sampling.is_some());
        let mut goes_on = Vec::with_capacity(beam);
        for (rank, candidate) in candidates.into_iter().enumerate() {
            if candidate.token == end {
                if rank < beam && self.finished.len() < beam {
                    self.finish(candidate);
                }
            } else if goes_on.len() < beam {
                goes_on.push(candidate);
            }
        }
        let over = self.only_end() || (self.finished.len() == beam && !drawn);
        if over { Vec::new() } else { goes_on }
    }

    fn finish(&mut self, candidate: Candidate) {
        let path = &self.paths[candidate.from];
        let tokens: Vec<u32> = path.tokens.iter().copied().chain([candidate.token]).collect();
        let logprobs = path.logprobs.iter().copied().chain([candidate.logprob]).collect();
        let divisor = (tokens.len() as f64).powf(self.rules.length_penalty.into()) as f32;
        self.finished.push(Hypothesis { tokens, logprobs, score: candidate.sum / divisor });
    }

    /// A path with its next token.
    fn grown(&self, Candidate { sum, logprob, from, token }: Candidate) -> Path {
        let mut path = Path { sum, ..self.paths[from].clone() };
        path.tokens.push(token);
        path.logprobs.push(logprob);
        path.ngrams.push(token);
        if let Some(sampler) = &mut path.sampler {
            sampler.see(token);
        }
        path
    }
}
