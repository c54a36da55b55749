//! Choosing symbols and texts: the [`Sampler`], choices between texts, stop strings, and reported log-probabilities.

use crate::{
    constraint::shared_lengths,
    options::{EmittedSymbol, ExactLogprob, OptionLimits, STOP_FIELDS, Sampling, check_stop_count, check_stop_length},
};
use llguidance::toktrie::SimpleVob;
use std::{cmp::Ordering, collections::VecDeque, fmt, sync::Arc};
use weir_kernels::{
    distribution::{LogSoftmax, log_probability, logit_of},
    error::{Error, Result},
};
use weir_models::{
    contract::{Card, SequenceRow, State, SymbolBoundary, Want},
    random::{Purpose, uniform},
    text::{SpecialSymbols, StreamDetokenizer, Vocabulary, vocabulary::BYTES_PER_SYMBOL},
};

// Chooses the next symbol from the logits of one position, in the order that `Sampling` documents. The draw walks the remaining
// symbols by id, so an option that cuts nothing changes nothing. All arithmetic is in `f64` and in one order. Hot path: nothing
// allocates after the first choice.

/// The sampler of one sequence, with the symbols that the sequence contains.
#[derive(Debug, Clone)]
pub struct Sampler {
    sampling: Sampling,
    banned: Vec<u32>,
    /// The symbols that the constraint of the text allows next; all if none.
    allowed: Option<SimpleVob>,
    /// (vocab): true for symbols of the sequence; empty without a repetition penalty.
    seen: Vec<bool>,
    /// (vocab): how often each symbol was generated; empty without a presence or frequency penalty.
    counts: Vec<u32>,
    /// (vocab): logits, then weights: probabilities up to a common factor, 0 if cut.
    weights: Vec<f64>,
    /// (vocab): ids by falling logit, for cuts that need them sorted.
    ranking: Vec<u32>,
}

impl Sampler {
    /// Creates a sampler for sequences over `vocabulary` symbols.
    pub fn new(sampling: Sampling, vocabulary: usize) -> Self {
        let seen = vec![false; if sampling.repetition_penalty == 1.0 { 0 } else { vocabulary }];
        let has_penalty = sampling.presence_penalty != 0.0 || sampling.frequency_penalty != 0.0;
        let counts = vec![0; if has_penalty { vocabulary } else { 0 }];
        Self { sampling, banned: Vec::new(), allowed: None, seen, counts, weights: Vec::new(), ranking: Vec::new() }
    }

    /// Replaces the set of banned symbols, whose probability is 0 from now on.
    pub fn ban(&mut self, symbols: impl IntoIterator<Item = u32>) {
        self.banned.clear();
        self.banned.extend(symbols);
    }

    /// Replaces the set of allowed symbols. The probability of all others is 0 until the next call.
    pub fn allow(&mut self, symbols: &SimpleVob) {
        match &mut self.allowed {
            Some(allowed) => allowed.set_from(symbols),
            None => self.allowed = Some(symbols.clone()),
        }
    }

    /// Records a symbol of the prompt for the repetition penalty.
    pub fn see_prompt(&mut self, symbol: u32) {
        if let Some(seen) = self.seen.get_mut(symbol as usize) {
            *seen = true;
        }
    }

    /// Records a generated symbol for the penalties.
    pub fn see(&mut self, symbol: u32) {
        self.see_prompt(symbol);
        if let Some(count) = self.counts.get_mut(symbol as usize) {
            *count = count.saturating_add(1);
        }
    }

    /// Chooses the symbol at `position` from the logits (vocab) before it. Fails if one is NaN or +∞, or all are impossible.
    pub fn choose(&mut self, logits: &[f32], position: usize) -> Result<u32> {
        self.adjust(logits);
        // banned logits must also be valid
        let is_valid = logits.iter().all(|logit| *logit < f32::INFINITY);
        let best = argmax(&self.weights).filter(|_| is_valid);
        let Some(best) = best else {
            return Err(Error::Internal(format!(
                "the logits for position {position} contain NaN or infinity, or leave no possible symbol"
            )));
        };
        if self.sampling.temperature == 0.0 {
            return Ok(best as u32);
        }
        self.cut_to_top_k();
        self.weigh(best);
        self.cut_to_top_p();
        self.cut_to_min_p();
        Ok(self.draw(uniform(self.sampling.seed, Purpose::Sampling, position)).unwrap_or(best as u32))
    }

    /// Returns a sampler with the same bias, penalties and seen symbols, and without constraint and bans.
    fn unconstrained(&self) -> Self {
        let sampling = self.sampling.clone();
        Self { seen: self.seen.clone(), counts: self.counts.clone(), ..Self::new(sampling, 0) }
    }

    /// Applies bias and penalties to the logits (vocab). Returns the logarithm of the sum that makes probabilities of the weights.
    fn normalise(&mut self, logits: &[f32]) -> f64 {
        self.adjust(logits);
        log_sum(self.weights.iter().copied())
    }

    fn weight(&self, symbol: u32) -> f64 {
        self.weights.get(symbol as usize).copied().unwrap_or(f64::NEG_INFINITY)
    }

    /// Chooses one of several texts by ln p of each (texts), with the number of the symbol at `position`. Temperature and cuts apply to
    /// the texts as to symbols. Fails as [`choose`](Self::choose) does.
    pub fn choose_text(&self, logprobs: &[f32], position: usize) -> Result<usize> {
        let Sampling { temperature, top_k, top_p, min_p, seed, .. } = self.sampling;
        let sampling = Sampling { temperature, top_k, top_p, min_p, seed, ..Sampling::default() };
        Self::new(sampling, logprobs.len()).choose(logprobs, position).map(|text| text as usize)
    }

