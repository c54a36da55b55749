//! What a step comes to: the outcome of each job whose rows are ready, and what is counted.

use super::{Batch, guarded};
use crate::{
    decode::{contract::StepStatus, session::SessionProgress},
    engine::{desk::Common, stopwatch::News, task::Life},
    error::Result,
};
use std::time::Instant;

impl Batch {
    /// Takes the outcome of every job whose rows are ready.
    pub(super) fn absorb(&mut self) {
        let now = Instant::now();
        for index in 0..self.tasks.len() {
            let task = &self.tasks[index];
            let ready = |&seat: &usize| self.seats.rows[seat].status == StepStatus::Ready;
            if !task.in_flight || task.verdict.is_some() || !task.seats.iter().all(ready) {
                continue;
            }
            self.absorb_job(index);
            self.look(index, now);
            self.tasks[index].tell();
        }
    }

    fn absorb_job(&mut self, index: usize) {
        let given = self.tasks[index].is_prefilling(&self.seats.rows);
        self.tasks[index].in_flight = false;
        let places: usize = self.tasks[index].seats.iter().map(|&seat| self.seats.rows[seat].positions()).sum();
        self.tasks[index].works(places);
        let outcome = match &self.tasks[index].life {
            Life::Text(_) => guarded(|| self.absorb_text(index, given)),
            Life::Document(_) => {
                let counted = self.tasks[index].answered();
                let outcome = guarded(|| self.absorb_summary(index));
                self.common.tally.generated_chars.add(self.tasks[index].answered() - counted);
                outcome
            }
        };
        if let Err(error) = outcome {
            self.tasks[index].verdict = Some(Err(error));
        }
    }

    fn absorb_text(&mut self, index: usize, given: bool) -> Result<()> {
        let Common { model, store, tally, observer, .. } = &*self.common;
        let task = &mut self.tasks[index];
        let (Life::Text(session), Some(&seat)) = (&mut task.life, task.seats.first()) else { return Ok(()) };
        let row = &mut self.seats.rows[seat];
        task.watch.waited(row.waited);
        let progress = session.absorb(row);
        let (run, skipped) = tally.took(row, given, model.card().pooled);
        observer.middle(run, skipped);
        match progress? {
            SessionProgress::Finished(reason) => task.verdict = Some(Ok(reason)),
            SessionProgress::Prefilling => {}
            // a prompt is kept at once: who asks next may share it
            SessionProgress::Decoding if given => store.keep(task.key.as_ref(), session, &*row.state),
            SessionProgress::Decoding => {}
        }
        Ok(())
    }

    /// Notes when the job's symbols were there.
    fn look(&mut self, index: usize, now: Instant) {
        let Common { observer, .. } = &*self.common;
        let rows = &self.seats.rows;
        let prefilling = self.tasks[index].is_prefilling(rows);
        let task = &mut self.tasks[index];
        let mark = task.seats.first().and_then(|&seat| rows[seat].decisions.last());
        let boundary = mark.is_some_and(|mark| mark.boundary);
        let news = task.watch.look(now, prefilling, task.answered());
        match news.filter(|_| task.is_generating()) {
            None => {}
            Some(News::First(after)) => observer.first_char(after),
            Some(News::Further(gap)) => {
                observer.gap(gap, boundary);
                if boundary && let Some(took) = task.watch.segment(now) {
                    observer.segment(took);
                }
            }
        }
    }

    /// Counts the step that has run, if any row took part; so many symbols were fed and so many encoded.
    pub(super) fn count_step(&mut self, began: Instant, fed: usize, encoded: usize) {
        let Common { tally, observer, .. } = &*self.common;
        if !(self.fed.is_empty() && encoded == 0) {
            self.latest = Some((fed + encoded, began.elapsed()));
        }
        if !self.fed.is_empty() {
            tally.steps.add(1);
            tally.symbol_rows.add(self.fed.len());
        }
        if !self.due.is_empty() {
            tally.segment_steps.add(1);
            tally.segment_rows.add(self.due.len());
        }
        if !(self.fed.is_empty() && self.due.is_empty()) {
            observer.step(self.fed.len(), fed, self.due.len());
        }
    }
}
