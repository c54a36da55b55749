//! The running jobs, their rows side by side, and one step of them.
//!
//! Hot path: a step allocates nothing here but the events it sends; logs nothing.
//!
//! Three points of policy, each in one function: which rows a step feeds ([`Batch::lay_out`]), which waiting rows the
//! segment step takes ([`Batch::due`], by [`gather`]'s rule), and which running jobs are over though no rule of theirs says
//! so ([`Batch::settle`]).

use super::{
    handle::{Event, Limits},
    observer::Observer,
    outlet::Outlet,
    queue::Grant,
    stopwatch::{News, Stopwatch},
    tally::Tally,
};
use crate::{
    decode::{
        contract::{Model, Row, Scratch, Status},
        gather,
        options::Reason,
        session::{Progress, Session},
    },
    error::{Error, Result},
};
use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    task::Waker,
    time::Instant,
};

/// A job that holds a row. Its row is at the same index.
pub(super) struct Running {
    pub(super) session: Session,
    pub(super) outlet: Outlet,
    pub(super) deadline: Option<Instant>,
    pub(super) watch: Stopwatch,
    /// What it holds; none once that is given back.
    pub(super) grant: Option<Grant>,
    /// When it last got to feed given symbols, in turns; who waits longest is next.
    turn: u64,
    /// Whether its row was fed and the outcome not taken yet.
    in_flight: bool,
    /// How it ended.
    verdict: Option<Result<Reason>>,
}

/// The rows of a model's worker.
pub(super) struct Batch {
    model: Arc<dyn Model>,
    /// Given symbols that one step may feed, of all rows together.
    chunk: usize,
    /// Symbol steps that a row may wait for its segment step.
    boundary_wait: usize,
    /// Wakes the worker when a paused reader has made room.
    waker: Waker,
    observer: Arc<dyn Observer>,
    tally: Arc<Tally>,
    rows: Vec<Row>,
    jobs: Vec<Running>,
    scratch: Scratch,
    turns: u64,
    /// The rows that the current symbol step feeds.
    fed: Vec<usize>,
    /// The rows that the current segment step takes.
    due: Vec<usize>,
    /// The rows that the current finish step takes.
    unfinished: Vec<usize>,
    /// The rows with given symbols to feed, by turn.
    prefilling: Vec<usize>,
}

impl Running {
    pub(super) fn new(session: Session, outlet: Outlet, watch: Stopwatch, grant: Grant) -> Self {
        let (deadline, grant) = (None, Some(grant));
        Self { session, outlet, deadline, watch, grant, turn: 0, in_flight: false, verdict: None }
    }

    /// Says good-bye to the reader.
    pub(super) fn end(mut self, now: Instant, observer: &dyn Observer) {
        let verdict = self.verdict.unwrap_or(Err(Error::Cancelled));
        if self.session.has_told() {
            self.outlet.tell(self.session.take());
        }
        let (usage, timing) = (self.session.usage(), self.watch.timing(now));
        tracing::debug!(?verdict, ?usage, ?timing, "job ended");
        observer.finished(verdict.as_ref(), &usage, &timing);
        self.outlet.finish(verdict.map(|reason| Event::Finished { reason, usage, timing }));
    }
}

impl Batch {
    pub(super) fn new(
        model: Arc<dyn Model>,
        limits: Limits,
        waker: Waker,
        (observer, tally): (Arc<dyn Observer>, Arc<Tally>),
    ) -> Self {
        Self {
            scratch: model.scratch(),
            model,
            chunk: limits.chunk.max(1),
            boundary_wait: limits.boundary_wait,
            waker,
            observer,
            tally,
            rows: Vec::new(),
            jobs: Vec::new(),
            turns: 0,
            fed: Vec::new(),
            due: Vec::new(),
            unfinished: Vec::new(),
            prefilling: Vec::new(),
        }
    }

    /// Gives a job its row; hands it back with its verdict if the model refuses.
    pub(super) fn admit(&mut self, mut job: Running) -> Option<Running> {
        match guarded(|| self.model.begin(job.session.boundaries().clone())) {
            Ok(state) => {
                job.turn = self.next_turn();
                job.outlet.start(job.session.usage().cached_chars);
                self.rows.push(Row::new(state));
                self.jobs.push(job);
                None
            }
            Err(error) => {
                job.verdict = Some(Err(error));
                Some(job)
            }
        }
    }

