//! Who runs, who waits, who makes way, and what each step feeds. Pure: no tensors, no clock, no threads.
//!
//! - *Who waits* is let in by its tenant's turn ([`tenants`]) and its seniority ([`rank`]), when the rows that it may come to
//!   have are free and there is memory for what it needs at once: its symbols so far and a margin. It is always settled: whoever can run has a row
//!   already, so the jobs counted as waiting are those that really have to. Nobody overtakes the one whose turn it is.
//! - *What a step feeds* is [`layout`] by the rules of [`plan`].
//! - *Who makes way*: memory is not kept for what a job may come to need, so it can run out. Then the least senior yields,
//!   one whose reader is behind first, and is back at the front of its tenant's queue; nobody is let in until somebody has
//!   ended, so that the same memory is not given to and fro. The last one left never yields: it can always finish, since
//!   whoever could not fit alone was refused.
//! - *Whose deadline cannot be met* is what [`Scheduler::work_before`] and [`pace`](super::pace) are for.
//!
//! Whoever was let in holds a [`Slot`], by its number, until it ends or yields.

mod layout;
mod plan;
mod rank;
mod standing;
mod tenants;

#[cfg(test)]
mod storm;

pub(super) use plan::{Doing, Feed};
pub use rank::PRIORITIES;
use rank::Rank;
pub(super) use standing::{Standing, Work};
use std::{collections::VecDeque, sync::Arc};
pub(super) use tenants::Fate;
use tenants::{Tenants, Waiting};

/// Work that one priority level is worth: about a second of one busy core.
const AGE: u64 = 1 << 14;
/// Work that tenants do in turn.
const QUANTUM: u64 = 512;
/// What a symbol costs that is decoded, if one of a prompt costs 1: a prompt's symbols share the reading of the weights.
const DECODED: u64 = 4;
/// The part of the queue that a tenant alone leaves to others: one in so many.
const KEPT: usize = 8;

/// What there is to share, and by which rules.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    /// Rows that running jobs may have together.
    pub(super) rows: usize,
    /// Jobs that may wait.
    pub(super) queue: usize,
    /// Symbols that may wait.
    pub(super) queued_symbols: usize,
    /// Bytes that running jobs may hold together.
    pub(super) bytes: usize,
    /// Symbols of a step.
    pub(super) chunk: usize,
    /// Work that one priority level is worth.
    pub(super) age: u64,
    /// Work that tenants do in turn.
    pub(super) quantum: u64,
}

impl Rules {
    pub(super) fn new(rows: usize, (queue, queued_symbols): (usize, usize), bytes: usize, chunk: usize) -> Self {
        let (rows, chunk) = (rows.max(1), chunk.max(1));
        Self { rows, queue, queued_symbols, bytes, chunk, age: AGE, quantum: QUANTUM }
    }
}

/// What a job asks for.
#[derive(Debug, Clone)]
pub(super) struct Ask {
    /// On whose behalf.
    pub(super) tenant: Arc<str>,
    /// Given symbols.
    pub(super) symbols: usize,
    /// Of these, those that have to be fed before there is an answer.
    pub(super) unknown: usize,
    /// Bytes that it needs to begin.
    pub(super) bytes: usize,
    /// Rows that it may come to have.
    pub(super) rows: usize,
}

/// The right to run, until it is given back: with [`Scheduler::end`] or [`Scheduler::give_way`].
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Ticket(usize);

/// Why a job was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    /// As much waits as may.
    Full {
        /// What is counted.
        what: &'static str,
        /// How many may wait.
        limit: usize,
    },
    /// It needs more bytes, or more rows, than there are.
    NeverFits,
}

/// A job that holds a row.
#[derive(Debug)]
struct Slot {
    tenant: Arc<str>,
    rank: Rank,
    /// When it last had a slice of a step's budget.
    turn: u64,
    /// Rows that it may come to have.
    rows: usize,
    /// Symbols of steps that it was given for its document and has not used.
    credit: i64,
    /// Bytes that it holds, or was let in for.
    held: usize,
    /// Bytes that it will need soon.
    soon: usize,
    /// Symbols that it feeds at least before it can end.
    least: usize,
}

/// The scheduler of one model's rows, over jobs of any kind.
#[derive(Debug)]
pub(super) struct Scheduler<T> {
    rules: Rules,
    tenants: Tenants<T>,
    slots: Vec<Option<Slot>>,
    /// Numbers of slots that nobody holds.
    free: Vec<usize>,
    /// Jobs that may run and were not fetched yet.
    granted: VecDeque<(T, Ticket)>,
    running: usize,
    /// Rows of all slots.
    rows: usize,
    /// Bytes of all slots.
    bytes: usize,
    /// Bytes that were counted for more than one of them.
    shared: usize,
    /// Nobody is let in beside those who run: memory ran out, and nobody has ended since.
    closed: bool,
    /// Work done so far.
    clock: u64,
    /// Jobs that came so far.
    came: u64,
    /// Slices given so far.
    turns: u64,
    /// Symbols that documents were given together and have not used.
    account: i64,
    prompts: Vec<plan::Prompt>,
    blocks: Vec<plan::Blocks>,
}

