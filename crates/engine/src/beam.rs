//! Beam search with the semantics of fairseq's `SequenceGenerator` or of transformers' `generate`, and sampling of several
//! texts. Pure: it takes the logits of the rows and holds neither rows nor models.
//!
//! *Beam search* follows `beam` paths, from one row. Each step ranks all continuations by the sum of their tokens'
//! log-probabilities and takes the 2 · `beam` best. Those that end the text are finished hypotheses if they rank among the first
//! `beam`; the first `beam` of the others continue. The search is done when `beam` hypotheses are finished, even if a running
//! path could become better. Padding is never generated, the end not before `min_tokens`, and nothing else after `max_tokens`. A
//! score is the sum divided by the length (end included) to the power of `length_penalty`. Equals are ordered by path, then by
//! token, where fairseq leaves the order open.
//!
//! *transformers* (version 5) differs: padding may be generated; `min_tokens` and `max_tokens` count the end mark, which is not
//! forced at the limit; the `beam` best finished hypotheses are kept, and [`EarlyStopping`] decides when no path can beat them;
//! `repetition_penalty` lowers the log-probabilities (with one path, the logits) of tokens that a path has.
//!
//! *Sampling* draws path i with a [`Sampler`] of seed + i, until it has generated its end. Sums are `f32`, as in fairseq:
//! rounding decides the rank of close candidates.

use crate::{constraint::ConstraintMatcher, options::Sampling, sampling::Sampler};
use std::{cmp::Ordering, collections::HashMap};
use weir_kernels::distribution::LogSoftmax;
use weir_kernels::error::{Error, Result};
use weir_models::contract::{EarlyStopping, SearchRules, SpecialIds};

/// Options of a search.
#[derive(Debug, Clone, PartialEq)]
pub struct SearchOptions {
    /// Number of paths, at least 1.
    pub beam: usize,
    /// Scores are divided by length to this power.
    pub length_penalty: f32,
    /// Minimum tokens before the end; of transformers, with it.
    pub min_tokens: usize,
    /// Maximum tokens before the end; of transformers, with it.
    pub max_tokens: usize,
    /// No run of this many tokens is generated twice, the start included; 0 turns the rule off.
    pub no_repeat_ngram: usize,
    /// The library whose search is followed.
    pub rules: SearchRules,
    /// Rule by which the search stops, if it follows transformers.
    pub early_stopping: EarlyStopping,
    /// Penalty on tokens that a path has already, the start included, by the rules of transformers; 1 is none.
    pub repetition_penalty: f32,
    /// Samples tokens with these options; none: beam search.
    pub sampling: Option<Sampling>,
}

/// A finished text.
#[derive(Debug, Clone, PartialEq)]
pub struct Hypothesis {
    /// Its tokens. The end mark is last if it was generated.
    pub tokens: Vec<u32>,
    /// Each token's log-probability.
    pub logprobs: Vec<f32>,
    /// Sum of the log-probabilities, divided by length to the power of the penalty.
    pub score: f32,
}

/// The result of one step of a search.
#[derive(Debug, Clone, PartialEq)]
pub enum SearchStep {
    /// These rows replace the previous ones, in this order.
    Continue(Vec<RowMove>),
    /// The search is done; no row is needed any more.
    Done,
}

/// A row of the next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowMove {
    /// Index of the row that it continues, among the rows of this step. Several rows may continue one row, or none.
    pub parent: usize,
    /// The token that it is fed.
    pub token: u32,
}

#[derive(Debug, Clone)]
struct Path {
    tokens: Vec<u32>,
    logprobs: Vec<f32>,
    sum: f32,
    sampler: Option<Sampler>,
    ngrams: Ngrams,
    /// Follows its text, if that must have a form.
    constraint: Option<ConstraintMatcher>,
}

impl Path {
    /// Returns true if nothing but the end may follow.
    fn is_complete(&self) -> bool {
        self.constraint.as_ref().is_some_and(ConstraintMatcher::is_complete)
    }