    /// Applies the constraint, bans, bias, then penalties.
    fn adjust(&mut self, logits: &[f32]) {
        self.weights.clear();
        self.weights.extend(logits.iter().map(|&logit| f64::from(logit)));
        if let Some(allowed) = &self.allowed {
            for (symbol, logit) in self.weights.iter_mut().enumerate() {
                if !allowed.get(symbol) {
                    *logit = f64::NEG_INFINITY;
                }
            }
        }
        for &symbol in &self.banned {
            if let Some(logit) = self.weights.get_mut(symbol as usize) {
                *logit = f64::NEG_INFINITY;
            }
        }
        for &(symbol, bias) in &self.sampling.logit_bias {
            if let Some(logit) = self.weights.get_mut(symbol as usize) {
                *logit += f64::from(bias);
            }
        }
        let penalty = f64::from(self.sampling.repetition_penalty);
        for (logit, _) in self.weights.iter_mut().zip(&self.seen).filter(|(_, seen)| **seen) {
            *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
        }
        let presence = f64::from(self.sampling.presence_penalty);
        let frequency = f64::from(self.sampling.frequency_penalty);
        for (logit, count) in self.weights.iter_mut().zip(&self.counts).filter(|(_, count)| **count > 0) {
            *logit -= presence + frequency * f64::from(*count);
        }
    }

    /// Keeps the k largest logits; equals by lowest id.
    fn cut_to_top_k(&mut self) {
        let kept = self.sampling.top_k;
        if kept == 0 || kept >= self.weights.len() {
            return;
        }
        let Self { weights, ranking, .. } = self;
        ranking.clear();
        ranking.extend(0..weights.len() as u32);
        ranking.select_nth_unstable_by(kept, |&a, &b| better(weights, a, b));
        for &symbol in &ranking[kept..] {
            weights[symbol as usize] = f64::NEG_INFINITY;
        }
    }

    /// Turns logits into weights at the temperature; the best symbol's weight is 1.
    fn weigh(&mut self, best: usize) {
        let peak = self.weights[best];
        let temperature = f64::from(self.sampling.temperature);
        for weight in &mut self.weights {
            *weight = ((*weight - peak) / temperature).exp();
        }
    }

    /// Keeps the smallest set of most probable symbols, at least one, that reaches `top_p`; equals by lowest id.
    fn cut_to_top_p(&mut self) {
        if self.sampling.top_p >= 1.0 {
            return;
        }
        let Self { weights, ranking, .. } = self;
        ranking.clear();
        ranking.extend((0..weights.len() as u32).filter(|&symbol| weights[symbol as usize] > 0.0));
        ranking.sort_unstable_by(|&a, &b| better(weights, a, b));
        let total: f64 = ranking.iter().map(|&symbol| weights[symbol as usize]).sum();
        let wanted = f64::from(self.sampling.top_p) * total;
        let mut reached = 0.0;
        for &symbol in ranking.iter() {
            let weight = &mut weights[symbol as usize];
            if reached > 0.0 && reached >= wanted {
                *weight = 0.0;
            } else {
                reached += *weight;
            }
        }
    }

    fn cut_to_min_p(&mut self) {
        let min = f64::from(self.sampling.min_p);
        // the most probable symbol weighs 1
        for weight in self.weights.iter_mut().filter(|weight| **weight < min) {
            *weight = 0.0;
        }
    }

    /// Returns the first symbol at which the weights, summed by id, exceed `share` of the total.
    fn draw(&self, share: f32) -> Option<u32> {
        let wanted = f64::from(share) * self.weights.iter().sum::<f64>();
        let mut reached = 0.0;
        let drawn = self.weights.iter().position(|weight| {
            reached += weight;
            reached > wanted
        });
        drawn.map(|symbol| symbol as u32)
    }
}

/// Orders the most probable symbol first; equals by lower id.
fn better(weights: &[f64], a: u32, b: u32) -> Ordering {
    weights[b as usize].total_cmp(&weights[a as usize]).then(a.cmp(&b))
}

/// Returns the lowest index of the largest value; none if a value is NaN or all are −∞.
fn argmax(values: &[f64]) -> Option<usize> {
    let mut best = None;
    let mut peak = f64::NEG_INFINITY;
    for (index, &value) in values.iter().enumerate() {
        if value.is_nan() {
            return None;
        }
        if value > peak {
            best = Some(index);
            peak = value;
        }
    }
    best
}

// A choice between texts draws a text as a whole. A mask on each symbol would draw `ab` or `cd` by the probability of their first symbols
// alone. So the row is fed each text in turn, from where it parts from the text before it; then one number draws a text by the
// probabilities of all its symbols, and of its end if the model can end a text: those that the model gives when it scores the text
// there. The draw depends on (seed, position) and on the texts, not on their order.

/// Maximum states that are kept of a text to go back to. From a place without one, a later text goes back further.
pub(crate) const MAX_FORKS: usize = 16;

/// The probabilities of texts, while they are computed.
pub(crate) struct ChoiceScores {
    /// Sorted.
    texts: Arc<[Vec<u32>]>,
    /// For each text the number of symbols with which it begins like the text before it.
    shared: Vec<usize>,
    scores: Vec<TextScore>,
    /// Maximum symbols of a text that count.
    room: usize,
    /// The marks that end a text; none if ends do not count.
    ends: Vec<u32>,
    /// The logits (vocab) before the texts.
    pub(crate) logits: Vec<f32>,
    /// States on the way to the place that the row has reached, the first before the texts. None while another row is fed what stands
    /// before them.
    forks: Vec<Fork>,
    /// The index of the text that the row is fed, and the number of its symbols that it was fed.
    current: usize,
    fed: usize,
    /// The number of the current text's symbols that a lost row was fed.
    fed_before: usize,
    /// Has seen the symbols that the row was fed.
    sampler: Sampler,
}

