//! What a step would have taken without pooling, for the jobs that took part: reckoned from what it did take and the model's
//! [`Table`](crate::engine::calibration::Table), once a step.

use super::Batch;
use crate::engine::calibration::{Round, pace::Pace};
use std::time::Instant;

/// What is known of a step while it runs.
#[derive(Debug, Default)]
pub(super) struct Course {
    /// How fast late steps were.
    pace: Pace,
    /// When its symbol step began.
    began: Option<Instant>,
    /// Segments that its segment step closed.
    closed: usize,
    /// Symbols that its finish step finished.
    finished: usize,
    /// Jobs that were in flight before it, as they wait for a segment step.
    waiting: Vec<usize>,
    /// Symbols and segments of the rows that it feeds, added up, before it feeds them.
    context: (usize, usize),
}

impl Batch {
    /// Notes what is only to be seen before a step.
    pub(super) fn note_course(&mut self) {
        let Self { course, tasks, seats, fed, .. } = self;
        course.waiting.clear();
        course.waiting.extend((0..tasks.len()).filter(|&index| tasks[index].in_flight));
        let states = fed.iter().map(|&seat| &seats.rows[seat].state);
        course.context = states.fold((0, 0), |sum, state| (sum.0 + state.len(), sum.1 + state.segments()));
        (course.closed, course.finished) = (0, 0);
        course.began = Some(Instant::now());
    }

    /// Notes what the segment step is about to close.
    pub(super) fn note_due(&mut self) {
        let rows = &self.seats.rows;
        let closed = |&seat: &usize| rows[seat].decisions.iter().filter(|mark| mark.boundary).count().max(1);
        self.course.closed = self.due.iter().map(closed).sum();
    }

    /// Notes what the finish step is about to finish.
    pub(super) fn note_unfinished(&mut self) {
        let rows = &self.seats.rows;
        self.course.finished = self.unfinished.iter().map(|&seat| rows[seat].positions().max(1)).sum();
    }

    /// Charges the step to the jobs that took part: those that were fed with what it would have taken more, those that waited
    /// with what it took, since without pooling they would not have waited.
    pub(super) fn estimate(&mut self, began: Instant) {
        let Self { course, tasks, seats, fed, common, .. } = self;
        let Some(Ok(table)) = common.calibration.get() else {
            fed.iter().for_each(|&seat| tasks[seats.owner(seat)].watch.cannot_estimate());
            return;
        };
        let rows = &seats.rows;
        let symbols = fed.iter().map(|&seat| rows[seat].positions()).sum();
        let mean = |sum: usize| sum as f64 / fed.len().max(1) as f64;
        let round = Round {
            chunk: fed.iter().any(|&seat| rows[seat].feed.len() > 1),
            fed: symbols,
            finished: course.finished,
            closed: course.closed,
            waiting: course.waiting.len(),
            // of a chunk's symbols, the one in the middle
            context: mean(course.context.0) + mean(symbols) / 2.0,
            segments: mean(course.context.1),
        };
        let took = course.began.map_or(0.0, |began| began.elapsed().as_nanos() as f64);
        let more = course.pace.more(table, &round, took);
        for &seat in fed.iter() {
            tasks[seats.owner(seat)].watch.estimate(more as i64);
        }
        let took = i64::try_from(began.elapsed().as_nanos()).unwrap_or(i64::MAX);
        for &index in &course.waiting {
            tasks[index].watch.estimate(-took);
        }
    }
}