    /// Returns true if no token goes on with the path.
    fn is_dead_end(&self) -> bool {
        self.constraint.as_ref().is_some_and(ConstraintMatcher::is_dead_end)
    }

    /// Returns the error of a path that no token goes on with.
    fn dead_end(&self) -> Option<Error> {
        self.constraint.as_ref().and_then(ConstraintMatcher::dead_end)
    }

    /// Returns the tokens that would repeat a run of tokens; none if all that may follow would. `without` may not follow.
    fn banned(&self, without: Option<u32>) -> Vec<u32> {
        let banned = self.ngrams.banned();
        let is_banned = |token| banned.contains(&token) || Some(token) == without;
        match &self.constraint {
            Some(constraint) if !banned.is_empty() && constraint.symbols().iter().all(is_banned) => Vec::new(),
            _ => banned.to_vec(),
        }
    }
}

impl Hypothesis {
    /// Returns its tokens without the end mark.
    pub fn text(&self, end: u32) -> &[u32] {
        self.tokens.strip_suffix(&[end]).unwrap_or(&self.tokens)
    }
}

#[derive(Debug, Clone, Copy)]
struct Candidate {
    sum: f32,
    logprob: f32,
    /// Candidates are ordered by this: the sum, but the logit in a greedy search of transformers.
    rank: f32,
    parent: usize,
    token: u32,
}

/// The search for the summaries of one document.
#[derive(Debug, Clone)]
pub struct BeamSearch {
    options: SearchOptions,
    specials: SpecialIds,
    vocabulary: usize,
    /// Running paths, in the order of their rows.
    paths: Vec<Path>,
    finished: Vec<Hypothesis>,
    /// Number of tokens of each path.
    step: usize,
}

impl BeamSearch {
    /// Creates a search with one row, whose first symbol is [`SpecialIds::start`].
    pub fn new(options: SearchOptions, specials: SpecialIds, vocabulary: usize) -> Self {
        let sampler = options.sampling.clone().map(|sampling| Sampler::new(sampling, vocabulary));
        let ngrams = Ngrams::new(options.no_repeat_ngram, specials.start);
        let path = Path { tokens: Vec::new(), logprobs: Vec::new(), sum: 0.0, sampler, ngrams, constraint: None };
        Self { options, specials, vocabulary, paths: vec![path], finished: Vec::new(), step: 0 }
    }

    /// Gives the texts a form, by a matcher of an empty text: tokens outside of it are never generated, but a text may be cut at
    /// `max_tokens`. If all tokens that may follow repeat a run of tokens, one of them does, and the end of a complete text may come before
    /// `min_tokens`. A path that no token goes on with is dropped.
    pub fn constrain(&mut self, matcher: &ConstraintMatcher) {
        self.paths.iter_mut().for_each(|path| path.constraint = Some(matcher.clone().lending()));
    }

    /// Takes the constraints of all paths, if it is not known what may follow some of them.
    pub(crate) fn lend_constraints(&mut self) -> Option<Vec<ConstraintMatcher>> {
        let is_behind = |path: &Path| path.constraint.as_ref().is_some_and(ConstraintMatcher::is_behind);
        let some = self.paths.iter().any(is_behind);
        some.then(|| self.paths.iter_mut().filter_map(|path| path.constraint.take()).collect())
    }

    /// Gives the constraints back to their paths.
    pub(crate) fn return_constraints(&mut self, constraints: Vec<ConstraintMatcher>) {
        for (path, constraint) in self.paths.iter_mut().zip(constraints) {
            path.constraint = Some(constraint);
        }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.paths.len()
    }

    /// All symbols that row `row` was fed or is to be fed, beginning with [`SpecialIds::start`].
    pub fn symbols_fed(&self, row: usize) -> impl Iterator<Item = u32> {
        let tokens = self.paths.get(row).map(|path| path.tokens.as_slice()).unwrap_or_default();
        std::iter::once(self.specials.start).chain(tokens.iter().copied())
    }