#[derive(Debug, Clone, Copy, Default)]
struct TextScore {
    /// ln p of its first `known` symbols, of which the end may be the last.
    logprob: f64,
    known: usize,
}

struct Fork {
    /// Symbols of the present text that the state has been fed.
    fed: usize,
    state: Box<dyn State>,
}

impl Clone for ChoiceScores {
    fn clone(&self) -> Self {
        let forks = self.forks.iter().map(|fork| Fork { fed: fork.fed, state: fork.state.fork() }).collect();
        Self {
            texts: Arc::clone(&self.texts),
            shared: self.shared.clone(),
            scores: self.scores.clone(),
            ends: self.ends.clone(),
            logits: self.logits.clone(),
            sampler: self.sampler.clone(),
            forks,
            ..*self
        }
    }
}

impl fmt::Debug for ChoiceScores {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("ChoiceScores").field("texts", &self.texts.len()).finish_non_exhaustive()
    }
}

impl ChoiceScores {
    /// Begins with the first symbols of sorted texts, of which at most `room` symbols count, from the logits (vocab) before them. The
    /// marks `ends` end a text.
    pub(crate) fn new(texts: &Arc<[Vec<u32>]>, room: usize, ends: Vec<u32>, logits: &[f32], sampler: &Sampler) -> Self {
        let mut choice = Self {
            texts: Arc::clone(texts),
            shared: shared_lengths(texts),
            scores: vec![TextScore::default(); texts.len()],
            room,
            ends,
            logits: logits.to_vec(),
            forks: Vec::new(),
            current: 0,
            fed: 0,
            fed_before: 0,
            sampler: sampler.unconstrained(),
        };
        choice.take(logits);
        choice.find_next(sampler);
        choice
    }

    /// Returns the symbols of a text that count.
    fn text(&self, index: usize) -> &[u32] {
        self.texts.get(index).map_or(&[], |text| text.get(..self.room).unwrap_or(text))
    }

    /// Returns the number of a text's probabilities: of its symbols, and of its end if that counts. The last one is known before
    /// what it is the probability of is fed.
    fn terms(&self, index: usize) -> usize {
        let len = self.text(index).len();
        len + usize::from(len < self.room && !self.ends.is_empty())
    }

    fn is_open(&self, index: usize) -> bool {
        self.scores.get(index).is_some_and(|own| own.known < self.terms(index))
    }

    /// Adds the log-probabilities of what follows the symbols that were fed, from the logits (vocab) there.
    fn take(&mut self, logits: &[f32]) {
        let fed = self.fed;
        let later = self.current + 1..self.texts.len();
        let alike = later.take_while(|index| self.shared.get(*index).is_some_and(|shared| *shared >= fed));
        let follows =
            |index: &usize| self.is_open(*index) && self.scores.get(*index).is_some_and(|own| own.known == fed);
        let open: Vec<usize> = std::iter::once(self.current).chain(alike).filter(follows).collect();
        if open.is_empty() {
            return;
        }
        let total = self.sampler.normalise(logits);
        for index in open {
            let weight = match self.text(index).get(fed) {
                Some(symbol) => self.sampler.weight(*symbol),
                None => log_sum(self.ends.iter().map(|end| self.sampler.weight(*end))),
            };
            if let Some(own) = self.scores.get_mut(index) {
                own.logprob += weight - total;
                own.known += 1;
            }
        }
    }

    /// Turns to the next text whose probability is not known. The row must go back to the last fork if that was fed less.
    fn find_next(&mut self, sampler: &Sampler) {
        let next = (self.current..self.texts.len()).find(|index| self.is_open(*index)).unwrap_or(self.texts.len());
        let between = self.shared.get(self.current + 1..=next).unwrap_or_default();
        let shared = between.iter().copied().min().unwrap_or(self.fed).min(self.fed);
        self.current = next;
        if next == self.texts.len() || shared == self.fed {
            return;
        }
        while self.forks.last().is_some_and(|fork| fork.fed > shared) {
            self.forks.pop();
        }
        self.fed = self.forks.last().map_or(0, |fork| fork.fed);
        self.fed_before = 0;
        self.sampler = sampler.unconstrained();
        let symbols = self.texts.get(next).into_iter().flatten();
        symbols.take(self.fed).for_each(|symbol| self.sampler.see(*symbol));
    }

    /// Returns the first place after `fed` symbols of the present text, or there, where a later text parts from it.
    fn next_parting(&self, fed: usize) -> Option<usize> {
        let mut shared = usize::MAX;
        let mut parting = None;
        for index in self.current + 1..self.texts.len() {
            shared = shared.min(self.shared.get(index).copied().unwrap_or_default());
            if shared < fed {
                break;
            }
            parting = Some(shared).filter(|_| self.is_open(index)).or(parting);
        }
        parting
    }

    /// Returns true if all probabilities are known.
    pub(crate) fn is_done(&self) -> bool {
        self.current == self.texts.len()
    }

    /// The symbols of the present text that are fed.
    fn path(&self) -> &[u32] {
        self.text(self.current).get(..self.terms(self.current).saturating_sub(1)).unwrap_or_default()
    }

    /// Returns the number of symbols that the row is still to be fed of the present text.
    pub(crate) fn left(&self) -> usize {
        self.path().len().saturating_sub(self.fed)
    }

    /// Returns the number of symbols of the longest text.
    pub(crate) fn longest(&self) -> usize {
        (0..self.texts.len()).map(|index| self.text(index).len()).max().unwrap_or_default()
    }