    /// Ends the jobs whose reader is gone or whose deadline has passed.
    pub(super) fn settle(&mut self, now: Instant) {
        for job in &mut self.jobs {
            if job.outlet.is_closed() {
                job.verdict = Some(Err(Error::Cancelled));
            } else if job.deadline.is_some_and(|deadline| deadline <= now) {
                job.session.abandon();
                job.verdict = Some(Err(Error::Deadline { stage: "while decoding" }));
            }
        }
    }

    /// Ends all jobs, each with an error.
    pub(super) fn end_all(&mut self, error: impl Fn() -> Error) {
        self.jobs.iter_mut().for_each(|job| job.verdict = Some(Err(error())));
    }

    /// Frees the rows of the jobs that have ended, and moves the jobs to `ended`.
    pub(super) fn collect(&mut self, ended: &mut Vec<Running>) {
        // From behind: what takes a freed place was looked at already.
        for index in (0..self.jobs.len()).rev() {
            if self.jobs[index].verdict.is_some() {
                self.rows.swap_remove(index);
                ended.push(self.jobs.swap_remove(index));
            }
        }
    }

    /// The running jobs.
    pub(super) fn jobs(&self) -> &[Running] {
        &self.jobs
    }

    /// Feeds the rows that can be fed, once, and brings on those that were fed before. Tells whether there were any.
    pub(super) fn step(&mut self) -> bool {
        self.lay_out();
        self.symbol_step();
        self.due();
        self.segment_step();
        self.finish_step();
        self.absorb();
        self.count_step();
        // without a row to feed every waiting one is due: the worker never goes to sleep on them
        !(self.fed.is_empty() && self.due.is_empty())
    }

    /// Policy: every row with a sampled symbol feeds it; beside these, rows with given symbols feed at most one chunk
    /// together, so that no prompt stalls running streams by more. Who waited longest goes first. A row whose reader is
    /// behind pauses.
    fn lay_out(&mut self) {
        self.fed.clear();
        self.prefilling.clear();
        for (index, job) in self.jobs.iter_mut().enumerate() {
            if job.in_flight || !job.outlet.is_free(&self.waker) {
                continue;
            }
            if job.session.is_prefilling() {
                self.prefilling.push(index);
            } else {
                job.session.feed(&mut self.rows[index], 1);
                self.fed.push(index);
            }
        }
        let Self { jobs, rows, prefilling, fed, turns, .. } = self;
        prefilling.sort_unstable_by_key(|&index| jobs[index].turn);
        let mut budget = self.chunk;
        for &index in prefilling.iter() {
            if budget == 0 {
                break;
            }
            *turns += 1;
            jobs[index].turn = *turns;
            jobs[index].session.feed(&mut rows[index], budget);
            budget = budget.saturating_sub(rows[index].feed.len());
            fed.push(index);
        }
    }

    /// Policy: the rows that wait for a segment step get it together, when [`gather::is_due`]. They wait only for rows that
    /// the next step will feed: those that were fed now, unless they wait too, and prompts that found no room in this one.
    /// Paused rows are not waited for, and nobody waits beside a prompt's chunk: its steps are long.
    fn due(&mut self) {
        self.due.clear();
        let Self { jobs, rows, .. } = self;
        self.due.extend(standing(Status::Waiting, jobs, rows));
        let goes_on = |&index: &usize| jobs[index].verdict.is_none() && rows[index].status != Status::Waiting;
        let prompts = self.fed.iter().any(|&index| rows[index].feed.len() > 1);
        let others = !prompts && self.fed.iter().chain(&self.prefilling).any(goes_on);
        if !gather::is_due(self.due.iter().map(|&index| &rows[index]), others, self.boundary_wait) {
            self.due.clear();
        }
    }

    fn symbol_step(&mut self) {
        if self.fed.is_empty() {
            return;
        }
        gather::count_step(&mut self.rows);
        let outcome = guarded(|| self.model.symbol_step(&mut self.rows, &self.fed, &mut self.scratch));
        for &index in &self.fed {
            self.jobs[index].in_flight = true;
            self.jobs[index].watch.symbol_step();
        }
        if let Err(error) = outcome {
            lose(error, &mut self.jobs, &self.fed);
            self.scratch = self.model.scratch();
        }
    }