    /// Number of tokens of each row, without the start.
    pub fn tokens(&self) -> usize {
        self.step
    }

    /// Takes the logits (vocab) after each row's last token and decides the next step. Fails with [`Error::Internal`]
    /// if the number of rows or the length of a row's logits is wrong, or logits contain NaN or infinity.
    pub fn advance<'a>(&mut self, logits: impl Iterator<Item = &'a [f32]>) -> Result<SearchStep> {
        let logits: Vec<_> = logits.collect();
        if logits.len() != self.paths.len() || logits.iter().any(|row| row.len() != self.vocabulary) {
            let rows = logits.len();
            let paths = self.paths.len();
            let vocabulary = self.vocabulary;
            return Err(Error::Internal(format!(
                "{rows} rows of logits do not match {paths} paths of {vocabulary} symbols"
            )));
        }
        for path in &mut self.paths {
            path.constraint.as_mut().map_or(Ok(()), ConstraintMatcher::catch_up)?;
        }
        let first = self.step == 0;
        let candidates = match &self.options.sampling {
            None => self.best(&logits)?,
            Some(_) => self.draw(&logits)?,
        };
        let continued = self.finish_ended(candidates);
        self.step += 1;
        if continued.is_empty() {
            let paths = std::mem::take(&mut self.paths);
            if self.finished.is_empty()
                && let Some(error) = paths.iter().find_map(Path::dead_end)
            {
                return Err(error);
            }
            self.finished.sort_by(|a, b| b.score.total_cmp(&a.score));
            return Ok(SearchStep::Done);
        }
        // all paths continue the first step's one row
        let row = |parent| if first { 0 } else { parent };
        let moves =
            continued.iter().map(|next| RowMove { parent: row(next.parent), token: next.token }).collect::<Vec<_>>();
        self.paths = continued.into_iter().map(|candidate| self.extend_path(candidate)).collect::<Result<_>>()?;
        Ok(SearchStep::Continue(moves))
    }

    /// The finished hypotheses, best first once the search is done. Empty if every continuation was forbidden.
    pub fn finished(&self) -> &[Hypothesis] {
        &self.finished
    }

    /// The tokens that the best hypothesis is certain to begin with: the common prefix of all paths and of the best finished
    /// hypothesis. Once the search is done, all its tokens but the end.
    pub fn settled_prefix(&self) -> &[u32] {
        let best = self.finished.iter().max_by(|a, b| match a.score.total_cmp(&b.score) {
            // of equals, the earlier one
            Ordering::Equal => Ordering::Greater,
            order => order,
        });
        let best = best.map(|best| best.text(self.specials.end));
        let mut all = best.into_iter().chain(self.paths.iter().map(|path| path.tokens.as_slice()));
        let first = all.next().unwrap_or_default();
        let len = all.fold(first.len(), |len, other| {
            first[..len].iter().zip(other).take_while(|(own, others)| own == others).count()
        });
        &first[..len]
    }

    /// True if only the end may be generated now.
    fn only_end(&self) -> bool {
        self.options.rules == SearchRules::Fairseq && self.step >= self.options.max_tokens
    }

    /// True if every token that is generated now ends its text.
    fn is_last_step(&self) -> bool {
        self.only_end() || (self.options.rules == SearchRules::Transformers && self.step + 1 >= self.options.max_tokens)
    }

    /// Returns the padding if it must not be generated.
    fn no_padding(&self) -> Option<u32> {
        (self.options.rules == SearchRules::Fairseq).then_some(self.specials.pad)
    }

    /// Returns the factor by which scores of tokens change that a path has already; none for no change.
    fn penalty(&self) -> Option<f32> {
        let penalty = self.options.repetition_penalty;
        (self.options.rules == SearchRules::Transformers && penalty != 1.0).then_some(penalty)
    }

    /// True if the end must not be generated now.
    fn no_end(&self) -> bool {
        self.step < self.options.min_tokens && !self.only_end()
    }

    /// The best continuations of all paths, best first.
    fn best(&self, logits: &[&[f32]]) -> Result<Vec<Candidate>> {
        let end = self.specials.end;
        let padding = self.no_padding();
        let only_end = self.only_end();
        let no_end = self.no_end();
        let penalty = self.penalty();
        let by_logits = self.options.rules == SearchRules::Transformers && self.options.beam == 1;
        let count = 2 * self.options.beam;
        let mut best: Vec<Candidate> = Vec::with_capacity(count + 1);
        let paths = self.paths.iter().zip(logits).enumerate();
        for (parent, (path, logits)) in paths.filter(|(_, (path, _))| !path.is_dead_end()) {
            let softmax = LogSoftmax::new(logits)?;
            let no_end = no_end && !path.is_complete();
            let banned = path.banned(no_end.then_some(end));
            let allowed = path.constraint.as_ref().map(ConstraintMatcher::symbols);
            for (token, &logit) in (0_u32..).zip(*logits) {
                let ends = token == end;
                if Some(token) == padding || (ends && no_end) || (!ends && only_end) {
                    continue;
                }
                let is_cut = ends && only_end;
                if !is_cut && allowed.is_some_and(|allowed| !allowed.get(token as usize)) {
                    continue;
                }
                let mut logprob = softmax.logprob(logit);
                let mut score = if by_logits { logit } else { logprob };
                if let Some(penalty) = penalty.filter(|_| token == self.specials.start || path.tokens.contains(&token))
                {
                    score = if score < 0.0 { score * penalty } else { score / penalty };
                    // with several paths, the penalty is part of the sum
                    logprob = if by_logits { logprob } else { score };
                }
                let sum = path.sum + logprob;
                let rank = if by_logits { score } else { sum };
                let full = best.len() == count;
                if rank == f32::NEG_INFINITY || (full && best.last().is_some_and(|last| last.rank >= rank)) {
                    continue;
                }
                if banned.contains(&token) {
                    continue;
                }
                // equals go behind earlier ones
                let index = best.partition_point(|other| other.rank >= rank);
                best.insert(index, Candidate { sum, logprob, rank, parent, token });
                best.truncate(count);
            }
        }
        Ok(best)
    }

    fn draw(&mut self, logits: &[&[f32]]) -> Result<Vec<Candidate>> {
        if self.step == 0 {
            self.seed_paths();
        }
        let end = self.specials.end;
        let padding = self.no_padding();
        let only_end = self.only_end();
        let no_end = self.no_end();
        let step = self.step;
        let candidate = |(index, path): (usize, &mut Path)| {
            let row = if step == 0 { logits[0] } else { logits[index] };
            let no_end = no_end && !path.is_complete();
            let banned = path.banned(no_end.then_some(end));
            let token = match &mut path.sampler {
                Some(sampler) if !only_end => {
                    path.constraint.iter().for_each(|constraint| sampler.allow(constraint.symbols()));
                    sampler.ban(banned.into_iter().chain(padding).chain(no_end.then_some(end)));
                    sampler.choose(row, step)?
                }
                _ => end,
            };
            let missing = || Error::Internal(format!("token {token} is outside of the {} logits", row.len()));
            let logprob = LogSoftmax::new(row)?.logprob(*row.get(token as usize).ok_or_else(missing)?);
            let sum = path.sum + logprob;
            Ok(Candidate { sum, logprob, rank: sum, parent: index, token })
        };
        self.paths.iter_mut().enumerate().filter(|(_, path)| !path.is_dead_end()).map(candidate).collect()
    }

    /// Copies the first path for each of the beam, with a seed of its own.
    fn seed_paths(&mut self) {
        let Some(first) = self.paths.pop() else { return };
        let seeded = |index: usize| {
            let sampling = self.options.sampling.clone().map(|sampling| {
                let seed = sampling.seed.wrapping_add(index as u64);
                Sampler::new(Sampling { seed, ..sampling }, self.vocabulary)
            });
            Path { sampler: sampling, ..first.clone() }
        };
        self.paths = (0..self.options.beam).map(seeded).collect();
    }

    /// Finishes the candidates that end and returns those that continue; none if the search is done.
    fn finish_ended(&mut self, candidates: Vec<Candidate>) -> Vec<Candidate> {
        let beam = self.options.beam;
        let is_last_step = self.is_last_step();
        // a better hypothesis replaces a finished one, by the rules of transformers
        let replaces = self.options.rules == SearchRules::Transformers;
        let mut continued = Vec::with_capacity(beam);
        for (rank, candidate) in candidates.into_iter().enumerate() {
            if candidate.token == self.specials.end || is_last_step {
                if rank < beam && (replaces || self.finished.len() < beam) {
                    self.finish(candidate);
                }
            } else if continued.len() < beam {
                continued.push(candidate);
            }
        }
        if replaces {
            // equals stay in order
            self.finished.sort_by(|a, b| b.score.total_cmp(&a.score));
            self.finished.truncate(beam);
        }
        let is_full = self.finished.len() == beam && self.options.sampling.is_none();
        if is_last_step || (is_full && self.cannot_improve(continued.first())) { Vec::new() } else { continued }
    }

    /// Returns true if no running path can beat the finished hypotheses, of which there are enough. `best` is the best path.
    fn cannot_improve(&self, best: Option<&Candidate>) -> bool {
        let SearchOptions { beam, rules, early_stopping, length_penalty, max_tokens, .. } = self.options;
        let length = match (rules, early_stopping) {
            // transformers' greedy search, which one beam selects, ends at the first end mark.
            _ if beam == 1 => return true,
            (SearchRules::Fairseq, _) | (_, EarlyStopping::True) => return true,
            (_, EarlyStopping::Never) if length_penalty > 0.0 => max_tokens,
            _ => self.step + 1,
        };
        let (Some(best), Some(worst)) = (best, self.finished.last()) else { return true };
        best.sum / self.divisor(length) <= worst.score
    }

    /// Returns `length` to the power of the length penalty.
    fn divisor(&self, length: usize) -> f32 {
        (length as f64).powf(self.options.length_penalty.into()) as f32
    }

    fn finish(&mut self, candidate: Candidate) {
        let path = &self.paths[candidate.parent];
        let tokens: Vec<u32> = path.tokens.iter().copied().chain([candidate.token]).collect();
        let logprobs = path.logprobs.iter().copied().chain([candidate.logprob]).collect();
        let score = candidate.sum / self.divisor(tokens.len());
        self.finished.push(Hypothesis { tokens, logprobs, score });
    }

    fn extend_path(&self, Candidate { sum, logprob, parent, token, .. }: Candidate) -> Result<Path> {
        let mut path = Path { sum, ..self.paths[parent].clone() };
        path.tokens.push(token);
        path.logprobs.push(logprob);
        path.ngrams.push(token);
        if let Some(sampler) = &mut path.sampler {
            sampler.see(token);
        }
        if let Some(constraint) = &mut path.constraint {
            constraint.consume(token)?;
            constraint.find_if_quick()?;
        }
        Ok(path)
    }
}