    /// The state before the texts, while the row is fed one of them.
    pub(crate) fn settled_state(&self) -> Option<&dyn State> {
        self.forks.first().map(|fork| &*fork.state)
    }

    /// Returns the number of states that are kept.
    pub(crate) fn forks(&self) -> usize {
        self.forks.len()
    }

    /// Begins to feed a row with this state before the texts.
    pub(crate) fn settle(&mut self, state: Box<dyn State>) {
        self.forks = vec![Fork { fed: 0, state }];
    }

    /// Begins the present text anew, because its row was lost.
    pub(crate) fn rewind(&mut self, sampler: &Sampler) {
        self.forks.clear();
        self.fed_before = self.fed_before.max(self.fed);
        self.fed = 0;
        self.sampler = sampler.unconstrained();
    }

    /// Returns true if the next feed repeats symbols that a lost row was fed.
    pub(crate) fn is_repeating(&self) -> bool {
        self.fed < self.fed_before
    }

    /// Sets the row's feed to at most `chunk` symbols of the present text, up to where the next one parts from it.
    pub(crate) fn feed(&self, row: &mut SequenceRow, chunk: usize) {
        let path = self.path();
        let reached = if self.is_repeating() { self.fed_before } else { path.len() };
        let end = path.len().min(reached).min(self.fed + chunk.max(1));
        let end = self.next_parting(self.fed + 1).map_or(end, |parting| end.min(parting));
        row.set(path.get(self.fed..end).unwrap_or_default(), Want::All);
    }

    /// Takes the results of the feed. At the end of the present text, the row goes back to where the next one parts from it, and at
    /// last to the state before the texts.
    pub(crate) fn absorb(&mut self, row: &mut SequenceRow, sampler: &Sampler) {
        let vocabulary = self.logits.len().max(1);
        for (symbol, logits) in row.feed.iter().zip(row.logits.chunks_exact(vocabulary)) {
            self.fed += 1;
            self.sampler.see(*symbol);
            self.take(logits);
        }
        let fed = self.fed;
        if fed >= self.path().len() {
            self.find_next(sampler);
        }
        let back = if self.is_done() { self.forks.first() } else { self.forks.last().filter(|_| self.fed < fed) };
        if let Some(fork) = back {
            row.state = fork.state.fork();
        } else if self.forks.len() < MAX_FORKS && self.next_parting(fed) == Some(fed) {
            self.forks.push(Fork { fed, state: row.state.fork() });
        }
    }

    /// Draws a text, with the number of the symbol at `position`. If it does not begin as the resumed text does, draws among those that
    /// do; `None` if there are none. Fails if no text is possible.
    pub(crate) fn draw(&self, sampler: &Sampler, resumed: &VecDeque<u32>, position: usize) -> Result<Option<usize>> {
        let begins = |index: usize| {
            let own = self.text(index);
            own.len() >= resumed.len() && own.iter().zip(resumed).all(|(own, given)| own == given)
        };
        let mut logprobs: Vec<f32> = self.scores.iter().map(|own| own.logprob as f32).collect();
        let drawn = sampler.choose_text(&logprobs, position)?;
        if begins(drawn) {
            return Ok(Some(drawn));
        }
        let others = logprobs.iter_mut().enumerate().filter(|(index, _)| !begins(*index));
        others.for_each(|(_, logprob)| *logprob = f32::NEG_INFINITY);
        let is_possible = logprobs.iter().any(|logprob| *logprob > f32::NEG_INFINITY);
        is_possible.then(|| sampler.choose_text(&logprobs, position)).transpose()
    }
}

/// Returns the logarithm of the sum of what these are the logarithms of.
fn log_sum(values: impl Iterator<Item = f64> + Clone) -> f64 {
    let peak = values.clone().fold(f64::NEG_INFINITY, f64::max);
    if peak == f64::NEG_INFINITY { peak } else { peak + values.map(|value| (value - peak).exp()).sum::<f64>().ln() }
}

/// Log-probabilities reported for each symbol.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogprobOptions {
    /// True: the symbol's own log-probability.
    pub logprobs: bool,
    /// Number of most probable symbols reported for its position.
    pub top: usize,
}

/// Log-probabilities of one symbol.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SymbolLogprobs {
    /// Its own.
    pub logprob: Option<f32>,
    /// The most probable symbols at its position, best first; equals by lower id.
    pub top: Vec<(u32, f32)>,
    /// Its own in double precision, for evaluations.
    pub exact: Option<Box<ExactLogprob>>,
}

impl SymbolLogprobs {
    /// Returns an emitted symbol with these log-probabilities and its boundary.
    pub(crate) fn emit(self, symbol: u32, decision: Option<SymbolBoundary>) -> EmittedSymbol {
        let Self { logprob, top, exact } = self;
        EmittedSymbol { symbol, logprob, decision, top, cut: None, exact, constraint_mass: None }
    }
}

impl ExactLogprob {
    /// Computes the log-probability of a symbol from the logits (vocab). Fails if they are not valid.
    pub(crate) fn new(symbol: u32, logits: &[f32], specials: Option<SpecialSymbols>) -> Result<Self> {
        let renormalize = |specials: SpecialSymbols| {
            let mut possible = logits.to_vec();
            for mark in [specials.start, specials.segment_start, specials.segment_end] {
                possible.get_mut(mark as usize).into_iter().for_each(|logit| *logit = f32::NEG_INFINITY);
            }
            log_probability(&possible, symbol)
        };
        let renormalized = specials.map(renormalize).transpose()?;
        Ok(Self { logprob: log_probability(logits, symbol)?, renormalized })
    }
}

impl LogprobOptions {
    /// True if logits are needed.
    pub fn any(self) -> bool {
        self.logprobs || self.top > 0
    }

