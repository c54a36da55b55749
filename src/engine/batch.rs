//! The running jobs, their rows side by side, and one step of them.
//!
//! Hot path: a step of texts allocates nothing here but the events it sends, and where a prompt is through, what the cache keeps
//! of it; logs nothing.
//!
//! Which rows a step feeds, and which documents it encodes, is the [`scheduler`](super::scheduler)'s choice; which waiting rows
//! its segment step takes is [`Batch::due`]'s, by [`gather`]'s rule. A step encodes first: [`documents`].

mod documents;
mod estimate;
mod outcome;

use super::{
    desk::Common,
    scheduler::{Doing, Feed, Scheduler, Standing},
    seats::Seats,
    task::{Life, Task},
};
use crate::{
    decode::{
        boundary_wait,
        contract::{Scratch, SequenceRow, State, StepStatus},
    },
    error::{Error, Result},
};
use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    task::Waker,
    time::{Duration, Instant},
};

/// The rows of a model's worker.
pub(super) struct Batch {
    common: Arc<Common>,
    seats: Seats,
    tasks: Vec<Task>,
    scratch: Scratch,
    /// How the jobs stand.
    standings: Vec<Standing>,
    /// What the current step feeds: its rows are jobs.
    feeds: Vec<Feed>,
    /// The jobs whose documents the current step encodes, and blocks of each.
    encodes: Vec<(usize, usize)>,
    /// The rows that the current symbol step feeds.
    fed: Vec<usize>,
    /// The rows that the current segment step takes.
    due: Vec<usize>,
    /// The rows that the current finish step takes.
    unfinished: Vec<usize>,
    /// Symbols of the latest step, and how long it took.
    latest: Option<(usize, Duration)>,
    /// What is known of the current step, for what it would have taken without pooling.
    course: estimate::Course,
}

impl Batch {
    pub(super) fn new(common: Arc<Common>) -> Self {
        Self {
            scratch: common.model.scratch(),
            common,
            seats: Seats::default(),
            tasks: Vec::new(),
            standings: Vec::new(),
            feeds: Vec::new(),
            encodes: Vec::new(),
            fed: Vec::new(),
            due: Vec::new(),
            unfinished: Vec::new(),
            latest: None,
            course: estimate::Course::default(),
        }
    }

    /// Lets a job run, from the longest cached beginning of its text, or from its document if that is still there; hands the job
    /// back with its verdict if the model refuses.
    pub(super) fn admit(&mut self, mut task: Task, now: Instant) -> Option<Task> {
        match guarded(|| self.begin(&mut task, now)) {
            Ok(states) => {
                if let Some(waited) = task.watch.begin(now) {
                    self.common.observer.queued(waited);
                    task.outlet.start(task.usage().cached_chars);
                }
                if let Life::Document(summary) = &task.life
                    && let Some(kept) = summary.document()
                {
                    task.outlet.read(&kept.encoded);
                }
                let index = self.tasks.len();
                self.tasks.push(task);
                states.into_iter().for_each(|state| self.seats.give(state, index, &mut self.tasks));
                None
            }
            Err(error) => {
                task.verdict = Some(Err(error));
                Some(task)
            }
        }
    }

    fn begin(&self, task: &mut Task, now: Instant) -> Result<Vec<Box<dyn State>>> {
        match &mut task.life {
            Life::Text(session) => {
                let Common { model, store, observer, .. } = &*self.common;
                let hit = store.find(task.key.as_ref(), session);
                if task.key.is_some() {
                    let (found, bytes) = hit.as_ref().map_or((0, 0), |hit| (hit.len, hit.state.bytes()));
                    observer.looked_up(session.cacheable_prefix(), found, bytes);
                }
                let Some(hit) = hit else {
                    let mut state = model.begin(session.boundaries().clone())?;
                    session.resume(&mut *state)?;
                    return Ok(vec![state]);
                };
                session.start_at(hit.len, hit.state.segments())?;
                Ok(vec![hit.state])
            }
            Life::Document(summary) => self.begin_summary(summary, &task.tenant, now),
        }
    }

    /// Ends the jobs whose reader is gone or does not read, or whose deadline has passed.
    pub(super) fn settle(&mut self, now: Instant, waker: &Waker) {
        let stall = self.common.limits.stall;
        self.tasks.iter_mut().for_each(|task| task.settle(now, stall, waker));
    }

    /// Ends all jobs, each with an error.
    pub(super) fn end_all(&mut self, error: impl Fn() -> Error) {
        self.tasks.iter_mut().for_each(|task| task.verdict = Some(Err(error())));
    }