impl<T> Scheduler<T> {
    pub(super) fn new(rules: Rules) -> Self {
        Self {
            rules,
            tenants: Tenants::new(rules.quantum),
            slots: Vec::new(),
            free: Vec::new(),
            granted: VecDeque::new(),
            running: 0,
            rows: 0,
            bytes: 0,
            shared: 0,
            closed: false,
            clock: 0,
            came: 0,
            turns: 0,
            account: 0,
            prompts: Vec::new(),
            blocks: Vec::new(),
        }
    }

    /// Takes a job.
    pub(super) fn submit(&mut self, job: T, ask: Ask, priority: i32) -> Result<(), Refused> {
        if ask.bytes > self.rules.bytes || ask.rows > self.rules.rows {
            return Err(Refused::NeverFits);
        }
        if !(self.tenants.next().is_none() && self.fits(ask.bytes, ask.rows)) {
            self.check_room(&ask)?;
        }
        let rank = Rank::new(self.clock, priority, self.rules.age, self.came);
        self.came += 1;
        self.tenants.add((true, rank), Waiting { job, ask, held: false });
        self.settle();
        Ok(())
    }

    /// The next job that may run.
    pub(super) fn fetch(&mut self) -> Option<(T, Ticket)> {
        self.granted.pop_front()
    }

    /// Takes back what a job that ran no longer needs, which has done so much since its row was last noted.
    pub(super) fn end(&mut self, ticket: Ticket, work: Work) {
        self.account(ticket.0, work);
        if let Some(slot) = self.release(&ticket) {
            self.tenants.leave(&slot.tenant);
        }
        self.closed = false;
        self.settle();
    }

    /// Takes back what a running job held, and puts the job to the front of its tenant's queue. It asks for the rest of
    /// what it needs; `paused`: its reader is behind, and it is held until a [`sweep`](Self::sweep) finds otherwise.
    /// Hands the job back if nobody holds such a ticket.
    pub(super) fn give_way(&mut self, ticket: Ticket, job: T, ask: Ask, paused: bool) -> Result<(), T> {
        let Some(slot) = self.release(&ticket) else { return Err(job) };
        self.tenants.add((false, slot.rank), Waiting { job, ask, held: paused });
        self.tenants.leave(&slot.tenant);
        // one that waits for its reader does not come back for the memory that it gave
        self.closed |= !paused;
        self.settle();
        Ok(())
    }

    /// Looks at every waiting job, and hands those that leave to `left`.
    pub(super) fn sweep(&mut self, look: impl FnMut(&mut T) -> Fate, left: impl FnMut(T)) {
        self.tenants.sweep(look, left);
        self.settle();
    }

    /// Notes how the running rows stand, and that they hold `distinct` bytes at most: what they share is theirs once.
    pub(super) fn note(&mut self, rows: &[Standing], distinct: usize) {
        let mut sum: usize = 0;
        for row in rows {
            self.account(row.slot, row.work);
            sum = sum.saturating_add(row.held);
            let Some(slot) = self.slots.get_mut(row.slot).and_then(Option::as_mut) else { continue };
            self.bytes = self.bytes - (slot.held + slot.soon) + (row.held + row.soon);
            (slot.held, slot.soon) = (row.held, row.soon);
            slot.least = match row.doing {
                Doing::Prefilling(left) => left,
                Doing::Encoding { blocks, block } => blocks.saturating_mul(block),
                _ => 1,
            };
        }
        self.shared = sum.saturating_sub(distinct);
        self.settle();
    }

    /// Counts what the holder of a slot has done.
    fn account(&mut self, slot: usize, Work { given, sampled, again }: Work) {
        let work = given as u64 + DECODED * sampled as u64;
        self.clock += work + again as u64;
        if let (1.., Some(Some(slot))) = (work, self.slots.get(slot)) {
            self.tenants.charge(&slot.tenant, work);
        }
    }

    /// Whether somebody waits for memory alone.
    pub(super) fn is_short_of_memory(&mut self) -> bool {
        let free = self.rules.rows.saturating_sub(self.rows);
        !self.closed && self.tenants.next().is_some_and(|ask| ask.rows <= free)
    }

    /// Which of the rows yields if there is not enough memory for all; none if it is the last.
    pub(super) fn yields(&self, rows: &[Standing]) -> Option<usize> {
        if rows.len() < 2 {
            return None;
        }
        self.least_senior(rows, |_| true)
    }

    /// Which of the rows makes way for somebody who waits, if one does in vain: one whose reader is behind.
    pub(super) fn makes_way(&mut self, rows: &[Standing]) -> Option<usize> {
        self.tenants.next()?;
        self.least_senior(rows, |doing| doing == Doing::Paused { yields: true })
    }