    /// Computes the log-probabilities of the symbol at a position from its logits (vocab). Fails if they are not valid.
    pub fn compute(self, symbol: u32, logits: &[f32]) -> Result<SymbolLogprobs> {
        if !self.any() {
            return Ok(SymbolLogprobs::default());
        }
        let softmax = LogSoftmax::new(logits)?;
        let logit = logit_of(symbol, logits)?;
        let alternative = |symbol: u32| (symbol, softmax.logprob(logits[symbol as usize]));
        let top = best(logits, self.top).into_iter().map(alternative).collect();
        Ok(SymbolLogprobs { logprob: self.logprobs.then(|| softmax.logprob(logit)), top, exact: None })
    }
}

/// Returns the `count` symbols of largest logits, best first. Insertion into a short list: `count` is small.
fn best(logits: &[f32], count: usize) -> Vec<u32> {
    let mut best: Vec<u32> = Vec::with_capacity(count + 1);
    if count == 0 {
        return best;
    }
    for (symbol, logit) in logits.iter().enumerate() {
        // equals go behind lower ids
        let index = best.partition_point(|&other| logits[other as usize].total_cmp(logit) != Ordering::Less);
        if index < count {
            best.insert(index, symbol as u32);
            best.truncate(count);
        }
    }
    best
}

/// Maximum bytes of a stop string. No valid one is longer.
const STOP_BYTES: usize = OptionLimits::STOP_SYMBOLS * BYTES_PER_SYMBOL;

/// The stop strings that the model can generate, in the order of the request. The others never match and are left out.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct StopStrings {
    /// The strings as the request states them.
    pub texts: Vec<String>,
    /// The same strings as [`encode_stop`](weir_models::text::Vocabulary::encode_stop) returns them.
    pub encoded: Vec<Vec<u32>>,
}

impl StopStrings {
    /// Checks and encodes stop strings, of which empty ones count as absent. Fails if there are too many, or if one is too long before
    /// or after normalising.
    pub fn new(texts: Vec<String>, card: &Card) -> Result<Self> {
        check_stop_count(texts.iter().filter(|text| !text.is_empty()).count())?;
        // Checked first: a stop string of megabytes would be encoded only to be rejected.
        let named = || {
            // empty strings may stand before one that has no name
            let fields = STOP_FIELDS.into_iter().chain(std::iter::repeat("stopping.stop"));
            fields.zip(&texts).filter(|(_, text)| !text.is_empty())
        };
        for (field, text) in named() {
            if text.len() > STOP_BYTES {
                return Err(Error::TooLong { field, length: text.len(), limit: STOP_BYTES, unit: "bytes", why: None });
            }
            check_stop_length(field, card.vocabulary.stop_length(text))?;
        }
        let mut stop = Self::default();
        for (field, text) in named() {
            if let Some(encoded) = card.vocabulary.encode_stop(text) {
                check_stop_length(field, encoded.len())?;
                stop.encoded.push(encoded);
                stop.texts.push(text.clone());
            }
        }
        Ok(stop)
    }
}

// Matches stop strings over symbols while they come (Knuth, Morris and Pratt). Symbols that may become part of one are
// *withheld*. In a model of tokens the units are the bytes of the text, because a text has many spellings in tokens and a stop
// string may end inside one.

/// The stop strings of one generation.
#[derive(Debug, Clone)]
pub struct StopMatcher {
    patterns: Vec<Pattern>,
    /// A stop string that is complete before this many symbols does not count.
    min_chars: usize,
    generated: usize,
    /// True if the symbols are bytes of tokens' text. A token may have no text, so missing bytes do not count missing tokens.
    is_text: bool,
}

/// A stop string that the text now ends with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopMatch {
    /// Index of the stop string.
    pub index: usize,
    /// Its length in symbols, which are the last of the text.
    pub length: usize,
}

#[derive(Debug, Clone)]
struct Pattern {
    symbols: Vec<u32>,
    /// Length of the longest shorter prefix that ends each prefix, by the prefix's length.
    borders: Vec<usize>,
    /// Length of the longest prefix that ends the text.
    matched: usize,
}

impl StopMatcher {
    /// Creates a matcher for the strings of `stop`, none of which is empty.
    pub fn new(stop: Vec<Vec<u32>>, min_chars: usize) -> Self {
        Self { patterns: stop.into_iter().map(Pattern::new).collect(), min_chars, generated: 0, is_text: false }
    }

    /// Takes the next symbol and returns the stop string that it completes. The earliest start wins, then the lowest index.
    pub fn push(&mut self, symbol: u32) -> Option<StopMatch> {
        self.generated += 1;
        self.extend(symbol)
    }

    fn extend(&mut self, unit: u32) -> Option<StopMatch> {
        let mut best: Option<StopMatch> = None;
        for (index, pattern) in self.patterns.iter_mut().enumerate() {
            pattern.push(unit);
            let length = pattern.symbols.len();
            let complete = pattern.matched == length && self.generated >= self.min_chars;
            if complete && best.is_none_or(|other| length > other.length) {
                best = Some(StopMatch { index, length });
            }
        }
        best
    }

    /// Takes the text of the next token and returns the stop string that it completes first, with the number of the text's bytes
    /// up to its end. Of several, the earliest start wins, then the lowest index.
    pub fn push_text(&mut self, text: &str) -> Option<(StopMatch, usize)> {
        self.generated += 1;
        self.is_text = true;
        (1..).zip(text.bytes()).find_map(|(end, byte)| Some((self.extend(byte.into())?, end)))
    }

    /// Number of last units that may begin a stop string that will count.
    pub fn withheld(&self) -> usize {
        let min_chars = if self.is_text { 0 } else { self.min_chars };
        let longest = |pattern| longest_open(pattern, self.generated, min_chars);
        self.patterns.iter().map(longest).max().unwrap_or(0)
    }
}