    /// Frees the rows of the jobs that have ended, and moves the jobs to `ended`. What the rows of texts know is kept, unless
    /// they failed.
    pub(super) fn collect(&mut self, ended: &mut Vec<Task>) {
        // From behind: what takes a freed place was looked at already.
        for index in (0..self.tasks.len()).rev() {
            let Some(verdict) = &self.tasks[index].verdict else { continue };
            let failed = matches!(verdict, Err(Error::Internal(_) | Error::OutOfPages { .. }));
            let (task, rows) = self.seats.leave(index, &mut self.tasks);
            if let (Life::Text(session), Some(row), false) = (&task.life, rows.first(), failed) {
                self.common.store.keep(task.key.as_ref(), session, &*row.state);
            }
            drop(rows);
            ended.push(task);
        }
    }

    /// Takes its rows from the job at that place.
    pub(super) fn remove(&mut self, task: usize) -> Option<(Task, Vec<SequenceRow>)> {
        (task < self.tasks.len()).then(|| self.seats.leave(task, &mut self.tasks))
    }

    /// The running jobs.
    pub(super) fn tasks(&self) -> &[Task] {
        &self.tasks
    }

    /// Finds out how the jobs stand.
    pub(super) fn stand(&mut self) {
        self.standings.clear();
        let (model, rows, now) = (&*self.common.model, &self.seats.rows, Instant::now());
        self.standings.extend(self.tasks.iter_mut().filter_map(|task| task.stand(rows, model, now)));
    }

    /// How the jobs stood when that was last found out.
    pub(super) fn standings(&self) -> &[Standing] {
        &self.standings
    }

    /// Symbols of the latest step and how long it took, once.
    pub(super) fn latest_step(&mut self) -> Option<(usize, Duration)> {
        self.latest.take()
    }

    /// Has the next step laid out; `brief` symbols are few enough for rows that decode beside prompts.
    pub(super) fn lay_out(&mut self, scheduler: &mut Scheduler<Task>, brief: usize) {
        scheduler.plan(&self.standings, brief, &mut self.feeds);
    }

    /// Whether there is memory for the step that was laid out, if need be after what is cached was given up.
    pub(super) fn has_memory(&self) -> bool {
        let Common { model, store, shelf, .. } = &*self.common;
        // what is cached goes entry by entry: copies of pages that a row shared with it are not needed then
        let short = || {
            let flying = |task: &&Task| task.in_flight;
            let in_flight = self.tasks.iter().filter(flying).flat_map(|task| &task.seats);
            let pending: usize = in_flight.map(|&seat| model.growth(&*self.seats.rows[seat].state, 0)).sum();
            let growth = self.feeds.iter().map(|feed| self.growth(feed)).sum::<usize>();
            let (needed, memory) = (pending + growth, model.memory());
            needed > memory.limit.saturating_sub(memory.in_use)
        };
        loop {
            if !short() {
                return true;
            }
            if !store.evict() && !shelf.evict() {
                return false;
            }
        }
    }

    /// What a feed takes.
    fn growth(&self, feed: &Feed) -> usize {
        let model = &*self.common.model;
        let task = &self.tasks[feed.row];
        if let (Life::Document(summary), Some(reader)) = (&task.life, model.document_encoder())
            && summary.is_encoding()
        {
            return summary.growth(reader);
        }
        let share = feed.symbols.div_ceil(task.seats.len().max(1));
        task.seats.iter().map(|&seat| model.growth(&*self.seats.rows[seat].state, share)).sum()
    }

    /// Feeds the rows as laid out, once, and brings on those that were fed before. Tells whether there were any.
    pub(super) fn step(&mut self) -> bool {
        let began = Instant::now();
        self.feed();
        let fed = self.fed.iter().map(|&seat| self.seats.rows[seat].positions()).sum();
        let encoded = self.encode();
        self.note_course();
        self.symbol_step();
        self.due();
        self.segment_step();
        self.finish_step();
        self.estimate(began);
        self.absorb();
        self.count_step(began, fed, encoded);
        // without a row to feed every waiting one is due: the worker never goes to sleep on them
        !(self.fed.is_empty() && self.due.is_empty() && self.encodes.is_empty())
    }

    fn feed(&mut self) {
        self.fed.clear();
        self.encodes.clear();
        for &Feed { row: index, symbols } in &self.feeds {
            let Task { life, seats, .. } = &mut self.tasks[index];
            match life {
                Life::Text(session) => {
                    for &seat in seats.iter() {
                        session.feed(&mut self.seats.rows[seat], symbols);
                        self.fed.push(seat);
                    }
                }
                Life::Document(summary) if summary.is_encoding() => self.encodes.push((index, symbols)),
                Life::Document(summary) => summary.feed(&mut self.seats.rows, seats, symbols, &mut self.fed),
            }
        }
    }

