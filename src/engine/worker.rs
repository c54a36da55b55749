//! The worker: one thread that owns a model's rows.
//!
//! A round of the loop ends what is to be ended, takes in what can run, lets rows make way where they must, and steps all
//! rows together once. Without a row to step it sleeps until it is called, or until a deadline.

use super::{
    batch::Batch,
    desk::Common,
    handle::Phase,
    scheduler::Ticket,
    task::{Life, Task},
};
use crate::error::Error;
use std::{
    sync::Arc,
    task::Waker,
    time::{Duration, Instant},
};

/// How soon it is noticed, while no row can step, that the reader of a job went or came back that waits, or whose document is
/// still on its way.
const PATROL: Duration = Duration::from_millis(100);

/// The thread's own part.
struct Worker {
    common: Arc<Common>,
    batch: Batch,
    /// Wakes the worker when a reader that was behind has made room.
    waker: Waker,
    /// Jobs fetched from the desk, on their way to a row.
    arrivals: Vec<(Task, Ticket)>,
    /// Jobs that have ended, on their way out.
    ended: Vec<Task>,
}

/// Steps rows until nobody wants that any more.
pub(super) fn run(common: Arc<Common>) {
    let waker = Waker::from(Arc::clone(&common.signal));
    let batch = Batch::new(Arc::clone(&common));
    Worker { common, batch, waker, arrivals: Vec::new(), ended: Vec::new() }.run();
}

impl Worker {
    fn run(mut self) {
        tracing::debug!("worker started");
        loop {
            let now = Instant::now();
            self.common.heartbeat.beat(now);
            self.batch.settle(now, &self.waker);
            self.end_jobs(now);
            if !self.take_in(now) {
                break;
            }
            self.lay_out();
            if self.batch.step() {
                self.end_jobs(Instant::now());
            } else {
                self.common.heartbeat.rest();
                self.common.signal.wait(self.patience(now));
            }
        }
        let retry = self.common.desk().pace.retry();
        self.batch.end_all(|| Error::Draining { retry });
        self.end_jobs(Instant::now());
        tracing::debug!("worker ended");
    }

    /// Gives rows to the jobs that can run, those of readers who are behind if need be. Tells whether the worker is to go on.
    fn take_in(&mut self, now: Instant) -> bool {
        loop {
            if !self.fetch(now) {
                return false;
            }
            let makes_way = self.common.desk().scheduler.makes_way(self.batch.standings());
            match makes_way {
                Some(row) => self.give_way(row),
                None => return true,
            }
        }
    }

    /// Gives rows to the jobs that can run as things are. Tells whether the worker is to go on.
    fn fetch(&mut self, now: Instant) -> bool {
        let stall = self.common.limits.stall;
        loop {
            self.batch.stand();
            let mut desk = self.common.desk();
            if desk.phase >= Phase::Closed {
                return false;
            }
            if let Some((symbols, took)) = self.batch.latest_step() {
                desk.pace.step(symbols, took);
            }
            let (waker, ended) = (&self.waker, &mut self.ended);
            desk.scheduler.sweep(|task| task.look(now, stall, waker), |task| ended.push(task));
            // what only the cache refers to makes way for whoever waits for memory; counting it takes a while
            let short = desk.scheduler.is_short_of_memory();
            let spare = if short { self.common.store.spare() + self.common.shelf.spare() } else { 0 };
            let held = self.common.model.memory().in_use.saturating_sub(spare);
            desk.scheduler.note(self.batch.standings(), held);
            while let Some(arrival) = desk.scheduler.fetch() {
                self.arrivals.push(arrival);
            }
            drop(desk);
            let done = self.arrivals.is_empty();
            // Some came after `now`.
            let admitted = Instant::now();
            for (mut task, ticket) in self.arrivals.drain(..) {
                task.ticket = Some(ticket);
                self.ended.extend(self.batch.admit(task, admitted));
            }
            // Whom the model refuses makes room for the next.
            self.end_jobs(admitted);
            if done {
                return true;
            }
        }
    }

    /// Lays out a step that there is memory for: what is cached goes first, then rows make way.
    fn lay_out(&mut self) {
        loop {
            let mut desk = self.common.desk();
            let step = self.common.limits.step;
            let brief = if step.is_zero() { usize::MAX } else { desk.pace.within(step) };
            self.batch.lay_out(&mut desk.scheduler, brief);
            drop(desk);
            if self.batch.has_memory() {
                return;
            }
            let yields = self.common.desk().scheduler.yields(self.batch.standings());
            let Some(row) = yields else { return };
            self.give_way(row);
            self.batch.stand();
        }
    }

    /// Takes its rows away from the job at that place, which goes back to the queue.
    fn give_way(&mut self, row: usize) {
        let Some((mut task, rows)) = self.batch.remove(row) else { return };
        let Common { model, store, tally, .. } = &*self.common;
        tracing::debug!(rows = rows.len(), "a job makes way");
        if let (Life::Text(session), Some(row)) = (&task.life, rows.first()) {
            store.keep(task.key.as_ref(), session, &*row.state);
        }
        drop(rows);
        tally.preemptions.add(1);
        task.give_way();
        let (ask, behind) = (task.ask(&**model, 0), task.is_behind());
        if let Some(ticket) = task.ticket.take() {
            let back = self.common.desk().scheduler.give_way(ticket, task, ask, behind);
            if let Err(mut task) = back {
                task.verdict = Some(Err(Error::Internal("a row that nobody was given".into())));
                self.ended.push(task);
            }
            // whom that lets in is fetched before the worker sleeps
            self.common.signal.raise();
        }
    }

    /// Gives back what ended jobs held, then tells their readers: who hears that a job is over finds its place free.
    fn end_jobs(&mut self, now: Instant) {
        self.batch.collect(&mut self.ended);
        if self.ended.is_empty() {
            return;
        }
        let mut desk = self.common.desk();
        for task in &mut self.ended {
            if let Some(held) = task.watch.held(now) {
                desk.pace.record(held);
            }
            if let Some(ticket) = task.ticket.take() {
                desk.scheduler.end(ticket, task.worked());
            }
        }
        drop(desk);
        for task in self.ended.drain(..) {
            task.end(now, &*self.common.observer);
        }
    }

    /// How long to sleep: until somebody's deadline, and not long while somebody waits.
    fn patience(&self, now: Instant) -> Option<Duration> {
        let stall = self.common.limits.stall;
        let desk = self.common.desk();
        let tasks = self.batch.tasks().iter().chain(desk.scheduler.jobs());
        let soonest = tasks.filter_map(|task| task.wakes(now, stall)).min();
        let expires = self.common.shelf.expire(now);
        let soonest = soonest.into_iter().chain(expires).min();
        // the reader of a document that is still on its way may go, too, and nothing else would tell
        let idle = self.batch.tasks().iter().any(Task::is_idle);
        let patrol = (idle || desk.scheduler.waiting() > 0).then_some(PATROL);
        let left = soonest.map(|instant| instant.saturating_duration_since(now));
        left.into_iter().chain(patrol).min()
    }
}