/// Returns the length of the longest incomplete prefix at the text's end whose completion would not be too early to count.
fn longest_open(pattern: &Pattern, generated: usize, min_chars: usize) -> usize {
    let length = pattern.symbols.len();
    let mut matched = pattern.matched;
    while matched > 0 && (matched == length || generated + (length - matched) < min_chars) {
        matched = pattern.borders[matched];
    }
    matched
}

impl Pattern {
    fn new(symbols: Vec<u32>) -> Self {
        let mut borders = vec![0; symbols.len() + 1];
        let mut border = 0;
        for end in 1..symbols.len() {
            while border > 0 && symbols[border] != symbols[end] {
                border = borders[border];
            }
            border += usize::from(symbols[border] == symbols[end]);
            borders[end + 1] = border;
        }
        Self { symbols, borders, matched: 0 }
    }

    fn push(&mut self, symbol: u32) {
        if self.matched == self.symbols.len() {
            // the match came too early to count; a later one may begin within it
            self.matched = self.borders[self.matched];
        }
        while self.matched > 0 && self.symbols[self.matched] != symbol {
            self.matched = self.borders[self.matched];
        }
        self.matched += usize::from(self.symbols[self.matched] == symbol);
    }
}

// The text of sampled tokens that are not yet emitted: which bytes each of them completes.

/// The text of the held tokens of a generation.
#[derive(Debug, Clone)]
pub(crate) struct TokenText {
    stream: StreamDetokenizer,
    /// Bytes that each held token completes, oldest first.
    lengths: VecDeque<usize>,
}

impl TokenText {
    pub(crate) fn new(vocabulary: Arc<Vocabulary>) -> Self {
        Self { stream: StreamDetokenizer::new(vocabulary), lengths: VecDeque::new() }
    }

    /// Adds a token and returns the text that it completes.
    pub(crate) fn push(&mut self, token: u32) -> &str {
        let text = self.stream.push(token);
        self.lengths.push_back(text.len());
        text
    }

    /// Returns the bytes of the held tokens before the latest one.
    pub(crate) fn before_latest(&self) -> usize {
        self.lengths.iter().rev().skip(1).sum()
    }

    /// Returns how many held tokens the first `bytes` bytes need, and how much of the last one's text, if not all.
    pub(crate) fn position(&self, bytes: usize) -> (usize, Option<usize>) {
        let mut before = 0;
        for (index, &length) in self.lengths.iter().enumerate() {
            if before == bytes {
                return (index, None);
            }
            if before + length > bytes {
                return (index + 1, Some(bytes - before));
            }
            before += length;
        }
        (self.lengths.len(), None)
    }

    /// Returns how many of the last held tokens the last `bytes` bytes need, with the tokens that begin their first code point.
    pub(crate) fn symbols_of_last(&self, bytes: usize) -> usize {
        let mut covered = 0;
        let mut count = 0;
        for &length in self.lengths.iter().rev() {
            // an unfinished code point may also become part of a stop string
            if covered >= bytes && length > 0 {
                break;
            }
            covered += length;
            count += 1;
        }
        count
    }