    /// Symbols that are surely fed before a new job is done, its own included: those that must end before it can have a row
    /// are at least the shortest of those before it.
    pub(super) fn work_before(&self, ask: &Ask, priority: i32) -> usize {
        let rank = Rank::new(self.clock, priority, self.rules.age, self.came);
        let waiting = self.tenants.before(&ask.tenant, (true, rank)).map(|ask| ask.unknown.max(1));
        let mut before: Vec<usize> = waiting.chain(self.slots.iter().flatten().map(|slot| slot.least)).collect();
        before.sort_unstable();
        let ended = (before.len() + 1).saturating_sub(self.rules.rows);
        before[..ended].iter().sum::<usize>().saturating_add(ask.unknown.max(1))
    }

    /// Removes everybody who was not fetched yet; whoever still ran is gone.
    pub(super) fn clear(&mut self) -> impl Iterator<Item = T> {
        self.slots.clear();
        self.free.clear();
        (self.running, self.rows, self.bytes, self.shared) = (0, 0, 0, 0);
        let granted = std::mem::take(&mut self.granted);
        granted.into_iter().map(|(job, _)| job).chain(self.tenants.end())
    }

    /// The jobs that wait.
    pub(super) fn jobs(&self) -> impl Iterator<Item = &T> {
        self.tenants.jobs()
    }

    /// How many wait.
    pub(super) fn waiting(&self) -> usize {
        self.tenants.waiting()
    }

    /// How many run, or may.
    pub(super) fn running(&self) -> usize {
        self.running
    }

    /// Whether one more job of the tenant may wait.
    fn check_room(&self, ask: &Ask) -> Result<(), Refused> {
        let Rules { queue, queued_symbols, .. } = self.rules;
        let full = |what, limit| Err(Refused::Full { what, limit });
        if self.tenants.waiting() >= queue {
            return full("requests", queue);
        }
        if self.tenants.symbols().saturating_add(ask.symbols) > queued_symbols {
            return full("prompt characters", queued_symbols);
        }
        let tenants = self.tenants.count_with(&ask.tenant);
        let share = |all: usize| (all - all / KEPT).div_ceil(tenants).max(1);
        let (requests, symbols) = self.tenants.waiting_of(&ask.tenant);
        if requests >= share(queue) {
            return full("requests of one tenant", share(queue));
        }
        if requests > 0 && symbols.saturating_add(ask.symbols) > share(queued_symbols) {
            return full("prompt characters of one tenant", share(queued_symbols));
        }
        Ok(())
    }

    fn fits(&self, bytes: usize, rows: usize) -> bool {
        let held = self.bytes.saturating_sub(self.shared);
        let memory = !self.closed && held.saturating_add(bytes) <= self.rules.bytes;
        self.rows.saturating_add(rows) <= self.rules.rows && (memory || self.running == 0)
    }

    /// Lets in who can be let in, in order.
    fn settle(&mut self) {
        while self.tenants.next().map(|ask| (ask.bytes, ask.rows)).is_some_and(|(bytes, rows)| self.fits(bytes, rows)) {
            let Some(((_, rank), Waiting { job, ask, .. })) = self.tenants.take() else { break };
            self.turns += 1;
            let Ask { tenant, unknown, bytes, rows, .. } = ask;
            let (turn, least, credit) = (self.turns, unknown.max(1), 0);
            let slot = Slot { tenant, rank, turn, rows, credit, held: bytes, soon: 0, least };
            let number = self.free.pop().unwrap_or_else(|| {
                self.slots.push(None);
                self.slots.len() - 1
            });
            self.slots[number] = Some(slot);
            self.running += 1;
            self.rows += rows;
            self.bytes += bytes;
            self.closed = false;
            self.granted.push_back((job, Ticket(number)));
        }
    }

    /// Empties a slot.
    fn release(&mut self, ticket: &Ticket) -> Option<Slot> {
        let slot = self.slots.get_mut(ticket.0).and_then(Option::take)?;
        self.free.push(ticket.0);
        self.running -= 1;
        self.rows -= slot.rows;
        self.bytes -= slot.held + slot.soon;
        // who shared with whom is not known: until the next look, nobody did
        self.shared = 0;
        Some(slot)
    }

    /// Of the rows that do so: the least senior, one whose reader is behind before all others.
    fn least_senior(&self, rows: &[Standing], does: impl Fn(Doing) -> bool) -> Option<usize> {
        let rank = |standing: &Standing| self.slots.get(standing.slot)?.as_ref().map(|slot| slot.rank);
        let candidates = rows.iter().enumerate().filter(|(_, row)| does(row.doing));
        let behind = |row: &Standing| matches!(row.doing, Doing::Paused { .. });
        candidates.max_by_key(|(_, row)| (behind(row), rank(row))).map(|(index, _)| index)
    }
}
