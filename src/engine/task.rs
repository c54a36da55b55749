//! A job from the moment it is taken to its end, whether it waits or runs.

use super::{
    cache::Key,
    handle::{DocumentEvent, Event},
    observer::Observer,
    outlet::Outlet,
    scheduler::{Ask, Doing, Fate, Standing, Ticket, Work},
    stopwatch::Stopwatch,
    summary::Summary,
};
use crate::{
    decode::{
        contract::{Model, SequenceRow},
        options::FinishReason,
        session::Session,
        usage::Usage,
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
/// For how long a reader, or a document's sender, may be behind before its row makes way for somebody who waits.
const PATIENCE: Duration = Duration::from_millis(100);

/// What a job is about.
pub(super) enum Life {
    /// A text, on one row.
    Text(Session),
    /// A document, which is encoded first; then on some rows.
    Document(Box<Summary>),
}

/// A job.
pub(super) struct Task {
    pub(super) life: Life,
    /// The places of its rows, in its own order.
    pub(super) seats: Vec<usize>,
    pub(super) outlet: Outlet,
    pub(super) deadline: Option<Instant>,
    pub(super) tenant: Arc<str>,
    /// Under what its states are cached.
    pub(super) key: Option<Key>,
    pub(super) watch: Stopwatch,
    /// Its right to a row, while it has one.
    pub(super) ticket: Option<Ticket>,
    /// Whether its rows were fed and the outcome not taken yet.
    pub(super) in_flight: bool,
    /// How it ended.
    pub(super) verdict: Option<Result<FinishReason>>,
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
    pub(super) fn new(life: Life, outlet: Outlet, arrived: Instant) -> Self {
        Self {
            life,
            seats: Vec::new(),
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
        let tenant = Arc::clone(&self.tenant);
        match &self.life {
            Life::Text(session) => {
                let symbols = session.text_symbols();
                let bytes = model.bytes_for(needed(session));
                let known = known.max(session.replay_position());
                Ask { tenant, symbols, unknown: symbols.saturating_sub(known), bytes, rows: 1 }
            }
            Life::Document(summary) => {
                let (most, now) = summary.symbols();
                let soon = (now + MARGIN).min(most);
                let bytes = model.document_encoder().map_or(usize::MAX, |reader| summary.bytes(model, reader, soon));
                let (symbols, rows) = (summary.most_tokens(), summary.most_rows());
                Ask { tenant, symbols, unknown: summary.tokens().saturating_sub(known), bytes, rows }
            }
        }
    }

    /// Looks, as it runs, whether it is over though no rule of its own says so.
    pub(super) fn settle(&mut self, now: Instant, stall: Duration, waker: &Waker) {
        self.silence = (!self.outlet.is_free(waker)).then(|| self.outlet.silence(now));
        let pulled = match &mut self.life {
            Life::Document(summary) => summary.pull(now),
            Life::Text(_) => Ok(()),
        };
        if let Some(error) = self.over(now, stall, "while decoding").or(pulled.err()) {
            self.abandon();
            self.verdict = Some(Err(error));
        }
    }

    /// The same while it waits.
    pub(super) fn look(&mut self, now: Instant, stall: Duration, waker: &Waker) -> Fate {
        // one that had to make way for the sake of others does not wait for its reader, nor for the rest of its document
        let reads = self.outlet.is_free(waker) && self.outlet.is_roomy();
        let waits = self.behind && !(reads && self.is_whole());
        self.behind = waits;
        self.silence = (waits && !reads).then(|| self.outlet.silence(now));
        let stage = if self.watch.has_begun() { "while decoding" } else { "in the queue" };
        match self.over(now, stall, stage) {
            Some(error) => {
                self.abandon();
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
        if let Life::Document(summary) = &self.life
            && let Some(error) = summary.failure()
        {
            return Some(error);
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

    /// How it stands before a step; none if it has no right to run.
    pub(super) fn stand(&mut self, rows: &[SequenceRow], model: &dyn Model, now: Instant) -> Option<Standing> {
        let work = self.worked();
        let doing = self.doing(rows, now);
        let ticket = self.ticket.as_ref()?;
        let bytes = match &self.life {
            Life::Text(session) => {
                let row = &rows[*self.seats.first()?];
                let soon = model.growth(&*row.state, needed(session).saturating_sub(row.state.len()));
                (row.state.bytes(), soon)
            }
            Life::Document(summary) => {
                let states = self.seats.iter().map(|&seat| &*rows[seat].state);
                let held = summary.held() + states.map(|state| state.bytes()).sum::<usize>();
                let (most, at) = summary.symbols();
                let all =
                    model.document_encoder().map_or(0, |reader| summary.bytes(model, reader, (at + MARGIN).min(most)));
                (held, all.saturating_sub(held))
            }
        };
        Some(Standing::new(ticket, doing, bytes, work))
    }

    fn doing(&self, rows: &[SequenceRow], now: Instant) -> Doing {
        let behind = |since: Duration| Doing::Paused { yields: since >= PATIENCE };
        match (&self.life, self.silence) {
            _ if self.in_flight => Doing::Busy,
            (_, Some(silence)) => behind(silence),
            (Life::Text(session), None) if session.is_prefilling() => {
                Doing::Prefilling(session.remaining_symbols().max(1))
            }
            (Life::Text(_), None) => Doing::Decoding(1),
            (Life::Document(summary), None) => match summary.idle() {
                Some(since) => behind(now.saturating_duration_since(since)),
                None if summary.is_encoding() => {
                    let (blocks, block) = summary.blocks();
                    Doing::Encoding { blocks, block }
                }
                None if summary.is_prefilling(self.lens(rows)) => {
                    Doing::Prefilling(summary.left(self.lens(rows)).max(1))
                }
                None => Doing::Decoding(self.seats.len()),
            },
        }
    }

    /// Symbols that each of its rows has been fed.
    fn lens(&self, rows: &[SequenceRow]) -> impl Iterator<Item = usize> {
        self.seats.iter().map(|&seat| rows[seat].state.len())
    }

    /// Whether what is fed next is a chunk, or a document is still to be encoded.
    pub(super) fn is_prefilling(&self, rows: &[SequenceRow]) -> bool {
        match &self.life {
            Life::Text(session) => session.is_prefilling(),
            Life::Document(summary) => summary.is_prefilling(self.lens(rows)),
        }
    }

    /// Whether all that it needs has come.
    fn is_whole(&self) -> bool {
        match &self.life {
            Life::Text(_) => true,
            Life::Document(summary) => summary.is_encoding() || summary.document().is_some() || summary.is_whole(),
        }
    }

    fn abandon(&mut self) {
        if let Life::Text(session) = &mut self.life {
            session.flush();
        }
    }

    /// What its rows have done since this was last asked.
    pub(super) fn worked(&mut self) -> Work {
        std::mem::take(&mut self.work)
    }

    /// Counts a feed whose outcome is about to be taken.
    pub(super) fn works(&mut self, symbols: usize) {
        let refeeds = match &self.life {
            Life::Text(session) => session.is_prefilling() && session.is_replaying(),
            Life::Document(summary) => summary.refeeds(),
        };
        let given = matches!(&self.life, Life::Text(session) if session.is_prefilling());
        let Work { given: chunks, sampled, again } = &mut self.work;
        let work = match (refeeds && !self.answers_for, given) {
            (true, _) => again,
            (false, true) => chunks,
            (false, false) => sampled,
        };
        *work += symbols;
    }

    /// Counts so many symbols of a document that were read.
    pub(super) fn reads(&mut self, symbols: usize) {
        let again = matches!(&self.life, Life::Document(summary) if summary.is_again()) && !self.answers_for;
        *(if again { &mut self.work.again } else { &mut self.work.given }) += symbols;
    }

    /// Takes its rows away: it will go on with others.
    pub(super) fn give_way(&mut self) {
        let mut idle = false;
        match &mut self.life {
            Life::Text(session) => session.rewind(),
            Life::Document(summary) => {
                idle = summary.idle().is_some();
                summary.rewind();
            }
        }
        self.in_flight = false;
        self.behind = self.silence.is_some() || idle;
        // if it is its own reader, or sender, that brings about what will be fed again, that counts as its work
        self.answers_for = self.behind;
    }

    /// Tells what it has to tell.
    pub(super) fn tell(&mut self) {
        let told = match &mut self.life {
            Life::Text(session) if session.has_output() => session.take_output(),
            Life::Document(summary) if summary.has_told() => summary.take(),
            _ => return,
        };
        self.outlet.tell(told);
    }

    /// Symbols of the answer so far.
    pub(super) fn answered(&self) -> usize {
        match &self.life {
            Life::Text(session) => session.output_symbols(),
            Life::Document(summary) => summary.answered(),
        }
    }

    /// Whether an answer is generated; if not, a text is scored.
    pub(super) fn is_generating(&self) -> bool {
        match &self.life {
            Life::Text(session) => session.is_generating(),
            Life::Document(_) => true,
        }
    }

    /// What was processed.
    pub(super) fn usage(&self) -> Usage {
        match &self.life {
            Life::Text(session) => session.usage(),
            Life::Document(summary) => summary.usage(),
        }
    }

    /// Whether it runs and has nothing to do until more of its document comes.
    pub(super) fn is_idle(&self) -> bool {
        matches!(&self.life, Life::Document(summary) if summary.idle().is_some())
    }

    /// Whether it waits for its reader.
    pub(super) fn is_behind(&self) -> bool {
        self.behind
    }

    /// Says good-bye to the reader.
    pub(super) fn end(mut self, now: Instant, observer: &dyn Observer) {
        self.tell();
        let (usage, timing) = (self.usage(), self.watch.timing(now));
        let verdict = self.verdict.unwrap_or(Err(Error::Cancelled));
        tracing::debug!(?verdict, ?usage, ?timing, "job ended");
        observer.finished(verdict.as_ref(), &usage, &timing);
        self.outlet.finish(verdict.map(|reason| match self.life {
            Life::Text(_) => Event::Finished { reason, usage, timing },
            Life::Document(summary) => {
                let (encoded, cached) = (summary.encoded(), summary.is_cached());
                let outcome = summary.outcome(reason, timing);
                if let Some(encoded) = encoded {
                    observer.summarized(&outcome, &encoded, cached);
                }
                Event::Document(DocumentEvent::Summarized(Box::new(outcome)))
            }
        }));
    }
}

/// Symbols for which a text's row needs memory soon.
fn needed(session: &Session) -> usize {
    session.sequence_symbols().saturating_add(MARGIN).min(session.max_symbols())
}