    /// Drops the first `count` tokens, which were emitted.
    pub(crate) fn release(&mut self, count: usize) {
        self.lengths.drain(..count.min(self.lengths.len()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{collection::vec, prelude::*};
    use weir_models::text::TextNormaliser;

    proptest! {
        #[test]
        fn logprobs_agree_with_the_naive_implementation(
            logits in vec(prop_oneof![(-3i32..3).prop_map(|value| value as f32), -30.0f32..30.0], 1..20),
            top in 0usize..25, symbol in 0usize..20,
        ) {
            let symbol = symbol % logits.len();
            let total: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
            let logprob = |logit: f32| (f64::from(logit).exp() / total).ln() as f32;
            let mut ranking: Vec<usize> = (0..logits.len()).collect();
            ranking.sort_by(|&a, &b| logits[b].partial_cmp(&logits[a]).unwrap());
            ranking.truncate(top);
            let logprobs = LogprobOptions { logprobs: true, top }.compute(symbol as u32, &logits).unwrap();
            prop_assert!((logprobs.logprob.unwrap() - logprob(logits[symbol])).abs() < 1e-5);
            prop_assert_eq!(logprobs.top.iter().map(|t| t.0 as usize).collect::<Vec<_>>(), ranking);
            for (symbol, reported) in logprobs.top {
                prop_assert!((reported - logprob(logits[symbol as usize])).abs() < 1e-5);
            }
        }
    }

    #[test]
    fn reports_only_what_is_requested() {
        let logits = [0.0, 1.0];
        assert_eq!(LogprobOptions { logprobs: false, top: 0 }.compute(0, &logits).unwrap(), SymbolLogprobs::default());
        let reported = LogprobOptions { logprobs: false, top: 1 }.compute(0, &logits).unwrap();
        assert_eq!((reported.logprob, reported.top.len()), (None, 1));
    }

    #[test]
    fn large_logits_do_not_overflow() {
        let reported = LogprobOptions { logprobs: true, top: 0 }.compute(1, &[3e38, 3e38, -3e38]).unwrap();
        assert_eq!(reported.logprob, Some(-std::f32::consts::LN_2));
    }

    #[test]
    fn logprobs_of_no_distribution_are_rejected() {
        for logits in [[f32::NAN, 0.0], [f32::INFINITY, 0.0], [f32::NEG_INFINITY; 2]] {
            let reported = LogprobOptions { logprobs: true, top: 0 }.compute(0, &logits);
            assert!(matches!(reported, Err(Error::Internal(_))), "{logits:?}");
        }
    }

    /// Naive implementation: copies, sorts and filters lists, and normalises probabilities each time.
    fn naive(sampling: &Sampling, prompt: &[u32], generated: &[u32], logits: &[f32], position: usize) -> u32 {
        let mut logits: Vec<f64> = logits.iter().map(|&logit| logit.into()).collect();
        for (symbol, bias) in &sampling.logit_bias {
            logits[*symbol as usize] += f64::from(*bias);
        }
        for (symbol, logit) in logits.iter_mut().enumerate() {
            if prompt.iter().chain(generated).any(|seen| *seen == symbol as u32) {
                let penalty = f64::from(sampling.repetition_penalty);
                *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
            }
            let count = generated.iter().filter(|seen| **seen == symbol as u32).count() as f64;
            let presence = if count > 0.0 { f64::from(sampling.presence_penalty) } else { 0.0 };
            *logit -= presence + f64::from(sampling.frequency_penalty) * count;
        }
        let mut ranking: Vec<(usize, f64)> = logits.into_iter().enumerate().collect();
        ranking.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap().then(a.0.cmp(&b.0)));
        if sampling.temperature == 0.0 {
            return ranking[0].0 as u32;
        }
        if sampling.top_k > 0 {
            ranking.truncate(sampling.top_k);
        }
        let peak = ranking[0].1;
        for (_, logit) in &mut ranking {
            *logit = ((*logit - peak) / f64::from(sampling.temperature)).exp();
        }
        if sampling.top_p < 1.0 {
            let total: f64 = ranking.iter().map(|(_, weight)| weight).sum();
            let wanted = f64::from(sampling.top_p) * total;
            let kept = (1..=ranking.len()).find(|&kept| ranking[..kept].iter().map(|r| r.1).sum::<f64>() >= wanted);
            ranking.truncate(kept.unwrap_or(ranking.len()));
        }
        let max = ranking[0].1;
        ranking.retain(|(_, weight)| *weight >= f64::from(sampling.min_p) * max);
        ranking.sort_by_key(|(symbol, _)| *symbol);
        let total: f64 = ranking.iter().map(|(_, weight)| weight).sum();
        let wanted = f64::from(uniform(sampling.seed, Purpose::Sampling, position)) * total;
        let mut reached = 0.0;
        for (symbol, weight) in ranking {
            reached += weight;
            if reached > wanted {
                return symbol as u32;
            }
        }
        unreachable!("the weights reach their sum")
    }

    fn sampling() -> impl Strategy<Value = Sampling> {
        let numbers = (
            prop_oneof![Just(0.0f32), Just(1.0), 0.05f32..3.0],
            0usize..12,
            prop_oneof![Just(0.0f32), Just(1.0), 0.01f32..1.0],
            prop_oneof![Just(0.0f32), 0.0f32..1.0],
            prop_oneof![Just(1.0f32), 0.5f32..2.0],
            prop_oneof![Just(0.0f32), -2.0f32..2.0],
            prop_oneof![Just(0.0f32), -2.0f32..2.0],
        );
        (numbers, any::<u64>(), vec((0u32..8, -3.0f32..3.0), 0..3)).prop_map(|(numbers, seed, logit_bias)| {
            let (temperature, top_k, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty) = numbers;
            let penalties = Sampling { repetition_penalty, presence_penalty, frequency_penalty, ..Sampling::default() };
            Sampling { temperature, top_k, top_p, min_p, seed, logit_bias, ..penalties }
        })
    }

    /// Few values, so that some are equal.
    fn logits() -> impl Strategy<Value = Vec<f32>> {
        let logit = prop_oneof![(-4i32..4).prop_map(|value| value as f32), -6.0f32..6.0, Just(f32::NEG_INFINITY)];
        vec(logit, 7).prop_map(|logits| [logits, vec![0.5]].concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn chooses_as_the_naive_implementation(
            sampling in sampling(), prompt in vec(0u32..8, 0..5), rows in vec((logits(), 0usize..10_000), 1..9),
        ) {
            let mut sampler = Sampler::new(sampling.clone(), 8);
            prompt.iter().for_each(|&symbol| sampler.see_prompt(symbol));
            let mut generated = Vec::new();
            for (logits, position) in rows {
                let expected = naive(&sampling, &prompt, &generated, &logits, position);
                prop_assert_eq!(sampler.choose(&logits, position).unwrap(), expected);
                sampler.see(expected);
                generated.push(expected);
            }
        }

        #[test]
        fn a_single_candidate_is_the_most_probable_symbol(logits in logits(), seed: u64) {
            let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
            let expected = Sampler::new(greedy, 8).choose(&logits, 3).unwrap();
            for narrow in [
                Sampling { top_k: 1, seed, ..Sampling::default() },
                Sampling { top_p: 0.0, seed, ..Sampling::default() },
                Sampling { top_p: f32::MIN_POSITIVE, seed, ..Sampling::default() },
                Sampling { top_k: 1, temperature: 1e-40, seed, ..Sampling::default() },
            ] {
                prop_assert_eq!(Sampler::new(narrow, 8).choose(&logits, 3).unwrap(), expected);
            }
        }
    }

    #[test]
    fn rejects_logits_that_are_no_distribution() {
        let mut sampler = Sampler::new(Sampling::default(), 2);
        for logits in [[f32::NAN, 0.0], [0.0, f32::NAN], [f32::INFINITY, 0.0], [f32::NEG_INFINITY; 2]] {
            assert!(matches!(sampler.choose(&logits, 0), Err(Error::Internal(_))), "{logits:?}");
        }
    }

    fn stop(texts: &[&str]) -> Result<StopStrings> {
        let symbols = ["e", "n", "o", " ", "c"];
        let card = Card::for_tests(Vocabulary::from_symbols(&symbols, TextNormaliser::Text8).unwrap());
        StopStrings::new(texts.iter().map(|&text| text.to_owned()).collect(), &card)
    }

    #[test]
    fn strings_that_never_match_are_left_out() {
        let kept = stop(&["\n\n", "C", "q", "", "e  n"]).unwrap();
        assert_eq!((kept.texts, kept.encoded), (vec!["C".into(), "e  n".into()], vec![vec![4], vec![0, 3, 1]]));
        let mut many = vec![""; 17];
        many.push("c");
        assert_eq!(stop(&many).unwrap().texts, ["c"]);
    }

    #[test]
    fn limits_hold_before_and_after_normalising() {
        let long = "q".repeat(257);
        let spaces = " ".repeat(257);
        let ones = "1".repeat(100);
        for (texts, start) in [
            (vec!["q"; 17], "stopping.stop: expected at most 16, found 17"),
            (vec!["c", &long], "stopping.stop[1]: expected 1 to 256 symbols, found 257"),
            (vec![&spaces], "stopping.stop[0]: expected 1 to 256 symbols, found 257"),
            (vec!["q", &ones], "stopping.stop[1]: expected 1 to 256 symbols, found 401"),
        ] {
            let error = stop(&texts).unwrap_err().to_string();
            assert!(error.starts_with(start), "{error}");
        }
        let bytes = stop(&[&"\n".repeat(STOP_BYTES + 1)]).unwrap_err().to_string();
        assert!(bytes.ends_with("expected at most 8192 bytes, found 8193"), "{bytes}");
    }

    /// Searches the whole text for every symbol.
    struct NaiveStops {
        stop: Vec<Vec<u32>>,
        min_chars: usize,
        text: Vec<u32>,
    }

    impl NaiveStops {
        fn push(&mut self, symbol: u32) -> Option<StopMatch> {
            self.text.push(symbol);
            if self.text.len() < self.min_chars {
                return None;
            }
            // by start, then by index: the first hit wins
            (0..self.text.len()).find_map(|start| {
                let index = self.stop.iter().position(|stop| *stop == self.text[start..])?;
                Some(StopMatch { index, length: self.text.len() - start })
            })
        }

        fn withheld(&self) -> usize {
            let may_become = |start: usize, stop: &Vec<u32>| {
                let end = &self.text[start..];
                stop.len() > end.len() && stop.starts_with(end) && start + stop.len() >= self.min_chars
            };
            let start = (0..self.text.len()).find(|&start| self.stop.iter().any(|stop| may_become(start, stop)));
            start.map_or(0, |start| self.text.len() - start)
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3000))]

        #[test]
        fn matches_and_withholds_as_the_naive_implementation(
            stop in vec(vec(0u32..2, 1..7), 0..5), min_chars in 0usize..25, text in vec(0u32..2, 1..60),
        ) {
            let mut stops = StopMatcher::new(stop.clone(), min_chars);
            let mut naive = NaiveStops { stop, min_chars, text: Vec::new() };
            let mut emitted = 0;
            for symbol in text {
                let found = stops.push(symbol);
                prop_assert_eq!(found, naive.push(symbol));
                if let Some(found) = found {
                    prop_assert!(emitted <= naive.text.len() - found.length, "part of a stop string was emitted");
                    break;
                }
                prop_assert_eq!(stops.withheld(), naive.withheld());
                let free = naive.text.len() - stops.withheld();
                prop_assert!(free >= emitted, "emitted symbols cannot be withheld");
                emitted = free;
            }
        }
    }

    #[test]
    fn a_stop_string_may_begin_and_end_inside_a_token() {
        let bytes = |text: &str| text.bytes().map(u32::from).collect::<Vec<_>>();
        let mut stops = StopMatcher::new(vec![bytes("b\nc")], 0);
        assert_eq!((stops.push_text("ab"), stops.withheld()), (None, 1));
        assert_eq!((stops.push_text(""), stops.withheld()), (None, 1));
        assert_eq!(stops.push_text("\ncd"), Some((StopMatch { index: 0, length: 3 }, 2)));
        // The bytes of a character may come in tokens of which only the last has text.
        let mut stops = StopMatcher::new(vec![bytes("a€")], 5);
        assert_eq!((stops.push_text("a"), stops.withheld()), (None, 1));
        assert!((0..2).all(|_| stops.push_text("").is_none() && stops.withheld() == 1));
        assert_eq!((stops.push_text(""), stops.withheld()), (None, 1));
        assert_eq!(stops.push_text("€"), Some((StopMatch { index: 0, length: 4 }, 3)));
        let mut stops = StopMatcher::new(vec![bytes("a")], 2);
        assert_eq!((stops.push_text("a"), stops.withheld()), (None, 0));
        assert_eq!(stops.push_text("xa"), Some((StopMatch { index: 0, length: 1 }, 2)));
    }

    fn held(lengths: &[usize]) -> TokenText {
        let vocabulary = Vocabulary::byte_level(TextNormaliser::None);
        TokenText { lengths: lengths.iter().copied().collect(), ..TokenText::new(Arc::new(vocabulary)) }
    }

    #[test]
    fn bytes_are_mapped_to_tokens() {
        let text = held(&[2, 0, 3, 1]);
        assert_eq!(
            [0, 1, 2, 3, 5, 6].map(|bytes| text.position(bytes)),
            [(0, None), (1, Some(1)), (1, None), (3, Some(1)), (3, None), (4, None)]
        );
        assert_eq!([0, 1, 2, 4, 5].map(|bytes| text.symbols_of_last(bytes)), [0, 1, 3, 3, 4]);
        assert_eq!(held(&[2, 0, 0]).symbols_of_last(0), 2);
    }
}
