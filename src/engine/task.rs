//! A job from the moment it is taken to its end, whether it waits or holds a row.

use super::{
    cache::Key,
    handle::Event,
    observer::Observer,
    outlet::Outlet,
    scheduler::{Ask, Doing, Fate, Standing, Ticket, Work},
    stopwatch::Stopwatch,
};
use crate::{
    decode::{
        contract::{Model, Row},
        options::Reason,
        session::Session,
    },
    error::{Error, Result},
};
use std::{
    sync::Arc,
    task::Waker,
    time::{Duration, Instant},
};

/// Symbols, beyond those that it has, that a job must have memory for when it gets a row.
const MARGIN: usize = 64;
/// For how long a reader may be behind before its row makes way for somebody who waits.
const PATIENCE: Duration = Duration::from_millis(100);

/// A job.
pub(super) struct Task {
    pub(super) session: Session,
    pub(super) outlet: Outlet,
    pub(super) deadline: Option<Instant>,
    pub(super) tenant: Arc<str>,
    /// Under what its states are cached.
    pub(super) key: Option<Key>,
    pub(super) watch: Stopwatch,
    /// Its right to a row, while it has one.
    pub(super) ticket: Option<Ticket>,
    /// Whether its row was fed and the outcome not taken yet.
    pub(super) in_flight: bool,
    /// How it ended.
    pub(super) verdict: Option<Result<Reason>>,
    /// For how long its reader has taken nothing though there was something; none if it keeps up.
    pub(super) silence: Option<Duration>,
    /// What its row has done since the scheduler was last told.
    work: Work,
    /// Whether it was its own doing that it had to make way the last time.
    answers_for: bool,
    /// Whether it had to make way because its reader was behind.
    behind: bool,
}

impl Task {
    pub(super) fn new(session: Session, outlet: Outlet, arrived: Instant) -> Self {
        Self {
            session,
            outlet,
            deadline: None,
            tenant: Arc::default(),
            key: None,
            watch: Stopwatch::new(arrived),
            ticket: None,
            in_flight: false,
            verdict: None,
            silence: None,
            work: Work::default(),
            answers_for: false,
            behind: false,
        }
    }

    /// What it asks for to begin, or to go on; so many of its symbols are known.
    pub(super) fn ask(&self, model: &dyn Model, known: usize) -> Ask {
        let symbols = self.session.text_symbols();
        let unknown = symbols.saturating_sub(known);
        let needed = self.needed();
        Ask { tenant: Arc::clone(&self.tenant), symbols, unknown, bytes: model.bytes_for(needed) }
    }

    /// Symbols for which its row needs memory soon.
    fn needed(&self) -> usize {
        self.session.sequence_symbols().saturating_add(MARGIN).min(self.session.most_symbols())
    }

    /// Looks, as it runs, whether it is over though no rule of its own says so.
    pub(super) fn settle(&mut self, now: Instant, stall: Duration, waker: &Waker) {
        self.silence = (!self.outlet.is_free(waker)).then(|| self.outlet.silence(now));
        if let Some(error) = self.over(now, stall, "while decoding") {
            self.session.abandon();
            self.verdict = Some(Err(error));
        }
    }

    /// The same while it waits.
    pub(super) fn look(&mut self, now: Instant, stall: Duration, waker: &Waker) -> Fate {
        // one that had to make way for the sake of others does not wait for its reader
        let waits = self.behind && !(self.outlet.is_free(waker) && self.outlet.is_roomy());
        self.behind = waits;
        self.silence = waits.then(|| self.outlet.silence(now));
        let stage = if self.watch.has_begun() { "while decoding" } else { "in the queue" };
        match self.over(now, stall, stage) {
            Some(error) => {
                self.session.abandon();
                self.verdict = Some(Err(error));
                Fate::Leaves
            }
            None if waits => Fate::Held,
            None => Fate::Waits,
        }
    }

    fn over(&self, now: Instant, stall: Duration, stage: &'static str) -> Option<Error> {
        if self.outlet.is_closed() {
            return Some(Error::Cancelled);
        }
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            return Some(Error::Deadline { stage });
        }
        self.silence.is_some_and(|silence| silence >= stall).then_some(Error::Stalled { limit: stall })
    }

    /// When it must be looked at again, if nothing happens before.
    pub(super) fn wakes(&self, now: Instant, stall: Duration) -> Option<Instant> {
        let stalls = self.silence.and_then(|silence| now.checked_add(stall.saturating_sub(silence)));
        self.deadline.into_iter().chain(stalls).min()
    }

    /// How it stands before a step; none if it holds no row.
    pub(super) fn stand(&mut self, row: &Row, model: &dyn Model) -> Option<Standing> {
        let work = self.worked();
        let ticket = self.ticket.as_ref()?;
        let doing = match self.silence {
            _ if self.in_flight => Doing::Busy,
            Some(silence) => Doing::Paused { yields: silence >= PATIENCE },
            None if self.session.is_prefilling() => Doing::Prefilling(self.session.ahead().max(1)),
            None => Doing::Decoding,
        };
        let soon = model.growth(&*row.state, self.needed().saturating_sub(row.state.len()));
        Some(Standing::new(ticket, doing, (row.state.bytes(), soon), work))
    }

    /// What its row has done since this was last asked.
    pub(super) fn worked(&mut self) -> Work {
        std::mem::take(&mut self.work)
    }

    /// Counts a feed whose outcome is about to be taken.
    pub(super) fn works(&mut self, symbols: usize) {
        let Work { given, sampled, again } = &mut self.work;
        let work = match self.session.is_prefilling() {
            true if self.session.is_refeeding() && !self.answers_for => again,
            true => given,
            false => sampled,
        };
        *work += symbols;
    }

    /// Takes its row away: it will go on with another one.
    pub(super) fn give_way(&mut self) {
        self.session.rewind();
        self.in_flight = false;
        self.behind = self.silence.is_some();
        // if it is its own reader that brings about what will be fed again, that counts as its work
        self.answers_for = self.behind;
    }

    /// Whether it waits for its reader.
    pub(super) fn is_behind(&self) -> bool {
        self.behind
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
