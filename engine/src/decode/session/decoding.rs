//! The part of a session after its prompt: it samples symbols, feeds them, and feeds and verifies drafts.

use super::{Session, SessionProgress};
use crate::{
    decode::{
        contract::{SequenceRow, Want},
        generation::Generator,
        next_symbol::Distribution,
        options::FinishReason,
        speculation::{DraftBudget, Speculation, drafter::Drafter, guess_rates::GuessRates},
    },
    error::{Error, Result},
};

impl Session {
    /// Drafts symbols after the sampled one, as far as they fit into `budget`. The next feed then has them all. Returns their
    /// number. `rates` are those that the model's texts share: a text starts with them, and its guesses are recorded there.
    pub fn draft(&mut self, budget: &mut DraftBudget, rates: &mut GuessRates) -> usize {
        self.drop_draft();
        let limit = self.generation.as_ref().map_or(0, Generator::draft_limit);
        // the model reads the position after the last drafted symbol when that one is accepted
        let room = self.max_symbols.saturating_sub(self.row_len + 1);
        if self.speculation == Speculation::Off || limit.min(room) == 0 || self.is_prefilling() {
            return 0;
        }
        let drafter = self.drafter.get_or_insert_with(|| {
            Drafter::new(self.speculation, self.max_symbols, self.vocabulary, self.ngrams.clone(), rates.clone())
        });
        drafter.draft(self.prompt.symbols.text(), limit.min(room), budget, rates);
        drafter.drafted().len()
    }

    /// Drops the draft: the next feed has the sampled symbol alone.
    pub fn drop_draft(&mut self) {
        if let Some(drafter) = &mut self.drafter {
            drafter.clear();
        }
    }

    /// Returns true if the row's next or present feed has a draft.
    pub fn has_draft(&self) -> bool {
        !self.draft_symbols().is_empty()
    }

    fn draft_symbols(&self) -> &[u32] {
        self.drafter.as_ref().map_or(&[], Drafter::drafted)
    }

    /// Appends the draft to the sampled symbol.
    pub(super) fn feed_draft(&self, row: &mut SequenceRow) {
        let draft = self.draft_symbols();
        if !draft.is_empty() {
            row.feed.extend_from_slice(draft);
            row.want = Want::All;
        }
    }

    /// Takes the results of the sampled symbol that was fed, then of the drafted symbols after it while each equals the one that is
    /// sampled there. Takes the others back from the row.
    pub(super) fn absorb_generated(&mut self, row: &mut SequenceRow) -> Result<SessionProgress> {
        let fed = row.feed.len();
        let mut taken = 0;
        let progress = loop {
            let later = fed - taken - 1;
            taken += 1;
            let progress = self.absorb_symbol(row, later)?;
            let latest = self.generation.as_ref().and_then(Generator::latest_item);
            let is_accepted = progress == SessionProgress::Decoding
                && latest.is_some_and(|latest| row.feed.get(taken) == Some(&latest));
            if !is_accepted {
                break progress;
            }
        };
        row.take_back(taken)?;
        self.row_len -= fed - taken;
        self.computed = self.row_len;
        self.usage.levels = row.state.level_segments();
        self.usage.drafted_chars += self.draft_symbols().len();
        self.usage.accepted_chars += taken - 1;
        self.drop_draft();
        Ok(progress)
    }

    /// Takes the results of the fed symbol that `later` others follow, and samples the symbol after it.
    fn absorb_symbol(&mut self, row: &SequenceRow, later: usize) -> Result<SessionProgress> {
        let Some(generation) = &mut self.generation else { return self.sample(row, later) };
        let (symbols, rest) = row.decisions.split_at(row.decisions.len().saturating_sub(later));
        let closed_later = rest.iter().filter(|decision| decision.boundary).count();
        let segments = row.state.segments().saturating_sub(closed_later);
        self.usage.generated_segments = segments.saturating_sub(self.usage.prompt_segments);
        let decision = symbols.last().copied().filter(|_| row.positions() > 0);
        if let Some((drafter, decision)) = self.drafter.as_mut().zip(decision)
            && let Some(&symbol) = row.feed.get(symbols.len() - 1)
        {
            drafter.record_boundary(symbol, decision.boundary);
        }
        if let Some(reason) = generation.absorb(decision, self.usage.generated_segments, &mut self.output) {
            return Ok(SessionProgress::Finished(reason));
        }
        self.trim(&*row.state);
        self.sample(row, later)
    }

    /// Samples the symbol after the fed one that `later` others follow. Or keeps the distribution there, or finishes a scored text.
    pub(super) fn sample(&mut self, row: &SequenceRow, later: usize) -> Result<SessionProgress> {
        if self.generation.is_none() && self.distributions.is_none() {
            return Ok(SessionProgress::Finished(FinishReason::End));
        }
        let end = row.logits.len().checked_sub(later * self.vocabulary);
        let bounds = end.and_then(|end| Some(end.checked_sub(self.vocabulary)?..end));
        let Some(logits) = bounds.and_then(|bounds| row.logits.get(bounds)) else {
            return Err(Error::Internal("cannot sample a symbol: the step computed no logits".into()));
        };
        if let Some(distributions) = &mut self.distributions {
            let boundary = row.decisions.last().copied();
            let Some(next) = distributions.push(Distribution { logits: logits.to_vec(), boundary })? else {
                return Ok(SessionProgress::Finished(FinishReason::End));
            };
            self.prompt.append(next);
            return Ok(SessionProgress::Prefilling);
        }
        let Some(generation) = &mut self.generation else { return Ok(SessionProgress::Finished(FinishReason::End)) };
        let position = row.state.len() - later;
        if generation.resumes_at_once() {
            self.prompt.symbols.extend(generation.take_resumed(position));
            self.count_generated();
            return Ok(if self.is_prefilling() { SessionProgress::Prefilling } else { SessionProgress::Decoding });
        }
        let opens_segment = row.state.boundary_before(position) == position;
        let finished = generation.sample(logits, position, opens_segment, &mut self.output)?;
        if let Some(item) = generation.latest_item() {
            self.prompt.symbols.extend([item]);
        }
        self.count_generated();
        Ok(finished.map_or(SessionProgress::Decoding, SessionProgress::Finished))
    }

    fn count_generated(&mut self) {
        if let Some(generation) = &self.generation {
            self.usage.generated_chars = generation.chars;
            self.usage.resumed_chars = generation.resumed.taken();
            self.usage.nxt_steps = generation.nxt_steps();
        }
    }
}