    fn segment_step(&mut self) {
        if self.due.is_empty() {
            return;
        }
        let began = Instant::now();
        let outcome = guarded(|| self.model.segment_step(&mut self.rows, &self.due, &mut self.scratch));
        let took = began.elapsed();
        for &index in &self.due {
            self.jobs[index].watch.segment_step(took);
        }
        if let Err(error) = outcome {
            lose(error, &mut self.jobs, &self.due);
            self.scratch = self.model.scratch();
        }
    }

    fn finish_step(&mut self) {
        self.unfinished.clear();
        self.unfinished.extend(standing(Status::Unfinished, &self.jobs, &self.rows));
        if self.unfinished.is_empty() {
            return;
        }
        let outcome = guarded(|| self.model.finish_step(&mut self.rows, &self.unfinished, &mut self.scratch));
        if let Err(error) = outcome {
            lose(error, &mut self.jobs, &self.unfinished);
            self.scratch = self.model.scratch();
        }
    }

    /// Takes the outcome of every row that is ready.
    fn absorb(&mut self) {
        let now = Instant::now();
        for (job, row) in self.jobs.iter_mut().zip(&self.rows) {
            if !job.in_flight || job.verdict.is_some() || row.status != Status::Ready {
                continue;
            }
            job.in_flight = false;
            job.watch.waited(row.waited);
            let was_prefilling = job.session.is_prefilling();
            match guarded(|| job.session.absorb(row)) {
                Ok(Progress::Finished(reason)) => job.verdict = Some(Ok(reason)),
                Ok(Progress::Prefilling | Progress::Decoding) => {}
                Err(error) => job.verdict = Some(Err(error)),
            }
            self.tally.took(row, was_prefilling, self.model.card().pooled);
            let (answered, boundary) = (job.session.answered(), row.marks.last().is_some_and(|mark| mark.boundary));
            let news = job.watch.look(now, job.session.is_prefilling(), answered);
            match news.filter(|_| job.session.is_generating()) {
                None => {}
                Some(News::First(after)) => self.observer.first_char(after),
                Some(News::Further(gap)) => self.observer.gap(gap, boundary),
            }
            if job.session.has_told() {
                job.outlet.tell(job.session.take());
            }
        }
    }

    /// Counts the step that has run, if any row took part.
    fn count_step(&self) {
        let symbols: usize = self.fed.iter().map(|&index| self.rows[index].feed.len()).sum();
        if !self.fed.is_empty() {
            self.tally.steps.add(1);
            self.tally.symbol_rows.add(self.fed.len());
        }
        if !self.due.is_empty() {
            self.tally.segment_steps.add(1);
            self.tally.segment_rows.add(self.due.len());
        }
        if !(self.fed.is_empty() && self.due.is_empty()) {
            self.observer.step(self.fed.len(), symbols, self.due.len());
        }
    }

    fn next_turn(&mut self) -> u64 {
        self.turns += 1;
        self.turns
    }
}

/// The rows in flight that stand so, but for those whose job has ended.
fn standing(status: Status, jobs: &[Running], rows: &[Row]) -> impl Iterator<Item = usize> {
    let stands = move |(job, row): (&Running, &Row)| job.in_flight && job.verdict.is_none() && row.status == status;
    jobs.iter().zip(rows).enumerate().filter(move |&(_, pair)| stands(pair)).map(|(index, _)| index)
}

/// Ends the jobs whose rows took part in a failed step: those rows are lost. What the step wrote into the scratch is not to
/// be trusted either.
fn lose(error: Error, jobs: &mut [Running], lost: &[usize]) {
    tracing::error!(rows = lost.len(), %error, "a step failed");
    for &index in lost {
        let error = match &error {
            &Error::OutOfPages { needed, limit } => Error::OutOfPages { needed, limit },
            Error::Internal(message) => Error::Internal(message.clone()),
            other => Error::Internal(other.to_string()),
        };
        jobs[index].verdict = Some(Err(error));
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
