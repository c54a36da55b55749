//! The running jobs, their rows side by side, and one step of them.
//!
//! Hot path: a step allocates nothing here but the events it sends, and where a prompt is through, what the cache keeps of it;
//! logs nothing.
//!
//! Which rows a step feeds is the [`scheduler`](super::scheduler)'s choice; which waiting rows its segment step takes is
//! [`Batch::due`]'s, by [`gather`]'s rule.

use super::{
    desk::Common,
    scheduler::{Doing, Feed, Scheduler, Standing},
    stopwatch::News,
    task::Task,
};
use crate::{
    decode::{
        contract::{Row, Scratch, State, Status},
        gather,
        session::Progress,
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
    rows: Vec<Row>,
    /// Whose rows they are: each at its row's place.
    tasks: Vec<Task>,
    scratch: Scratch,
    /// How the rows stand.
    standings: Vec<Standing>,
    /// What the current step feeds.
    feeds: Vec<Feed>,
    /// The rows that the current symbol step feeds.
    fed: Vec<usize>,
    /// The rows that the current segment step takes.
    due: Vec<usize>,
    /// The rows that the current finish step takes.
    unfinished: Vec<usize>,
    /// Symbols of the latest step, and how long it took.
    latest: Option<(usize, Duration)>,
}

impl Batch {
    pub(super) fn new(common: Arc<Common>) -> Self {
        Self {
            scratch: common.model.scratch(),
            common,
            rows: Vec::new(),
            tasks: Vec::new(),
            standings: Vec::new(),
            feeds: Vec::new(),
            fed: Vec::new(),
            due: Vec::new(),
            unfinished: Vec::new(),
            latest: None,
        }
    }

    /// Gives a job its row, from the longest cached beginning of its text; hands the job back with its verdict if the model
    /// refuses.
    pub(super) fn admit(&mut self, mut task: Task, now: Instant) -> Option<Task> {
        let observer = &*self.common.observer;
        match guarded(|| self.begin(&mut task)) {
            Ok(state) => {
                if let Some(waited) = task.watch.begin(now) {
                    observer.queued(waited);
                    task.outlet.start(task.session.usage().cached_chars);
                }
                self.rows.push(Row::new(state));
                self.tasks.push(task);
                None
            }
            Err(error) => {
                task.verdict = Some(Err(error));
                Some(task)
            }
        }
    }

    fn begin(&self, task: &mut Task) -> Result<Box<dyn State>> {
        let Common { model, store, .. } = &*self.common;
        let Some(hit) = store.find(task.key.as_ref(), &task.session) else {
            return model.begin(task.session.boundaries().clone());
        };
        task.session.start_at(hit.len, hit.state.segments())?;
        Ok(hit.state)
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

    /// Frees the rows of the jobs that have ended, and moves the jobs to `ended`. What their rows know is kept, unless they
    /// failed.
    pub(super) fn collect(&mut self, ended: &mut Vec<Task>) {
        // From behind: what takes a freed place was looked at already.
        for index in (0..self.tasks.len()).rev() {
            let Some(verdict) = &self.tasks[index].verdict else { continue };
            let failed = matches!(verdict, Err(Error::Internal(_) | Error::OutOfPages { .. }));
            let (row, task) = (self.rows.swap_remove(index), self.tasks.swap_remove(index));
            if !failed {
                self.common.store.keep(task.key.as_ref(), &task.session, &*row.state);
            }
            drop(row);
            ended.push(task);
        }
    }

    /// Takes a job from its row.
    pub(super) fn remove(&mut self, row: usize) -> Option<(Task, Box<dyn State>)> {
        (row < self.tasks.len()).then(|| (self.tasks.swap_remove(row), self.rows.swap_remove(row).state))
    }

    /// The running jobs.
    pub(super) fn tasks(&self) -> &[Task] {
        &self.tasks
    }

    /// Finds out how the rows stand.
    pub(super) fn stand(&mut self) {
        self.standings.clear();
        let model = &*self.common.model;
        let rows = self.tasks.iter_mut().zip(&self.rows);
        self.standings.extend(rows.filter_map(|(task, row)| task.stand(row, model)));
    }

    /// How the rows stood when that was last found out.
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
        let Common { model, store, .. } = &*self.common;
        // what is cached goes entry by entry: copies of pages that a row shared with it are not needed then
        let short = || {
            let in_flight = self.tasks.iter().zip(&self.rows).filter(|(task, _)| task.in_flight);
            let pending: usize = in_flight.map(|(_, row)| model.growth(&*row.state, 0)).sum();
            let growth = |feed: &Feed| model.growth(&*self.rows[feed.row].state, feed.symbols);
            let (needed, memory) = (pending + self.feeds.iter().map(growth).sum::<usize>(), model.memory());
            needed > memory.limit.saturating_sub(memory.in_use)
        };
        loop {
            if !short() {
                return true;
            }
            if !store.evict() {
                return false;
            }
        }
    }

    /// Feeds the rows as laid out, once, and brings on those that were fed before. Tells whether there were any.
    pub(super) fn step(&mut self) -> bool {
        let began = Instant::now();
        self.feed();
        self.symbol_step();
        self.due();
        self.segment_step();
        self.finish_step();
        self.absorb();
        self.count_step(began);
        // without a row to feed every waiting one is due: the worker never goes to sleep on them
        !(self.fed.is_empty() && self.due.is_empty())
    }

    fn feed(&mut self) {
        self.fed.clear();
        for &Feed { row, symbols } in &self.feeds {
            self.tasks[row].session.feed(&mut self.rows[row], symbols);
            self.fed.push(row);
        }
    }

    /// Policy: the rows that wait for a segment step get it together, when [`gather::is_due`]. They wait only for rows that
    /// the next step will feed: those that were fed now, unless they wait too, and prompts that found no room in this one.
    /// Paused rows are not waited for, and nobody waits beside a prompt's chunk: its steps are long.
    fn due(&mut self) {
        self.due.clear();
        let Self { tasks, rows, standings, .. } = self;
        self.due.extend(standing(Status::Waiting, tasks, rows));
        let goes_on = |&index: &usize| tasks[index].verdict.is_none() && rows[index].status != Status::Waiting;
        let prompts = self.fed.iter().any(|&index| rows[index].feed.len() > 1);
        let prefilling = |&index: &usize| matches!(standings[index].doing, Doing::Prefilling(_));
        let mut unfed = (0..standings.len()).filter(prefilling);
        let others = !prompts && (self.fed.iter().any(goes_on) || unfed.any(|index| goes_on(&index)));
        if !gather::is_due(self.due.iter().map(|&index| &rows[index]), others, self.common.limits.boundary_wait) {
            self.due.clear();
        }
    }

    fn symbol_step(&mut self) {
        if self.fed.is_empty() {
            return;
        }
        gather::count_step(&mut self.rows);
        let outcome = guarded(|| self.common.model.symbol_step(&mut self.rows, &self.fed, &mut self.scratch));
        for &index in &self.fed {
            self.tasks[index].in_flight = true;
            self.tasks[index].watch.symbol_step();
        }
        if let Err(error) = outcome {
            lose(error, &mut self.tasks, &self.fed);
            self.scratch = self.common.model.scratch();
        }
    }

    fn segment_step(&mut self) {
        if self.due.is_empty() {
            return;
        }
        let began = Instant::now();
        let outcome = guarded(|| self.common.model.segment_step(&mut self.rows, &self.due, &mut self.scratch));
        let took = began.elapsed();
        for &index in &self.due {
            self.tasks[index].watch.segment_step(took);
        }
        if let Err(error) = outcome {
            lose(error, &mut self.tasks, &self.due);
            self.scratch = self.common.model.scratch();
        }
    }

    fn finish_step(&mut self) {
        self.unfinished.clear();
        self.unfinished.extend(standing(Status::Unfinished, &self.tasks, &self.rows));
        if self.unfinished.is_empty() {
            return;
        }
        let outcome = guarded(|| self.common.model.finish_step(&mut self.rows, &self.unfinished, &mut self.scratch));
        if let Err(error) = outcome {
            lose(error, &mut self.tasks, &self.unfinished);
            self.scratch = self.common.model.scratch();
        }
    }

    /// Takes the outcome of every row that is ready.
    fn absorb(&mut self) {
        let (now, Common { model, store, tally, observer, .. }) = (Instant::now(), &*self.common);
        let pooled = model.card().pooled;
        for (task, row) in self.tasks.iter_mut().zip(&mut self.rows) {
            if !task.in_flight || task.verdict.is_some() || row.status != Status::Ready {
                continue;
            }
            task.in_flight = false;
            task.watch.waited(row.waited);
            let given = task.session.is_prefilling();
            task.works(row.places());
            match guarded(|| task.session.absorb(row)) {
                Ok(Progress::Finished(reason)) => task.verdict = Some(Ok(reason)),
                Ok(Progress::Prefilling) => {}
                // a prompt is kept at once: who asks next may share it
                Ok(Progress::Decoding) if given => store.keep(task.key.as_ref(), &task.session, &*row.state),
                Ok(Progress::Decoding) => {}
                Err(error) => task.verdict = Some(Err(error)),
            }
            tally.took(row, given, pooled);
            let (answered, boundary) = (task.session.answered(), row.marks.last().is_some_and(|mark| mark.boundary));
            let news = task.watch.look(now, task.session.is_prefilling(), answered);
            match news.filter(|_| task.session.is_generating()) {
                None => {}
                Some(News::First(after)) => observer.first_char(after),
                Some(News::Further(gap)) => observer.gap(gap, boundary),
            }
            if task.session.has_told() {
                task.outlet.tell(task.session.take());
            }
        }
    }

    /// Counts the step that has run, if any row took part.
    fn count_step(&mut self, began: Instant) {
        let Common { tally, observer, .. } = &*self.common;
        let symbols: usize = self.fed.iter().map(|&index| self.rows[index].places()).sum();
        if !self.fed.is_empty() {
            tally.steps.add(1);
            tally.symbol_rows.add(self.fed.len());
            self.latest = Some((symbols, began.elapsed()));
        }
        if !self.due.is_empty() {
            tally.segment_steps.add(1);
            tally.segment_rows.add(self.due.len());
        }
        if !(self.fed.is_empty() && self.due.is_empty()) {
            observer.step(self.fed.len(), symbols, self.due.len());
        }
    }
}

/// The rows in flight that stand so, but for those whose job has ended.
fn standing(status: Status, tasks: &[Task], rows: &[Row]) -> impl Iterator<Item = usize> {
    let stands = move |(task, row): (&Task, &Row)| task.in_flight && task.verdict.is_none() && row.status == status;
    tasks.iter().zip(rows).enumerate().filter(move |&(_, pair)| stands(pair)).map(|(index, _)| index)
}

/// Ends the jobs whose rows took part in a failed step: those rows are lost. What the step wrote into the scratch is not to
/// be trusted either.
fn lose(error: Error, tasks: &mut [Task], lost: &[usize]) {
    tracing::error!(rows = lost.len(), %error, "a step failed");
    for &index in lost {
        let error = match &error {
            &Error::OutOfPages { needed, limit } => Error::OutOfPages { needed, limit },
            Error::Internal(message) => Error::Internal(message.clone()),
            other => Error::Internal(other.to_string()),
        };
        tasks[index].verdict = Some(Err(error));
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