    /// Policy: the rows that wait for a segment step get it together, when [`boundary_wait::is_due`]. They wait only for rows that
    /// the next step will feed: those that were fed now, unless they wait too, and prompts that found no room in this one.
    /// Paused rows are not waited for, and nobody waits beside a prompt's chunk: its steps are long.
    fn due(&mut self) {
        self.due.clear();
        let Self { tasks, seats, standings, .. } = self;
        self.due.extend(standing(StepStatus::Waiting, tasks, seats));
        let rows = &seats.rows;
        let goes_on =
            |&seat: &usize| tasks[seats.owner(seat)].verdict.is_none() && rows[seat].status != StepStatus::Waiting;
        let chunks = self.fed.iter().any(|&seat| rows[seat].feed.len() > 1) || !self.encodes.is_empty();
        let prefilling = |&index: &usize| matches!(standings[index].doing, Doing::Prefilling(_));
        let unfed = (0..standings.len()).filter(prefilling);
        let mut unfed = unfed.flat_map(|index| tasks.get(index).map_or(&[][..], |task| &task.seats));
        let others = !chunks && (self.fed.iter().any(goes_on) || unfed.any(goes_on));
        if !boundary_wait::is_due(self.due.iter().map(|&seat| &rows[seat]), others, self.common.limits.boundary_wait) {
            self.due.clear();
        }
    }

    fn symbol_step(&mut self) {
        if self.fed.is_empty() {
            return;
        }
        boundary_wait::count_step(&mut self.seats.rows);
        let outcome = guarded(|| self.common.model.symbol_step(&mut self.seats.rows, &self.fed, &mut self.scratch));
        for &seat in &self.fed {
            let task = &mut self.tasks[self.seats.owner(seat)];
            // once for all rows of a job
            if !task.in_flight {
                task.in_flight = true;
                task.watch.symbol_step();
            }
        }
        if let Err(error) = outcome {
            self.lose(&error, Lost::Fed);
        }
    }

    fn segment_step(&mut self) {
        if self.due.is_empty() {
            return;
        }
        self.note_due();
        let began = Instant::now();
        let outcome = guarded(|| self.common.model.segment_step(&mut self.seats.rows, &self.due, &mut self.scratch));
        let took = began.elapsed();
        for &seat in &self.due {
            self.tasks[self.seats.owner(seat)].watch.segment_step(took);
        }
        if let Err(error) = outcome {
            self.lose(&error, Lost::Due);
        }
    }

    fn finish_step(&mut self) {
        self.unfinished.clear();
        self.unfinished.extend(standing(StepStatus::Unfinished, &self.tasks, &self.seats));
        if self.unfinished.is_empty() {
            return;
        }
        self.note_unfinished();
        let (rows, unfinished) = (&mut self.seats.rows, &self.unfinished);
        let outcome = guarded(|| self.common.model.finish_step(rows, unfinished, &mut self.scratch));
        if let Err(error) = outcome {
            self.lose(&error, Lost::Unfinished);
        }
    }

    /// Ends the jobs whose rows took part in a failed step: those rows are lost. What the step wrote into the scratch is not to
    /// be trusted either.
    fn lose(&mut self, error: &Error, lost: Lost) {
        let lost = match lost {
            Lost::Fed => &self.fed,
            Lost::Due => &self.due,
            Lost::Unfinished => &self.unfinished,
        };
        tracing::error!(rows = lost.len(), %error, "a step failed");
        for &seat in lost {
            self.tasks[self.seats.owner(seat)].verdict = Some(Err(again(error)));
        }
        self.scratch = self.common.model.scratch();
    }
}

/// The rows of a failed step.
enum Lost {
    Fed,
    Due,
    Unfinished,
}

/// The rows in flight that stand so, but for those whose job has ended.
fn standing(status: StepStatus, tasks: &[Task], seats: &Seats) -> impl Iterator<Item = usize> {
    let flies = |task: &Task| task.in_flight && task.verdict.is_none();
    (0..seats.rows.len()).filter(move |&seat| seats.rows[seat].status == status && flies(&tasks[seats.owner(seat)]))
}

/// A step's failure, for one of those that took part.
fn again(error: &Error) -> Error {
    match error {
        &Error::OutOfPages { needed, limit } => Error::OutOfPages { needed, limit },
        Error::Internal(message) => Error::Internal(message.clone()),
        other => Error::Internal(other.to_string()),
    }
}

/// Turns a panic into an error: it ends what was being worked on and nothing else.
fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let message = message_of(panic.as_ref());
        tracing::error!(message, "a panic was caught");
        Err(Error::Internal("a panic in a step".into()))
    })
}

fn message_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}