#[derive(Debug, Clone)]
struct Ngrams {
    /// Length n; 0 bans nothing.
    size: usize,
    /// The last n − 1 tokens; fewer at the beginning.
    latest: Vec<u32>,
    /// Tokens that followed each run of n − 1 tokens.
    followers: HashMap<Vec<u32>, Vec<u32>>,
}

impl Ngrams {
    fn new(size: usize, start: u32) -> Self {
        let mut ngrams = Self { size, latest: Vec::new(), followers: HashMap::new() };
        ngrams.push(start);
        ngrams
    }

    fn push(&mut self, token: u32) {
        let Some(prefix_len) = self.size.checked_sub(1) else { return };
        if self.latest.len() == prefix_len {
            self.followers.entry(self.latest.clone()).or_default().push(token);
        }
        self.latest.push(token);
        let surplus = self.latest.len().saturating_sub(prefix_len);
        self.latest.drain(..surplus);
    }

    fn banned(&self) -> &[u32] {
        let complete = self.size > 0 && self.latest.len() + 1 == self.size;
        complete.then(|| self.followers.get(&self.latest)).flatten().map(Vec::as_slice).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MARKS: SpecialIds = SpecialIds { start: 2, pad: 1, end: 2, unknown: 3 };

    const VOCABULARY: usize = 12;

    const OPTIONS: SearchOptions = SearchOptions {
        beam: 2,
        length_penalty: 1.0,
        min_tokens: 0,
        max_tokens: 9,
        no_repeat_ngram: 0,
        rules: SearchRules::Fairseq,
        early_stopping: EarlyStopping::False,
        repetition_penalty: 1.0,
        sampling: None,
    };

    /// A model without arithmetic: logits from a hash of all tokens. There are `levels` different logits, so some are equal.
    fn logits(seed: u64, fed: &[u32], levels: u64) -> Vec<f32> {
        let mix = |hash: u64, value: u64| (hash ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31);
        let hash = fed.iter().fold(seed, |hash, &token| mix(hash, u64::from(token) + 1));
        let logit = |token| (mix(mix(hash, token), 77) >> 20) % levels;
        (0..VOCABULARY as u64).map(|token| logit(token) as f32 * 6.0 / levels as f32 - 3.0).collect()
    }

    /// Uses the search's own log-softmax, which has tests of its own, so that results are equal to the bit.
    fn log_softmax(logits: &[f32]) -> Vec<f32> {
        let softmax = LogSoftmax::new(logits).unwrap();
        logits.iter().map(|&logit| softmax.logprob(logit)).collect()
    }

    /// Returns the indices of the k largest values; equals in order.
    fn topk(values: &[f32], k: usize) -> Vec<usize> {
        let mut indices: Vec<usize> = (0..values.len()).collect();
        indices.sort_by(|&a, &b| values[b].total_cmp(&values[a]).then(a.cmp(&b)));
        indices.truncate(k);
        indices
    }

    /// Returns the tokens that would repeat an n-gram, searched in the complete padded row.
    fn repeats(row: &[u32], step: usize, size: usize) -> Vec<u32> {
        if size == 0 || step + 2 < size {
            return Vec::new();
        }
        let latest = &row[step + 2 - size..=step];
        let runs = row.windows(size).filter(|run| run[size - 1] != MARKS.pad && &run[..size - 1] == latest);
        runs.map(|run| run[size - 1]).collect()
    }

    /// `SequenceGenerator._generate` for one sentence.
    fn naive(options: &SearchOptions, seed: u64, levels: u64) -> Vec<(Vec<u32>, f32)> {
        let beam = options.beam;
        let end = MARKS.end as usize;
        let width = options.max_tokens + 2;
        let mut tokens = vec![vec![MARKS.pad; width]; beam];
        let mut scores = vec![vec![0.0_f32; width]; beam];
        tokens.iter_mut().for_each(|row| row[0] = MARKS.start);
        let mut finalized: Vec<(Vec<u32>, f32)> = Vec::new();
        for step in 0..=options.max_tokens {
            let mut all = Vec::new();
            for row in 0..if step == 0 { 1 } else { beam } {
                let mut lprobs = log_softmax(&logits(seed, &tokens[row][..=step], levels));
                lprobs[MARKS.pad as usize] = f32::NEG_INFINITY;
                if step >= options.max_tokens {
                    (0..VOCABULARY).filter(|&token| token != end).for_each(|token| lprobs[token] = f32::NEG_INFINITY);
                } else if step < options.min_tokens {
                    lprobs[end] = f32::NEG_INFINITY;
                }
                for token in repeats(&tokens[row], step, options.no_repeat_ngram) {
                    lprobs[token as usize] = f32::NEG_INFINITY;
                }
                let before = if step == 0 { 0.0 } else { scores[row][step - 1] };
                all.extend(lprobs.into_iter().map(|lprob| lprob + before));
            }
            let candidates: Vec<_> = topk(&all, (2 * beam).min(all.len() - 1))
                .into_iter()
                .map(|index| (all[index], index / VOCABULARY, index % VOCABULARY))
                .collect();
            let eos_mask: Vec<bool> =
                candidates.iter().map(|&(score, _, token)| token == end && score > f32::NEG_INFINITY).collect();
            let mut newly = false;
            for (&(score, row, _), _) in candidates.iter().zip(&eos_mask).take(beam).filter(|(_, eos)| **eos) {
                newly = true;
                if finalized.len() < beam {
                    let mut text = tokens[row][1..step + 2].to_vec();
                    text[step] = MARKS.end;
                    let penalty = ((step + 1) as f64).powf(f64::from(options.length_penalty));
                    finalized.push((text, score / penalty as f32));
                }
            }
            if newly && (finalized.len() == beam || step == options.max_tokens) {
                break;
            }
            // active candidates come first, then ended ones
            let mut order: Vec<usize> = (0..candidates.len()).collect();
            order.sort_by_key(|&index| index + usize::from(eos_mask[index]) * candidates.len());
            let old_tokens = tokens.clone();
            let old_scores = scores.clone();
            for (row, &index) in order.iter().take(beam).enumerate() {
                let (score, parent, token) = candidates[index];
                tokens[row] = old_tokens[parent].clone();
                tokens[row][step + 1] = token as u32;
                scores[row] = old_scores[parent].clone();
                scores[row][step] = score;
            }
        }
        finalized.sort_by(|a, b| b.1.total_cmp(&a.1));
        finalized
    }

    /// Runs a search with rows that record what they were fed. Returns its hypotheses and the settled prefix after each step.
    fn search(options: &SearchOptions, seed: u64, levels: u64) -> (Vec<Hypothesis>, Vec<Vec<u32>>) {
        let mut search = BeamSearch::new(options.clone(), MARKS, VOCABULARY);
        let mut rows = vec![vec![MARKS.start]];
        let mut settled = Vec::new();
        loop {
            let logits: Vec<_> = rows.iter().map(|row| logits(seed, row, levels)).collect();
            let outcome = search.advance(logits.iter().map(Vec::as_slice)).unwrap();
            settled.push(search.settled_prefix().to_vec());
            let SearchStep::Continue(moves) = outcome else { return (search.finished().to_vec(), settled) };
            assert!(moves.len() <= options.beam && search.rows() == moves.len());
            rows =
                moves.iter().map(|&RowMove { parent, token }| [rows[parent].as_slice(), &[token]].concat()).collect();
            for (index, row) in rows.iter().enumerate() {
                assert!(search.symbols_fed(index).eq(row.iter().copied()), "symbols_fed");
            }
        }
    }

    fn options() -> impl Strategy<Value = SearchOptions> {
        let penalty = prop_oneof![Just(1.0_f32), Just(0.0), Just(0.6), Just(2.0)];
        (1_usize..=5, penalty, 0_usize..8, 0_usize..10, prop_oneof![Just(0_usize), 2_usize..4]).prop_map(
            |(beam, length_penalty, min_tokens, more, no_repeat_ngram)| {
                let max_tokens = min_tokens + more;
                SearchOptions { beam, length_penalty, min_tokens, max_tokens, no_repeat_ngram, ..OPTIONS }
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn searches_as_fairseq_does(options in options(), seed in any::<u64>(), levels in prop_oneof![Just(4_u64), Just(1 << 20)]) {
            let (actual, settled) = search(&options, seed, levels);
            let naive = naive(&options, seed, levels);
            let actual: Vec<_> = actual.into_iter().map(|text| (text.tokens, text.score)).collect();
            prop_assert_eq!(&actual, &naive);
            // a settled prefix only grows, and the best hypothesis begins with it
            if let Some((best, _)) = actual.first() {
                let text = &best[..best.len() - 1];
                prop_assert_eq!(settled.last().map(Vec::as_slice), Some(text));
                prop_assert!(settled.iter().all(|early| text.starts_with(early)));
                prop_assert!(settled.is_sorted_by_key(Vec::len));
            }
        }

        #[test]
        fn draws_each_path_separately(seed in any::<u64>(), beam in 1_usize..5, min in 0_usize..5) {
            let sampling = |seed| Some(Sampling { seed, ..Sampling::default() });
            let options = |beam, seed| SearchOptions { beam, min_tokens: min, sampling: sampling(seed), ..OPTIONS };
            let (mut together, _) = search(&options(beam, seed), seed, 1 << 20);
            let alone = |index: usize| search(&options(1, seed.wrapping_add(index as u64)), seed, 1 << 20).0.remove(0);
            let mut apart: Vec<_> = (0..beam).map(alone).collect();
            apart.sort_by(|a, b| b.score.total_cmp(&a.score).then(a.tokens.cmp(&b.tokens)));
            together.sort_by(|a, b| b.score.total_cmp(&a.score).then(a.tokens.cmp(&b.tokens)));
            prop_assert_eq!(&together, &apart);
            for text in &apart {
                prop_assert!((min..=9).contains(&(text.tokens.len() - 1)));
                prop_assert!(!text.tokens.contains(&MARKS.pad));
            }
        }
    }

    #[test]
    fn scores_are_normalised_sums_of_logprobs() {
        let options = SearchOptions { length_penalty: 2.0, min_tokens: 3, ..OPTIONS };
        let (actual, _) = search(&options, 5, 1 << 20);
        for text in actual {
            assert_eq!(text.tokens.len(), text.logprobs.len());
            let sum: f32 = text.logprobs.iter().sum();
            let score = sum / (text.tokens.len() as f32).powi(2);
            assert!((score - text.score).abs() < 1e-6, "{score} {}", text.score);
        }
    }

    #[test]
    fn invalid_logits_are_rejected() {
        let search = BeamSearch::new(OPTIONS, MARKS, VOCABULARY);
        let complete = vec![0.0; VOCABULARY];
        assert!(search.clone().advance([complete.as_slice(); 2].into_iter()).is_err(), "two rows");
        assert!(search.clone().advance([&complete[1..]].into_iter()).is_err(), "too short");
        assert!(search.clone().advance([[f32::NAN; VOCABULARY].as_slice()].into_iter()).is_err(), "NaN");
    }

    /// transformers does not search with one beam: it takes the best token until that is the end mark, whatever the other options.
    #[test]
    fn one_beam_ends_at_the_first_end_mark() {
        let mut early = 0;
        for seed in 0..200 {
            let options = SearchOptions {
                beam: 1,
                rules: SearchRules::Transformers,
                early_stopping: if seed % 2 == 0 { EarlyStopping::Never } else { EarlyStopping::False },
                length_penalty: 3.0,
                max_tokens: 40,
                ..OPTIONS
            };
            let (found, _) = search(&options, seed, 1 << 20);
            let end = found[0].tokens.iter().position(|token| *token == MARKS.end);
            early += usize::from(end.is_some_and(|end| end + 1 < options.max_tokens));
            assert!(
                found.len() == 1 && end.is_none_or(|end| end + 1 == found[0].tokens.len()),
                "{:?}",
                found[0].tokens
            );
            let mut fed = vec![MARKS.start];
            for token in &found[0].tokens {
                assert_eq!(*token as usize, topk(&logits(seed, &fed, 1 << 20), 1)[0]);
                fed.push(*token);
            }
        }
        assert!(early > 100, "{early}");
    }
}
